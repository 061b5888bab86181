"""The drain: every journal reaches the database whatever that does, and is recovered whoever dies."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.backlog import Backlog
from cost.ledger.drain import Drain, DrainCounts, unbooked_path
from cost.ledger.entries import Entry
from cost.ledger.journal import Journal
from cost.ledger.ledger import Ledger
from cost.ledger.segments import (
    Drained,
    boots,
    encode_line,
    read_drained,
    read_segment,
    segment_path,
    segments_of,
    waiting,
    write_drained,
)
from cost.ledger.store import LedgerStore
from tests.cost.entries import ScriptedStore, reserve, settle, until

NEVER_S = 3600.0
T = TypeVar("T")


class ScriptedSpareTime:
    """Spare time that there is or is not; it writes to the same rows."""

    def __init__(self, store: ScriptedStore) -> None:
        self.store = ScriptedStore()
        self.store.rows = store.rows
        self.has_time = True
        self.computing = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    def rest(self) -> None:
        self.has_time = False

    async def compute(self, work: Callable[[], T]) -> T:
        self.computing.set()
        await self.may_go_on.wait()
        return work()

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        return await self.store.insert(entries, careful=careful)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


def _drain(
    folder: Path,
    store: ScriptedStore | LedgerStore,
    *,
    interval_s: float = NEVER_S,
    batch: int = 500,
    recover_every_s: float = 0.0,
    spare: ScriptedSpareTime | None = None,
    late_s: float = 5.0,
) -> Drain:
    return Drain(
        folder,
        store,
        clock=lambda: reserve().at_us / 1_000_000 + late_s,
        interval_s=interval_s,
        batch=batch,
        recover_every_s=recover_every_s,
        spare=spare,
    )


async def _ledger(folder: Path, *, segment_bytes: int = 10**7) -> Ledger:
    ledger = Ledger(Journal(folder, segment_bytes=segment_bytes), look_every_s=NEVER_S)
    await ledger.start()
    return ledger


def _kill(drain: Drain) -> None:
    """What a kill leaves of a drain: nothing but its files, and a lock that is free."""
    assert drain._loop is not None
    assert drain._lock is not None
    drain._loop.cancel()
    os.close(drain._lock)


def _leave_behind(folder: Path, boot_id: str, *entries: Entry, tail: bytes = b"") -> None:
    """What a process leaves that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"boot-{boot_id}.lock").touch()
    segment_path(folder, boot_id, 0).write_bytes(b"".join(map(encode_line, entries)) + tail)


async def test_what_processes_write_reaches_the_database(tmp_path: Path, store: ScriptedStore) -> None:
    """Of all that live, and each is told how far it is drained."""
    drain = _drain(tmp_path, store)
    await drain.start()
    first, second = await _ledger(tmp_path), await _ledger(tmp_path)
    await first.reserve(reserve("a"))
    first.settle(settle("a"))
    await second.reserve(reserve("b"))
    await asyncio.sleep(0)
    assert await drain.drain_now()
    assert (first.state().depth, second.state().depth) == (0, 0)
    assert set(store.rows) == {("a", 1, "reserve"), ("a", 1, "settle"), ("b", 1, "reserve")}
    inserts = store.inserts
    assert await drain.drain_now()
    assert store.inserts == inserts
    for ledger in (first, second):
        assert await ledger.wait_drained()
        await ledger.aclose()
    await drain.aclose()
    assert boots(tmp_path) == []


async def test_it_drains_by_itself_in_batches(tmp_path: Path, store: ScriptedStore) -> None:
    """Nobody has to ask: entries appear in the database after the interval, so many at once."""
    drain, ledger = _drain(tmp_path, store, interval_s=0.01, batch=10), await _ledger(tmp_path)
    await asyncio.gather(*(ledger.reserve(reserve(f"req_{number}")) for number in range(25)))
    await drain.start()
    await until(lambda: ledger.state().depth == 0)
    assert len(store.rows) == 25
    assert store.inserts == 3
    await ledger.reserve(reserve("later"))
    await until(lambda: len(store.rows) == 26)
    await ledger.aclose()
    await drain.aclose()


async def _spared(folder: Path, store: ScriptedStore, count: int, late_s: float = 0.0) -> tuple[Drain, Ledger]:
    """A drain with spare time, and a process with so many entries that were written `late_s` ago."""
    spare = ScriptedSpareTime(store)
    drain, ledger = (
        _drain(folder, store, interval_s=0.01, batch=1_000, spare=spare, late_s=late_s),
        await _ledger(folder),
    )
    await drain.start()
    await asyncio.gather(*(ledger.reserve(reserve(f"req_{number}")) for number in range(count)))
    return drain, ledger


