"""The journal: one write a turn, bounded, and honest about a disk that does not work."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cost.errors import LedgerUnavailable
from cost.ledger.entries import AttemptKey, Entry, void_of
from cost.ledger.journal import Awaiting, Journal, JournalState
from cost.ledger.segments import Drained, encode_line, read_segment, segments_of, write_drained
from tests.cost.entries import reserve, settle, until


class Disk:
    """The kernel's calls, counted, and failing when a test says so."""

    def __init__(self) -> None:
        self.writes = 0
        self.flushes = 0
        self.full = False
        self.flush_fails = False
        self.full_after: int | None = None
        self.torn_to: int | None = None
        self.most_bytes: int | None = None
        self.before_flush: Callable[[], None] = lambda: None

    def write(self, descriptor: int, data: memoryview) -> int:
        self.writes += 1
        if self.full:
            os.write(self.torn_to or descriptor, data[:7])  # A full disk often takes a part first.
            raise OSError(errno.ENOSPC, "no space")
        if self.full_after is not None:
            if not self.full_after:
                raise OSError(errno.ENOSPC, "no space")
            data = data[: self.full_after]
            self.full_after -= len(data)
            return os.write(descriptor, data)
        return os.write(descriptor, data[: self.most_bytes])

    def flush(self, _descriptor: int) -> None:
        self.flushes += 1
        self.before_flush()
        if self.flush_fails:
            raise OSError(errno.EIO, "the disk is broken")


@pytest.fixture
def disk() -> Disk:
    return Disk()


def _opened(
    folder: Path,
    disk: Disk,
    *,
    power: bool = False,
    max_bytes: int = 10**8,
    segment_bytes: int = 10**7,
    awaiting: Awaiting | None = None,
) -> Journal:
    journal = Journal(
        folder,
        boot_id="me",
        sync="power" if power else "process",
        max_bytes=max_bytes,
        segment_bytes=segment_bytes,
        write=disk.write,
        flush_to_disk=disk.flush,
        awaiting=awaiting,
        clock=lambda: reserve().at_us / 1_000_000 + 5,
    )
    journal.open()
    return journal


def _drain(folder: Path, journal: Journal, entries: int | None = None) -> bool:
    """Tells the journal that the database has its first entries, or all; they are of one size where they are counted."""
    paths = segments_of(folder, "me")
    last = paths[-1]
    number, lines, offset = int(last.stem.rpartition("-")[2]), last.read_bytes().count(b"\n"), last.stat().st_size
    if entries is not None:
        number, lines, offset = entries - 1, 1, len(encode_line(reserve("req_0")))
    write_drained(folder, "me", Drained(number, offset, lines))
    return journal.look()


def _written(folder: Path) -> list[Entry | None]:
    return [entry for path in segments_of(folder, "me") for entry in read_segment(path)]


async def test_a_turn_shares_one_write(tmp_path: Path, disk: Disk) -> None:
    """However many entries come in one turn of the loop, the kernel is called once, and they are in order."""
    journal = _opened(tmp_path, disk)
    waiting = [journal.reserve(reserve(f"req_{number}")) for number in range(50)]
    journal.append(settle("req_0"))
    assert disk.writes == 0
    await asyncio.gather(*waiting)
    assert disk.writes == 1
    assert [entry and entry.request_id for entry in _written(tmp_path)] == [*(f"req_{n}" for n in range(50)), "req_0"]
    assert journal.depth == 51
    await journal.aclose()


async def test_a_reserve_is_in_the_file_when_it_returns(tmp_path: Path, disk: Disk) -> None:
    """The future is not done before the kernel has the line."""
    journal = _opened(tmp_path, disk)
    safe = journal.reserve(reserve())
    assert not safe.done()
    await safe
    assert _written(tmp_path) == [reserve()]
    await journal.aclose()


async def test_short_writes_are_continued(tmp_path: Path, disk: Disk) -> None:
    """A kernel that takes a few bytes at a time still gets all of them."""
    disk.most_bytes = 10
    journal = _opened(tmp_path, disk)
    await journal.reserve(reserve())
    assert _written(tmp_path) == [reserve()]
    await journal.aclose()


