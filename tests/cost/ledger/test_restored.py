"""A database that is older than the journals' files say: restored from a backup, or a standby that was behind."""

import contextlib
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.drain import Drain
from cost.ledger.journal import Journal
from cost.ledger.journal_gaps import Gap, find_gaps, gaps_path
from cost.ledger.journal_places import JournalPlaces, read_places
from cost.ledger.ledger import Ledger
from cost.ledger.orphan_reaper import OrphanReaper
from cost.ledger.segments import boots, segments_of, waiting
from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from cost.tables import COARSER_DAYS
from gateway.database import make_engine
from tests.cost.entries import reserve, settle
from tests.sqlite import newest_sqlite

NEVER_S = 3600.0
NOW_US = reserve().at_us + 5_000_000
_TABLES = (
    "ledger_entry",
    "rollup_hour",
    "rollup_day",
    *(table.name for table in COARSER_DAYS),
    "spend_day",
    "spend_quarter",
    "journal_place",
    "boot",
)


def _drain(folder: Path, engine: AsyncEngine, clock: Callable[[], float] = lambda: NOW_US / 1_000_000) -> Drain:
    store = LedgerStore(engine)
    reaper = OrphanReaper(engine, store, host="here")
    return Drain(
        folder,
        store,
        clock=clock,
        interval_s=NEVER_S,
        recover_every_s=0.0,
        presence=reaper,
        places=JournalPlaces(engine),
    )


async def _book(ledger: Ledger, start: int, count: int) -> None:
    for number in range(start, start + count):
        name = f"req_{number}"
        await ledger.reserve(reserve(name, boot_id=ledger.boot_id))
        ledger.settle(settle(name, boot_id=ledger.boot_id, input_nanousd=600_000, output_nanousd=400_000))


async def _settled(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(text("SELECT count(*) FROM ledger_entry WHERE entry = 'settle'")) or 0)


@pytest.fixture
async def roll_back(engine: AsyncEngine) -> Callable[[bool], Awaitable[None]]:
    """Keeps the books' tables as they are (True), or puts back what was kept (False)."""
    there = [name for name in _TABLES if await _is_there(engine, name)]

    async def run(keep: bool) -> None:
        async with engine.begin() as connection:
            for name in there:
                if keep:
                    await connection.execute(text(f"CREATE TABLE kept_{name} AS SELECT * FROM {name}"))  # noqa: S608
                else:
                    await connection.execute(text(f"DELETE FROM {name}"))  # noqa: S608
                    await connection.execute(text(f"INSERT INTO {name} SELECT * FROM kept_{name}"))  # noqa: S608

    return run


async def _is_there(engine: AsyncEngine, name: str) -> bool:
    async with engine.connect() as connection:
        return bool(await connection.run_sync(lambda sync: sync.dialect.has_table(sync, name)))


async def test_what_a_dead_processs_journal_still_has_is_booked_after_a_restore(
    engine: AsyncEngine, tmp_path: Path, roll_back: Callable[[bool], Awaitable[None]]
) -> None:
    """Whatever its files say of the database that was there before; then nothing is missing."""
    ledger = Ledger(Journal(tmp_path), look_every_s=NEVER_S)
    await ledger.start()
    drain = _drain(tmp_path, engine)
    await drain.start()
    await _book(ledger, 0, 20)
    assert await drain.drain_now()
    await roll_back(True)
    await _book(ledger, 20, 7)
    assert await drain.drain_now()
    assert await _settled(engine) == 27
    # A kill of both.
    assert drain._loop is not None
    assert drain._lock is not None
    drain._loop.cancel()
    os.close(drain._lock)
    await ledger.aclose()
    await roll_back(False)
    assert await _settled(engine) == 20
    (waits,) = waiting(tmp_path, await read_places(engine))
    assert waits.entries == 14
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == []
    second = _drain(tmp_path, engine)
    await second.start()
    assert await _settled(engine) == 27
    assert boots(tmp_path) == []
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == []
    assert (await check(engine, 0, 2 * NOW_US, now_us=NOW_US)).differences == 0
    assert await read_places(engine) == {}
    await second.aclose()


async def test_a_restore_beneath_a_living_process_is_noticed(
    engine: AsyncEngine, tmp_path: Path, roll_back: Callable[[bool], Awaitable[None]]
) -> None:
    """With the next entry that is booked all that its files have is booked again, once."""
    ledger = Ledger(Journal(tmp_path), look_every_s=NEVER_S)
    await ledger.start()
    drain = _drain(tmp_path, engine)
    await drain.start()
    await roll_back(True)
    await _book(ledger, 0, 9)
    assert await drain.drain_now()
    await roll_back(False)
    assert await _settled(engine) == 0
    await _book(ledger, 9, 1)
    assert await drain.drain_now()
    assert await _settled(engine) == 10
    assert ledger.state().depth == 0
    assert (await check(engine, 0, 2 * NOW_US, now_us=NOW_US)).differences == 0
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == []
    await ledger.aclose()
    await drain.aclose()


