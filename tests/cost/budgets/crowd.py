"""Processes that spend from the same budgets, as the tests of holds need them."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cost.budgets.budget import Budget
from cost.budgets.budget_reservations import BudgetReservations
from cost.budgets.budgeted_ledger import BudgetedBooks
from cost.budgets.grants import Grants
from cost.budgets.memory import MemoryGrants
from cost.errors import BudgetExceeded
from cost.ledger.entries import TERMINAL, AttemptKey, Entry
from cost.ledger.ledger import MemoryLedger
from cost.ledger.store import LedgerStore
from tests.cost.entries import reserve, settle

NOON_US = reserve().at_us
TEAM = "team_payments"


def budget(limit_nanousd: int = 100, **changes: Any) -> Budget:
    """A hard monthly budget of the team that entries are usually booked to."""
    usual = Budget(
        budget_id="b1",
        organisation_id="default",
        scope="team",
        scope_id=TEAM,
        period="month",
        kind="hard",
        limit_nanousd=limit_nanousd,
    )
    return msgspec.structs.replace(usual, **changes)


def ends_of(entries: Iterable[Entry]) -> list[AttemptKey]:
    """The attempts that these entries close, as the holds are told of them."""
    return [(entry.request_id, entry.attempt) for entry in entries if entry.entry in TERMINAL]


class Clock:
    """A time that only the test moves."""

    def __init__(self, at_us: int = NOON_US) -> None:
        self.at_us = at_us

    def __call__(self) -> int:
        return self.at_us


class Process:
    """A process with books and holds of its own; `drain` brings its entries to where all look."""

    def __init__(self, grants: Grants, store: LedgerStore | None, boot_id: str, clock: Clock, **holds: Any) -> None:
        self.clock = clock
        self.boot_id = boot_id
        self.grants = grants
        self.store = store
        self.ledger = MemoryLedger(boot_id)
        self.holds = BudgetReservations(grants, lambda: boot_id, now_us=clock, **holds)
        self.books = BudgetedBooks(self.ledger, self.holds)
        self.refusals: list[BudgetExceeded] = []

    async def reserve(self, request_id: str, amount_nanousd: int, **changes: Any) -> bool:
        """Whether there was room."""
        entry = reserve(request_id, **self._mine(amount_nanousd), **changes)
        try:
            await self.books.reserve(entry)
        except BudgetExceeded as error:
            self.refusals.append(error)
            return False
        return True

    def settle(self, request_id: str, amount_nanousd: int, **changes: Any) -> None:
        self.books.settle(settle(request_id, **self._mine(amount_nanousd), **changes))

    async def crowd(self, count: int, amount_nanousd: int, name: str = "r") -> list[str]:
        """So many at once; the requests that there was room for."""
        names = [f"{self.boot_id}-{name}{number}" for number in range(count)]
        there_was_room = await asyncio.gather(*(self.reserve(each, amount_nanousd) for each in names))
        return [each for each, room in zip(names, there_was_room, strict=True) if room]

    async def drain(self) -> None:
        """Bring all entries into the database, and tell the holds."""
        entries = [each for each in self.ledger.entries if each.boot_id == self.boot_id]
        self.ledger.entries = []
        await self._insert(entries)
        self.holds.booked(ends_of(entries))

    async def _insert(self, entries: Sequence[Entry]) -> None:
        if self.store is not None:
            await self.store.insert(entries)
            return
        assert isinstance(self.grants, MemoryGrants)
        for entry in entries:
            if entry.entry != "reserve":
                self.grants.book("team", entry.team_id, entry.at_us, entry.cost_nanousd or 0)

    def _mine(self, amount_nanousd: int) -> dict[str, Any]:
        return {"cost_nanousd": amount_nanousd, "boot_id": self.boot_id, "at_us": self.clock()}
