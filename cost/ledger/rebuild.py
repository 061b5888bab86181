"""Rebuild of the roll-ups from the ledger, one day in one transaction. The ledger itself is never changed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import Table, delete, func, insert, literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cost.ledger.archived import refuse_archived
from cost.ledger.rollups import (
    LOCK_ORDER,
    MONTH_KEY,
    QUARTER_KEY,
    ROLLUP_KEY,
    SPEND_KEY,
    counted,
    end_user_month,
    key_of,
    ledger_groups,
    ledger_key,
    ledger_sums,
    month_sums,
    quarter_sums,
    spend_day,
    spend_quarter,
    spend_sums,
)
from cost.ledger.verify import next_day
from cost.tables import COARSER_DAYS, ROLLUP_SUMS, rollup_day, rollup_hour
from cost.times import DAY_US, HOUR_US, month_of, next_month

# Blocks other writers of roll-ups: one that wrote to the ledger already waits, and adds to the new sums.
_LOCK: Final = text(f"LOCK TABLE {', '.join(LOCK_ORDER)} IN SHARE ROW EXCLUSIVE MODE")
_REFUSED: Final = "the roll-ups cannot be made anew"
_LAST_US: Final = 250_000_000_000_000_000
"""A moment in the year 9892: what is asked for may have no end."""
_COLUMNS: Final = [*ROLLUP_KEY, *ROLLUP_SUMS]


async def rebuild(engine: AsyncEngine, from_us: int, to_us: int) -> int:
    """Rewrite the roll-ups of the UTC days that touch `from_us` up to `to_us`; return the number of days with data.

    Raises ArchivedTime before anything is changed where the ledger lacks what they were made of.
    """
    start_us, end_us, days = from_us - from_us % DAY_US, -(-to_us // DAY_US) * DAY_US, 0
    async with engine.connect() as connection:
        # A month's end users are summed up from all of it.
        await refuse_archived(connection, month_of(start_us), next_month(month_of(min(end_us, _LAST_US) - 1)), _REFUSED)
    months: set[int] = set()
    while True:
        async with engine.connect() as connection:
            day_us = await next_day(connection, start_us, end_us)
        if day_us is None:
            break
        async with _locked(engine) as connection:
            await refuse_archived(connection, day_us, day_us + DAY_US, _REFUSED)
            await _rebuild_day(connection, day_us)
        start_us, days = day_us + DAY_US, days + 1
        months.add(month_of(day_us))
    for month_us in sorted(months):
        async with _locked(engine) as connection:
            await refuse_archived(connection, month_us, next_month(month_us), _REFUSED)
            await connection.execute(delete(end_user_month).where(end_user_month.c.month_us == month_us))
            made = insert(end_user_month).from_select([*MONTH_KEY, "spent_nanousd"], month_sums(month_us))
            await connection.execute(made)
    return days


@asynccontextmanager
async def _locked(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            await connection.execute(_LOCK)
        yield connection


async def _rebuild_day(connection: AsyncConnection, day_us: int) -> None:
    for table in (rollup_hour, rollup_day, *COARSER_DAYS):
        within = (table.c.start_us >= day_us, table.c.start_us < day_us + DAY_US)
        await connection.execute(delete(table).where(*within))
    await connection.execute(delete(spend_day).where(spend_day.c.day_us == day_us))
    start = spend_quarter.c.start_us
    await connection.execute(delete(spend_quarter).where(start >= day_us, start < day_us + DAY_US))
    for hour_us in range(day_us, day_us + DAY_US, HOUR_US):
        sums = select(*ledger_key(hour_us), *ledger_sums()).where(counted(hour_us, hour_us + HOUR_US))
        await connection.execute(insert(rollup_hour).from_select(_COLUMNS, sums.group_by(*ledger_groups())))
    await connection.execute(insert(rollup_day).from_select(_COLUMNS, _summed(rollup_hour, ROLLUP_KEY, day_us)))
    for table in COARSER_DAYS:
        key = key_of(table)
        await connection.execute(insert(table).from_select([*key, *ROLLUP_SUMS], _summed(rollup_day, key, day_us)))
    for sums in spend_sums(day_us):
        await connection.execute(insert(spend_day).from_select([*SPEND_KEY, "spent_nanousd"], sums))
    for sums in quarter_sums(day_us):
        await connection.execute(insert(spend_quarter).from_select([*QUARTER_KEY, "spent_nanousd"], sums))


def _summed(finer: Table, key: Sequence[str], day_us: int) -> Any:
    """Return the day's sums of a finer roll-up, by this key."""
    rows = finer.c
    columns = [literal(day_us).label(name) if name == "start_us" else rows[name] for name in key]
    groups = [rows[name] for name in key if name != "start_us"]
    sums = select(*columns, *(func.sum(rows[name]) for name in ROLLUP_SUMS))
    return sums.where(rows.start_us >= day_us, rows.start_us < day_us + DAY_US).group_by(*groups)
