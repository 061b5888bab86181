"""The conversation blocks of tools that Anthropic runs itself. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from providers.provider_tools import tool_name

_CALL: Final = "server_tool_use"
_RESULT: Final = "_tool_result"
_OF_BLOCKS: Final[Mapping[str, str]] = {
    "bash_code_execution": "code_execution",
    "container_upload": "code_execution",
    "mcp_tool_use": "mcp",
    "text_editor_code_execution": "code_execution",
}


def tool_of(block: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that wrote a block; None for all that chat knows."""
    kind = block.get("type")
    if not isinstance(kind, str):
        return None
    if kind == _CALL:
        name = str(block.get("name"))[:64]
    elif kind.endswith(_RESULT):
        name = kind.removesuffix(_RESULT)
    else:
        return _OF_BLOCKS.get(kind)
    return _OF_BLOCKS.get(name) or tool_name(name)
