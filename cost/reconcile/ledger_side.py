"""Ledger side of a reconciliation: roll-ups of one provider, and whether a posting exists already."""

import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any, Final

from msgspec import structs
from sqlalchemy import ColumnElement, Row, case, func, literal_column, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.dimensions import POSTED_COLUMNS
from cost.ledger.archived import refuse_archived
from cost.ledger.entries import BASELINE_COLUMNS, price_of
from cost.meters import METER_COLUMNS, METER_NAMES, METERS, TOKEN_COLUMNS, split_row
from cost.reconcile.matching import OurRow
from cost.reconcile.statement import COST_METERS, PARTS, TOKEN_METERS
from cost.tables import LedgerEntry, rollup_day
from cost.times import DAY_US

MAX_ROWS: Final = 2_000_000
_GROUP: Final = ("start_us", *POSTED_COLUMNS)
_OF_NO_PROVIDER: Final = ("true-up", "idle")
"""Origins on no provider's bill: the cost of our own GPUs beyond the planned rate."""


class TooManyRows(Exception):
    """The range has more groups than can be compared at once."""


# Any number will do, as long as every version of this program uses the same one.
_POSTING_LOCK: Final = 7_236_451_921


@contextlib.asynccontextmanager
async def posting_alone(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that excludes other reconcilers: two who read the same difference would post it twice."""
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _POSTING_LOCK})
        yield connection


async def booked(
    connection: AsyncConnection,
    *,
    first_day_us: int,
    last_day_us: int,
    providers: Collection[str],
    organisation_id: str | None,
) -> list[OurRow]:
    """Return the bookings of these providers on these days, by group; of all organisations for None.

    `providers` are compared without regard to case: they are names that an operator chose.
    """
    wanted: list[ColumnElement[bool]] = [
        rollup_day.c.start_us >= first_day_us,
        rollup_day.c.start_us < last_day_us + DAY_US,
        func.lower(rollup_day.c.provider).in_(sorted(name.lower() for name in providers)),
        rollup_day.c.origin.not_in(_OF_NO_PROVIDER),
    ]
    if organisation_id is not None:
        wanted.append(rollup_day.c.organisation_id == organisation_id)
    group = [rollup_day.c[name] for name in _GROUP]
    query = select(*group, *(func.sum(rollup_day.c[name]).label(name) for name in _SUMS))
    query = query.where(*wanted).group_by(*group).order_by(*group).limit(MAX_ROWS + 1)
    rows = [_our_row(row) for row in await connection.execute(query)]
    if len(rows) > MAX_ROWS:
        raise TooManyRows(f"more than {MAX_ROWS:,} groups in the books; give a shorter range")
    await refuse_archived(connection, first_day_us, last_day_us + DAY_US, "these days cannot be reconciled")
    own = await _own_baselines(connection, first_day_us, last_day_us, providers)
    return [structs.replace(row, own_baselines=own.get(_key_of(row), row.own_baselines)) for row in rows]


def _key_of(row: OurRow) -> tuple[Any, ...]:
    return (row.day_us, *(getattr(row, name) for name in POSTED_COLUMNS))


async def _own_baselines(
    connection: AsyncConnection, first_day_us: int, last_day_us: int, providers: Collection[str]
) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Return the sums of baselines that were computed at the price of the very target that answered, by day and group."""
    at_us, target = col(LedgerEntry.at_us), col(LedgerEntry.target_id)
    # Written out: PostgreSQL does not see that two bound parameters are the same expression to group by.
    day = (at_us - at_us % literal_column(str(DAY_US))).label("day_us")
    group = (day, *(getattr(LedgerEntry, name) for name in POSTED_COLUMNS))
    sums = [
        func.sum(case((_begins_with(price, target), getattr(LedgerEntry, name)), else_=0))
        for name, price in ((name, getattr(LedgerEntry, price_of(name))) for name in BASELINE_COLUMNS)
    ]
    query = select(*group, *sums).where(
        at_us >= first_day_us,
        at_us < last_day_us + DAY_US,
        func.lower(col(LedgerEntry.provider)).in_(sorted(name.lower() for name in providers)),
        col(LedgerEntry.entry) != "reserve",
    )
    rows = await connection.execute(query.group_by(*group))
    # PostgreSQL sums integers to Decimals.
    return {tuple(row[: len(group)]): tuple(int(each or 0) for each in row[len(group) :]) for row in rows}


def _begins_with(price: Any, target: Any) -> ColumnElement[bool]:
    found: ColumnElement[bool] = func.substr(price, 1, func.length(target) + 1) == target + "@"
    return found


async def is_posted(connection: AsyncConnection, posting: str) -> bool:
    """Return True if a posting of this id exists: it is written whole, so its first entry tells."""
    query = select(col(LedgerEntry.request_id)).where(col(LedgerEntry.request_id) == f"{posting}/1").limit(1)
    return (await connection.execute(query)).first() is not None


_SUMS: Final = ("attempts", "unpriced_attempts", *TOKEN_COLUMNS, "cost_nanousd", "disputed_nanousd", *METER_COLUMNS)


def _our_row(row: Row[Any]) -> OurRow:
    names = row._mapping  # noqa: SLF001 - SQLAlchemy's own public way to read a row by name
    # PostgreSQL sums integers to Decimals.
    sums = {name: int(names[name] or 0) for name in _SUMS}
    used = dict(zip(METER_NAMES, split_row(sums, sums["attempts"]), strict=True))
    spent = dict(zip(METER_NAMES, (sums[name] for name in METER_COLUMNS), strict=True))
    for each in (used, spent):
        for meter in reversed(METERS):
            if not meter.in_statements:
                each[meter.within] += each[meter.name]
    return OurRow(
        day_us=int(names["start_us"]),
        **{name: str(names[name]) for name in POSTED_COLUMNS},  # type: ignore[arg-type]  # Each is a string.
        tokens=tuple(used[name] for name in TOKEN_METERS),
        parts=tuple(sums[f"{name}_tokens"] for name in PARTS),
        attempts=sums["attempts"],
        unpriced_attempts=sums["unpriced_attempts"],
        cost_nanousd=sums["cost_nanousd"],
        disputed_nanousd=sums["disputed_nanousd"],
        meters=tuple(spent[name] for name in COST_METERS),
    )
