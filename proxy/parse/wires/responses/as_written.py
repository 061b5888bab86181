"""The passage of responses as their provider wrote them, for requests with tools that it runs itself.

The state is the gateway's here too: a response goes by an id of ours, and the provider is sent the whole conversation.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from providers.provider_tools import AsWritten
from providers.wire import Event
from proxy.errors import ErrorReply
from proxy.parse.chat_request import OWN_FIELDS
from proxy.parse.wires.as_written import event_as_written, fields_as_written
from proxy.parse.wires.completions_of_chat import sse, to_json
from proxy.parse.wires.own_fields import own_fields
from proxy.parse.wires.responses.dialect import ResponsesDialect
from proxy.parse.wires.responses.items import Item, chat_kind, is_ours, unsealed_summary
from proxy.parse.wires.wire import EventWriter, Kept, Served

_OURS: Final = (*OWN_FIELDS, "background", "conversation", "model", "previous_response_id", "store", "stream")
_ENDS: Final = frozenset({"response.completed", "response.incomplete"})
_TELLS_RESPONSE: Final = _ENDS | {"response.created", "response.in_progress", "response.queued"}
_REASONING: Final = "reasoning.encrypted_content"
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def response_as_written(
    body: bytes, fields: Mapping[str, Any], items: Sequence[Item], tools: Mapping[str, str]
) -> AsWritten:
    """Return the request for a provider. It keeps nothing, so reasoning comes sealed. Raises BadRequest."""
    told = fields_as_written(body, _OURS)
    told["store"] = msgspec.Raw(b"false")
    suited = [_for_provider(item) for item in items if not _unreadable(item)]
    if isinstance(fields.get("input"), list) and suited != items:
        told["input"] = msgspec.Raw(msgspec.json.encode(suited))
    given = fields.get("include")
    include = [*(given if isinstance(given, list) else ()), _REASONING]
    sealed = msgspec.Raw(msgspec.json.encode(list(dict.fromkeys(map(str, include)))))
    return AsWritten(dialect="responses", fields=told, tools=tools, for_reasoners={"include": sealed})


def _unreadable(item: Item) -> bool:
    """Return True for reasoning that its provider did not write, or did not seal."""
    if item.get("type") != "reasoning":
        return False
    sealed = item.get("encrypted_content")
    return not isinstance(sealed, str) or is_ours(sealed)


def _for_provider(item: Item) -> Item:
    """Return the item without an id, which the provider does not know; a summary of ours as a user's message."""
    kind = item.get("type") or "message"
    if kind == "compaction" and (summary := unsealed_summary(item)) is not None:
        return {"role": "user", "content": summary}
    if kind == "reasoning" or not chat_kind(kind) or "id" not in item:
        return item
    return {name: value for name, value in item.items() if name != "id"}


class ResponsesAsWritten(ResponsesDialect):
    """A dialect that writes the provider's response under an id of ours."""

    _events_written: "_EventWriter | None" = None

    def whole(self, payload: bytes, served: Served) -> bytes:
        return to_json(self._ours(_decode(payload), served, ended=True))

    def events(self, served: Served) -> EventWriter:
        self._events_written = _EventWriter(self, served, self._events)
        return self._events_written

    def to_keep(self, payload: bytes | None, served: Served) -> Kept:
        if payload is None:
            assert self._events_written is not None  # noqa: S101  # A stream was written.
            return self._kept(self._events_written.finished())
        return self._kept(self._ours(_decode(payload), served, ended=True))

    def _ours(self, response: Mapping[str, Any], served: Served, *, ended: bool) -> dict[str, Any]:
        """Return the provider's response as this gateway's."""
        ours = self.response(served, "in_progress", [])
        names = ("id", "background", "conversation", "previous_response_id", "store")
        own = own_fields(served, served.tally()) if ended else {"model_used": served.target_id}
        return {**ours, **response, **{name: ours[name] for name in names}, **own}

    def told(self, response: Any, served: Served, *, ended: bool) -> dict[str, Any]:
        """Return the response within an event."""
        return self._ours(response if isinstance(response, dict) else {}, served, ended=ended)


class _EventWriter:
    """A writer that passes most events as they came. The last one waits until the answer is booked."""

    def __init__(self, dialect: ResponsesAsWritten, served: Served, events: int) -> None:
        self._dialect = dialect
        self._served = served
        self._before = events
        self._number = events
        self._last: dict[str, Any] | None = None

    def render(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._written(event) for event in events])

    def last_words(self) -> bytes:
        if self._last is None:
            return b""
        return sse(str(self._last["type"]).encode(), {**self._last, "response": self.finished()})

    def failed(self, told: ErrorReply) -> bytes:
        """Return an `error` event, and the response as it failed."""
        error = {"type": "error", "code": told.code, "message": told.message, "param": told.param}
        response = self._dialect.response(
            self._served, "failed", [], error={"code": "server_error", "message": told.message}
        )
        failed = {"type": "response.failed", "sequence_number": self._number + 1, "response": response}
        return sse(b"error", {**error, "sequence_number": self._number}) + sse(b"response.failed", failed)

    def finished(self) -> dict[str, Any]:
        """Return the response at its end."""
        response = {} if self._last is None else self._last.get("response")
        return self._dialect.told(response, self._served, ended=True)

    def _written(self, event: Event) -> bytes:
        self._number += 1
        if event.kind not in _TELLS_RESPONSE and not self._before:
            return event_as_written(event.kind, event.payload)
        told = _decode(event.payload)
        if self._before and isinstance(told.get("sequence_number"), int):
            told["sequence_number"] += self._before
        if event.kind in _ENDS:
            self._last = told
            return b""
        if event.kind in _TELLS_RESPONSE:
            told["response"] = self._dialect.told(told.get("response"), self._served, ended=False)
        return event_as_written(event.kind, to_json(told))
