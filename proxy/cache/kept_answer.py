"""An answer as it is kept: its model's events as they came, before anything was done to them for a caller."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from cost.usage import Usage
from providers.wire import ChatRequest, Event, fields_of
from proxy.parse.wires.completions_of_chat import Said, completion_of
from settings.decoding import DECODE_ERRORS

_CLEAN: Final = frozenset({"stop", "tool_calls", "function_call"})
"""The ends of an answer that is whole."""
_BEGINS: Final = "message_start"
_encode: Final = msgspec.msgpack.Encoder().encode


class KeptAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer, with what it was told to have used."""

    made_us: int
    """When its model had given it, in microseconds since 1970."""
    target_id: str
    usage: Usage
    cost_nanousd: int
    """What it cost, so what each hit saves; 0 where that is not known."""
    dropped: tuple[str, ...] = ()
    """The caller's parameters that were left out for its target."""
    events: tuple[Event, ...]


_decode: Final = msgspec.msgpack.Decoder(KeptAnswer).decode


def written(kept: KeptAnswer) -> bytes:
    """Return the answer as bytes."""
    return _encode(kept)


def read(record: bytes) -> KeptAnswer | None:
    """Return what `written` wrote; None for anything else."""
    try:
        return _decode(record)
    except DECODE_ERRORS:
        return None


def size_of(events: Iterable[Event]) -> int:
    """Return about as many bytes as the events take."""
    return sum(len(event.payload) + len(event.native) + len(event.words) + _EVENT_BYTES for event in events)


_EVENT_BYTES: Final = 64


def is_clean(request: ChatRequest, events: Sequence[Event]) -> bool:
    """Return True for an answer that came to its own end and says something: none that was cut, filtered or refused."""
    if request.operation == "embeddings":
        return len(events) == 1 and events[0].finished and events[0].choices > 0
    ends: list[str] = []
    said = False
    for event in events:
        said = said or event.token
        if event.words or not event.choices:
            continue
        for choice in completion_of(event.payload).choices:
            if _declines(choice.delta) or _declines(choice.message):
                return False
            if choice.finish_reason is not None:
                ends.append(str(choice.finish_reason))
    return said and bool(ends) and _CLEAN.issuperset(ends)


def _declines(said: Said | None) -> bool:
    return said is not None and bool(said.declined)


def renewed(event: Event, number: str, created: int) -> Event:
    """Return the event as it is given again: under an id and a time of its own, and alone where it stood for several."""
    payload, native = event.payload, event.native
    fields: dict[str, Any] = dict(fields_of(payload))
    if "id" in fields or "created" in fields:
        own = {"id": f"chatcmpl-{number}", "created": created}
        payload = msgspec.json.encode({**fields, **{name: own[name] for name in own if name in fields}})
    if native and event.kind in {_BEGINS, "message"}:
        native = _with_id(native, f"msg_{number}")
    return msgspec.structs.replace(event, payload=payload, native=native, run=None)


def _with_id(native: bytes, name: str) -> bytes:
    """Return a message of Anthropic's, or the event that begins one, with this id."""
    fields: dict[str, Any] = dict(fields_of(native))
    if "message" in fields:
        fields["message"] = {**fields_of(bytes(fields["message"])), "id": name}
    elif "id" in fields:
        fields["id"] = name
    return msgspec.json.encode(fields)
