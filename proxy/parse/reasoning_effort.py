"""The reasoning effort that a request asks for, in any dialect. Pure.

Sources, read on 2026-11-29: OpenAI `reasoning_effort` and `reasoning.effort`; OpenRouter `reasoning` with `effort`,
`max_tokens`, `enabled`; Anthropic `thinking` and `output_config.effort`; Qwen's and DeepSeek's templates in vLLM and
SGLang `chat_template_kwargs.enable_thinking` and `.thinking`.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import msgspec

from classifier.known_models import EFFORTS
from providers.claude.request import effort_of_budget
from settings.decoding import DECODE_ERRORS

CHAT_FIELDS: Final = frozenset(
    {"chat_template_kwargs", "enable_thinking", "output_config", "reasoning", "reasoning_effort", "thinking"}
)
"""The fields of a chat that may set an effort."""
_THINKS: Final = "medium"
"""The effort of a request for reasoning that names no effort."""
_ADAPTIVE: Final = "high"
"""The effort of Anthropic's adaptive thinking where none is named."""


def effort_of_raw(fields: Mapping[str, msgspec.Raw]) -> str:
    """Return the effort that a chat's fields ask for, as one of `EFFORTS`; empty where they ask for none. Unreadable
    fields are the upstream's to refuse.
    """
    if CHAT_FIELDS.isdisjoint(fields):
        return ""
    try:
        return effort_of({name: msgspec.json.decode(fields[name]) for name in CHAT_FIELDS & fields.keys()})
    except DECODE_ERRORS:
        return ""


def effort_of(fields: Mapping[str, Any]) -> str:
    """Return the effort that decoded fields of any dialect ask for, as one of `EFFORTS`; empty where they ask for
    none.
    """
    said = fields.get("reasoning_effort")
    if isinstance(said, str) and said in EFFORTS:
        return said
    return (
        _of_reasoning(_object(fields, "reasoning"))
        or _of_anthropic(_object(fields, "thinking"), _object(fields, "output_config"))
        or _of_template({**fields, **_object(fields, "chat_template_kwargs")})
    )


def _of_reasoning(reasoning: Mapping[str, Any]) -> str:
    effort, tokens = reasoning.get("effort"), reasoning.get("max_tokens")
    if isinstance(effort, str):
        return effort if effort in EFFORTS else ""
    if reasoning.get("enabled") is False:
        return "none"
    if _is_count(tokens):
        return effort_of_budget(tokens)
    return _THINKS if reasoning.get("enabled") is True else ""


def _of_anthropic(thinking: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    kind, tokens, effort = thinking.get("type"), thinking.get("budget_tokens"), output.get("effort")
    if kind == "disabled":
        return "none"
    if kind == "enabled" and _is_count(tokens):
        return effort_of_budget(tokens)
    if isinstance(effort, str) and effort in EFFORTS:
        return effort
    return _ADAPTIVE if kind == "adaptive" else ""


def _of_template(fields: Mapping[str, Any]) -> str:
    for name in ("enable_thinking", "thinking"):
        if isinstance(fields.get(name), bool):
            return _THINKS if fields[name] else "none"
    return ""


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
