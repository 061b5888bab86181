"""A month of books with one day of ten million ledger rows: a team's month report from roll-ups beside a scan of the ledger.

python -m benchmarks.month_report [--rows 10000000] [--database sqlite|postgresql]

The rows are made in the database itself. Roll-ups are written by `weighbridge ledger rebuild`'s own code and checked by
`verify`'s, and the report is what `GET /v1/usage` reads; so each of them is timed too.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.ledger.rebuild import rebuild
from cost.ledger.rollups import counted, ledger_sums
from cost.ledger.rows import COLUMNS
from cost.ledger.verify import check
from cost.reports.scope import ReadScope
from cost.reports.usage import UsageQuery, UsageReader
from cost.tables import ROLLUP_SUMS, LedgerEntry
from cost.times import DAY_US, HOUR_US
from gateway.database import make_engine, migrate
from tests.postgres import postgres_binaries, running_postgres

DAYS: Final = 30
BIG_DAY: Final = 14
TEAMS, KEYS, MODELS = 10, 5, 4
_GROUPS: Final = TEAMS * KEYS * MODELS
MONTH_US: Final = 1_775_001_600_000_000  # 2026-04-01
_SCANS: Final = 3
_REPORTS: Final = 30

# One attempt `n` is a reserve and its settlement. Each value is whole numbers of `n` and of when it began.
_INPUT, _OUTPUT = "(200 + n % 1800)", "(50 + n % 450)"
_CLOSED: Final = "CASE kind WHEN 'settle' THEN {} ELSE {} END"
_VALUES: Final = {
    "request_id": "'req_' || (100000000000 + n)",
    "attempt": "1",
    "entry": "kind",
    "at_us": ":start_us + (n - :first) * :step_us + CASE kind WHEN 'settle' THEN 1 ELSE 0 END",
    "boot_id": "'0123456789abcdef'",
    "organisation_id": "'default'",
    "team_id": f"'team_' || (n % {TEAMS})",
    "key_id": f"'key_' || (n % {TEAMS}) || '_' || (n / {TEAMS} % {KEYS})",
    "tier": "'interactive'",
    "alias": "'auto'",
    "target_id": f"'model_' || (n / {TEAMS * KEYS} % {MODELS})",
    "deployment_id": f"'model_' || (n / {TEAMS * KEYS} % {MODELS}) || '/0'",
    "provider": "'vllm'",
    "price_version": "'2026-04-01'",
    "input_tokens": _INPUT,
    "output_tokens": _CLOSED.format(_OUTPUT, 0),
    "cost_nanousd": _CLOSED.format(f"{_INPUT} * 150 + {_OUTPUT} * 600", 5_000_000),
    "input_nanousd": _CLOSED.format(f"{_INPUT} * 150", 0),
    "output_nanousd": _CLOSED.format(f"{_OUTPUT} * 600", 0),
    "baseline_nanousd": _CLOSED.format(f"{_INPUT} * 2500 + {_OUTPUT} * 10000", "NULL"),
    "cheapest_nanousd": _CLOSED.format(f"{_INPUT} * 600 + {_OUTPUT} * 2400", "NULL"),
    "hosted_nanousd": _CLOSED.format(f"{_INPUT} * 200 + {_OUTPUT} * 800", "NULL"),
    "usage_source": _CLOSED.format("'upstream'", "'estimated'"),
    "flags": "'[]'",
    "status": _CLOSED.format(200, 0),
    "stream": "true",
    "complexity": "0.25",
    "reason": "'the cheapest capable target'",
    "ttft_us": _CLOSED.format(120_000, "NULL"),
    "duration_us": _CLOSED.format(900_000, "NULL"),
    "origin": "'caller'",
    "served": _CLOSED.format("true", "false"),
}


def _nothing(name: str) -> str:
    column = LedgerEntry.__table__.c[name]  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
    return "NULL" if column.nullable else "0" if column.type.python_type is int else "''"


_SERIES: Final = {
    "sqlite": "(WITH RECURSIVE up(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM up WHERE n + 1 < :first + :count) "
    "SELECT n FROM up)",
    "postgresql": "(SELECT * FROM generate_series(CAST(:first AS bigint), CAST(:first AS bigint) + :count - 1) n)",
}


def insert_attempts(dialect: str, others: Mapping[str, str] | None = None) -> str:
    """Return the statement that writes attempts. `others` has expressions of columns that are to differ."""
    chosen = {**_VALUES, **(others or {})}
    values = [chosen.get(name) or _nothing(name) for name in COLUMNS]
    return (
        f"INSERT INTO ledger_entry ({', '.join(COLUMNS)}) SELECT {', '.join(values)} FROM {_SERIES[dialect]} series "  # noqa: S608  Our own text alone.
        "CROSS JOIN (SELECT 'reserve' AS kind UNION ALL SELECT 'settle') kinds"
    )


async def fill(engine: AsyncEngine, rows: int, progress: Callable[[str], None]) -> int:
    """Fill in each team, key and model in each hour of the month, and one day with that many rows. Return the number of
    rows.
    """
    statement = text(insert_attempts(engine.dialect.name))
    number = written = 0
    for hour in range(DAYS * 24):
        count = rows // 48 if hour // 24 == BIG_DAY else _GROUPS
        bound = {"start_us": MONTH_US + hour * HOUR_US, "first": number, "count": count, "step_us": HOUR_US // count}
        async with engine.begin() as connection:
            await connection.execute(statement, bound)
        number += count
        written += 2 * count
        if hour % 120 == 119 or (hour // 24 == BIG_DAY and hour % 4 == 3):
            progress(f"{written:,} rows")
    return written


async def from_rollups(engine: AsyncEngine, *group_by: Any) -> dict[Any, tuple[int, ...]]:
    """Read one team's month as `GET /v1/usage` does."""
    scope = ReadScope(organisation_id="default", team_id="team_3")
    query = UsageQuery(scope=scope, start_us=MONTH_US, end_us=MONTH_US + DAYS * DAY_US, group_by=group_by, limit=10_000)
    page = await UsageReader(engine).page(query)
    return {row.group: tuple(getattr(row.sums, name) for name in ROLLUP_SUMS) for row in page.rows}