async def test_what_nobody_waits_for_is_drained_in_spare_time(tmp_path: Path, store: ScriptedStore) -> None:
    """In small pieces, as others wait for its transactions; without spare time as if there were none."""
    drain, ledger = await _spared(tmp_path, store, 850)
    spare = drain._spare
    assert isinstance(spare, ScriptedSpareTime)
    await until(lambda: len(store.rows) == 850)
    assert (spare.store.inserts, store.inserts) == (3, 0)
    spare.has_time = False
    await asyncio.gather(*(ledger.reserve(reserve(f"more_{number}")) for number in range(450)))
    await until(lambda: len(store.rows) == 1_300)
    assert (spare.store.inserts, store.inserts) == (3, 1)
    await ledger.aclose()
    await drain.aclose()


async def test_old_entries_do_not_wait_for_spare_time(tmp_path: Path, store: ScriptedStore) -> None:
    """The books lag by some seconds at most: the first piece shows it, and the rest comes in one batch."""
    drain, ledger = await _spared(tmp_path, store, 850, late_s=2.0)
    await until(lambda: len(store.rows) == 850)
    assert isinstance(drain._spare, ScriptedSpareTime)
    assert (drain._spare.store.inserts, store.inserts) == (0, 2)
    await ledger.aclose()
    await drain.aclose()


async def test_who_waits_for_the_drain_does_not_wait_for_spare_time(tmp_path: Path, store: ScriptedStore) -> None:
    """A round that runs already leaves it after the piece that it has begun."""
    drain, ledger = await _spared(tmp_path, store, 0)
    spare = drain._spare
    assert isinstance(spare, ScriptedSpareTime)
    spare.may_go_on.clear()
    await asyncio.gather(*(ledger.reserve(reserve(f"req_{number}")) for number in range(450)))
    await spare.computing.wait()
    looking = asyncio.create_task(drain.drain_now())
    await asyncio.sleep(0.01)
    spare.may_go_on.set()
    assert await looking
    assert (len(store.rows), spare.store.inserts, store.inserts) == (450, 0, 2)
    await ledger.reserve(reserve("later"))
    await until(lambda: len(store.rows) == 451)
    assert (spare.store.inserts, store.inserts) == (0, 3)
    await ledger.aclose()
    await drain.aclose()


async def test_a_long_journal_does_not_hold_up_the_others(tmp_path: Path, store: ScriptedStore) -> None:
    """Processes take turns, a batch each."""
    drain, long, short = _drain(tmp_path, store, batch=5), await _ledger(tmp_path), await _ledger(tmp_path)
    await asyncio.gather(*(long.reserve(reserve(f"long_{number}")) for number in range(50)))
    await short.reserve(reserve("short"))
    await drain.start()
    assert list(store.rows).index(("short", 1, "reserve")) in (0, 5)
    assert len(store.rows) == 51
    await drain.aclose()
    await long.aclose()
    await short.aclose()


async def test_segments_are_deleted_once_they_are_drained(tmp_path: Path, store: ScriptedStore) -> None:
    """Over many files, which the process deletes itself when it hears of it, and the two newest stay."""
    drain, ledger = _drain(tmp_path, store, batch=3), await _ledger(tmp_path, segment_bytes=1)
    for number in range(10):
        await ledger.reserve(reserve(f"req_{number}"))
    store.down = True
    await drain.start()
    assert not await drain.drain_now()
    ledger.state()
    assert len(segments_of(tmp_path, ledger.boot_id)) == 10
    store.down = False
    assert await drain.drain_now()
    assert len(segments_of(tmp_path, ledger.boot_id)) == 10
    assert ledger.state().depth == 0
    assert len(segments_of(tmp_path, ledger.boot_id)) == 2
    await ledger.reserve(reserve("again"))
    assert await drain.drain_now()
    assert len(store.rows) == 11
    await ledger.aclose()
    await drain.aclose()


async def test_a_database_that_is_down_loses_nothing(tmp_path: Path, store: ScriptedStore) -> None:
    """While it is down processes book on, and everything arrives when it is back."""
    drain, ledger = _drain(tmp_path, store, interval_s=0.01), await _ledger(tmp_path)
    store.down = True
    await drain.start()
    await ledger.reserve(reserve())
    assert not await drain.drain_now()
    ledger.settle(settle())
    assert ledger.state().depth == 2
    assert drain.counts.failures >= 1
    store.down = False
    assert await drain.drain_now()
    assert len(store.rows) == 2
    await ledger.aclose()
    await drain.aclose()


