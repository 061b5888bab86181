"""The bytes of a stream of numbered events, as they are stored and sent again. Pure."""

from typing import Any, Final

import msgspec

_END: Final = b"\n\n"
_DATA: Final = b"\ndata: "
_TERMINAL: Final = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def count_of(data: bytes) -> int:
    """Return the number of whole events: JSON has no line ends, so an empty line ends one."""
    return data.count(_END)


def beyond(data: bytes, first: int, after: int) -> bytes:
    """Return the events with a higher number than `after`; the first one's number is `first`."""
    if after < first:
        return data
    events = data.split(_END)[:-1][after + 1 - first :]
    return b"".join(event + _END for event in events)


def response_in(data: bytes) -> dict[str, Any] | None:
    """Return the response in the last of the events, if that is a response's last."""
    events = data.rsplit(_END, 2)
    last = events[-2] if len(events) > 1 else b""
    if not last.startswith(_TERMINAL):
        return None
    found: dict[str, Any] = _decode(last.partition(_DATA)[2])["response"]
    return found


def terminal(response: dict[str, Any], number: int) -> bytes:
    """Return the event that ends the stream of a response that is completed, incomplete or failed."""
    kind = f"response.{response['status']}"
    told = {"type": kind, "sequence_number": number, "response": response}
    return b"event: " + kind.encode() + _DATA + msgspec.json.encode(told) + _END