async def test_segments_go_when_the_database_has_them(tmp_path: Path, disk: Disk) -> None:
    """Segments are begun at their size, and one is deleted once all of its entries and of the next one are drained, not before."""
    journal = _opened(tmp_path, disk, segment_bytes=1)
    for number in range(4):
        await journal.reserve(reserve(f"req_{number}"))
    assert len(segments_of(tmp_path, "me")) == journal.depth == 4
    assert not journal.look()
    assert _drain(tmp_path, journal, 2)
    assert [path.name for path in segments_of(tmp_path, "me")] == [f"boot-me-{number}.log" for number in (1, 2, 3)]
    assert (journal.depth, journal.is_drained) == (2, False)
    assert _drain(tmp_path, journal)
    assert [path.name for path in segments_of(tmp_path, "me")] == ["boot-me-2.log", "boot-me-3.log"]
    assert (journal.depth, journal.is_drained) == (0, True)
    await journal.aclose()
    assert len(segments_of(tmp_path, "me")) == 2


async def test_what_is_drained_in_part_stays_in_the_file(tmp_path: Path, disk: Disk) -> None:
    """A place within a segment frees nothing, and what is told twice, late or damaged changes nothing."""
    journal = _opened(tmp_path, disk)
    for number in range(4):
        await journal.reserve(reserve(f"req_{number}"))
    size = len(encode_line(reserve("req_0")))
    journal.drained(Drained(0, 3 * size, 3))
    assert journal.depth == 1
    journal.drained(Drained(0, 2 * size, 2))
    assert journal.depth == 1
    (tmp_path / "boot-me.drained").write_bytes(b"half of it")
    assert not journal.look()
    (tmp_path / "boot-me.drained").unlink()
    assert not journal.look()
    assert (journal.depth, len(_written(tmp_path))) == (1, 4)
    await journal.aclose()


async def test_nothing_is_kept_in_memory_that_is_in_the_file(tmp_path: Path, disk: Disk) -> None:
    """However long nobody drains, what the process keeps is a count a segment; the age is read from the file."""
    journal = _opened(tmp_path, disk)
    for number in range(500):
        await journal.reserve(reserve(f"req_{number}"))
    held = [value for value in vars(journal).values() if isinstance(value, (list, dict))]
    assert not any(held)
    assert len(journal._segments) == 1
    assert not journal._awaited
    assert journal.state() == JournalState(depth=500, oldest_age_s=5.0, accepting=True, write_failures=0, unwritten=0)
    _drain(tmp_path, journal)
    assert (journal.state().depth, journal.state().oldest_age_s) == (0, 0.0)
    await journal.aclose()


class Holding:
    """Awaits some attempts, and writes down which are booked."""

    def __init__(self, *keys: AttemptKey) -> None:
        self.keys = {*keys}
        self.told: list[AttemptKey] = []

    def awaits(self, key: AttemptKey) -> bool:
        return key in self.keys

    def booked(self, keys: Iterable[AttemptKey]) -> None:
        self.told += keys


async def test_who_awaits_an_attempt_is_told_once_it_is_booked(tmp_path: Path, disk: Disk) -> None:
    """Only those attempts, only their ends, only when the database has them, and not those that it refused."""
    holding = Holding(("a", 1), ("b", 1), ("c", 1))
    journal = _opened(tmp_path, disk, awaiting=holding)
    for name in ("a", "b", "c", "other"):
        await journal.reserve(reserve(name))
    journal.append(settle("a"))
    journal.flush()
    place = Drained(0, journal.size_bytes, 5)
    for name in ("other", "b", "c"):
        journal.append(settle(name))
    journal.flush()
    journal.drained(Drained(0, place.offset - 1, 4))
    assert holding.told == []
    journal.drained(place)
    assert holding.told == [("a", 1)]
    journal.drained(Drained(0, journal.size_bytes, 8, refused=(("b", 1),)))
    assert holding.told == [("a", 1), ("c", 1)]
    await journal.aclose()


async def test_a_full_journal_refuses_reserves_and_takes_settlements(tmp_path: Path, disk: Disk) -> None:
    """At its size it takes no new obligation, still books what runs, and opens again when it was drained."""
    journal = _opened(tmp_path, disk, max_bytes=2000)
    while journal.size_bytes < 2000:
        await journal.reserve(reserve())
    with pytest.raises(LedgerUnavailable, match="full"):
        journal.reserve(reserve())
    depth = journal.depth
    journal.append(settle())
    assert journal.depth == depth + 1
    journal.flush()
    assert _drain(tmp_path, journal)
    assert journal.accepting
    await journal.reserve(reserve("again"))
    await journal.aclose()


