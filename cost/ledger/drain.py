"""The drain: brings the journals of all processes of one folder into the database, and recovers those of the dead.

One process at a time does this for a folder: whoever holds `drain.lock` there; others stand by and take over when it
dies. It reads the files that the processes append to, writes what is new to the database, and then writes beside each
journal how far the database has it. Killed between the two, its successor writes the same entries again, which changes
nothing. Nothing has to be sent for that between the processes.

An attempt that nobody closed before its process died is settled at the most it may have cost, marked as an estimate.

Nobody waits for the drain as a rule, so it works in spare time, where the process has some, in small pieces; and at the process's own
priority, in large ones, as soon as somebody waits, entries have become old, or there is no time to spare.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from cost.errors import EntriesRefused, StoreUnreachable
from cost.ledger.entries import TERMINAL, Entry, orphan_settlement
from cost.ledger.journal_gaps import note_missing
from cost.ledger.segments import (
    DeadJournal,
    Drained,
    JournalReader,
    boots,
    encode_line,
    end_of,
    is_alive,
    journals,
    missing_lines,
    read_drained,
    write_drained,
)
from settings.private import private_folder

_log: Final = logging.getLogger(__name__)
_MAX_BACKOFF_S: Final = 5.0
_SHOW_EVERY_S: Final = 30.0
_EXPIRE_EVERY_S: Final = 60.0
_OTHERS_S: Final = 1.0
_SOON_S: Final = 0.02
_MANY_LINES: Final = 100
"""Lines of a round from which on the next one gathers for longer."""
_GATHERED_ROUNDS: Final = 4
"""Number of intervals in it."""
_SPARE_BATCH: Final = 400
"""Entries written at once in spare time: other writers wait for one such batch at most."""
_OLD_S: Final = 1.5
"""Age of an entry from which the drain does not depend on spare time."""

_Answer = TypeVar("_Answer")


class EntryStore(Protocol):
    """Database of entries; implemented by LedgerStore."""

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        """Write entries, idempotently, and return how many were new.

        EntriesRefused is final; other errors may be retried. `careful` is for entries of a process that others may have given up for lost.
        """
        ...

    async def open_reserves(self, boot_ids: Sequence[str]) -> list[Entry]:
        """Return the reserves of these processes that no entry closes."""
        ...


class SpareTime(Protocol):
    """A thread of low priority with an entry store of its own; `gateway.wiring.ledger_rounds` makes one of `gateway.low_priority_thread`."""

    @property
    def has_time(self) -> bool:
        """False while there is no time to spare."""
        ...

    def rest(self) -> None:
        """Report no spare time for a while: somebody waits, and may come again."""
        ...

    async def compute(self, work: Callable[[], _Answer]) -> _Answer:
        """Run `work` in the thread and return its result; its time tells whether there is time to spare."""
        ...

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        """Do in the thread what EntryStore's `insert` does."""
        ...


class ProcessPresence(Protocol):
    """Registry of live processes; implemented by `cost.ledger.orphan_reaper.OrphanReaper`."""

    def may_be_given_up(self, boot_id: str) -> bool:
        """Return True if other hosts may have closed attempts of this process."""
        ...

    async def show(self, boot_ids: Collection[str], *, drained: Collection[str] = ()) -> None:
        """Record that these processes are alive. Of those in `drained` the database had entries before."""
        ...

    async def forget(self, boot_id: str) -> None:
        """Forget a process that has nothing open."""
        ...

    async def expire(self, ours: Collection[str]) -> None:
        """Close the attempts that lost hosts left open; processes in `ours` are recovered from their journals instead."""
        ...


class Places(Protocol):
    """How far the database has each journal, as it says itself; implemented by `cost.ledger.journal_places.JournalPlaces`."""

    async def begin(self, boot_id: str, told: Drained | None) -> Drained:
        """Return the place from which the database lacks the journal. `told` is what its file says."""
        ...

    async def move(self, boot_id: str, before: Drained, upto: Drained, last: Entry | None) -> bool:
        """Write that the database has the journal up to a place; False where it has it to another one than `before`, or lacks
        `last`, the newest of the entries between them: those may have gone to a server that was replaced before this one was asked.
        """
        ...

    async def forget(self, boot_id: str) -> None:
        """Forget a journal that the database has to its end."""
        ...


class PlacesInFiles:
    """Places as the files tell them, for a store that keeps none."""

    async def begin(self, boot_id: str, told: Drained | None) -> Drained:  # noqa: ARG002
        """Return what the file says."""
        return told or Drained()

    async def move(self, boot_id: str, before: Drained, upto: Drained, last: Entry | None) -> bool:  # noqa: ARG002
        """Agree: the file is written by the drain itself."""
        return True

    async def forget(self, boot_id: str) -> None:
        """Do nothing: the file is deleted with the journal."""