async def test_a_standby_that_was_behind_gets_what_idle_and_dead_processes_told_the_primary(
    engine: AsyncEngine, tmp_path: Path, roll_back: Callable[[bool], Awaitable[None]]
) -> None:
    """One process writes no line after the failover, another one ended before its journal was done with."""
    idle, ended = (Ledger(Journal(tmp_path), look_every_s=NEVER_S) for _ in range(2))
    now_s = NOW_US / 1_000_000
    drain = _drain(tmp_path, engine, lambda: now_s)
    for ledger in (idle, ended):
        await ledger.start()
    await drain.start()
    await roll_back(True)
    await _book(idle, 0, 5)
    await _book(ended, 5, 5)
    assert await drain.drain_now()
    assert await _settled(engine) == 10
    await roll_back(False)
    await ended.aclose()
    assert await drain.drain_now()
    assert await _settled(engine) == 5
    now_s += 31
    assert await drain.drain_now()
    assert await _settled(engine) == 10
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == []
    assert (await check(engine, 0, 2 * NOW_US, now_us=NOW_US)).differences == 0
    await idle.aclose()
    await drain.aclose()


async def test_entries_whose_segments_are_deleted_are_missed(
    engine: AsyncEngine, tmp_path: Path, roll_back: Callable[[bool], Awaitable[None]]
) -> None:
    """Their number is told by looking, and kept in a file when the drain has passed them, until a person deletes it."""
    ledger = Ledger(Journal(tmp_path, segment_bytes=2_000), look_every_s=NEVER_S)
    await ledger.start()
    drain = _drain(tmp_path, engine)
    await drain.start()
    await _book(ledger, 0, 1)
    assert await drain.drain_now()
    await roll_back(True)
    await _book(ledger, 1, 30)
    assert await drain.drain_now()
    ledger.state()
    left = sum(path.read_bytes().count(b"\n") for path in segments_of(tmp_path, ledger.boot_id))
    assert left < 20
    await ledger.aclose()
    assert drain._loop is not None
    assert drain._lock is not None
    drain._loop.cancel()
    os.close(drain._lock)
    await roll_back(False)
    lost = 60 - left
    expected = [Gap(boot_id=ledger.boot_id, entries=lost, at_us=NOW_US)]
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == expected
    second = _drain(tmp_path, engine)
    await second.start()
    assert boots(tmp_path) == []
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == expected
    gaps_path(tmp_path).unlink()
    assert await find_gaps(engine, tmp_path, "here", now_us=NOW_US) == []
    await second.aclose()


async def test_a_journal_that_is_gone_is_missed(engine: AsyncEngine, tmp_path: Path) -> None:
    """The database waits for it, and its process is not seen any more; other hosts' journals are no business of this one."""
    ledger = Ledger(Journal(tmp_path), look_every_s=NEVER_S)
    await ledger.start()
    drain = _drain(tmp_path, engine)
    await drain.start()
    await _book(ledger, 0, 1)
    assert await drain.drain_now()
    late_us = 4_000_000_000_000_000
    assert await find_gaps(engine, tmp_path, "here", now_us=late_us) == []
    elsewhere = tmp_path / "elsewhere"
    (gap,) = await find_gaps(engine, elsewhere, "here", now_us=late_us)
    assert (gap.boot_id, gap.entries) == (ledger.boot_id, None)
    assert await find_gaps(engine, elsewhere, "there", now_us=late_us) == []
    await ledger.aclose()
    await drain.aclose()


async def test_a_copied_file_is_a_restore(tmp_path: Path) -> None:
    """As people do it who copy SQLite's file back while the gateway is stopped."""
    url = newest_sqlite(tmp_path / "books.sqlite")
    engine, folder = make_engine(url), tmp_path / "journal"
    ledger = Ledger(Journal(folder), look_every_s=NEVER_S)
    await ledger.start()
    drain = _drain(folder, engine)
    await drain.start()
    await _book(ledger, 0, 5)
    assert await drain.drain_now()
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "books.sqlite")) as source,
        contextlib.closing(sqlite3.connect(tmp_path / "copy")) as target,
    ):
        source.backup(target)
    await _book(ledger, 5, 5)
    assert await drain.drain_now()
    assert drain._loop is not None
    assert drain._lock is not None
    drain._loop.cancel()
    os.close(drain._lock)
    await ledger.aclose()
    await engine.dispose()
    (tmp_path / "copy").replace(tmp_path / "books.sqlite")
    restored = make_engine(url)
    assert await _settled(restored) == 5
    second = _drain(folder, restored)
    await second.start()
    assert await _settled(restored) == 10
    await second.aclose()
    await restored.dispose()
