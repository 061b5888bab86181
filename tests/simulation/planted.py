"""Faults planted in the product, by which the simulation itself is tested: each has to be found within some seeds."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from cost.budgets import budget_reservations
from cost.ledger import store
from cost.ledger.entries import Entry, void_of
from cost.ledger.ledger import Ledger
from cost.ledger.store import LedgerStore
from gateway.link.link import Link
from providers.batch_apis.openai import OpenAiBatches
from providers.breaker import Permit
from proxy.admit.limits.shared import SharedBuckets
from proxy.batch import output
from proxy.batch.batch import LineState
from proxy.batch.provider_batch_store import ProviderBatchStore
from proxy.context import RequestContext
from proxy.settle.settlement import Settlement
from proxy.shared.redis.redis_breaker import RedisBreaker


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


def silent_lines() -> None:
    """Lines that were never answered stand in no file."""
    write = output._write

    async def some(writer: Any, batch: Any, outcomes: Any) -> None:
        await write(writer, batch, [each for each in outcomes if each.state == LineState.ANSWERED])

    output._write = some


def prompts_stay() -> None:
    """What a batch left at its provider is not deleted there."""

    async def forget(_self: OpenAiBatches, _deployment: Any, _batch: Any) -> None:
        return

    OpenAiBatches.forget = forget  # type: ignore[assignment, method-assign]


def provider_is_free() -> None:
    """Answers of a provider's batch are written, and not booked."""
    collect = ProviderBatchStore.collect

    async def unbooked(self: Any, handed: Any, results: Any, _entries: Any, estimated: int = 0) -> Any:
        return await collect(self, handed, results, [], estimated)

    ProviderBatchStore.collect = unbooked  # type: ignore[assignment, method-assign]


def place_kept_in_redis() -> None:
    """Redis is not told that a request has ended."""
    settle = SharedBuckets.settle

    def keep(self: Any, draw: Any, correction: int, holder: str = "") -> bool:
        return bool(draw.counted or settle(self, draw, correction, holder))

    SharedBuckets.settle = keep  # type: ignore[method-assign]


def redis_given_up() -> None:
    """A Redis that was lost once is not tried again."""

    def open_(_self: RedisBreaker, _now: float) -> float:
        return 1e9

    RedisBreaker.open = open_  # type: ignore[assignment, method-assign]


def linked_once() -> None:
    """A worker whose link is lost does not connect again."""
    connect = Link._connect

    async def once(self: Link) -> Any:
        if self._connection is not None or self.came == [None]:
            return None
        connection = await connect(self)
        if connection is not None:
            self.came = [None]  # type: ignore[list-item]
        return connection

    Link._connect = once  # type: ignore[method-assign]


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
        silent_lines,
        prompts_stay,
        provider_is_free,
        place_kept_in_redis,
        redis_given_up,
        linked_once,
    )
}
