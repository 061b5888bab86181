"""Rebuild of the roll-ups from the ledger, one day in one transaction. The ledger itself is never changed."""

from typing import Any, Final

from sqlalchemy import delete, func, insert, literal, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.dimensions import BUDGETED, DimensionRow
from cost.ledger.rollups import (
    QUARTER_KEY,
    ROLLUP_KEY,
    SPEND_KEY,
    SPENT_ORIGINS,
    counted,
    first_ids,
    ledger_groups,
    ledger_key,
    ledger_sums,
    spend_day,
    spend_quarter,
)
from cost.ledger.verify import next_day
from cost.tables import ROLLUP_SUMS, LedgerEntry, rollup_day, rollup_hour
from cost.times import DAY_US, HOUR_US, QUARTER_US

# Blocks other writers of roll-ups: one that wrote to the ledger already waits, and adds to the new sums.
_LOCK: Final = text("LOCK TABLE rollup_hour, rollup_day, spend_day, spend_quarter IN SHARE ROW EXCLUSIVE MODE")
_COLUMNS: Final = [*ROLLUP_KEY, *ROLLUP_SUMS]


async def rebuild(engine: AsyncEngine, from_us: int, to_us: int) -> int:
    """Rewrite the roll-ups of the UTC days that touch `from_us` up to `to_us`; return the number of days with data."""
    start_us, end_us, days = from_us - from_us % DAY_US, -(-to_us // DAY_US) * DAY_US, 0
    while True:
        async with engine.connect() as connection:
            day_us = await next_day(connection, start_us, end_us)
        if day_us is None:
            return days
        async with engine.begin() as connection:
            if engine.dialect.name == "sqlite":
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                await connection.execute(_LOCK)
            await _rebuild_day(connection, day_us)
        start_us, days = day_us + DAY_US, days + 1


async def _rebuild_day(connection: AsyncConnection, day_us: int) -> None:
    for table in (rollup_hour, rollup_day):
        within = (table.c.start_us >= day_us, table.c.start_us < day_us + DAY_US)
        await connection.execute(delete(table).where(*within))
    await connection.execute(delete(spend_day).where(spend_day.c.day_us == day_us))
    start = spend_quarter.c.start_us
    await connection.execute(delete(spend_quarter).where(start >= day_us, start < day_us + DAY_US))
    for hour_us in range(day_us, day_us + DAY_US, HOUR_US):
        sums = select(*ledger_key(hour_us), *ledger_sums()).where(counted(hour_us, hour_us + HOUR_US))
        await connection.execute(insert(rollup_hour).from_select(_COLUMNS, sums.group_by(*ledger_groups())))
    await connection.execute(insert(rollup_day).from_select(_COLUMNS, _day_of_hours(day_us)))
    for each in BUDGETED:
        await connection.execute(insert(spend_day).from_select([*SPEND_KEY, "spent_nanousd"], _spent(each, day_us)))
        quarters = _spent_by_quarter(each, day_us)
        await connection.execute(insert(spend_quarter).from_select([*QUARTER_KEY, "spent_nanousd"], quarters))


def _day_of_hours(day_us: int) -> Any:
    hours = rollup_hour.c
    key = [literal(day_us).label(name) if name == "start_us" else hours[name] for name in ROLLUP_KEY]
    groups = [hours[name] for name in ROLLUP_KEY if name != "start_us"]
    sums = select(*key, *(func.sum(hours[name]) for name in ROLLUP_SUMS))
    return sums.where(hours.start_us >= day_us, hours.start_us < day_us + DAY_US).group_by(*groups)


def _spent(dimension: DimensionRow, day_us: int) -> Any:
    days = rollup_day.c
    scope_id = _scope_id(dimension, days.organisation_id, days[dimension.column])
    sums = select(literal(dimension.name), scope_id, literal(day_us), func.sum(days.cost_nanousd))
    given = days[dimension.column] != ""
    return sums.where(days.start_us == day_us, days.origin.in_(SPENT_ORIGINS), given).group_by(scope_id)


def _spent_by_quarter(dimension: DimensionRow, day_us: int) -> Any:
    of_dimension, cost = getattr(LedgerEntry, dimension.column), func.coalesce(col(LedgerEntry.cost_nanousd), 0)
    scope_id = _scope_id(dimension, col(LedgerEntry.organisation_id), of_dimension)
    quarter = col(LedgerEntry.at_us) - col(LedgerEntry.at_us) % QUARTER_US
    sums = select(literal(dimension.name), scope_id, quarter, func.sum(cost))
    of_budgets = (counted(day_us, day_us + DAY_US), col(LedgerEntry.origin).in_(SPENT_ORIGINS), of_dimension != "")
    return sums.where(*of_budgets).group_by(scope_id, quarter)


def _scope_id(dimension: DimensionRow, organisation_id: Any, given: Any) -> Any:
    value = first_ids(given) if dimension.rotates else given
    return organisation_id + "/" + value if dimension.callers_own else value
