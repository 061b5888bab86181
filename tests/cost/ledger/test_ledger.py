"""The books of one process: durable before they return, and without a database."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from cost.errors import LedgerUnavailable
from cost.ledger.entries import Entry
from cost.ledger.journal import Journal
from cost.ledger.ledger import Books, Ledger, MemoryLedger
from cost.ledger.segments import Drained, boots, is_alive, read_segment, segments_of, write_drained
from tests.cost.entries import reserve, settle, until


async def _started(folder: Path, *, look_every_s: float = 3600.0) -> Ledger:
    ledger = Ledger(Journal(folder), look_every_s=look_every_s)
    await ledger.start()
    return ledger


def _written(folder: Path, ledger: Ledger) -> list[Entry | None]:
    return [entry for path in segments_of(folder, ledger.boot_id) for entry in read_segment(path)]


def _tell_drained(folder: Path, ledger: Ledger) -> None:
    path = segments_of(folder, ledger.boot_id)[-1]
    write_drained(folder, ledger.boot_id, Drained(0, path.stat().st_size, path.read_bytes().count(b"\n")))


async def test_it_looks_by_itself_how_far_it_is_drained(tmp_path: Path) -> None:
    """Nobody has to say so in this process: what the file beside the journal says is noticed."""
    ledger = await _started(tmp_path, look_every_s=0.01)
    await ledger.reserve(reserve())
    ledger.settle(settle())
    await asyncio.sleep(0.05)
    assert ledger.depth == 2
    _tell_drained(tmp_path, ledger)
    await until(lambda: ledger.depth == 0)
    await ledger.aclose()


async def test_at_a_stop_it_waits_for_the_drain(tmp_path: Path) -> None:
    """Until all is in the database, which the drain says in its own time; the lock goes with the close."""
    ledger = await _started(tmp_path)
    await ledger.reserve(reserve())
    ledger.settle(settle())
    waiting = asyncio.create_task(ledger.wait_drained())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    _tell_drained(tmp_path, ledger)
    assert await waiting
    assert is_alive(tmp_path, ledger.boot_id)
    await ledger.aclose()
    assert not is_alive(tmp_path, ledger.boot_id)
    assert boots(tmp_path) == [ledger.boot_id]


async def test_without_a_drain_it_stops_within_its_deadline(tmp_path: Path) -> None:
    """What it wrote stays for whoever drains later."""
    ledger = await _started(tmp_path)
    await ledger.reserve(reserve())
    assert not await ledger.wait_drained(0.05)
    await ledger.aclose()
    assert _written(tmp_path, ledger) == [reserve()]


async def test_a_cancelled_reserve_is_taken_back(tmp_path: Path) -> None:
    """A caller that hangs up while the reserve is written is charged nothing."""
    ledger = await _started(tmp_path)
    reserving = asyncio.create_task(ledger.reserve(reserve()))
    await asyncio.sleep(0)
    reserving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    await ledger.aclose()
    assert [entry and entry.entry for entry in _written(tmp_path, ledger)] == ["reserve", "void"]


async def test_settling_never_raises(tmp_path: Path) -> None:
    """Not even after the end; what could not be booked is counted."""
    ledger = await _started(tmp_path)
    await ledger.aclose()
    ledger.settle(settle())
    assert ledger.settle_failures == 1
    with pytest.raises(LedgerUnavailable):
        await ledger.reserve(reserve())
    assert not ledger.accepting


def test_it_needs_no_database() -> None:
    """The books of a process that serves requests load none of the database's libraries."""
    code = "import sys, cost.ledger.ledger; assert not {'sqlalchemy', 'sqlmodel', 'asyncpg', 'aiosqlite'} & sys.modules.keys()"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


async def test_the_twin_keeps_the_protocol() -> None:
    """The books in memory keep all, and refuse when told to."""
    twin = MemoryLedger()
    books: Books = twin
    await twin.start()
    await books.reserve(reserve())
    books.settle(settle())
    twin.accepting = False
    with pytest.raises(LedgerUnavailable):
        await books.reserve(reserve())
    assert await twin.wait_drained()
    await twin.aclose()
    assert [entry.entry for entry in twin.entries] == ["reserve", "settle"]
