"""What the admin API's bodies share: each thing has one kind for what is asked for and one for what is told."""

from typing import Annotated, Generic, TypeVar

import msgspec

from dashboards.web.changing import REASON_CHARS

_NAME_CHARS = 200

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_CHARS, description="A name for people.")]

Reason = Annotated[
    str, msgspec.Meta(max_length=REASON_CHARS, description="Why; it stands in the audit log beside the change.")
]

Item = TypeVar("Item")


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body: what it does not know is refused, so that a misspelt field is not taken for a wish that was granted."""


class Listed(msgspec.Struct, Generic[Item], frozen=True, kw_only=True):
    """A whole list."""

    data: list[Item]
    object: str = "list"


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """It is gone."""

    id: str
    object: str
    deleted: bool = True