async def from_ledger(engine: AsyncEngine) -> dict[Any, tuple[int, ...]]:
    """Return the same sums by model, made of the entries themselves."""
    month = counted(MONTH_US, MONTH_US + DAYS * DAY_US)
    query = select(col(LedgerEntry.target_id), *ledger_sums()).where(month, col(LedgerEntry.team_id) == "team_3")
    async with engine.connect() as connection:
        rows = await connection.execute(query.group_by(col(LedgerEntry.target_id)))
        return {(row[0],): tuple(map(int, row[1:])) for row in rows}


async def least_s(times: int, work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    """Return the least time of several, and the answer."""
    least, answer = float("inf"), None
    for _ in range(times):
        begun = time.perf_counter()
        answer = await work()
        least = min(least, time.perf_counter() - begun)
    return least, answer


@contextlib.asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[tuple[AsyncEngine, str]]:
    """Make a database of its own with the newest schema, gone at the end; yields it and its address."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{folder}/books.sqlite"
        else:
            binaries = postgres_binaries()
            assert binaries is not None, "there is no PostgreSQL server on this machine"
            url = await stack.enter_context(running_postgres(binaries)).database()
        engine = make_engine(url)
        try:
            await migrate(engine)
            yield engine, url
        finally:
            await engine.dispose()


async def measure(kind: str, rows: int) -> None:
    """Fill, roll up, verify, and ask both ways."""
    began = time.perf_counter()

    def progress(what: str) -> None:
        print(f"{kind}: {time.perf_counter() - began:7.1f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="weighbridge-books-") as folder:
        async with database(kind, Path(folder)) as (engine, _):
            written = await fill(engine, rows, progress)
            if kind == "postgresql":
                async with engine.connect() as plain:
                    connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
                    await connection.execute(text("ANALYZE"))
            progress(f"{written:,} rows, {await size_mb(engine, kind, Path(folder)):,.0f} MB")
            spent, _ = await least_s(1, lambda: rebuild(engine, MONTH_US, MONTH_US + DAYS * DAY_US))
            progress(f"roll-ups written anew in {spent:.1f} s")
            spent, found = await least_s(1, lambda: check(engine, MONTH_US, MONTH_US + DAYS * DAY_US, now_us=0))
            progress(f"verified in {spent:.1f} s: {found.rows:,} entries, {found.differences} differences")
            await _report(engine, progress)


async def _report(engine: AsyncEngine, progress: Callable[[str], None]) -> None:
    scan_s, scanned = await least_s(_SCANS, lambda: from_ledger(engine))
    for group_by in (("model",), ("key", "model"), ("day", "model"), ("hour", "model")):
        report_s, told = await least_s(_REPORTS, lambda by=group_by: from_rollups(engine, *by))  # type: ignore[misc]
        if group_by == ("model",):
            assert told == scanned, "the two answers differ"
            progress(f"a scan of the ledger for a team's month: {scan_s * 1000:,.0f} ms (least of {_SCANS})")
            progress(f"the same answer from roll-ups: {report_s * 1000:.1f} ms, {scan_s / report_s:,.0f} times faster")
        else:
            progress(f"by {' and '.join(group_by)}: {len(told):,} rows in {report_s * 1000:.1f} ms")
    progress(f"least of {_REPORTS} reports; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


async def size_mb(engine: AsyncEngine, kind: str, folder: Path) -> float:
    """Return the size of the database on the disk."""
    if kind == "sqlite":
        return await asyncio.to_thread(lambda: sum(path.stat().st_size for path in folder.iterdir())) / 1e6
    async with engine.connect() as connection:
        return int(await connection.scalar(text("SELECT pg_database_size(current_database())")) or 0) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="ledger rows of the one big day")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="only this one")
    arguments = parser.parse_args()
    for kind in (arguments.database,) if arguments.database else ("sqlite", "postgresql"):
        asyncio.run(measure(kind, arguments.rows))


if __name__ == "__main__":
    main()
