"""The ledger of one process: a reserve before each attempt, one closing entry after it, and no loss in between.

Entries go to the journal first and from there to the database, as often as it takes. Journals of dead processes are
recovered by whoever notices first; an attempt that nobody closed is then settled at the most it may have cost, and
marked as an estimate.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, TypeVar

from cost.errors import EntriesRefused, LedgerUnavailable, StoreUnreachable
from cost.ledger.entries import Entry, orphan_settlement, void_of
from cost.ledger.journal import Journal
from cost.ledger.segments import DeadJournal, boots, encode_line

_log: Final = logging.getLogger(__name__)
_MAX_BACKOFF_S: Final = 5.0
_SHOW_EVERY_S: Final = 30.0
_EXPIRE_EVERY_S: Final = 60.0

_Answer = TypeVar("_Answer")


class Books(Protocol):
    """The part of the ledger that an attempt needs."""

    @property
    def boot_id(self) -> str:
        """Id of this gateway process, as in its entries."""
        ...

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> None:
        """Write a reserve; durable when it returns.

        Raises LedgerUnavailable. `hold_nanousd` is for books that keep budgets.
        """
        ...

    def settle(self, entry: Entry) -> None:
        """Close a reserve. Never raises and never waits."""
        ...


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


class ProcessPresence(Protocol):
    """Registry of live processes; implemented by `cost.ledger.sweep.Sweep`."""

    @property
    def may_be_given_up(self) -> bool:
        """True if other processes may have closed attempts of this one."""
        ...

    async def show(self, boot_id: str) -> None:
        """Record that this process is alive."""
        ...

    async def forget(self, boot_id: str) -> None:
        """Forget a process that has nothing open."""
        ...

    async def expire(self, ours: Collection[str]) -> None:
        """Close what lost hosts left open; processes in `ours` are recovered from their journals instead."""
        ...


class SingleProcess:
    """Presence of a process that shares its database with no other; does nothing."""

    may_be_given_up = False

    async def show(self, boot_id: str) -> None:
        """Do nothing: no other process looks."""

    async def forget(self, boot_id: str) -> None:
        """Do nothing: nothing was recorded."""

    async def expire(self, ours: Collection[str]) -> None:
        """Do nothing: there is no other host to lose."""


def nothing(entries: Sequence[Entry]) -> None:
    """Ignore entries that were booked; the default callback."""


class Ledger:
    """The ledger of one process. `booked` is called with entries once the database has them, drained or recovered."""

    def __init__(
        self,
        journal: Journal,
        store: EntryStore,
        clock: Callable[[], float] = time.time,
        *,
        drain_batch: int = 500,
        drain_interval_s: float = 0.15,
        recover_every_s: float = 15.0,
        store_timeout_s: float = 30.0,
        booked: Callable[[Sequence[Entry]], None] = nothing,
        presence: ProcessPresence | None = None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._drain_batch = drain_batch
        self._drain_interval_s = drain_interval_s
        self._recover_every_s = recover_every_s
        self._store_timeout_s = store_timeout_s
        self._booked = booked
        self._presence = presence or SingleProcess()
        self._show_at = 0.0
        self._expire_at = clock() + _EXPIRE_EVERY_S
        self._draining = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None
        self.drain_failures = 0
        """Times that the database did not take entries."""
        self.unbooked_rows = 0
        """Entries that the database refuses for what they are; kept in a file of their own."""
        self.orphans_settled = 0
        """Attempts of dead processes that were settled at an estimate."""
        self.damaged_lines = 0
        """Unreadable lines in dead processes' journals; a kill tears at most the last one."""
        self.settle_failures = 0
        """Entries that could not even be queued; a bug, and logged as one."""

    @property
    def boot_id(self) -> str:
        """Id of this gateway process, as in its entries."""
        return self._journal.boot_id

    @property
    def depth(self) -> int:
        """Entries that the database does not have yet."""
        return self._journal.depth

    @property
    def accepting(self) -> bool:
        """True if a reserve would be taken now."""
        return self._journal.accepting

    @property
    def write_failures(self) -> int:
        """Times that the disk refused the journal."""
        return self._journal.write_failures

    @property
    def oldest_age_s(self) -> float:
        """Seconds that the oldest entry has waited for the database; 0 if none waits."""
        oldest = self._journal.oldest_at_us
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest / 1_000_000)

    async def start(self) -> None:
        """Open the journal, recover dead processes' journals, and start to drain."""
        self._journal.open()
        try:
            await self._heartbeat()
            await self.recover()
        except StoreUnreachable:
            _log.warning("journals of dead processes wait for the database")
        self._loop = asyncio.create_task(self._drain_forever(), name="ledger-drain")

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> None:  # noqa: ARG002  No budgets here.
        """Book the most that an attempt may cost; durable when it returns. Raises LedgerUnavailable."""
        safe = self._journal.reserve(entry)
        try:
            await safe
        except asyncio.CancelledError:
            # The reserve is written or about to be, and the attempt will not be made.
            self.settle(void_of(entry))
            raise

    def settle(self, entry: Entry) -> None:
        """Close a reserve. Safe in a cancelled task: it neither waits nor raises."""
        try:
            self._journal.append(entry)
        except Exception:  # noqa: BLE001  It runs where nothing may be raised any more.
            self.settle_failures += 1
            _log.exception("an entry of request %s could not be booked", entry.request_id)

    async def drain(self) -> bool:
        """Write everything booked so far to the database; False when it does not answer."""
        self._journal.flush()
        left = self._journal.depth
        async with self._draining:
            try:
                while left > 0 and (batch := self._journal.pending(min(left, self._drain_batch))):
                    await self._insert_batch(batch)
                    self._journal.drained(len(batch))
                    left -= len(batch)
            except StoreUnreachable:
                return False
        return True

    async def recover(self) -> None:
        """Book what dead processes left. Raises StoreUnreachable; their journals then stay for the next try."""
        directory = self._journal.directory
        for boot_id in boots(directory):
            dead = None if boot_id == self.boot_id else DeadJournal.claim(directory, boot_id)
            if dead is None:
                continue
            booked = False
            try:
                await self._recover_one(dead)
                booked = True
            finally:
                dead.close(delete=booked)

    async def aclose(self, deadline_s: float = 5.0) -> None:
        """Drain for at most `deadline_s`; what is left stays in the journal for the next start."""
        if self._loop is not None:
            self._loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop
            self._loop = None
        finished = False
        with contextlib.suppress(TimeoutError, StoreUnreachable):
            async with asyncio.timeout(deadline_s):
                # A reserve that is still open is left for the next start to settle.
                finished = await self.drain() and not await self._open_reserves(self.boot_id)
                if finished:
                    await self._query(self._presence.forget(self.boot_id))
        await self._journal.aclose(keep=not finished)

    async def _drain_forever(self) -> None:
        pause_s = self._drain_interval_s
        recover_at = self._clock() + self._recover_every_s
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._heartbeat()
                drained = await self.drain()
                if drained and self._clock() >= recover_at:
                    recover_at = self._clock() + self._recover_every_s
                    await self.recover()
            except StoreUnreachable:
                drained = False
            except Exception:  # noqa: BLE001  Without this loop nothing would reach the database any more.
                _log.exception("draining the journal failed")
                drained = False
            pause_s = self._drain_interval_s if drained else min(pause_s * 2, _MAX_BACKOFF_S)

    async def _heartbeat(self) -> None:
        """Show this process and expire lost hosts, each at its own interval."""
        now = self._clock()
        if now >= self._show_at:
            await self._query(self._presence.show(self.boot_id))
            self._show_at = now + _SHOW_EVERY_S
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_EVERY_S
            await self._query(self._presence.expire(boots(self._journal.directory)))

    async def _recover_one(self, dead: DeadJournal) -> None:
        entries = dead.entries()
        found = 0
        while batch := list(islice(entries, self._drain_batch)):
            await self._insert_batch(batch, careful=True)
            found += len(batch)
        # The database has now all that this process ever wrote, drained by itself or just now.
        orphans = await self._open_reserves(dead.boot_id)
        for start in range(0, len(orphans), self._drain_batch):
            batch = [orphan_settlement(each) for each in orphans[start : start + self._drain_batch]]
            await self._insert_batch(batch, careful=True)
        await self._query(self._presence.forget(dead.boot_id))
        self.orphans_settled += len(orphans)
        self.damaged_lines += dead.damaged_lines
        _log.info(
            "recovered the journal of %s: %d entries, %d orphans settled at an estimate, %d damaged lines",
            dead.boot_id,
            found,
            len(orphans),
            dead.damaged_lines,
        )

    async def _open_reserves(self, boot_id: str) -> list[Entry]:
        return await self._query(self._store.open_reserves([boot_id]))

    async def _query(self, question: Awaitable[_Answer]) -> _Answer:
        """Await a query of the database under the store's timeout. Raises StoreUnreachable for any failure."""
        try:
            async with asyncio.timeout(self._store_timeout_s):
                return await question
        except Exception as failure:
            raise self._as_unreachable(failure) from failure

    async def _insert_batch(self, batch: Sequence[Entry], *, careful: bool = False) -> None:
        """Write a batch; a refused one is halved, so that one bad entry does not hold up the others."""
        careful = careful or self._presence.may_be_given_up
        try:
            async with asyncio.timeout(self._store_timeout_s):
                await self._store.insert(batch, careful=careful)
        except EntriesRefused as refusal:
            if len(batch) == 1:
                self._write_unbooked(batch[0], refusal)
                return
        except Exception as failure:
            raise self._as_unreachable(failure) from failure
        else:
            self._booked(batch)
            return
        middle = len(batch) // 2
        await self._insert_batch(batch[:middle], careful=careful)
        await self._insert_batch(batch[middle:], careful=careful)

    def _as_unreachable(self, failure: Exception) -> StoreUnreachable:
        self.drain_failures += 1
        _log.warning("the database does not take entries: %s", type(failure).__name__)
        return StoreUnreachable(type(failure).__name__)

    def _write_unbooked(self, entry: Entry, refusal: EntriesRefused) -> None:
        self.unbooked_rows += 1
        _log.error("the database refuses an entry of request %s: %s", entry.request_id, refusal)
        with unbooked_path(self._journal.directory).open("ab") as file:
            file.write(encode_line(entry))


def unbooked_path(directory: Path) -> Path:
    """Return the file of entries that the database refuses, for a person to look at."""
    return directory / "unbooked.log"


class MemoryLedger:
    """The same books in memory, for tests and trials; nothing is durable."""

    def __init__(self, boot_id: str = "memory") -> None:
        self.boot_id = boot_id
        self.entries: list[Entry] = []
        self.accepting = True
        """Set to False to refuse reserves, as a full journal does."""
        self.depth = 0
        self.oldest_age_s = 0.0

    async def start(self) -> None:
        """Do nothing: there is nothing to open."""

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> None:  # noqa: ARG002  No budgets here.
        """Keep the entry. Raises LedgerUnavailable when `accepting` is False."""
        if not self.accepting:
            raise LedgerUnavailable("these books were told to refuse")
        self.entries.append(entry)

    def settle(self, entry: Entry) -> None:
        """Keep the entry."""
        self.entries.append(entry)

    async def drain(self) -> bool:
        """Return True: there is no database to write to."""
        return True

    async def aclose(self, deadline_s: float = 5.0) -> None:
        """Do nothing: there is nothing to close."""
