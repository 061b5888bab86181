"""Reply types of GET /v1/usage."""

from decimal import Decimal
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from cost.dimensions import OFFERED, TIMES
from cost.tables import ROLLUP_SUMS

_NANOUSD = "_nanousd"
_MILLI = "_milli"


class DaySums(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, requests, cost and savings. An unknown cost is null."""

    requests: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_usd: Decimal | None
    baseline_usd: Decimal
    savings_usd: Decimal | None
    savings_share: Decimal | None
    estimated_requests: int
    unpriced_requests: int
    cache_hits: int
    """Requests that were given a kept answer; they are in none of the other figures."""
    cache_saved_usd: Decimal


class DayOfModel(DaySums, frozen=True, kw_only=True):
    """One target's part of a day."""

    model: str


class UsageDay(DaySums, frozen=True, kw_only=True):
    """One UTC day, by model."""

    team_id: str | None
    date: str
    models: list[DayOfModel]


UsageFigures = msgspec.defstruct(
    "UsageFigures",
    [
        (
            name.replace(_NANOUSD, "_usd").replace(_MILLI, ""),
            Decimal | None if name.endswith((_NANOUSD, _MILLI)) else int,
        )
        for name in (*ROLLUP_SUMS, f"savings{_NANOUSD}")
    ],
    kw_only=True,
    frozen=True,
    namespace={
        "__doc__": "Every figure of the books, in dollars where it is money. A cost that is unknown is null, and so is `quantity` where "
        "rows are not grouped by `unit`: seconds and images do not add up."
    },
)
UsageRowOut = msgspec.defstruct(
    "UsageRowOut",
    [(name, str | UnsetType, UNSET) for name in (*(each.field for each in OFFERED), *TIMES)],
    bases=(UsageFigures,),
    kw_only=True,
    frozen=True,
    namespace={"__doc__": "One row: the groups that were asked for, and their figures."},
)


class UsagePageOut(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a grouped range; `next_page` continues."""

    object: Literal["usage.page"]
    start: str
    end: str
    time_zone: str
    group_by: list[str]
    data: list[UsageRowOut]  # type: ignore[valid-type]
    totals: UsageFigures  # type: ignore[valid-type]
    has_more: bool
    next_page: str | None
