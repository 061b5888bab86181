"""Bodies that continue from stored records: `previous_response_id`, `conversation`, and items that are referred to by
id. Pure.

A record is the result of `ResponsesDialect.to_keep`: the response, and its whole input. So one record holds a
conversation, and the next target, whichever it is, is sent all of it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from proxy.errors import BadRequest
from proxy.parse.wires.reading import an_object, encoded, object_of, text, wrong
from proxy.parse.wires.responses.items import Item, items_of
from settings.decoding import DECODE_ERRORS

_PREVIOUS: Final = "previous_response_id"
_REFERENCE: Final = "item_reference"
_CONVERSATION: Final = "conversation"
_OF_CONVERSATION: Final = "conv_"
_ITEM_ID: Final = re.compile(r"[a-z]{1,8}_(?P<number>[0-9a-f]{1,64})_i?\d{1,6}")
_MAX_REFERRED: Final = 64
"""The most responses whose items one request may refer to."""


class _Typed(msgspec.Struct):
    type: Any = None


class _Going(msgspec.Struct):
    """The fields of a body that tell whether it continues from a record, as most do not: no text is decoded for it."""

    input: str | list[_Typed]
    conversation: Any = None
    previous_response_id: Any = None

    def names_nothing(self) -> bool:
        if self.conversation is not None or self.previous_response_id is not None:
            return False
        if isinstance(self.input, str):
            return True
        for item in self.input:  # noqa: SIM110  # Most requests pass here.
            if item.type == _REFERENCE:
                return False
        return True


_decode_going: Final = msgspec.json.Decoder(_Going).decode


def names_in(body: bytes) -> tuple[str, ...]:
    """Return the ids of the conversation or the responses that a body continues from or refers to. Raises BadRequest."""
    try:
        if _decode_going(body).names_nothing():
            return ()
    except DECODE_ERRORS:
        # The reading field by field raises the right error for an invalid body.
        pass
    fields = object_of(body)
    conversation = conversation_of(fields)
    if conversation is not None:
        if fields.get(_PREVIOUS) is not None:
            raise BadRequest(
                f"Send `{_CONVERSATION}` or `{_PREVIOUS}`, not both: each has the earlier turns.", param=_PREVIOUS
            )
        # Items that are referred to are the conversation's own.
        return (conversation,)
    found = [] if fields.get(_PREVIOUS) is None else [text(fields[_PREVIOUS], _PREVIOUS)]
    if found and found[0].startswith(_OF_CONVERSATION):
        raise wrong(_PREVIOUS, f"the id of a response; that of a conversation is sent as `{_CONVERSATION}`")
    found += [_response_of(item, where) for where, item in _references(fields)]
    names = tuple(dict.fromkeys(found))
    if len(names) > _MAX_REFERRED:
        raise BadRequest(
            f"`input` refers to items of {len(names)} responses; at most {_MAX_REFERRED} are accepted.", param="input"
        )
    return names


def continued(body: bytes, records: Mapping[str, bytes]) -> bytes:
    """Return the body with all earlier items in its input. `records` has a record for each of `names_in`."""
    fields = object_of(body)
    found = {name: msgspec.json.decode(record, type=dict[str, Any]) for name, record in records.items()}
    earlier: list[Item] = []
    previous = conversation_of(fields) or fields.get(_PREVIOUS)
    if previous is not None:
        earlier = all_items(found[previous])
    referred = {item["id"]: item for record in found.values() for item in all_items(record) if "id" in item}
    fields["input"] = earlier + [
        _resolved(item, referred, f"input.{index}") for index, item in enumerate(items_of(fields.get("input") or []))
    ]
    return encoded(fields)


def conversation_of(fields: Mapping[str, Any]) -> str | None:
    """Return the id of the conversation that a body belongs to. Raises BadRequest."""
    given = fields.get(_CONVERSATION)
    if given is None:
        return None
    found = given if isinstance(given, str) else an_object(given, _CONVERSATION).get("id")
    if not isinstance(found, str) or not found.startswith(_OF_CONVERSATION):
        raise wrong(_CONVERSATION, "the id of a conversation, which POST /v1/conversations makes")
    return found


def all_items(record: Mapping[str, Any]) -> list[Item]:
    """Return a record's items: a conversation's, or a response's input and then its output."""
    items: list[Item] = record["items"]
    response = record.get("response")
    return items if response is None else items + response["output"]


def _references(fields: Mapping[str, Any]) -> Iterator[tuple[str, Item]]:
    given = fields.get("input")
    for index, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") == _REFERENCE:
            yield f"input.{index}", item


def _response_of(item: Item, where: str) -> str:
    found = _ITEM_ID.fullmatch(text(item.get("id"), f"{where}.id"))
    if found is None:
        raise _unknown(where)
    return f"resp_{found['number']}"


def _resolved(item: Item, referred: Mapping[str, Item], where: str) -> Item:
    if item.get("type") != _REFERENCE:
        return item
    try:
        return referred[item["id"]]
    except KeyError:
        raise _unknown(where) from None


def _unknown(where: str) -> BadRequest:
    return BadRequest(f"`{where}` refers to no item that is kept here: send the item itself.", param=where)
