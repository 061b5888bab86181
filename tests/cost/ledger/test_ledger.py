"""The books: drained whatever the database does, and recovered whoever dies."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.errors import LedgerUnavailable
from cost.ledger.entries import Entry
from cost.ledger.journal import Journal
from cost.ledger.ledger import Books, Ledger, MemoryLedger, unbooked_path
from cost.ledger.segments import boots, encode_line, read_segment, segment_path
from cost.ledger.store import LedgerStore
from tests.cost.entries import ScriptedStore, reserve, settle, until

NEVER_S = 3600.0


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


def _ledger(
    folder: Path, store: ScriptedStore | LedgerStore, *, interval_s: float = NEVER_S, batch: int = 500
) -> Ledger:
    return Ledger(
        Journal(folder),
        store,
        clock=lambda: reserve().at_us / 1_000_000 + 5,
        drain_interval_s=interval_s,
        drain_batch=batch,
        recover_every_s=0.0,
    )


def _leave_behind(folder: Path, boot_id: str, *entries: Entry, tail: bytes = b"") -> None:
    """What a process leaves that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"boot-{boot_id}.lock").touch()
    segment_path(folder, boot_id, 0).write_bytes(b"".join(map(encode_line, entries)) + tail)


async def test_booked_entries_reach_the_database(tmp_path: Path, store: ScriptedStore) -> None:
    """A reserve and its settlement are drained, and the gauges follow."""
    ledger = _ledger(tmp_path, store)
    await ledger.start()
    await ledger.reserve(reserve())
    ledger.settle(settle())
    assert (ledger.depth, ledger.oldest_age_s) == (2, 5.0)
    assert await ledger.drain()
    assert (ledger.depth, ledger.oldest_age_s) == (0, 0.0)
    assert set(store.rows) == {("req_1", 1, "reserve"), ("req_1", 1, "settle")}
    await ledger.aclose()
    assert boots(tmp_path) == []


async def test_it_drains_by_itself_in_batches(tmp_path: Path, store: ScriptedStore) -> None:
    """Nobody has to ask: entries appear in the database after the interval, so many at once."""
    ledger = _ledger(tmp_path, store, interval_s=0.01, batch=10)
    await ledger.start()
    await asyncio.gather(*(ledger.reserve(reserve(f"req_{number}")) for number in range(25)))
    await until(lambda: ledger.depth == 0)
    assert len(store.rows) == 25
    assert store.inserts == 3
    await ledger.aclose()


async def test_a_database_that_is_down_loses_nothing(tmp_path: Path, store: ScriptedStore) -> None:
    """While it is down the gateway books on, and everything arrives when it is back."""
    ledger = _ledger(tmp_path, store, interval_s=0.01)
    store.down = True
    await ledger.start()
    await ledger.reserve(reserve())
    assert not await ledger.drain()
    ledger.settle(settle())
    assert ledger.depth == 2
    assert ledger.drain_failures >= 1
    store.down = False
    assert await ledger.drain()
    assert len(store.rows) == 2
    await ledger.aclose()


async def test_what_is_left_at_the_end_is_booked_at_the_next_start(tmp_path: Path, store: ScriptedStore) -> None:
    """Closing while the database is down keeps the journal, and the next process books it."""
    first = _ledger(tmp_path, store)
    await first.start()
    store.down = True
    await first.reserve(reserve(boot_id=first.boot_id))
    first.settle(settle(boot_id=first.boot_id))
    await first.aclose(deadline_s=1)
    store.down = False
    second = _ledger(tmp_path, store)
    await second.start()
    assert set(store.rows) == {("req_1", 1, "reserve"), ("req_1", 1, "settle")}
    await second.aclose()
    assert boots(tmp_path) == []


async def test_an_open_reserve_at_the_end_is_settled_at_the_next_start(tmp_path: Path, store: ScriptedStore) -> None:
    """A reserve that nobody closed before the end is not forgotten, though the database has it."""
    first = _ledger(tmp_path, store)
    await first.start()
    await first.reserve(reserve(boot_id=first.boot_id))
    await first.aclose()
    assert boots(tmp_path) == [first.boot_id]
    second = _ledger(tmp_path, store)
    await second.start()
    assert store.rows["req_1", 1, "settle"].flags == ("orphaned",)
    await second.aclose()
    assert boots(tmp_path) == []


async def test_a_dead_process_is_recovered(tmp_path: Path, engine: AsyncEngine) -> None:
    """Its entries are booked once, its orphans settled at their reserve, also those it drained before; then its files go."""
    store = LedgerStore(engine)
    await store.insert([reserve("drained", boot_id="dead"), reserve("done", boot_id="dead")])
    _leave_behind(
        tmp_path,
        "dead",
        reserve("done", boot_id="dead"),
        settle("done", boot_id="dead"),
        reserve("orphan", boot_id="dead"),
        tail=encode_line(settle("orphan", boot_id="dead"))[:-9],
    )
    ledger = _ledger(tmp_path, store)
    await ledger.start()
    for name in ("drained", "orphan"):
        settled = (await store.entries(name))[-1]
        assert (settled.entry, settled.cost_nanousd, settled.usage_source) == ("settle", 5_000_000, "estimated")
        assert settled.flags == ("orphaned",)
    assert [entry.usage_source for entry in await store.entries("done")] == ["estimated", "upstream"]
    assert (ledger.orphans_settled, ledger.damaged_lines) == (2, 1)
    assert boots(tmp_path) == [ledger.boot_id]
    await ledger.aclose()


