"""Books that keep budgets: the money of an attempt is held before it is reserved, and spent when it is settled."""

import msgspec

from cost.budgets.holds import Holds
from cost.ledger.entries import Entry
from cost.ledger.ledger import Books


class BudgetedBooks:
    """The same books, with every hard budget in front of them. What writes here can overrun none."""

    def __init__(self, books: Books, holds: Holds) -> None:
        self._books = books
        self._holds = holds

    @property
    def boot_id(self) -> str:
        """The name of this process in its entries."""
        return self._books.boot_id

    async def reserve(self, entry: Entry, hold_nanousd: int | None = None) -> None:
        """Hold, then reserve. Raises what either raises, and nothing is held then.

        `hold_nanousd` is the most that the attempt may cost, the reserve's own cost when left out.
        """
        if await self._holds.hold(entry, hold_nanousd):
            # It may have waited until after midnight, and is held for the period that it is dated in.
            entry = msgspec.structs.replace(entry, at_us=max(entry.at_us, self._holds.now_us()))
        try:
            await self._books.reserve(entry, hold_nanousd)
        except BaseException:
            self._holds.release(entry)
            raise

    def settle(self, entry: Entry) -> None:
        """Close a reserve. Never raises and never waits."""
        # First, or the database might have the cost before anybody here counts it.
        self._holds.settle(entry)
        self._books.settle(entry)
