"""What a time is made of: the roll-ups' rows, and of the ledger no more than the hours that a day begins within."""

import random
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.calendar import Calendar, Days
from cost.dimensions import UsageFilters
from cost.ledger.rolled_up import Columns, rolled_up
from cost.ledger.store import LedgerStore
from cost.reports.scope import ReadScope
from cost.reports.usage import filtered, scoped
from cost.tables import COARSER_DAYS, ROLLUP_SUMS, rollup_day
from cost.times import DAY_US
from gateway.database import make_engine
from tests.cost.ledger.test_verify import MIDNIGHT_US, traffic
from tests.cost.reports.two_organisations import TEAM_A, WHOLE
from tests.sqlite import newest_sqlite

_TABLES = ("rollup_day", *(table.name for table in COARSER_DAYS), "rollup_hour", "ledger_entry")


@pytest.mark.parametrize(
    ("zone", "by_day", "parts"),
    [
        ("UTC", True, ["days"]),
        ("Europe/Berlin", False, ["days", "rollup_hour"]),
        ("Europe/Berlin", True, ["rollup_hour"]),
        ("Asia/Kolkata", False, ["days", "rollup_hour", "ledger_entry"]),
        ("Asia/Kolkata", True, ["rollup_hour", "ledger_entry"]),
    ],
)
@pytest.mark.parametrize(
    ("scope", "name", "days"),
    [
        (WHOLE, "target_id", "rollup_model_day"),
        (WHOLE, "team_id", "rollup_team_day"),
        (TEAM_A, "pool", "rollup_team_day"),
        (TEAM_A, "target_id", "rollup_team_model_day"),
        (TEAM_A, "key_id", "rollup_day"),
    ],
)
async def test_the_ledger_is_read_by_its_index_and_only_where_days_begin(
    tmp_path: Path, zone: str, *, by_day: bool, parts: list[str], scope: ReadScope, name: str, days: str
) -> None:
    """Of a year too; SQLite plans without statistics."""
    engine = make_engine(newest_sqlite(tmp_path / "books.sqlite"))
    span = Days(date(2026, 1, 1), date(2026, 12, 31), Calendar(zone))
    rows = rolled_up(
        engine,
        span.start_us,
        span.end_us,
        [name],
        partial(scoped, scope=scope),
        by_day=by_day,
        offsets=span.offsets,
    ).c
    query = select(rows[name], func.sum(rows.cost_nanousd)).group_by(rows[name])
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    async with engine.connect() as connection:
        told = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}")
        plan = [str(row[-1]) for row in told]
    await engine.dispose()
    read = [line for line in plan if "rollup_" in line or "ledger_entry" in line]
    found = {each for each in _TABLES if any(each in line for line in read)}
    assert found == {days if part == "days" else part for part in parts}
    assert all((line.startswith("SEARCH") and "start_us>" in line) or "at_us>? AND at_us<?" in line for line in read)


@pytest.mark.parametrize(
    ("names", "filters", "table"),
    [
        ([], UsageFilters(), "rollup_model_day"),
        (["target_id", "tier"], UsageFilters(provider=("vllm",)), "rollup_model_day"),
        (["team_id"], UsageFilters(origin=("caller",)), "rollup_team_day"),
        (["organisation_id"], UsageFilters(not_team=("team_b",)), "rollup_team_day"),
        (["team_id"], UsageFilters(not_model=("small",)), "rollup_team_model_day"),
        (["team_id"], UsageFilters(key=("k1",)), "rollup_day"),
        (["tag"], UsageFilters(), "rollup_day"),
        ([], UsageFilters(tag=("",)), "rollup_day"),
    ],
)
async def test_the_smallest_roll_up_answers_as_the_finest_does(
    engine: AsyncEngine, names: list[str], filters: UsageFilters, table: str
) -> None:
    """What is asked for and what it is filtered by decide together; the figures are the same from each."""
    await LedgerStore(engine).insert(traffic(300, random.Random(4)))

    def where(columns: Columns) -> list[ColumnElement[bool]]:
        return filtered(columns, filters)

    start_us, end_us = MIDNIGHT_US, MIDNIGHT_US + 4 * DAY_US
    fine = select(*(rollup_day.c[name] for name in names), *(func.sum(rollup_day.c[name]) for name in ROLLUP_SUMS))
    fine = fine.where(*where(dict(rollup_day.c))).group_by(*(rollup_day.c[name] for name in names))
    rows = rolled_up(engine, start_us, end_us, names, where).c
    made = select(*(rows[name] for name in names), *(func.sum(rows[name]) for name in ROLLUP_SUMS))
    made = made.group_by(*(rows[name] for name in names))
    assert table in str(made).replace(",", " ").split()
    async with engine.connect() as connection:
        expected = sorted(map(tuple, await connection.execute(fine)))
        assert sorted(map(tuple, await connection.execute(made))) == expected