async def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path, store: ScriptedStore) -> None:
    """Half a line at the end of a living process's journal is no damage."""
    ledger, drain = await _ledger(tmp_path), _drain(tmp_path, store)
    await ledger.reserve(reserve("a"))
    (path,) = segments_of(tmp_path, ledger.boot_id)
    line = encode_line(reserve("b"))
    with path.open("ab") as file:
        file.write(line[:30])
    await drain.start()
    assert set(store.rows) == {("a", 1, "reserve")}
    with path.open("ab") as file:
        file.write(line[30:])
    assert await drain.drain_now()
    assert set(store.rows) == {("a", 1, "reserve"), ("b", 1, "reserve")}
    assert drain.counts == DrainCounts()
    await ledger.aclose()
    await drain.aclose()


async def test_damaged_lines_are_counted_and_passed(tmp_path: Path, store: ScriptedStore) -> None:
    """Within a file, and at the end of one that nobody writes any more."""
    ledger, drain = await _ledger(tmp_path, segment_bytes=1), _drain(tmp_path, store, batch=2)
    await ledger.reserve(reserve("a"))
    (path,) = segments_of(tmp_path, ledger.boot_id)
    with path.open("ab") as file:
        file.write(b"damaged\n" + encode_line(reserve("b")) + b"half of one")
    await ledger.reserve(reserve("c"))
    await drain.start()
    assert {request_id for request_id, _, _ in store.rows} == {"a", "b", "c"}
    assert drain.counts.damaged == 2
    assert ledger.state().depth == 0
    await ledger.aclose()
    await drain.aclose()


async def test_what_is_left_at_the_end_is_booked_at_the_next_start(tmp_path: Path, store: ScriptedStore) -> None:
    """Closing while the database is down keeps the journals, and the next drain books them."""
    first, ledger = _drain(tmp_path, store), await _ledger(tmp_path)
    await first.start()
    store.down = True
    await ledger.reserve(reserve(boot_id=ledger.boot_id))
    ledger.settle(settle(boot_id=ledger.boot_id))
    assert not await ledger.wait_drained(0.01)
    await ledger.aclose()
    await first.aclose(deadline_s=1)
    assert boots(tmp_path) == [ledger.boot_id]
    store.down = False
    second = _drain(tmp_path, store)
    await second.start()
    assert set(store.rows) == {("req_1", 1, "reserve"), ("req_1", 1, "settle")}
    assert boots(tmp_path) == []
    await second.aclose()


async def test_an_open_reserve_at_the_end_is_settled(tmp_path: Path, store: ScriptedStore) -> None:
    """A reserve that nobody closed before the end is not forgotten, though the database has it."""
    drain, ledger = _drain(tmp_path, store), await _ledger(tmp_path)
    await drain.start()
    await ledger.reserve(reserve(boot_id=ledger.boot_id))
    assert await drain.drain_now()
    assert set(store.rows) == {("req_1", 1, "reserve")}
    await ledger.aclose()
    await drain.aclose()
    assert store.rows["req_1", 1, "settle"].flags == ("orphaned",)
    assert boots(tmp_path) == []


async def test_a_dead_process_is_recovered(tmp_path: Path, engine: AsyncEngine) -> None:
    """Its entries are booked once, its orphans settled at their reserve, also those that were drained before; then its
    files go.
    """
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
    drain = _drain(tmp_path, store)
    await drain.start()
    for name in ("drained", "orphan"):
        settled = (await store.entries(name))[-1]
        assert (settled.entry, settled.cost_nanousd, settled.usage_source) == ("settle", 5_000_000, "estimated")
        assert settled.flags == ("orphaned",)
    assert [entry.usage_source for entry in await store.entries("done")] == ["estimated", "upstream"]
    assert drain.counts == DrainCounts(orphans=2, damaged=1)
    assert boots(tmp_path) == []
    assert read_drained(tmp_path, "dead") is None
    await drain.aclose()