class SingleHost:
    """Presence of processes that share their database with no other host; does nothing."""

    def may_be_given_up(self, boot_id: str) -> bool:  # noqa: ARG002  There is nobody to give it up.
        """Return False: no other host looks."""
        return False

    async def show(self, boot_ids: Collection[str], *, drained: Collection[str] = ()) -> None:
        """Do nothing: no other host looks."""

    async def forget(self, boot_id: str) -> None:
        """Do nothing: nothing was recorded."""

    async def expire(self, ours: Collection[str]) -> None:
        """Do nothing: there is no other host to lose."""


class DrainCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a drain since it was made."""

    failures: int = 0
    """Times that the database did not take entries."""
    unbooked: int = 0
    """Entries that the database refuses for good; kept in a file of their own."""
    orphans: int = 0
    """Attempts of dead processes that were settled at an estimate."""
    damaged: int = 0
    """Unreadable lines in journals; a kill tears at most the last one."""


class Drain:
    """The drain of a folder's journals into the database, from `start` to `aclose`."""

    def __init__(
        self,
        directory: Path,
        store: EntryStore,
        clock: Callable[[], float] = time.time,
        *,
        boot_id: str | None = None,
        batch: int = 1_000,
        interval_s: float = 0.15,
        recover_every_s: float = 1.0,
        store_timeout_s: float = 30.0,
        presence: ProcessPresence | None = None,
        places: Places | None = None,
        spare: SpareTime | None = None,
    ) -> None:
        """`boot_id` is this process's own, if it has no journal and is to be shown all the same. `interval_s` passes between
        two rounds, and some times as long while nothing comes, or much: a row of a large batch costs half of one in a small batch.
        """
        self.directory = directory
        self._store = store
        self._clock = clock
        self._boot_id = boot_id
        self._batch = batch
        self._interval_s = interval_s
        self._recover_every_s = recover_every_s
        self._store_timeout_s = store_timeout_s
        self._presence = presence or SingleHost()
        self._places = places or PlacesInFiles()
        self._spare = spare
        self._waited_for = 0
        self._is_late = False
        self._lock: int | None = None
        self._closed = False
        self.is_holder = False
        """True while this process drains the folder; False while another one does."""
        self._readers: dict[str, JournalReader] = {}
        self._shown: frozenset[str] = frozenset()
        self._living: frozenset[str] = frozenset()
        self._show_at = self._recover_at = 0.0
        self._expire_at = clock() + _EXPIRE_EVERY_S
        self._draining = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None
        self._failures = self._unbooked = self._orphans = self._damaged = 0

    @property
    def counts(self) -> DrainCounts:
        """The counts so far."""
        return DrainCounts(
            failures=self._failures, unbooked=self._unbooked, orphans=self._orphans, damaged=self._damaged
        )

    async def start(self) -> None:
        """Bring the journals' entries into the database, unless another process drains, and go on draining."""
        private_folder(self.directory)
        if self._hold():
            with contextlib.suppress(StoreUnreachable, OSError):
                await self._drain_at_once()
        self._loop = asyncio.create_task(self._drain_forever(), name="ledger-drain")

    async def drain_now(self) -> bool:
        """Return once the database has everything that is in the journals now; False when it does not answer.

        While another process drains, this one waits a little for it, and then says False.
        """
        # What this process itself booked in this turn of the loop is written at its end.
        await asyncio.sleep(0)
        if self._spare is not None:
            self._spare.rest()
        try:
            if not self._hold():
                return await self._others_drained()
            await self._drain_at_once()
        except (StoreUnreachable, OSError):
            return False
        return True

    async def aclose(self, deadline_s: float = 5.0) -> None:
        """Drain for at most `deadline_s`; what is left stays in the journals for the next start."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None
        with contextlib.suppress(TimeoutError, StoreUnreachable, OSError):
            async with asyncio.timeout(deadline_s):
                await self._finish()
        self._let_go()

    async def _finish(self) -> None:
        while not self._hold():
            # Whoever drains recovers what has just ended here, unless it is ending too.
            if not any(not is_alive(self.directory, boot_id) for boot_id in boots(self.directory)):
                return
            await asyncio.sleep(_SOON_S)
        self._recover_at = 0.0
        await self._drain_at_once()
        if self._boot_id is not None:
            await self._query(self._presence.forget(self._boot_id))

    async def _drain_forever(self) -> None:
        pause_s = self._interval_s
        while True:
            await asyncio.sleep(pause_s)
            try:
                lines = await self._drain_all() if self._hold() else 0
                few = 0 < lines < _MANY_LINES
                pause_s = self._interval_s * (1 if few else _GATHERED_ROUNDS)
            except StoreUnreachable:
                pause_s = min(pause_s * 2, _MAX_BACKOFF_S)
            except Exception:  # noqa: BLE001  Without this loop nothing would reach the database any more.
                _log.exception("draining the journals failed")
                pause_s = min(pause_s * 2, _MAX_BACKOFF_S)

    def _hold(self) -> bool:
        """Take the folder's lock, if no other process has it. Raises OSError where the folder takes no file."""
        if self.is_holder or self._closed:
            return self.is_holder
        try:
            if self._lock is None:
                self._lock = os.open(self.directory / "drain.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # How far the one before came stands in the files.
        self._readers.clear()
        self.is_holder = True
        return True

    def _let_go(self) -> None:
        self.is_holder, self._closed = False, True
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _others_drained(self) -> bool:
        found = journals(self.directory)
        written = {boot_id: end_of(self.directory, boot_id, numbers) for boot_id, numbers in found.items()}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OTHERS_S):
                while not all(self._is_drained_to(boot_id, place) for boot_id, place in written.items()):  # noqa: ASYNC110  Files tell nobody.
                    await asyncio.sleep(_SOON_S)
                return True
        return False

    def _is_drained_to(self, boot_id: str, place: tuple[int, int]) -> bool:
        """Return True if the database has this journal up to a place."""
        drained = read_drained(self.directory, boot_id)
        return boot_id not in boots(self.directory) if drained is None else drained.place >= place

    async def _drain_at_once(self) -> None:
        """Drain without spare time, which a round that runs already leaves, too. Raises StoreUnreachable."""
        self._waited_for += 1
        try:
            await self._drain_all()
        finally:
            self._waited_for -= 1

    async def _drain_all(self) -> int:
        """Drain the journals' present lines, and recover the journals of dead processes. Return the number of lines of
        live ones.

        Raises StoreUnreachable.
        """
        lines = 0
        async with self._draining:
            self._is_late = False
            if self._clock() >= self._show_at:
                # It may be another database than before, such as a standby that was behind: each journal begins where this one has it.
                self._readers.clear()
            found = journals(self.directory)
            for gone in self._readers.keys() - found.keys():
                del self._readers[gone]
            left = {boot_id: end_of(self.directory, boot_id, numbers) for boot_id, numbers in found.items()}
            while True:
                for boot_id in found:
                    await self._reader(boot_id)
                await self._heartbeat(found)
                left = {boot_id: end for boot_id, end in left.items() if self._readers[boot_id].place.place < end}
                # By turns: one process's long journal does not hold up the others.
                more = [await self._drain_batch(self._readers[boot_id], found[boot_id]) for boot_id in left]
                if not any(more):
                    break
                lines += sum(more)
            for reader in self._readers.values():
                reader.tell()
            if self._clock() >= self._recover_at:
                self._recover_at = self._clock() + self._recover_every_s
                await self._recover(found)
        return lines

    async def _heartbeat(self, found: Mapping[str, Sequence[int]]) -> None:
        """Record the live processes, and expire lost hosts, each at its own interval; a new process is recorded at
        once.
        """
        now = self._clock()
        if now >= self._show_at or not self._shown.issuperset(found):
            living = [boot_id for boot_id in found if is_alive(self.directory, boot_id)]
            drained = [boot_id for boot_id in living if self._readers[boot_id].place.place > (0, 0)]
            own = () if self._boot_id is None else (self._boot_id,)
            await self._query(self._presence.show([*living, *own], drained=drained))
            # Those that are dead too: they are recovered, and need not be looked at again and again.
            self._shown = frozenset(found)
            self._living = frozenset(living)
            self._show_at = now + _SHOW_EVERY_S
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_EVERY_S
            await self._query(self._presence.expire(list(found)))

    async def _reader(self, boot_id: str) -> JournalReader:
        """Return the journal's reader, which begins where the database itself says that its part ends."""
        reader = self._readers.get(boot_id)
        if reader is None:
            told = read_drained(self.directory, boot_id)
            place = await self._query(self._places.begin(boot_id, told))
            self._note_restored(boot_id, place, told)
            reader = self._readers[boot_id] = JournalReader(self.directory, boot_id, place, told)
        return reader

    def _note_restored(self, boot_id: str, place: Drained, told: Drained | None) -> None:
        if told is None or told.place <= place.place:
            return
        missing = missing_lines(self.directory, boot_id, place, told)
        _log.warning(
            "the database is older than it was: it has the journal of %s to line %d, and had it to line %d; %d of these "
            "lines are booked again from the files, and %d are in no file any more",
            boot_id,
            place.total,
            told.total,
            max(0, told.total - place.total - missing),
            missing,
        )
        if missing:
            note_missing(self.directory, boot_id, missing, self._clock())
        # Written back at once, so that the same lines are not missed again at the next start.
        write_drained(self.directory, boot_id, place)

    async def _drain_batch(self, reader: JournalReader, numbers: Sequence[int], *, ended: bool = False) -> int:
        """Bring the next entries of a journal into the database; return how many lines there were."""
        spare = self._spare_now()
        if spare is None:
            piece = reader.read(numbers, self._batch, ended=ended)
        else:
            most = min(self._batch, _SPARE_BATCH)
            piece = await spare.compute(lambda: reader.read(numbers, most, ended=ended))
        if piece.upto.place == reader.place.place:
            return 0
        self._is_late = bool(piece.entries) and self._clock() - piece.entries[0].at_us / 1_000_000 > _OLD_S
        # A process that was dead when it was first seen may have been taken for lost with its host.
        careful = ended or reader.boot_id not in self._living or self._presence.may_be_given_up(reader.boot_id)
        refused = await self._insert_batch(piece.entries, careful=careful)
        ends = [(each.request_id, each.attempt) for each in refused if each.entry in TERMINAL]
        upto = piece.upto.with_refused(ends) if ends else piece.upto
        taken = (each for each in reversed(piece.entries) if each not in refused)
        if await self._query(self._places.move(reader.boot_id, reader.place, upto, next(taken, None))):
            reader.took(upto)
        else:
            # It is another database than before, such as a standby that was promoted: what it lacks is read again.
            del self._readers[reader.boot_id]
            await self._reader(reader.boot_id)
        self._damaged += piece.damaged_lines
        return len(piece.entries) + piece.damaged_lines

    def _spare_now(self) -> SpareTime | None:
        spare = self._spare
        if spare is None or self._waited_for or self._is_late or not spare.has_time:
            return None
        return spare

    async def _recover(self, found: Mapping[str, Sequence[int]]) -> None:
        for boot_id in found:
            dead = DeadJournal.claim(self.directory, boot_id)
            if dead is None:
                continue
            booked = False
            try:
                await self._recover_one(dead)
                booked = True
            finally:
                dead.close(delete=booked)

    async def _recover_one(self, dead: DeadJournal) -> None:
        damaged_before, found = self._damaged, 0
        # Its files go at the end: what an earlier database had of it is not enough.
        self._readers.pop(dead.boot_id, None)
        while lines := await self._drain_batch(await self._reader(dead.boot_id), dead.numbers, ended=True):
            found += lines
        # The database has now all that this process ever wrote.
        orphans = await self._query(self._store.open_reserves([dead.boot_id]))
        for start in range(0, len(orphans), self._batch):
            batch = [orphan_settlement(each) for each in orphans[start : start + self._batch]]
            await self._insert_batch(batch, careful=True)
        dead.delete_segments()
        await self._query(self._presence.forget(dead.boot_id))
        await self._query(self._places.forget(dead.boot_id))
        self._orphans += len(orphans)
        if found or orphans:
            _log.info(
                "recovered the journal of %s: its last %d lines, %d orphans settled at an estimate, %d damaged lines",
                dead.boot_id,
                found,
                len(orphans),
                self._damaged - damaged_before,
            )

    async def _query(self, question: Awaitable[_Answer]) -> _Answer:
        """Await a query of the database under the store's timeout. Raises StoreUnreachable for any failure."""
        try:
            async with asyncio.timeout(self._store_timeout_s):
                return await question
        except Exception as failure:
            raise self._as_unreachable(failure) from failure

    async def _insert_batch(self, batch: Sequence[Entry], *, careful: bool) -> list[Entry]:
        """Write a batch and return the entries that were refused.

        A refused batch is halved, so that one bad entry does not hold up the others.
        """
        if not batch:
            return []
        try:
            async with asyncio.timeout(self._store_timeout_s):
                await (self._spare_now() or self._store).insert(batch, careful=careful)
        except EntriesRefused as refusal:
            if len(batch) == 1:
                self._write_unbooked(batch[0], refusal)
                return list(batch)
        except Exception as failure:
            raise self._as_unreachable(failure) from failure
        else:
            return []
        middle = len(batch) // 2
        refused = await self._insert_batch(batch[:middle], careful=careful)
        return refused + await self._insert_batch(batch[middle:], careful=careful)

    def _as_unreachable(self, failure: Exception) -> StoreUnreachable:
        self._failures += 1
        _log.warning("the database does not take entries: %s", type(failure).__name__)
        return StoreUnreachable(type(failure).__name__)

    def _write_unbooked(self, entry: Entry, refusal: EntriesRefused) -> None:
        _log.error("the database refuses an entry of request %s: %s", entry.request_id, refusal)
        with unbooked_path(self.directory).open("ab") as file:
            file.write(encode_line(entry))
        self._unbooked += 1


def unbooked_path(directory: Path) -> Path:
    """Return the file of entries that the database refuses, for a person to look at."""
    return directory / "unbooked.log"
