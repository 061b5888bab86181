"""Functions shared by the wires that pass a request on as its caller wrote it. Pure."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from proxy.errors import BadRequest
from proxy.parse.chat_request import refuse_steering
from settings.decoding import DECODE_ERRORS

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def fields_as_written(body: bytes, without: Collection[str]) -> dict[str, msgspec.Raw]:
    """Return the fields of a body that was read before, each as it came, but those in `without`. Raises BadRequest."""
    try:
        # Fields that are passed on unread are not looked at by the decoder: no upstream gets broken text.
        body.decode()
        fields = _decode(body)
    except DECODE_ERRORS as error:
        raise BadRequest("The request body is not valid JSON; send one JSON object.") from error
    refuse_steering(fields)
    return {name: value for name, value in fields.items() if name not in without}


def event_as_written(kind: str, payload: bytes) -> bytes:
    """Return one server-sent event with an upstream's payload, which is on one line; empty when `kind` is not
    printable.
    """
    return b"event: " + kind.encode() + b"\ndata: " + payload + b"\n\n" if kind.isprintable() else b""


def with_fields(payload: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object with these fields in it as well; the rest of it stays as it came."""
    found: dict[str, Any] = {**_decode(payload), **fields}
    return msgspec.json.encode(found)
