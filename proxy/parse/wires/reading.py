"""Reading of bodies in other shapes than chat's: decoded JSON, checked by its users. No I/O."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from proxy.errors import BadRequest
from proxy.parse.chat_request import OWN_FIELDS, PlainMessage, not_json
from proxy.parse.json_bounds import check_fields
from settings.decoding import DECODE_ERRORS

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_T = TypeVar("_T")
_encode: Final = msgspec.json.Encoder().encode
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_NAMES: Final = 16
_OWN_FIELDS: Final = frozenset(OWN_FIELDS)
_NOT_JSON: Final = "The request body is not valid JSON; send one JSON object."


def object_of(body: bytes) -> dict[str, Any]:
    """Return the body's fields. Raises BadRequest."""
    try:
        fields = _decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_NOT_JSON) from error
    except DECODE_ERRORS as error:
        raise not_json(body, error) from error
    check_fields(fields)
    return fields


def plain_fields(
    body: bytes, names: frozenset[str], decode: Callable[[bytes], _T]
) -> tuple[dict[str, msgspec.Raw], _T] | None:
    """Return the body's fields as they were written, and decoded, where it has none but `names`. None otherwise, and
    for an invalid body, whose error the field by field reading raises.
    """
    try:
        fields = _decode_raw(body)
        return (fields, decode(body)) if names.issuperset(fields) else None
    except DECODE_ERRORS:
        return None


def is_plain(messages: Sequence[PlainMessage]) -> bool:
    """Return True for messages, one or more, that are valid chat messages as they are: chat has no two assistant
    messages in a row.
    """
    before = ""
    for message in messages:
        role = message.role
        if role == before == "assistant":
            return False
        # The names of a chat's own calls are known to the decoder, and have no place in another dialect's message.
        if message.tool_calls or message.function_call or message.tool_call_id or message.audio:
            return False
        before = role
    return bool(messages)


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Return the fields as JSON. Raises BadRequest for half a letter in a text, which no upstream could read."""
    try:
        return msgspec.json.encode(fields)
    except (UnicodeEncodeError, RecursionError) as error:
        raise BadRequest(_NOT_JSON) from error


def raw(fields: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Return each field that is not null, as JSON. Raises BadRequest."""
    try:
        return {name: msgspec.Raw(_encode(value)) for name, value in fields.items() if value is not None}
    except (UnicodeEncodeError, RecursionError) as error:
        raise BadRequest(_NOT_JSON) from error


def own_fields_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gateway's own fields, which any wire may carry in its body."""
    return {name: fields[name] for name in fields.keys() & _OWN_FIELDS}


def said(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the fields of these names that are not null. Bodies have few fields, so they are walked and not the
    names.
    """
    return {name: value for name, value in fields.items() if name in names and value is not None}


def unread(fields: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """Return the names of fields that are not null and that this wire does not read, bounded for a header."""
    others = fields.keys() - known
    if not others:
        return ()
    names = (name for name in others if fields[name] is not None and _NAME.fullmatch(name))
    return tuple(sorted(names)[:_MAX_NAMES])


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, "a text")
    return value


def whole_number(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(where, "a whole number")
    return value


def objects(value: Any, where: str, *, or_text: bool = False) -> list[dict[str, Any]]:
    """Return the value as a list of JSON objects. Raises BadRequest; `where` is the field's path, where `or_text` a text
    may stand, too.
    """
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise wrong(where, "a text or a list of objects" if or_text else "a list of objects")
    return value


def an_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(where, "an object")
    return value


def wrong(where: str, what: str) -> BadRequest:
    return BadRequest(f"`{where}` must be {what}.", param=where)


def unsupported(where: str, said: str) -> BadRequest:
    """Return the error for a field that this gateway cannot pass on; `said` is the sentence that tells what to do."""
    return BadRequest(said, param=where, code="unsupported_parameter")
