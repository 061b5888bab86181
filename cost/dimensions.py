"""Dimensions: what usage is divided and filtered by, in one table, and all that follows from it.

    COLUMNS["model"]  ->  "target_id", in the ledger and in the roll-ups alike

A new dimension is a row here with its fields in `UsageFilters` and, where postings are divided by it, in `PostedGroup`; a column of
the ledger (`cost.tables.LedgerEntry`, `cost.ledger.entries.Entry`) with a migration; and whoever writes it into entries.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from cost.times import DAY_US, HOUR_US

Dimension = Literal[
    "organisation",
    "team",
    "key",
    "model",
    "provider",
    "tier",
    "tag",
    "price_version",
    "pool",
    "origin",
    "unit",
    "end_user",
    "day",
    "hour",
]
"""A dimension of `DIMENSIONS` or `TIMES`. A day or hour is given as its first microsecond since 1970."""


class DimensionRow(NamedTuple):
    """One dimension: its column, and where it is offered."""

    name: Dimension
    column: str
    """Column of the ledger and of the roll-ups."""
    width: int
    """Characters of that column."""
    label: str = ""
    """Heading on pages; empty for what usage is never grouped by."""
    field: str = ""
    """Field and filter of /v1/usage, in JSON, CSV and NDJSON; empty where it is not offered there."""
    searched_as: str = ""
    """Parameter of the page of requests; empty where requests are not searched by it."""
    example: str = ""
    """One of its values, for the API's documentation, where they are not the organisation's own names."""
    on_pages: bool = False
    """True if showback and exports are divided by it."""
    posted: bool = False
    """True if corrections, true-ups and reconciliations are divided by it."""
    rotates: bool = False
    """True if one value may replace another, whose spending it goes on with (`settings.key_ids`)."""
    rolled_up: bool = True
    """False for what has too many values for the roll-ups: it is read from the ledger, for fewer days at once."""
    later: bool = False
    """True if the roll-ups had rows before it, which have it empty."""

    @property
    def plural(self) -> str:
        """The label in the plural, within a sentence."""
        return f"{self.label.lower()}s"

    @property
    def nobody(self) -> str:
        """Name of the empty value on pages."""
        return f"No {self.label.lower()}"


DIMENSIONS: Final = (
    DimensionRow("organisation", "organisation_id", 64, posted=True),
    DimensionRow("team", "team_id", 64, "Team", "team_id", on_pages=True, posted=True),
    DimensionRow("key", "key_id", 64, "Key", "key_id", searched_as="key", on_pages=True, posted=True, rotates=True),
    DimensionRow("model", "target_id", 200, "Model", "model", searched_as="target", on_pages=True, posted=True),
    DimensionRow(
        "provider", "provider", 200, "Provider", "provider", searched_as="provider", on_pages=True, posted=True
    ),
    DimensionRow("tier", "tier", 32, "Tier", "tier", searched_as="tier", on_pages=True, posted=True),
    # A team has a bounded number of them: `proxy.parse.parsed_request.TagBounds`.
    DimensionRow(
        "tag",
        "tag",
        64,
        "Tag",
        "tag",
        searched_as="tag",
        on_pages=True,
        posted=True,
    ),
    DimensionRow("price_version", "price_version", 200, posted=True),
    DimensionRow("pool", "pool", 64, posted=True),
    DimensionRow("origin", "origin", 16, "Origin"),
    DimensionRow("unit", "unit", 64, "Unit", "unit", example="second", later=True),
    # A team may have a hundred thousand of them, and each would make a row of every hour, key and model.
    DimensionRow("end_user", "end_user", 64, "End user", "end_user", searched_as="end_user", rolled_up=False),
)
"""All dimensions but time, in the order of the roll-ups' columns."""

TIMES: Final[Mapping[Dimension, int]] = {"day": DAY_US, "hour": HOUR_US}
"""Dimensions of time, with their length in microseconds."""

BY_NAME: Final[Mapping[Dimension, DimensionRow]] = {each.name: each for each in DIMENSIONS}
COLUMNS: Final[Mapping[str, str]] = {each.name: each.column for each in DIMENSIONS}
ROLLED_UP: Final = tuple(each for each in DIMENSIONS if each.rolled_up)
GROUPINGS: Final = (*(each.name for each in DIMENSIONS if each.label), *TIMES)
"""Dimensions that usage may be grouped by."""
OFFERED: Final = tuple(each for each in DIMENSIONS if each.field)
"""Dimensions of /v1/usage, beside the times."""
ON_PAGES: Final[Mapping[Dimension, DimensionRow]] = {each.name: each for each in DIMENSIONS if each.on_pages}
REQUEST_FILTERS: Final[Mapping[str, str]] = {each.searched_as: each.column for each in DIMENSIONS if each.searched_as}
"""Columns that requests are searched by, by the parameter's name."""
POSTED_COLUMNS: Final = tuple(each.column for each in DIMENSIONS if each.posted)
"""Columns that postings are divided by, one field of `PostedGroup` each."""


class PostedGroup(msgspec.Struct, frozen=True, order=True):
    """Values of the dimensions that postings are divided by; empty is nobody's, or not divided by."""

    organisation_id: str = ""
    team_id: str = ""
    key_id: str = ""
    target_id: str = ""
    provider: str = ""
    tier: str = ""
    tag: str = ""
    price_version: str = ""
    pool: str = ""


class UsageFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Values to include, or with `not_` to exclude; an empty filter matches all."""

    team: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    provider: tuple[str, ...] = ()
    tier: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    unit: tuple[str, ...] = ()
    end_user: tuple[str, ...] = ()
    not_team: tuple[str, ...] = ()
    not_model: tuple[str, ...] = ()
    not_tier: tuple[str, ...] = ()
