"""Bodies that go on from kept responses: `previous_response_id`, and items that are referred to by id. Pure.

A record is what `ResponsesDialect.to_keep` made: the response, and its whole input. So one record holds a conversation, and
whichever target comes next is sent all of it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from proxy.errors import BadRequest
from proxy.wires.reading import encoded, object_of, text
from proxy.wires.responses.items import Item, items_of

_PREVIOUS: Final = "previous_response_id"
_REFERENCE: Final = "item_reference"
_HINTS: Final = (_PREVIOUS.encode(), _REFERENCE.encode())
_ITEM_ID: Final = re.compile(r"[a-z]{1,8}_(?P<number>[0-9a-f]{1,64})_i?\d{1,6}")
_MAX_REFERRED: Final = 64
"""The most responses whose items one request may refer to."""


def names_in(body: bytes) -> tuple[str, ...]:
    """The ids of the responses that a body goes on from or refers to. Raises BadRequest."""
    if not any(hint in body for hint in _HINTS):
        return ()
    fields = object_of(body)
    found = [] if fields.get(_PREVIOUS) is None else [text(fields[_PREVIOUS], _PREVIOUS)]
    found += [_response_of(item, where) for where, item in _references(fields)]
    names = tuple(dict.fromkeys(found))
    if len(names) > _MAX_REFERRED:
        raise BadRequest(
            f"`input` refers to items of {len(names)} responses; at most {_MAX_REFERRED} are accepted.", param="input"
        )
    return names


def continued(body: bytes, records: Mapping[str, bytes]) -> bytes:
    """The body with all earlier items in its input. `records` has every response that was named."""
    fields = object_of(body)
    found = {name: msgspec.json.decode(record, type=dict[str, Any]) for name, record in records.items()}
    earlier: list[Item] = []
    previous = fields.get(_PREVIOUS)
    if previous is not None:
        earlier = all_items(found[previous])
    referred = {item["id"]: item for record in found.values() for item in all_items(record) if "id" in item}
    fields["input"] = earlier + [
        _resolved(item, referred, f"input.{index}") for index, item in enumerate(items_of(fields.get("input") or []))
    ]
    return encoded(fields)


def all_items(record: Mapping[str, Any]) -> list[Item]:
    """A record's input, and then its output."""
    items: list[Item] = record["items"]
    output: list[Item] = record["response"]["output"]
    return items + output


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
