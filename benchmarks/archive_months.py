"""A month of ledger entries put into files, verified and restored: seconds, memory and sizes.

python -m benchmarks.archive_months [--rows 10000000] [--database postgresql|sqlite]

The rows are made in the database itself, evenly over the month, with random request ids, as they are served. Each step runs in
a process of its own by the code of `weighbridge ledger`, so its memory is its own. PostgreSQL syncs to the disk as by default.
Processor time, ours and the server's, is told beside the clock's, which says little on a machine that does other work.
"""

import argparse
import asyncio
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.month_report import DAYS, MONTH_US, database, insert_attempts, size_mb
from cost.ledger.archiving import Archiving
from cost.ledger.rebuild import rebuild
from cost.ledger.verify import check
from cost.tables import ClosedMonth
from cost.times import DAY_US, HOUR_US
from gateway.database import make_engine
from gateway.ledger_places import open_archive, open_codec, open_place

_END_US: Final = MONTH_US + DAYS * DAY_US
_NOW_US: Final = _END_US + 20 * DAY_US
_SYNCED: Final = ("fsync", "full_page_writes", "synchronous_commit")

# What an attempt of a router has: about as many bytes as ours, other ones in each row.
_CONSIDERED: Final = (
    "CASE kind WHEN 'reserve' THEN '[[\"model_0\",0.' || (n % 9973) || ',' || (n % 99991) || '],[\"model_1\",0.' || (n % 9967) "
    "|| ',' || (n % 99989) || '],[\"model_2\",0.' || (n % 9949) || ',' || (n % 99971) || ']]' ELSE '' END"
)
_REQUEST_ID: Final = {
    # Spread as random ones are, and each once: an odd factor permutes the numbers below 2^32.
    "sqlite": "printf('req_%08x%08x%08x', n * 2654435761 % 4294967296, n * 40503 % 4294967296, n)",
    "postgresql": "'req_' || substr(md5(n::text), 1, 24)",
}
Step = Callable[[AsyncEngine, str], Awaitable[str]]


async def fill(engine: AsyncEngine, rows: int) -> None:
    """Write that many rows, a reserve and a settlement an attempt, and their roll-ups; sign the month off."""
    kind = engine.dialect.name
    statement = text(insert_attempts(kind, {"request_id": _REQUEST_ID[kind], "considered": _CONSIDERED}))
    hours, done = DAYS * 24, 0
    for hour in range(hours):
        count = rows // 2 * (hour + 1) // hours - done
        if not count:
            continue
        bound = {"start_us": MONTH_US + hour * HOUR_US, "first": done, "count": count, "step_us": HOUR_US // count}
        async with engine.begin() as connection:
            await connection.execute(statement, bound)
        done += count
    await rebuild(engine, MONTH_US, _END_US)
    signed = {"start_us": MONTH_US, "end_us": _END_US, "closed_us": _NOW_US, "closed_by": "", "comment": ""}
    async with engine.begin() as connection:
        await connection.execute(
            insert(ClosedMonth).values(organisation_id="default", figures="{}", statement="", **signed)
        )
    if kind == "postgresql":
        await _alone(engine, "ANALYZE")


async def _alone(engine: AsyncEngine, statement: str) -> None:
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        await connection.exec_driver_sql(statement)


async def _archive(engine: AsyncEngine, folder: str) -> str:
    done = await Archiving(engine, open_place(folder), open_codec(), now_us=lambda: _NOW_US).archive(MONTH_US)
    return f"{done.rows:,} entries in {done.files:,} files of {done.bytes / 1e6:,.0f} MB"


async def _restore(engine: AsyncEngine, folder: str) -> str:
    done = await Archiving(engine, open_place(folder), open_codec(), now_us=lambda: _NOW_US).restore(MONTH_US)
    return f"{done.rows:,} entries"


async def _verify(engine: AsyncEngine, folder: str) -> str:
    found = await check(engine, MONTH_US, _END_US, now_us=_NOW_US, open_archive=open_archive if folder else None)
    return f"{found.rows:,} entries in the ledger, {found.archived:,} in files, {found.differences} differences"


async def _vacuum(engine: AsyncEngine, _: str) -> str:
    await _alone(engine, "VACUUM" if engine.dialect.name == "sqlite" else "VACUUM (ANALYZE) ledger_entry")
    return ""


async def _shrink(engine: AsyncEngine, _: str) -> str:
    if engine.dialect.name == "postgresql":
        await _alone(engine, "VACUUM FULL ledger_entry")
    return ""


class Ran(NamedTuple):
    """What a step came to."""

    told: str
    spent_s: float
    cpu_s: float
    most_mb: float


def _run(step: Step, url: str, folder: str, answers: "multiprocessing.Queue[Ran]") -> None:
    async def work() -> str:
        engine = make_engine(url)
        try:
            return await step(engine, folder)
        finally:
            await engine.dispose()

    begun, used = time.perf_counter(), time.process_time()
    told = asyncio.run(work())
    spent_s, cpu_s = time.perf_counter() - begun, time.process_time() - used
    answers.put(Ran(told, spent_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()


async def _server_cpu_s(engine: AsyncEngine) -> float:
    """Return the processor time of PostgreSQL's server and of all of its processes that ended, in seconds; 0 for SQLite."""
    if engine.dialect.name == "sqlite":
        return 0.0
    async with engine.connect() as connection:
        backend: int = await connection.scalar(text("SELECT pg_backend_pid()"))
    server = int(_stat(backend)[1])
    fields = _stat(server)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def measure(kind: str, rows: int) -> None:
    """Fill, and run each step."""
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="weighbridge-books-") as folder:
        async with database(kind, Path(folder)) as (engine, url):

            async def step(name: str, work: Step, place: str = str(Path(folder) / "kept")) -> None:
                answers: multiprocessing.Queue[Ran] = spawned.Queue()
                before_s = await _server_cpu_s(engine)
                child = spawned.Process(target=_run, args=(work, url, place, answers))
                child.start()
                ran = await asyncio.to_thread(answers.get)
                child.join()
                # Its connection's process ends a moment after it.
                await asyncio.sleep(1)
                server_s = await _server_cpu_s(engine) - before_s
                size = await size_mb(engine, kind, Path(folder))
                load = os.getloadavg()[0]
                print(
                    f"{kind}: {name}: {ran.spent_s:,.1f} s (processor {ran.cpu_s:,.1f} s, server {server_s:,.1f} s), "
                    f"{ran.most_mb:,.0f} MB of memory, database {size:,.0f} MB, load {load:.1f}  {ran.told}",
                    flush=True,
                )

            begun = time.perf_counter()
            await fill(engine, rows)
            size = await size_mb(engine, kind, Path(folder))
            print(f"{kind}: {rows:,} rows made in {time.perf_counter() - begun:,.1f} s, {size:,.0f} MB", flush=True)
            if kind == "postgresql":
                for name in _SYNCED:
                    await _alone(engine, f"ALTER SYSTEM SET {name} = on")
                await _alone(engine, "SELECT pg_reload_conf()")
            await step("verify", _verify)
            await step("archive", _archive)
            await step("verify by files", _verify)
            await step("verify by totals", _verify, "")
            await step("VACUUM", _vacuum)
            await step("restore", _restore)
            await step("archive again", _archive)
            await step("VACUUM FULL", _shrink)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="ledger rows of the month")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="postgresql")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    asyncio.run(measure(arguments.database, arguments.rows))


if __name__ == "__main__":
    main()
