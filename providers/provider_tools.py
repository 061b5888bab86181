"""Tools that a provider runs itself, and the dialects in which it can be asked for them.

Chat completions know none of them, so a request that has one goes, as its caller wrote it, to a target that speaks the
caller's own dialect.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

import msgspec

from providers.known_providers import provider_at, provider_named
from providers.target import ANTHROPIC, Deployment, Dialect

_DATE: Final = re.compile(r"_(?:\d{8}|\d{4}_\d{2}_\d{2})$")
_FAMILIES: Final[Mapping[str, str]] = {
    "computer": "computer_use",
    "mcp_toolset": "mcp",
    "tool_search_tool_bm25": "tool_search",
    "tool_search_tool_regex": "tool_search",
}
_OF_DIALECT: Final[Mapping[Dialect, frozenset[str]]] = {
    # Not file_search: it reads what lies in the account, which is that of all teams.
    "responses": frozenset(
        {"apply_patch", "code_interpreter", "computer_use", "image_generation", "local_shell", "mcp", "shell",
         "tool_search", "web_search"}
    ),
    "messages": frozenset(
        {"bash", "code_execution", "computer_use", "mcp", "memory", "text_editor", "tool_search", "web_fetch",
         "web_search"}
    ),
}  # fmt: skip
"""The tools that OpenAI and Anthropic have, at their own addresses."""


class AsWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the dialect of its caller, for targets that speak the same."""

    dialect: Dialect
    fields: Mapping[str, msgspec.Raw]
    """The body, without the fields that the gateway sets."""
    tools: Mapping[str, str]
    """The provider-run tools that the target must have, by name, and where each is asked for, such as `tools.0.type`."""
    for_reasoners: Mapping[str, msgspec.Raw] = MappingProxyType({})
    """Fields in place of those in `fields` for OpenAI's models that reason."""
    headers: tuple[tuple[str, str], ...] = ()
    """The caller's headers that belong to the dialect."""


def tool_name(kind: str) -> str:
    """Return the name of a provider-run tool by its type: `web_search_20250305` and `web_search_preview` are `web_search`."""
    plain = _DATE.sub("", kind)
    plain = plain.removesuffix("_preview")
    return _FAMILIES.get(plain, plain)


def dialect_of(deployment: Deployment) -> Dialect | None:
    """Return the dialect, beside chat, that a deployment is asked in; None for none."""
    if deployment.kind == "openai" or (deployment.kind == "azure" and not deployment.api_version):
        return "responses"
    if deployment.kind == "litellm" and deployment.upstream_model.startswith(ANTHROPIC):
        return "messages"
    return None


def common_dialect(deployments: Iterable[Deployment]) -> Dialect | None:
    """Return the dialect of all these deployments; None where they differ, or there are none."""
    found = {dialect_of(each) for each in deployments}
    return found.pop() if len(found) == 1 else None


def known_tools(deployments: Iterable[Deployment]) -> frozenset[str]:
    """Return the tools that a target with these deployments is known to have: at OpenAI, Azure and Anthropic themselves."""
    found: set[frozenset[str]] = set()
    for each in deployments:
        dialect, provider = dialect_of(each), provider_at(address_of_dialect(each))
        at_home = each.kind == "azure" or (provider is not None and provider.dialect == dialect)
        found.add(_OF_DIALECT[dialect] if at_home and dialect is not None else frozenset())
    return found.pop() if len(found) == 1 else frozenset()


def model_of_dialect(deployment: Deployment) -> str:
    """Return the model's name where it is asked in its own dialect."""
    return (
        deployment.upstream_model.removeprefix(ANTHROPIC) if deployment.kind == "litellm" else deployment.upstream_model
    )


def address_of_dialect(deployment: Deployment) -> str:
    """Return the address that the dialect's paths follow, with its version."""
    if deployment.kind != "litellm":
        return deployment.base_url
    base = (deployment.base_url or _anthropic_address()).rstrip("/").removesuffix("/messages")
    return base if base.endswith("/v1") else f"{base}/v1"


@cache
def _anthropic_address() -> str:
    known = provider_named("anthropic")
    return "" if known is None else known.base_url
