"""Wiring of the books: ledger, budgets, and the periodic rounds of billing, checks, alerts and reports."""

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.alerts import Alerts
from cost.budgets.books import BudgetedBooks
from cost.budgets.budget import BudgetStatus
from cost.budgets.budget_metrics import BudgetMetrics
from cost.budgets.grants import GrantStore
from cost.budgets.holds import Holds
from cost.budgets.presence import BudgetPresence
from cost.budgets.watch import BudgetWatch, Teller
from cost.close.checks import MonthChecks
from cost.ledger.journal import Journal
from cost.ledger.ledger import Ledger
from cost.ledger.store import LedgerStore
from cost.ledger.sweep import Sweep
from cost.ledger.watch import LedgerWatch
from dashboards.finance.daily_reports import DailyReports
from dashboards.savings import Claims
from dashboards.webhooks.outbox import Outbox
from dashboards.webhooks.sender import Sender, destinations_of
from gateway.configuration.settings import GatewayConfig, resolve_secret
from gateway.wiring.metrics import AllMetrics
from proxy.background import background, every

_CHECK_S = 60.0
_REPORTS_S = 60.0
_TRUE_UP_S = 300.0
_FORGET_S = 600.0
_MONTHS_S = 20.0


class OpenBooks(NamedTuple):
    """The opened books. `books` is what attempts book through: the ledger behind the budgets."""

    ledger: Ledger
    holds: Holds
    books: BudgetedBooks


async def open_books(
    engine: AsyncEngine,
    config: GatewayConfig,
    metrics: AllMetrics,
    now_us: Callable[[], int],
    stack: contextlib.AsyncExitStack,
) -> OpenBooks:
    """Opens ledger and budgets; entries that dead processes left behind are recovered before this returns."""
    section = config.cost
    journal = Journal(section.journal_dir, sync=section.journal_sync, max_bytes=section.max_journal_bytes)
    store, grants = LedgerStore(engine), GrantStore(engine)
    holds = Holds(
        grants,
        lambda: journal.boot_id,
        patience_s=section.budgets.patience_s,
        poll_s=section.budgets.poll_s,
        now_us=now_us,
        refused=metrics.budgets.count_refusal,
    )
    sweep = Sweep(engine, store, host=socket.gethostname(), lost_after_s=section.lost_host_after_s)
    ledger = Ledger(
        journal,
        store,
        presence=BudgetPresence(sweep, grants),
        booked=holds.booked,
        drain_batch=section.drain_batch,
        drain_interval_s=section.drain_interval_s,
    )
    await ledger.start()
    # Closed after the books: what they could not bring into the database stays covered.
    await holds.start()
    stack.push_async_callback(holds.aclose)
    stack.push_async_callback(ledger.aclose)
    watch = BudgetWatch(
        grants,
        lambda: (journal.boot_id,),
        _teller(engine, config, metrics.budgets),
        poll_s=section.budgets.poll_s,
        now_us=now_us,
    )
    background(stack, watch.run())
    return OpenBooks(ledger, holds, BudgetedBooks(ledger, holds))


async def keep_rounds(
    engine: AsyncEngine, config: GatewayConfig, metrics: AllMetrics, claims: Claims, now_us: Callable[[], int]
) -> contextlib.AsyncExitStack:
    """Starts the periodic rounds; closing the returned stack ends them."""
    stack = contextlib.AsyncExitStack()
    background(stack, every(_TRUE_UP_S, claims.rounds.run_due))
    background(stack, every(_CHECK_S, LedgerWatch(engine, metrics.ledger.set_ledger_check).check_due))
    background(stack, every(_MONTHS_S, MonthChecks(engine, now_us).check))
    outbox = Outbox(engine)
    if config.cost.report is not None:
        reports = DailyReports(engine, config.cost.report, outbox, config.cost.pools)
        background(stack, every(_REPORTS_S, lambda: reports.deliver_due(now_us())))
    destinations = destinations_of(config.webhooks.destinations, resolve_secret)
    if destinations:
        sender = Sender(outbox, destinations, count=metrics.webhooks.count)
        stack.push_async_callback(sender.aclose)
        background(stack, sender.run())
        background(stack, every(_FORGET_S, outbox.forget))
    return stack


def _teller(engine: AsyncEngine, config: GatewayConfig, metrics: BudgetMetrics) -> Teller:
    alerts = Alerts(Outbox(engine).put, frozenset(config.webhooks.names()))

    async def tell(standings: Sequence[BudgetStatus]) -> None:
        metrics.set_budgets(standings)
        await alerts.tell(standings)

    return tell
