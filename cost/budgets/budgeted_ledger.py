"""Ledger books that enforce hard budgets: hold an attempt's money, then reserve; settle the hold with the attempt."""

from collections.abc import Coroutine
from typing import Any

import msgspec

from cost.budgets.budget_reservations import BudgetReservations
from cost.ledger.entries import Entry
from cost.ledger.ledger import Books


class BudgetedBooks:
    """`Books` whose every reserve takes a hold on all hard budgets first, so that no attempt overruns one."""

    def __init__(self, books: Books, holds: BudgetReservations) -> None:
        self._books = books
        self._holds = holds

    @property
    def boot_id(self) -> str:
        """Id of this gateway process, as in its entries."""
        return self._books.boot_id

    @property
    def holds_money(self) -> bool:
        """True where there is any budget, as far as this process knows."""
        return not self._holds.none_needed

    def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> Coroutine[Any, Any, bool]:
        """Hold the money, then write the reserve. Raises what either raises; nothing is held then.

        `hold_nanousd` is the most that the attempt may cost; None takes the entry's own `cost_nanousd`.
        """
        if self._holds.none_needed:
            return self._books.reserve(entry, hold_nanousd)
        return self._reserve_held(entry, hold_nanousd)

    async def _reserve_held(self, entry: Entry, hold_nanousd: int | None) -> bool:
        if await self._holds.hold(entry, hold_nanousd):
            # The hold may have waited past midnight, and counts in the period that the entry is dated in.
            entry = msgspec.structs.replace(entry, at_us=max(entry.at_us, self._holds.now_us()))
        try:
            await self._books.reserve(entry, hold_nanousd)
        except BaseException:
            self._holds.release(entry)
            raise
        return self._holds.holds(entry)

    def settle(self, entry: Entry) -> None:
        """Settle the hold and close the reserve. Never raises and never waits."""
        # Before the ledger: otherwise the database might have the cost while the hold does not count it yet.
        self._holds.settle(entry)
        self._books.settle(entry)
