"""Whole replies of the metered operations, such as rerank, and what they tell of usage: tokens, or the provider's units."""

from decimal import Decimal
from typing import Any, Final

import msgspec

from providers.errors import MalformedReply
from providers.passed_stream import wire_usage
from providers.upstream_faults import error_in_reply
from providers.wire import DRAWS, Event, Operation, UsedUnits, WireUsage, on_one_line
from settings.decoding import DECODE_ERRORS

_MOST_MILLI: Final = 10**12
_MILLI: Final = 1_000


class _Reply(msgspec.Struct):
    """The part of a reply that is looked at; the rest stays raw. Types are checked later, as nobody vouches for them."""

    error: Any = None
    usage: Any = None
    meta: Any = None
    results: list[msgspec.Raw] | None = None
    data: list[msgspec.Raw] | None = None
    text: Any = None
    duration: Any = None


_decode: Final = msgspec.json.Decoder(_Reply).decode


def decode_metered(payload: bytes, operation: Operation, deployment_id: str, secret: str | None = None) -> Event:
    """Return a whole reply in JSON as one event; one without content has no choices.

    Raises MalformedReply, or the UpstreamError for an error object in it.
    """
    try:
        payload.decode()
        reply = _decode(payload)
    except DECODE_ERRORS as error:
        raise MalformedReply(f"The upstream's answer is none of {operation}.", deployment_id=deployment_id) from error
    if reply.error is not None:
        raise error_in_reply(reply.error, deployment_id, secret)
    content, units = _told(reply, operation)
    return Event(on_one_line(payload), False, int(content), 0, _tokens(reply), True, units=units)


def _told(reply: _Reply, operation: Operation) -> tuple[bool, UsedUnits | None]:
    """Return whether the reply has content, and the units that it tells of."""
    if operation == "moderations":
        return bool(reply.results), None
    if operation == "rerank":
        # Some hosts call the ranking `data`.
        billed = _inner(_inner(reply.meta, "billed_units"), "search_units")
        return reply.results is not None or reply.data is not None, _units("search", billed)
    if operation in DRAWS:
        return bool(reply.data), UsedUnits("image", len(reply.data or ()) * _MILLI)
    told = (_inner(reply.usage, name) for name in _SECONDS)
    seconds = next((each for each in told if each is not None), reply.duration)
    return isinstance(reply.text, str), _units("second", seconds)


_SECONDS: Final = ("seconds", "prompt_audio_seconds")
"""Names of a recording's length in the usage: OpenAI's and Mistral's."""


def _units(unit: str, amount: Any) -> UsedUnits | None:
    """Return the quantity of a unit, rounded up to a thousandth; None for a figure that cannot be true."""
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= _MOST_MILLI:
        return None
    return UsedUnits(unit, int(-(-Decimal(str(amount)) * _MILLI // 1)))


def _tokens(reply: _Reply) -> WireUsage | None:
    usage = reply.usage if isinstance(reply.usage, dict) else _inner(reply.meta, "tokens")
    if not isinstance(usage, dict):
        return None
    # Its length is read as such; it is no count of tokens.
    return wire_usage({name: told for name, told in usage.items() if name not in _SECONDS})


def _inner(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, dict) else None
