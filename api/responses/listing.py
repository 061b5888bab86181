"""Pages of items: of a response's input, and of a conversation."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Query

from proxy.errors import BadRequest

DEFAULT_ITEMS: Final = 20
_MAX_ITEMS: Final = 100

Limit = Annotated[int, Query(ge=1, le=_MAX_ITEMS)]
Order = Literal["asc", "desc"]
After = Annotated[str, Query(description="The id of the item that the page follows.")]


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items, in OpenAI's shape."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


def page_of(items: Sequence[dict[str, Any]], limit: int, order: Order, after: str) -> ItemList:
    """Return the page behind the item `after`, or the first one. Raises BadRequest for an unknown item."""
    in_order = list(items) if order == "asc" else list(reversed(items))
    if after:
        in_order = in_order[_index_of(after, in_order) + 1 :]
    page = in_order[:limit]
    return whole_list(page, has_more=len(in_order) > limit)


def whole_list(items: list[dict[str, Any]], *, has_more: bool = False) -> ItemList:
    """Return these items as a list."""
    return ItemList(
        data=items,
        first_id=items[0]["id"] if items else None,
        last_id=items[-1]["id"] if items else None,
        has_more=has_more,
    )


def _index_of(after: str, items: Sequence[dict[str, Any]]) -> int:
    for index, item in enumerate(items):
        if item["id"] == after:
            return index
    raise BadRequest("`after` names none of these items.", param="after")
