"""The passage of messages as Anthropic wrote them, for requests with tools that it runs itself or knows by their
type.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from providers.provider_tools import AsWritten, tool_name
from providers.wire import Event
from proxy.errors import ErrorReply
from proxy.parse.chat_request import OWN_FIELDS, steers
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.as_written import event_as_written, fields_as_written, with_fields
from proxy.parse.wires.messages.conversation import is_foreign_thinking
from proxy.parse.wires.messages.errors import error_event
from proxy.parse.wires.own_fields import own_fields
from proxy.parse.wires.reading import wrong
from proxy.parse.wires.thoughts import MARK
from proxy.parse.wires.wire import EventWriter, Served

_OURS: Final = frozenset(OWN_FIELDS) - {"service_tier"} | {"model", "stream"}
_BESIDE: Final[Mapping[str, str]] = {"container": "code_execution", "mcp_servers": "mcp"}
"""Fields that only go with a tool."""
_VERSION: Final = "2023-06-01"
_MAX_HEADER: Final = 1_024
_LAST: Final = frozenset({"message_delta", "message_stop"})
_SEALED: Final = f'"{MARK}'.encode()
_SIGNATURE: Final = b'"signature"'
_UNSIGNED: Final = re.compile(_SIGNATURE + rb'\s*:\s*(?:""|null)')
_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def tools_asked(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the tools that only Anthropic has, by name and each with its place in the body. This includes those that
    a caller runs: they have no schema that others could be shown.
    """
    found: dict[str, str] = {}
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and is_typed(tool):
            found.setdefault(tool_name(str(tool["type"])[:64]), f"tools.{index}.type")
    for name, tool in _BESIDE.items():
        if fields.get(name):
            found.setdefault(tool, name)
    return found


def is_typed(tool: Mapping[str, Any]) -> bool:
    """Return True for a tool that is known by its type rather than by a schema."""
    return tool.get("type") not in (None, "custom")


def without_tools(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with those of its tools that chat can express, for classification and counting."""
    found = {name: value for name, value in fields.items() if name not in {"tool_choice", *_BESIDE}}
    tools = fields.get("tools")
    if isinstance(tools, list):
        found["tools"] = [tool for tool in tools if not (isinstance(tool, dict) and is_typed(tool))]
    return found


def in_own_words(body: bytes, headers: RequestHeaders) -> AsWritten:
    """Return the request for Anthropic of a body without such tools that was read before. Fields that may not pass
    are left out, as elsewhere.
    """
    told = [("anthropic-version", headers.anthropic_version or _VERSION)]
    if headers.anthropic_beta is not None:
        told.append(("anthropic-beta", headers.anthropic_beta))
    fields = _without_foreign_thinking(
        {name: value for name, value in _decode(body).items() if name not in _OURS and not steers(name)}
    )
    return AsWritten(
        dialect="messages", fields=fields, tools={}, headers=tuple(each for each in told if _is_printable(each[1]))
    )


def _is_printable(value: str) -> bool:
    return len(value) <= _MAX_HEADER and value.isascii() and value.isprintable()


def message_as_written(body: bytes, headers: RequestHeaders, tools: Mapping[str, str]) -> AsWritten:
    """Return the request for Anthropic. Raises BadRequest."""
    told = [("anthropic-version", headers.anthropic_version or _VERSION)]
    if headers.anthropic_beta is not None:
        told.append(("anthropic-beta", headers.anthropic_beta))
    for name, value in told:
        if not _is_printable(value):
            raise wrong(name, f"at most {_MAX_HEADER} printable characters")
    return AsWritten(
        dialect="messages",
        fields=_without_foreign_thinking(fields_as_written(body, _OURS)),
        tools=tools,
        headers=tuple(told),
    )


def _without_foreign_thinking(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the body without thinking that Anthropic did not sign, as it would refuse that: other targets' in this conversation."""
    raw = fields.get("messages")
    written = b"" if raw is None else bytes(raw)
    if _SEALED not in written and not (_SIGNATURE in written and _UNSIGNED.search(written)):
        return fields
    messages = []
    for message in msgspec.json.decode(written):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            kept = [block for block in content if not is_foreign_thinking(block)]
            if content and not kept:
                continue
            messages.append({**message, "content": kept})
        else:
            messages.append(message)
    return {**fields, "messages": msgspec.Raw(msgspec.json.encode(messages))}


class MessagesAsWritten:
    """A dialect that writes the upstream's answer as it came."""

    keeps = False

    def whole(self, payload: bytes, served: Served) -> bytes:
        return with_fields(payload, own_fields(served, served.tally()))

    def events(self, served: Served) -> EventWriter:
        return _EventWriter(served)

    def to_keep(self, payload: bytes | None, served: Served) -> None:
        """Return None: this wire's callers send the whole conversation again."""


class _EventWriter:
    """A writer of events as they came. The last ones wait until the answer is booked."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._last: list[Event] = []

    def render(self, events: Iterable[Event]) -> bytes:
        parts = []
        for event in events:
            if event.finished or event.kind in _LAST:
                self._last.append(event)
            else:
                parts.append(event_as_written(event.kind, event.native or event.payload))
        return b"".join(parts)

    def last_words(self) -> bytes:
        own = own_fields(self._served, self._served.tally())
        parts = []
        for event in self._last:
            payload = event.native or event.payload
            payload = with_fields(payload, own) if event.finished else payload
            parts.append(event_as_written(event.kind, payload))
        return b"".join(parts)

    def failed(self, told: ErrorReply) -> bytes:
        return error_event(told, self._served.request_id)