async def test_two_processes_recover_once(tmp_path: Path, engine: AsyncEngine) -> None:
    """Of several that start at once, each dead journal is recovered by exactly one."""
    for number in range(6):
        _leave_behind(
            tmp_path, f"dead{number}", *(reserve(f"{number}-{n}", boot_id=f"dead{number}") for n in range(20))
        )
    ledgers = [_ledger(tmp_path, LedgerStore(engine)) for _ in range(3)]
    await asyncio.gather(*(ledger.start() for ledger in ledgers))
    assert sum(ledger.orphans_settled for ledger in ledgers) == 120
    assert boots(tmp_path) == sorted(ledger.boot_id for ledger in ledgers)
    async with engine.connect() as connection:
        spent = await connection.scalar(text("SELECT sum(cost_nanousd) FROM rollup_day"))
    assert spent == 120 * 5_000_000
    for ledger in ledgers:
        await ledger.aclose()


async def test_the_living_are_not_recovered(tmp_path: Path, store: ScriptedStore) -> None:
    """A process that lives keeps its reserves open, however often others look."""
    living, other = _ledger(tmp_path, store), _ledger(tmp_path, store)
    await living.start()
    await living.reserve(reserve(boot_id=living.boot_id))
    await living.drain()
    await other.start()
    await other.recover()
    assert set(store.rows) == {("req_1", 1, "reserve")}
    living.settle(settle(boot_id=living.boot_id))
    await living.aclose()
    await other.aclose()


async def test_recovery_waits_for_the_database(tmp_path: Path, store: ScriptedStore) -> None:
    """When the database is down at the start, dead journals stay, and are recovered while the process runs."""
    _leave_behind(tmp_path, "dead", reserve(boot_id="dead"))
    store.down = True
    ledger = _ledger(tmp_path, store, interval_s=0.01)
    await ledger.start()
    assert "dead" in boots(tmp_path)
    await ledger.reserve(reserve("new"))
    store.down = False
    await until(lambda: "dead" not in boots(tmp_path))
    assert store.rows["req_1", 1, "settle"].flags == ("orphaned",)
    await ledger.aclose()


async def test_whoever_asked_is_told_what_the_database_has(tmp_path: Path, store: ScriptedStore) -> None:
    """Entries are told once they are in the database and not before: drained, recovered, and settled as orphans."""
    _leave_behind(tmp_path, "dead", reserve("orphan", boot_id="dead"))
    told: list[tuple[str, str]] = []
    ledger = Ledger(
        Journal(tmp_path),
        store,
        drain_interval_s=NEVER_S,
        booked=lambda entries: told.extend((entry.request_id, entry.entry) for entry in entries),
    )
    await ledger.start()
    assert told == [("orphan", "reserve"), ("orphan", "settle")]
    store.down = True
    store.refuses = {"refused"}
    await ledger.reserve(reserve("good"))
    await ledger.reserve(reserve("refused"))
    assert not await ledger.drain()
    assert len(told) == 2
    store.down = False
    assert await ledger.drain()
    assert told[2:] == [("good", "reserve")]
    await ledger.aclose()


async def test_one_bad_entry_does_not_hold_up_the_others(tmp_path: Path, store: ScriptedStore) -> None:
    """An entry that the database refuses for what it is goes to a file of its own; all others are booked."""
    store.refuses = {"req_13"}
    ledger = _ledger(tmp_path, store)
    await ledger.start()
    await asyncio.gather(*(ledger.reserve(reserve(f"req_{number}")) for number in range(40)))
    assert await ledger.drain()
    assert (len(store.rows), ledger.unbooked_rows, ledger.depth) == (39, 1, 0)
    assert [entry and entry.request_id for entry in read_segment(unbooked_path(tmp_path))] == ["req_13"]
    await ledger.aclose()


async def test_a_cancelled_reserve_is_taken_back(tmp_path: Path, store: ScriptedStore) -> None:
    """A caller that hangs up while the reserve is written is charged nothing."""
    ledger = _ledger(tmp_path, store)
    await ledger.start()
    reserving = asyncio.create_task(ledger.reserve(reserve()))
    await asyncio.sleep(0)
    reserving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    await ledger.drain()
    assert set(store.rows) == {("req_1", 1, "reserve"), ("req_1", 1, "void")}
    await ledger.aclose()


async def test_settling_never_raises(tmp_path: Path, store: ScriptedStore) -> None:
    """Not even after the end; what could not be booked is counted."""
    ledger = _ledger(tmp_path, store)
    await ledger.start()
    await ledger.aclose()
    ledger.settle(settle())
    assert ledger.settle_failures == 1
    with pytest.raises(LedgerUnavailable):
        await ledger.reserve(reserve())
    assert not ledger.accepting


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
    assert await twin.drain()
    await twin.aclose()
    assert [entry.entry for entry in twin.entries] == ["reserve", "settle"]
