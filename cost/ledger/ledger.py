"""The ledger as a data-plane process has it: a reserve before each attempt, one closing entry after it, into its journal.

No database is touched here. The drain (`cost.ledger.drain`), in this process or another, brings the journal into the
database; when this process dies, the drain settles what it left open at the most that it may have cost, as an estimate.
"""

import asyncio
import contextlib
import logging
from typing import Final, Protocol

from cost.errors import LedgerUnavailable
from cost.ledger.entries import Entry, void_of
from cost.ledger.journal import Journal, JournalState

_log: Final = logging.getLogger(__name__)
_SOON_S: Final = 0.02
_IDLE_LOOKS: Final = 4
"""Factor by which journals without waiting entries are looked at more seldom."""


class Books(Protocol):
    """The part of the ledger that an attempt needs."""

    @property
    def boot_id(self) -> str:
        """Id of this gateway process, as in its entries."""
        ...

    @property
    def holds_money(self) -> bool:
        """True where some budget is kept, so that `reserve` has to be told what to hold."""
        ...

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:
        """Write a reserve; durable when it returns. Return True where a hard budget holds money for it.

        Raises LedgerUnavailable. `hold_nanousd` is the most that the attempt may cost.
        """
        ...

    def settle(self, entry: Entry) -> None:
        """Close a reserve. Never raises and never waits."""
        ...


class Ledger:
    """The books of one process."""

    holds_money = False

    def __init__(self, journal: Journal, *, look_every_s: float = 0.25) -> None:
        self._journal = journal
        self._look_every_s = look_every_s
        self._looking: asyncio.Task[None] | None = None
        self.settle_failures = 0
        """Entries that could not even be queued; a bug, and logged as one."""

    @property
    def boot_id(self) -> str:
        """Id of this gateway process, as in its entries."""
        return self._journal.boot_id

    @property
    def depth(self) -> int:
        """Entries that the database does not have yet, as far as this process has looked."""
        return self._journal.depth

    @property
    def accepting(self) -> bool:
        """True if a reserve would be taken now."""
        return self._journal.accepting

    def state(self) -> JournalState:
        """Return the journal's present state."""
        return self._journal.state()

    async def start(self) -> None:
        """Open the journal and begin to look how far it is drained."""
        self._journal.open()
        self._looking = asyncio.create_task(self._look_on(), name="journal-look")

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:  # noqa: ARG002  No budgets here.
        """Book the most that an attempt may cost; durable when it returns. Raises LedgerUnavailable."""
        safe = self._journal.reserve(entry)
        try:
            await safe
        except asyncio.CancelledError:
            # The reserve is written or about to be, and the attempt will not be made.
            self.settle(void_of(entry))
            raise
        return False

    def settle(self, entry: Entry) -> None:
        """Close a reserve. Safe in a cancelled task: it neither waits nor raises."""
        try:
            self._journal.append(entry)
        except Exception:  # noqa: BLE001  It runs where nothing may be raised any more.
            self.settle_failures += 1
            _log.exception("an entry of request %s could not be booked", entry.request_id)

    async def wait_drained(self, deadline_s: float = 5.0) -> bool:
        """Wait for at most `deadline_s` until the database has everything; False if it does not."""
        self._journal.flush()
        self._journal.look()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not self._journal.is_drained:
                    await asyncio.sleep(_SOON_S)
                    self._journal.look()
        return self._journal.is_drained

    async def aclose(self) -> None:
        """Close the journal. The drain recovers what is left in it, and deletes it."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
            self._looking = None
        await self._journal.aclose()

    async def _look_on(self) -> None:
        pause_s = self._look_every_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._look_every_s
            try:
                if self._journal.is_drained:
                    pause_s *= _IDLE_LOOKS
                else:
                    self._journal.look()
            except Exception:  # noqa: BLE001  Without this loop the journal would fill for ever.
                _log.exception("looking how far the journal is drained failed")


class MemoryLedger:
    """The same books in memory, for tests and trials; nothing is durable."""

    holds_money = False

    def __init__(self, boot_id: str = "memory") -> None:
        self.boot_id = boot_id
        self.entries: list[Entry] = []
        self.accepting = True
        """Set to False to refuse reserves, as a full journal does."""
        self.depth = 0
        self.oldest_age_s = 0.0

    async def start(self) -> None:
        """Do nothing: there is nothing to open."""

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> bool:  # noqa: ARG002  No budgets here.
        """Keep the entry. Raises LedgerUnavailable when `accepting` is False."""
        if not self.accepting:
            raise LedgerUnavailable("these books were told to refuse")
        self.entries.append(entry)
        return False

    def settle(self, entry: Entry) -> None:
        """Keep the entry."""
        self.entries.append(entry)

    async def wait_drained(self, deadline_s: float = 5.0) -> bool:  # noqa: ARG002  There is nothing to wait for.
        """Return True: there is no database to write to."""
        return True

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""
