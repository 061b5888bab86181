"""Faults planted in the product, by which the simulation itself is tested: each has to be found within some seeds."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from cost.budgets import budget_reservations
from cost.ledger import store
from cost.ledger.entries import Entry, void_of
from cost.ledger.ledger import Ledger
from cost.ledger.store import LedgerStore
from providers.breaker import Permit
from proxy.context import RequestContext
from proxy.settle.settlement import Settlement


def rolled_up_twice() -> None:
    """Entries that the database has already are added to the roll-ups again."""
    store._with_keys = lambda entries, _keys: list(entries)  # type: ignore[assignment]


def slot_kept() -> None:
    """A caller that hangs up leaves its place among those in flight."""
    settle = Settlement.settle

    def forget(self: Settlement, context: RequestContext, now: float, shadow: Any) -> None:
        if context.ended_by == "caller_gone":
            context.admission = None
        settle(self, context, now, shadow)

    Settlement.settle = forget  # type: ignore[method-assign]


def cancelled_is_success() -> None:
    """A probe whose caller hung up, or that was refused, closes the circuit."""
    abandon = Permit.abandon

    def praise(self: Permit) -> None:
        self.success()
        abandon(self)

    Permit.abandon = praise  # type: ignore[method-assign]


def told_before_committed() -> None:
    """The journal is told that the database has what it refused."""
    insert = LedgerStore.insert

    async def pretend(self: LedgerStore, entries: Any, *, careful: bool = False) -> int:
        try:
            return await insert(self, entries, careful=careful)
        except Exception:  # noqa: BLE001
            return len(entries)

    LedgerStore.insert = pretend  # type: ignore[method-assign]


def hung_up_is_free() -> None:
    """What was done for a caller that hung up is not booked."""
    settle = Ledger.settle

    def spare(self: Ledger, entry: Entry) -> None:
        settle(self, void_of(entry) if "caller_gone" in entry.flags else entry)

    Ledger.settle = spare  # type: ignore[method-assign]


def money_kept() -> None:
    """An attempt that failed leaves its hold on the budget."""
    settle = budget_reservations.BudgetReservations.settle

    def keep(self: Any, entry: Entry) -> None:
        if entry.entry != "void":
            settle(self, entry)

    budget_reservations.BudgetReservations.settle = keep  # type: ignore[method-assign]


def reserved_later() -> None:
    """An attempt is made before its reserve is in the journal."""

    async def reserve(self: Ledger, entry: Entry, hold_nanousd: int | None = None) -> bool:
        asyncio.get_running_loop().call_later(0.3, self.settle, entry)
        return False

    Ledger.reserve = reserve  # type: ignore[method-assign]


def budget_forgotten() -> None:
    """A hard budget lets everything through."""
    local: Any = budget_reservations._LocalBudget
    local.fits = lambda _self, _amount: True


FAULTS: Final[Mapping[str, Callable[[], None]]] = {
    fault.__name__: fault
    for fault in (
        rolled_up_twice,
        slot_kept,
        cancelled_is_success,
        told_before_committed,
        hung_up_is_free,
        money_kept,
        reserved_later,
        budget_forgotten,
    )
}
