"""What a time is made of: the roll-ups' rows, and of the ledger no more than the hours that a day begins within."""

from datetime import date
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.dialects import sqlite

from cost.calendar import Calendar, Days
from cost.ledger.rolled_up import rolled_up
from cost.reports.scope import ReadScope
from cost.reports.usage import scoped
from gateway.database import make_engine
from tests.cost.reports.two_organisations import TEAM_A, WHOLE
from tests.sqlite import newest_sqlite


@pytest.mark.parametrize(
    ("zone", "by_day", "parts"),
    [
        ("UTC", True, ["rollup_day"]),
        ("Europe/Berlin", False, ["rollup_day", "rollup_hour"]),
        ("Europe/Berlin", True, ["rollup_hour"]),
        ("Asia/Kolkata", False, ["rollup_day", "rollup_hour", "ledger_entry"]),
        ("Asia/Kolkata", True, ["rollup_hour", "ledger_entry"]),
    ],
)
@pytest.mark.parametrize("scope", [WHOLE, TEAM_A])
async def test_the_ledger_is_read_by_its_index_and_only_where_days_begin(
    tmp_path: Path, zone: str, *, by_day: bool, parts: list[str], scope: ReadScope
) -> None:
    """Of a year too; SQLite plans without statistics."""
    engine = make_engine(newest_sqlite(tmp_path / "books.sqlite"))
    span = Days(date(2026, 1, 1), date(2026, 12, 31), Calendar(zone))
    rows = rolled_up(
        engine,
        span.start_us,
        span.end_us,
        ["target_id"],
        partial(scoped, scope=scope),
        by_day=by_day,
        offsets=span.offsets,
    ).c
    query = select(rows.target_id, func.sum(rows.cost_nanousd)).group_by(rows.target_id)
    compiled = query.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    async with engine.connect() as connection:
        told = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}")
        plan = [str(row[-1]) for row in told]
    await engine.dispose()
    read = [line for line in plan if "rollup_" in line or "ledger_entry" in line]
    assert {name for name in ("rollup_day", "rollup_hour", "ledger_entry") if any(name in line for line in read)} == {
        *parts
    }
    assert all((line.startswith("SEARCH") and "start_us>" in line) or "at_us>? AND at_us<?" in line for line in read)
