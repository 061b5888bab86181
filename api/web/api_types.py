"""Base types of the admin API's bodies and replies."""

from typing import Annotated, Generic, TypeVar

import msgspec

from api.web.changing import REASON_CHARS

_NAME_CHARS = 200

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_CHARS, description="A name for people.")]

Reason = Annotated[
    str, msgspec.Meta(max_length=REASON_CHARS, description="Why; it stands in the audit log beside the change.")
]

Item = TypeVar("Item")


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body. Unknown fields are refused, so that a misspelt one is not ignored."""


class Listed(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A complete list."""

    data: list[Item]
    object: str = "list"


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a deletion."""

    id: str
    object: str
    deleted: bool = True
