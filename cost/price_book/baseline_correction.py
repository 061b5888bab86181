"""Correction of baselines: what was compared with a wrong price is compared with the right one.

An attempt's baselines are what its work would have cost elsewhere, at a price that it names (`target@version`). Where that price
is corrected, they move in the same ratio as the cost of the attempt's tokens does. So a target that is compared with itself saves
nothing before a correction and nothing after it.
"""

from collections.abc import AsyncIterator, Sequence
from operator import add, sub
from typing import Any, Final

from sqlalchemy import ColumnElement, func, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlmodel import col

from cost.dimensions import POSTED_COLUMNS, PostedGroup
from cost.errors import PriceRefused
from cost.ledger.entries import BASELINE_COLUMNS, Entry, adjustment, price_of
from cost.meters import TOKEN_COLUMNS, ZERO_METERS
from cost.prices import Price
from cost.tables import LedgerEntry
from cost.times import DAY_US
from cost.usage import Usage

Baselines = tuple[int, int, int]
"""Amounts in nano-dollars, in the order of `BASELINE_COLUMNS`."""

_AT_ONCE: Final = 2_000
_MOST_GROUPS: Final = 100_000
_PRICES: Final = tuple(map(price_of, BASELINE_COLUMNS))
_GROUP: Final = (*POSTED_COLUMNS, "unit")
_NOTHING: Final[Baselines] = (0, 0, 0)
_at_us: Final = col(LedgerEntry.at_us)
# Written out: PostgreSQL does not see that two bound parameters are the same expression to group by.
_day_us: Final = (_at_us - _at_us % literal_column(str(DAY_US))).label("day_us")
_dimensions: Final = (_day_us, *(getattr(LedgerEntry, name) for name in _GROUP))


class BaselineDifference(PostedGroup, frozen=True, kw_only=True):
    """Change of the baselines of one group on one day. The group's target is the one whose answers are compared."""

    day_us: int
    last_us: int
    """`at_us` of the group's last attempt; the posting is dated like it."""
    rows: int
    amounts: Baselines
    unit: str = ""


class _Group:
    __slots__ = ("change", "last_us", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.last_us = 0
        self.change: Baselines = _NOTHING


async def find_baseline_differences(
    connection: AsyncConnection, within: ColumnElement[bool], label: str, old: Price, new: Price
) -> tuple[BaselineDifference, ...]:
    """Return how the baselines `within` a time change that were computed at `old`, the price that `label` names.

    What was posted before for the same version counts as booked. Raises PriceRefused for too many groups.
    """
    groups: dict[tuple[Any, ...], _Group] = {}
    async for row in _stream_rows(connection, within, label):
        key = tuple(row[: len(_dimensions)])
        group = groups.get(key)
        if group is None:
            if len(groups) == _MOST_GROUPS:
                raise PriceRefused(f"this would be more than {_MOST_GROUPS:,} postings; give a shorter range")
            group = groups[key] = _Group()
        group.rows += 1
        group.last_us = max(group.last_us, row.at_us)
        group.change = _add(group.change, _change(row, label, old, new))
    posted = await _read_posted(connection, within, label)
    found = []
    for key in sorted(groups):
        group = groups[key]
        amounts = _subtract(group.change, posted.get(key, _NOTHING))
        if any(amounts):
            facts = dict(zip(("day_us", *_GROUP), key, strict=True))
            found.append(BaselineDifference(**facts, last_us=group.last_us, rows=group.rows, amounts=amounts))
    return tuple(found)


def baseline_posting(each: BaselineDifference, request_id: str, label: str) -> Entry:
    """Return the entry that posts the difference; `label` is the price that was wrong, as `target@version`."""
    return adjustment(
        request_id,
        at_us=each.last_us,
        origin="correction",
        meters_nanousd=ZERO_METERS,
        reason=_reason(label),
        **dict(zip(BASELINE_COLUMNS, each.amounts, strict=True)),
        **{name: getattr(each, name) for name in _GROUP},
    )


def _change(row: Any, label: str, old: Price, new: Price) -> Baselines:
    usage = Usage(**{name: getattr(row, name) for name in (*TOKEN_COLUMNS, "unit", "quantity_milli")})
    batch = row.tier == "batch"
    before, after = old.cost_nanousd(usage, batch=batch), new.cost_nanousd(usage, batch=batch)
    changes = [
        _scaled(amount, after, before) - amount if price == label and amount is not None else 0
        for amount, price in ((getattr(row, name), getattr(row, _PRICES[n])) for n, name in enumerate(BASELINE_COLUMNS))
    ]
    return changes[0], changes[1], changes[2]


def _scaled(amount: int, after: int, before: int) -> int:
    """Return the amount x after / before, rounded half up. What cost nothing before costs what it costs now."""
    return after if before in (0, amount) else (2 * amount * after + before) // (2 * before)


async def _stream_rows(connection: AsyncConnection, within: ColumnElement[bool], label: str) -> AsyncIterator[Any]:
    names = (*TOKEN_COLUMNS, "quantity_milli", *BASELINE_COLUMNS, *_PRICES, "at_us")
    query = select(*_dimensions, *(getattr(LedgerEntry, name) for name in names)).where(
        within,
        or_(*(getattr(LedgerEntry, name) == label for name in _PRICES)),
        col(LedgerEntry.entry) == "settle",
    )
    streamed = await connection.stream(query.execution_options(yield_per=_AT_ONCE))
    async for row in streamed:
        yield row


async def _read_posted(
    connection: AsyncConnection, within: ColumnElement[bool], label: str
) -> dict[tuple[Any, ...], Baselines]:
    sums = (func.coalesce(func.sum(getattr(LedgerEntry, name)), 0) for name in BASELINE_COLUMNS)
    query = (
        select(*_dimensions, *sums)
        .where(
            within,
            col(LedgerEntry.entry) == "adjust",
            col(LedgerEntry.origin) == "correction",
            col(LedgerEntry.reason) == _reason(label),
        )
        .group_by(*_dimensions)
    )
    rows = (await connection.execute(query)).all()
    return {tuple(row[: len(_dimensions)]): _whole(row[len(_dimensions) :]) for row in rows}


def _whole(amounts: Sequence[Any]) -> Baselines:
    # PostgreSQL sums integers to decimals.
    first, second, third = map(int, amounts)
    return first, second, third


def _reason(label: str) -> str:
    return f"corrects baselines at {label}"


def _add(first: Baselines, second: Baselines) -> Baselines:
    return _whole(list(map(add, first, second)))


def _subtract(first: Baselines, second: Baselines) -> Baselines:
    return _whole(list(map(sub, first, second)))