async def test_one_of_several_drains(tmp_path: Path, engine: AsyncEngine) -> None:
    """The others stand by, say when the database has what they booked, and take over when the first one dies."""
    for number in range(6):
        _leave_behind(
            tmp_path, f"dead{number}", *(reserve(f"{number}-{n}", boot_id=f"dead{number}") for n in range(20))
        )
    drains = [_drain(tmp_path, LedgerStore(engine), interval_s=0.01) for _ in range(3)]
    await asyncio.gather(*(drain.start() for drain in drains))
    assert [drain.is_holder for drain in drains] == [True, False, False]
    assert [drain.counts.orphans for drain in drains] == [120, 0, 0]
    assert boots(tmp_path) == []
    async with engine.connect() as connection:
        spent = await connection.scalar(text("SELECT sum(cost_nanousd) FROM rollup_day"))
    assert spent == 120 * 5_000_000
    ledger = await _ledger(tmp_path)
    await ledger.reserve(reserve("late", boot_id=ledger.boot_id))
    assert await drains[1].drain_now()
    assert len(await LedgerStore(engine).entries("late")) == 1
    _kill(drains[0])
    await until(lambda: drains[1].is_holder or drains[2].is_holder)
    await ledger.reserve(reserve("later", boot_id=ledger.boot_id))
    await ledger.wait_drained()
    assert len(await LedgerStore(engine).entries("later")) == 1
    await ledger.aclose()
    await asyncio.gather(*(drain.aclose() for drain in drains[1:]))
    assert boots(tmp_path) == []


async def test_the_last_to_stop_cleans_up(tmp_path: Path, store: ScriptedStore) -> None:
    """A process that stood by and ends after the one that drained brings its own journal in."""
    first, second = _drain(tmp_path, store), _drain(tmp_path, store)
    await first.start()
    await second.start()
    ledger = await _ledger(tmp_path)
    await ledger.reserve(reserve(boot_id=ledger.boot_id))
    stopping = asyncio.create_task(first.aclose())
    await ledger.aclose()
    await second.aclose()
    await stopping
    assert set(store.rows) == {("req_1", 1, "reserve"), ("req_1", 1, "settle")}
    assert boots(tmp_path) == []


async def test_who_has_ended_drains_no_more(tmp_path: Path, store: ScriptedStore) -> None:
    """Asked late, it leaves the folder to whoever comes next."""
    drain, ledger = _drain(tmp_path, store), await _ledger(tmp_path)
    await drain.start()
    await drain.aclose()
    await ledger.reserve(reserve())
    assert not await drain.drain_now()
    second = _drain(tmp_path, store)
    await second.start()
    assert second.is_holder
    assert len(store.rows) == 1
    await ledger.aclose()
    await second.aclose()


async def test_the_living_are_not_recovered(tmp_path: Path, store: ScriptedStore) -> None:
    """A process that lives keeps its reserves open, however often somebody looks."""
    drain, living = _drain(tmp_path, store), await _ledger(tmp_path)
    await drain.start()
    await living.reserve(reserve(boot_id=living.boot_id))
    for _ in range(3):
        assert await drain.drain_now()
    assert set(store.rows) == {("req_1", 1, "reserve")}
    living.settle(settle(boot_id=living.boot_id))
    await living.aclose()
    await drain.aclose()
    assert drain.counts.orphans == 0


async def test_recovery_waits_for_the_database(tmp_path: Path, store: ScriptedStore) -> None:
    """When the database is down at the start, dead journals stay, and are recovered once it is back."""
    _leave_behind(tmp_path, "dead", reserve(boot_id="dead"))
    store.down = True
    drain = _drain(tmp_path, store, interval_s=0.01)
    await drain.start()
    assert "dead" in boots(tmp_path)
    store.down = False
    await until(lambda: "dead" not in boots(tmp_path))
    assert store.rows["req_1", 1, "settle"].flags == ("orphaned",)
    await drain.aclose()


class DyingStore(ScriptedStore):
    """A store whose process dies right after a commit."""

    dies = False

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        count = await super().insert(entries, careful=careful)
        if self.dies:
            raise asyncio.CancelledError
        return count


async def test_a_drain_that_dies_after_a_commit_books_nothing_twice(tmp_path: Path) -> None:
    """Nobody was told; its successor writes the same entries again, which changes nothing, and tells."""
    store = DyingStore()
    drain, ledger = _drain(tmp_path, store), await _ledger(tmp_path)
    await drain.start()
    await ledger.reserve(reserve())
    store.dies = True
    with pytest.raises(asyncio.CancelledError):
        await drain.drain_now()
    _kill(drain)
    assert (len(store.rows), ledger.state().depth) == (1, 1)
    store.dies = False
    successor = _drain(tmp_path, store)
    await successor.start()
    assert (len(store.rows), ledger.state().depth) == (1, 0)
    await ledger.aclose()
    await successor.aclose()


