"""Answers on the chat wire: an upstream's payloads go through as the bytes they came in.

`model_used` is spliced in behind each one's first brace.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from cost.usage import Usage
from providers.wire import EMPTY_OBJECT, ChatRequest, Event, fields_of
from proxy.errors import ErrorReply
from proxy.parse.chat_request import parse_chat, parse_embeddings
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.vectors import encoded, encoding_of
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.own_fields import own_fields
from proxy.parse.wires.wire import EventWriter, IsModel, Served, Understood, Wire

_DONE: Final = b"data: [DONE]\n\n"
_END: Final = b"\n\n"


class ChatDialect:
    """A dialect that passes chat completions through."""

    keeps = False

    def __init__(self, request: ChatRequest) -> None:
        self._wants_usage = request.include_usage

    def whole(self, payload: bytes, served: Served) -> bytes:
        return _splice(msgspec.json.encode(own_fields(served, served.tally())), payload)

    def events(self, served: Served) -> EventWriter:
        return _EventWriter(served, wants_usage=self._wants_usage)

    def to_keep(self, payload: bytes | None, served: Served) -> None:
        """Return None: a chat's caller sends the whole conversation again."""


class _EmbeddingsDialect(ChatDialect):
    """A dialect that passes replies to embeddings through, with vectors in the encoding that was asked for."""

    def __init__(self, request: ChatRequest) -> None:
        super().__init__(request)
        self._encoding = encoding_of(request)

    def whole(self, payload: bytes, served: Served) -> bytes:
        return super().whole(payload if self._encoding is None else encoded(payload, self._encoding), served)


class _EventWriter:
    """A writer of events as SSE bytes. The usage chunk is held back, as the caller may not have asked for it."""

    def __init__(self, served: Served, *, wants_usage: bool) -> None:
        self._served = served
        self._wants_usage = wants_usage
        self._prefix = b'data: {"model_used":' + msgspec.json.encode(served.target_id) + b","
        self._usage_event: Event | None = None
        self._template: bytes | None = None

    def render(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            payload = event.payload
            if event.usage is not None:
                self._usage_event = event
                if not event.choices:
                    continue
                # Usage beside content was our wish; the caller gets it once, at the end, if it asked.
                payload = _without_usage(payload)
            if self._template is None:
                self._template = payload
            run = event.run
            if run is None:
                parts += (self._prefix, payload[1:], _END)
            else:
                before = self._prefix + run.before[1:]
                parts += (before, run.pieces.replace(b"\n", run.after + _END + before), run.after, _END)
        return b"".join(parts)

    def last_words(self) -> bytes:
        """Return the closing usage chunk for a caller that asked for one, with the cost, from estimates when the
        upstream sent none; then the end marker.
        """
        if not self._wants_usage:
            return _DONE
        tally = self._served.tally()
        fields = msgspec.json.encode(own_fields(self._served, tally))
        if self._usage_event is not None:
            payload = _without_choices(self._usage_event.payload)
        else:
            payload = _usage_chunk(self._template, tally.usage)
        return b"data: " + _splice(fields, payload) + b"\n\n" + _DONE

    def failed(self, told: ErrorReply) -> bytes:
        return error_event(told, self._served.request_id)


def _splice(fields: bytes, payload: bytes) -> bytes:
    """Insert our fields in front of an upstream object's own, which is a JSON object as an `Event` has it."""
    return fields[:-1] + (b"," if payload != EMPTY_OBJECT else b"") + payload[1:]


def _without_usage(payload: bytes) -> bytes:
    fields = fields_of(payload)
    fields.pop("usage", None)
    return msgspec.json.encode(fields)


def _without_choices(payload: bytes) -> bytes:
    fields = fields_of(payload)
    fields["choices"] = msgspec.Raw(b"[]")
    return msgspec.json.encode(fields)


def _usage_chunk(template: bytes | None, usage: Usage) -> bytes:
    """Return a usage chunk with our own estimated tokens in the form of the stream's other chunks."""
    fields = fields_of(template) if template else {}
    head = {name: fields[name] for name in ("id", "object", "created", "model") if name in fields}
    tokens = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    return msgspec.json.encode({**head, "choices": [], "usage": tokens})


def _read_chat(body: bytes, headers: RequestHeaders, _is_model: IsModel) -> Understood:
    request = parse_chat(body, headers)
    return Understood(request, ChatDialect(request))


def _read_embeddings(body: bytes, headers: RequestHeaders, _is_model: IsModel) -> Understood:
    request = parse_embeddings(body, headers)
    return Understood(request, _EmbeddingsDialect(request))


CHAT: Final = Wire(name="chat", path="/v1/chat/completions", read=_read_chat, error=as_told, error_event=error_event)
EMBEDDINGS: Final = Wire(
    name="embeddings",
    path="/v1/embeddings",
    operation="embeddings",
    read=_read_embeddings,
    error=as_told,
    error_event=error_event,
)