async def test_a_full_disk_refuses_reserves_and_keeps_settlements(tmp_path: Path, disk: Disk) -> None:
    """What cannot be written is refused when it is a reserve, and kept and written later when it is not."""
    journal = _opened(tmp_path, disk)
    await journal.reserve(reserve("before"))
    disk.full = True
    journal.append(settle("before"))
    with pytest.raises(LedgerUnavailable):
        await journal.reserve(reserve("refused"))
    assert journal.write_failures == 1
    assert not journal.accepting
    assert _written(tmp_path) == [reserve("before")]
    assert (journal.depth, journal.state().unwritten, journal.is_drained) == (2, 1, False)
    disk.full = False
    journal.flush()
    assert _written(tmp_path) == [reserve("before"), settle("before")]
    await journal.reserve(reserve("after"))
    assert _written(tmp_path) == [reserve("before"), settle("before"), reserve("after")]
    assert (journal.depth, journal.state().unwritten) == (3, 0)
    await journal.aclose()


async def test_what_a_full_disk_took_whole_stands(tmp_path: Path, disk: Disk) -> None:
    """A drain may have read it already: of a write that stops within a line, the lines before it are as good as any."""
    journal = _opened(tmp_path, disk)
    first, second = journal.reserve(reserve("req_0")), journal.reserve(reserve("req_1"))
    journal.append(settle("req_0"))
    disk.full_after = len(encode_line(reserve("req_0"))) + 20
    await first
    with pytest.raises(LedgerUnavailable):
        await second
    assert _written(tmp_path) == [reserve("req_0")]
    assert (journal.depth, journal.state().unwritten) == (2, 1)
    disk.full_after = None
    journal.flush()
    assert _written(tmp_path) == [reserve("req_0"), settle("req_0")]
    await journal.aclose()


async def test_a_torn_line_that_cannot_be_cut_off_is_left_behind(tmp_path: Path, disk: Disk) -> None:
    """The next line goes to a new file, so that it does not continue half of another."""
    journal = _opened(tmp_path, disk)
    await journal.reserve(reserve("before"))
    disk.full = True
    journal.append(settle("before"))
    descriptor = journal._segments[-1].descriptor
    # What cannot be cut: the same file, opened so that nobody may write to it.
    journal._segments[-1].descriptor = os.open(segments_of(tmp_path, "me")[0], os.O_RDONLY)
    disk.torn_to = descriptor
    journal.flush()
    disk.full = False
    journal.flush()
    os.close(descriptor)
    assert _written(tmp_path) == [reserve("before"), None, settle("before")]
    assert len(segments_of(tmp_path, "me")) == 2
    await journal.aclose()


async def test_a_full_disk_gets_the_room_of_what_is_drained(tmp_path: Path, disk: Disk) -> None:
    """The last segment goes too when the disk is full and the database has it, and entries that wait follow at once."""
    journal = _opened(tmp_path, disk)
    await journal.reserve(reserve("before"))
    disk.full = True
    journal.append(settle("before"))
    journal.flush()
    assert _drain(tmp_path, journal)
    assert segments_of(tmp_path, "me") == []
    disk.full = False
    await until(lambda: _written(tmp_path))
    assert _written(tmp_path) == [settle("before")]
    assert (journal.depth, journal.is_drained) == (1, False)
    assert _drain(tmp_path, journal)
    assert journal.is_drained
    await journal.aclose()


async def test_a_kept_settlement_is_retried_by_itself(tmp_path: Path, disk: Disk) -> None:
    """Nobody has to come by for a kept entry to reach the file once the disk works."""
    journal = _opened(tmp_path, disk)
    disk.full = True
    journal.append(settle())
    journal.flush()
    disk.full = False
    await until(lambda: _written(tmp_path))
    await journal.aclose()


async def test_many_refusals_ask_a_full_disk_only_now_and_then(tmp_path: Path, disk: Disk) -> None:
    """However many are refused, each closed with a void, the disk is asked once a retry, and all is written once."""
    journal = _opened(tmp_path, disk)
    for number in range(20):
        await journal.reserve(reserve(f"open_{number}"))
    disk.full = True
    disk.writes = 0
    for number in range(1500):
        refused = reserve(f"refused_{number}")
        with pytest.raises(LedgerUnavailable):
            await journal.reserve(refused)
        journal.append(void_of(refused))
        if number < 20:
            journal.append(settle(f"open_{number}"))
        await asyncio.sleep(0)
    retries = journal.write_failures
    assert disk.writes == retries < 15
    assert journal.depth == 40
    assert not journal.accepting
    await until(lambda: journal.write_failures > retries)
    disk.full = False
    await until(lambda: journal.accepting)
    await journal.reserve(reserve("after"))
    booked = [*(f"open_{n}" for n in range(20)), *(f"open_{n}" for n in range(20)), "after"]
    assert [entry and entry.request_id for entry in _written(tmp_path)] == booked
    assert journal.depth == len(booked)
    await journal.aclose()