async def test_a_successor_begins_where_the_last_one_ended(tmp_path: Path, store: ScriptedStore) -> None:
    """What is told in the file need not be read again; without the file all of it is, and nothing changes."""
    drain, ledger = _drain(tmp_path, store), await _ledger(tmp_path)
    await ledger.reserve(reserve("a"))
    await drain.start()
    _kill(drain)
    store.rows.clear()
    await ledger.reserve(reserve("b"))
    second = _drain(tmp_path, store)
    await second.start()
    assert set(store.rows) == {("b", 1, "reserve")}
    _kill(second)
    (tmp_path / f"boot-{ledger.boot_id}.drained").write_bytes(b"")
    third = _drain(tmp_path, store)
    await third.start()
    assert set(store.rows) == {("b", 1, "reserve"), ("a", 1, "reserve")}
    assert ledger.state().depth == 0
    await ledger.aclose()
    await third.aclose()


async def test_what_cannot_be_told_is_told_later(tmp_path: Path, store: ScriptedStore) -> None:
    """A folder that takes no writes holds nothing up but the telling."""
    drain, ledger = _drain(tmp_path, store), await _ledger(tmp_path)
    await drain.start()
    await ledger.reserve(reserve())
    path = tmp_path / f"boot-{ledger.boot_id}.drained"
    path.unlink()
    path.mkdir()
    assert not await drain.drain_now()
    assert (len(store.rows), ledger.state().depth) == (1, 1)
    path.rmdir()
    assert await drain.drain_now()
    assert ledger.state().depth == 0
    await ledger.aclose()
    await drain.aclose()


class Awaiting:
    """Awaits every attempt, and writes down which are booked."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def awaits(self, key: tuple[str, int]) -> bool:
        return bool(key)

    def booked(self, keys: Iterable[tuple[str, int]]) -> None:
        self.told += [request_id for request_id, _ in keys]


async def test_one_bad_entry_does_not_hold_up_the_others(tmp_path: Path, store: ScriptedStore) -> None:
    """An entry that the database refuses for what it is goes to a file of its own; all others are booked, and whoever
    awaits an attempt hears of those alone.
    """
    store.refuses = {"req_13"}
    awaiting = Awaiting()
    journal = Journal(tmp_path, awaiting=awaiting)
    drain, ledger = _drain(tmp_path, store), Ledger(journal)
    await ledger.start()
    for number in range(20):
        await ledger.reserve(reserve(f"req_{number}"))
        ledger.settle(settle(f"req_{number}"))
    await asyncio.sleep(0)
    await drain.start()
    assert (len(store.rows), drain.counts.unbooked, ledger.state().depth) == (38, 2, 0)
    refused = [entry and (entry.request_id, entry.entry) for entry in read_segment(unbooked_path(tmp_path))]
    assert refused == [("req_13", "reserve"), ("req_13", "settle")]
    assert awaiting.told == [f"req_{number}" for number in range(20) if number != 13]
    await ledger.aclose()
    await drain.aclose()


async def test_what_waits_is_counted_from_the_files(tmp_path: Path, store: ScriptedStore) -> None:
    """Of the living and the dead, beyond what is drained, also while the database is away."""
    ledger, drain = await _ledger(tmp_path), _drain(tmp_path, store)
    await ledger.reserve(reserve("a"))
    await drain.start()
    assert [each.entries for each in await Backlog(drain.directory).waiting()] == [0]
    store.down = True
    await ledger.reserve(reserve("b", at_us=7))
    await ledger.reserve(reserve("c", at_us=9))
    _leave_behind(tmp_path, "dead", *(reserve(f"dead-{n}", boot_id="dead", at_us=5) for n in range(4)))
    assert not await drain.drain_now()
    found = {each.boot_id: (each.alive, each.entries, each.oldest_at_us) for each in waiting(tmp_path)}
    assert found == {ledger.boot_id: (True, 2, 7), "dead": (False, 4, 5)}
    assert waiting(tmp_path / "missing") == []
    await ledger.aclose()
    await drain.aclose(deadline_s=0.1)


def test_how_far_it_is_drained_always_fits(tmp_path: Path) -> None:
    """One block, so that it is written in its place; of refused attempts as many as fit, the newest."""
    assert read_drained(tmp_path, "me") is None
    write_drained(tmp_path, "me", Drained(3, 7, 1))
    assert read_drained(tmp_path, "me") == Drained(3, 7, 1)
    refused = [(f"{number}" * 600, 1) for number in range(9)]
    write_drained(tmp_path, "me", Drained(40).with_refused(refused))
    drained = read_drained(tmp_path, "me")
    assert drained == Drained(40, refused=tuple(refused[3:]))
    assert (tmp_path / "boot-me.drained").stat().st_size == 4096
