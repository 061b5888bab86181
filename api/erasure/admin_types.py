"""Bodies of the erasures of /v1/admin."""

from typing import Annotated

import msgspec

from api.web.changing import REASON_CHARS

Reason = Annotated[str, msgspec.Meta(max_length=REASON_CHARS)]


class ErasePerson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is erased."""

    person: Annotated[str, msgspec.Meta(min_length=1, max_length=254)]
    """The id or mail address of an account, or an end user as callers name them."""
    dry_run: bool = True
    """Count alone."""
    reason: Reason = ""


class EraseContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which content of the team is erased."""

    before: str | None = None
    """A UTC day, such as 2026-04-30: what is from before it. All without."""
    dry_run: bool = True
    """Count alone."""
    reason: Reason = ""


class ErasureOut(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, or would be."""

    object: str = "erasure"
    dry_run: bool
    rows: dict[str, int]
    """By table."""
    left: dict[str, int]
    """What a batch under way still needs: cancel it, then erase again."""
    kept: dict[str, str]
    """What stays, and why."""