async def test_a_disk_that_fails_with_nothing_kept_is_asked_again(tmp_path: Path, disk: Disk) -> None:
    """Refusals alone stop reserves until the retry, at once and without a write, and no longer."""
    journal = _opened(tmp_path, disk)
    disk.full = True
    for _ in range(100):
        with pytest.raises(LedgerUnavailable):
            await journal.reserve(reserve())
    assert disk.writes == 1
    disk.full = False
    await until(lambda: journal.accepting)
    await journal.reserve(reserve())
    assert _written(tmp_path) == [reserve()]
    await journal.aclose()


async def test_failed_writes_share_one_retry(tmp_path: Path, disk: Disk) -> None:
    """However often a write was tried and failed, one retry follows."""
    journal = _opened(tmp_path, disk)
    disk.full = True
    journal.append(settle())
    for _ in range(50):
        journal.flush()
    await asyncio.sleep(0)
    assert disk.writes == 51
    await until(lambda: disk.writes > 51)
    await asyncio.sleep(0.05)
    assert disk.writes == 52
    disk.full = False
    await journal.aclose()


async def test_a_void_closes_nothing_when_the_reserve_was_refused(tmp_path: Path, disk: Disk) -> None:
    """A full journal does not grow by voids of reserves that it refused; other voids are taken."""
    journal = _opened(tmp_path, disk, max_bytes=2000)
    while journal.size_bytes < 2000:
        await journal.reserve(reserve("taken"))
    with pytest.raises(LedgerUnavailable, match="full"):
        journal.reserve(reserve("refused"))
    depth = journal.depth
    journal.append(void_of(reserve("refused")))
    assert journal.depth == depth
    journal.append(void_of(reserve("taken")))
    assert journal.depth == depth + 1
    await journal.aclose()


async def test_with_power_safety_a_flush_comes_first_and_is_shared(tmp_path: Path, disk: Disk) -> None:
    """A reserve waits for the disk; those that come while it works share the next flush."""
    journal = _opened(tmp_path, disk, power=True)
    loop = asyncio.get_running_loop()
    first_flush = asyncio.Event()
    disk.before_flush = lambda: (loop.call_soon_threadsafe(first_flush.set), None)[1]
    safe = journal.reserve(reserve("first"))
    await first_flush.wait()
    more = [journal.reserve(reserve(f"req_{number}")) for number in range(20)]
    await asyncio.gather(safe, *more)
    assert 2 <= disk.flushes <= 3
    assert len(_written(tmp_path)) == 21
    await journal.aclose()


async def test_a_failed_flush_refuses_and_takes_back(tmp_path: Path, disk: Disk) -> None:
    """When the disk fails after the kernel took the line, a void keeps the refused reserve from being charged."""
    journal = _opened(tmp_path, disk, power=True)
    disk.flush_fails = True
    with pytest.raises(LedgerUnavailable):
        await journal.reserve(reserve())
    disk.flush_fails = False
    journal.flush()
    assert journal.depth == 2
    assert [entry and entry.entry for entry in _written(tmp_path)] == ["reserve", "void"]
    assert len(segments_of(tmp_path, "me")) == 2
    await journal.aclose()


async def test_what_was_not_drained_stays(tmp_path: Path, disk: Disk) -> None:
    """Closing deletes nothing: the drain does, once it has looked for what is still open."""
    journal = _opened(tmp_path, disk)
    await journal.reserve(reserve())
    await journal.aclose()
    assert _written(tmp_path) == [reserve()]
    with pytest.raises(LedgerUnavailable, match="closed"):
        journal.reserve(reserve())
    await journal.aclose()


async def test_a_journal_has_one_writer(tmp_path: Path, disk: Disk) -> None:
    """A second journal of the same name does not open; one without a given name finds another."""
    journal = _opened(tmp_path, disk)
    with pytest.raises(LedgerUnavailable, match="another process"):
        _opened(tmp_path, disk)
    names = iter(["me", "you"])
    other = Journal(tmp_path, random_token=lambda _: next(names))
    other.open()
    assert other.boot_id == "you"
    await other.aclose()
    await journal.aclose()
