"""Vectors of embeddings in the encoding that the caller asked for: some engines know only one of the two."""

import base64
import binascii
import re
import sys
from array import array
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from providers.wire import ChatRequest

Encoding = Literal["float", "base64"]

_FIRST: Final = re.compile(rb'"embedding"\s*:\s*(["\[])')
_BEGINS: Final[dict[Encoding, bytes]] = {"float": b"[", "base64": b'"'}
_UNSAID: Final = frozenset({b"", b"null"})
_BYTES: Final = 4
"""Bytes of one number in base64: floats of single precision, the lowest byte first."""


class _Reply(msgspec.Struct):
    data: list[dict[str, msgspec.Raw]]


_decode: Final = msgspec.json.Decoder(_Reply).decode
_numbers: Final = msgspec.json.Decoder(list[float]).decode
_text: Final = msgspec.json.Decoder(str).decode
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def encoding_of(request: ChatRequest) -> Encoding | None:
    """Return the encoding that was asked for, as OpenAI has it; None for one that only the model's host knows."""
    asked = bytes(request.fields.get("encoding_format", b""))
    if asked in _UNSAID or asked == b'"float"':
        return "float"
    return "base64" if asked == b'"base64"' else None


def encoded(payload: bytes, encoding: Encoding) -> bytes:
    """Return a reply to embeddings with its vectors in this encoding; those that are no vectors stay as they are."""
    first = _FIRST.search(payload)
    if first is None or first[1] == _BEGINS[encoding]:
        return payload
    convert = _to_base64 if encoding == "base64" else _to_floats
    try:
        reply: dict[str, Any] = dict(_fields(payload))
        reply["data"] = [_converted(each, convert) for each in _decode(payload).data]
    except msgspec.MsgspecError:
        return payload
    return msgspec.json.encode(reply)


def _converted(entry: dict[str, msgspec.Raw], convert: Callable[[msgspec.Raw], Any]) -> dict[str, Any]:
    try:
        return {**entry, "embedding": convert(entry["embedding"])}
    except (KeyError, ValueError, OverflowError, binascii.Error):
        return entry


def _to_base64(raw: msgspec.Raw) -> str:
    return base64.b64encode(_lowest_first(array("f", _numbers(raw))).tobytes()).decode()


def _to_floats(raw: msgspec.Raw) -> list[float]:
    data = base64.b64decode(_text(raw), validate=True)
    if len(data) % _BYTES:
        raise ValueError("a vector of broken numbers")
    return _lowest_first(array("f", data)).tolist()


def _lowest_first(numbers: "array[float]") -> "array[float]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
