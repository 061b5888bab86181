"""The record of a conversation: its object and its items. Pure: each function returns a new record."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from proxy.errors import BadRequest, ConversationNotFound
from proxy.parse.wires.reading import an_object, encoded, objects
from proxy.parse.wires.responses.items import Item, chat_messages, in_full, with_ids
from proxy.parse.wires.responses.tools import NO_TOOLS

MOST_ADDED: Final = 20
"""The most items that one call may add."""
_READ_AS: Final = "input"
_MAX_ITEMS: Final = 10_000
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def new_conversation(conversation_id: str, created_at: int, metadata: Any, items: Sequence[Item]) -> bytes:
    """Return the record of a new conversation, whose items have ids. `created_at` is in seconds since 1970. Raises
    BadRequest.
    """
    told = {
        "id": conversation_id,
        "object": "conversation",
        "created_at": created_at,
        "metadata": checked_metadata(metadata),
    }
    return encoded({"conversation": told, "items": list(items)})


def told_of(record: bytes) -> dict[str, Any]:
    """Return the conversation as its caller sees it."""
    told: dict[str, Any] = _decode(record)["conversation"]
    return told


def items_in(record: bytes) -> list[Item]:
    items: list[Item] = _decode(record)["items"]
    return items


def given_items(value: Any, number: str) -> list[Item]:
    """Return the items that a caller adds, in full and each with an id that begins with `number`. Raises BadRequest."""
    items = objects(value, "items")
    if len(items) > MOST_ADDED:
        raise BadRequest(f"At most {MOST_ADDED} items can be added at a time.", param="items")
    # An item that no model could be given is refused now, not in the middle of the conversation.
    try:
        chat_messages(None, items, NO_TOOLS, signed=False, whole=False)
    except BadRequest as error:
        # They are read as a response's input, which its caller knows nothing of.
        if (place := error.param) is None or not place.startswith(_READ_AS):
            raise
        named = "items" + place.removeprefix(_READ_AS)
        raise BadRequest(error.message.replace(place, named), param=named, code=error.code) from error
    ids = [item["id"] for item in items if item.get("id") is not None]
    if not all(isinstance(each, str) for each in ids) or len(set(ids)) != len(ids):
        raise BadRequest("Each item's `id` must be a text of its own; leave it out to get one.", param="items")
    return [in_full(item) for item in with_ids(items, number)]


def with_turn(record: bytes, items: Sequence[Item]) -> bytes:
    """Return the record with those of `items` at its end that it does not have yet, so that a turn that is added
    twice is there once.
    """
    found = _decode(record)
    known = {item["id"] for item in found["items"]}
    found["items"] += [in_full(item) for item in items if item["id"] not in known]
    if len(found["items"]) > _MAX_ITEMS:
        raise BadRequest(f"A conversation has at most {_MAX_ITEMS} items; begin a new one.", code="conversation_full")
    return encoded(found)


def without_item(record: bytes, item_id: str) -> bytes:
    """Return the record without an item. Raises ConversationNotFound when there is none."""
    found = _decode(record)
    left = [item for item in found["items"] if item["id"] != item_id]
    if len(left) == len(found["items"]):
        raise no_such_item()
    found["items"] = left
    return encoded(found)


def with_metadata(record: bytes, metadata: Any) -> bytes:
    """Return the record with other metadata. Raises BadRequest."""
    found = _decode(record)
    found["conversation"]["metadata"] = checked_metadata(metadata)
    return encoded(found)


def checked_metadata(metadata: Any) -> Mapping[str, str]:
    """Return metadata within OpenAI's bounds. Raises BadRequest."""
    if metadata is None:
        return {}
    pairs = an_object(metadata, "metadata")
    if len(pairs) > _MAX_PAIRS or not all(
        len(name) <= _MAX_KEY and isinstance(value, str) and len(value) <= _MAX_VALUE for name, value in pairs.items()
    ):
        raise BadRequest(
            f"`metadata` has at most {_MAX_PAIRS} pairs of texts, of {_MAX_KEY} and {_MAX_VALUE} characters.",
            param="metadata",
        )
    return pairs


def no_such_item() -> ConversationNotFound:
    return ConversationNotFound("The conversation has no such item.", code="item_not_found")
