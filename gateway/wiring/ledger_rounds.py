"""Wiring of a host's books: the drain of all journals, and the rounds of billing, checks, alerts and reports."""

import contextlib
import functools
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from api.savings_calculator import SavingsCalculator
from api.webhooks.callbacks import CallbackDesk
from api.webhooks.outbox import Outbox
from api.webhooks.sender import Callbacks, Sender, destinations_of, mailer_of
from api.webhooks.team_addresses import team_addresses
from cost.budgets.alerts import Alerts
from cost.budgets.budget import BudgetStatus
from cost.budgets.budget_metrics import BudgetMetrics
from cost.budgets.budget_rounds import BudgetWatch, Teller
from cost.budgets.end_user_retention import EndUserRetention
from cost.budgets.grants import GrantStore
from cost.budgets.presence import BudgetPresence
from cost.close.checks import MonthChecks
from cost.ledger.drain import Drain
from cost.ledger.entries import Entry
from cost.ledger.hourly_check import LedgerWatch
from cost.ledger.journal_places import JournalPlaces
from cost.ledger.orphan_reaper import OrphanReaper
from cost.ledger.segments import boots
from cost.ledger.store import LedgerStore
from dashboards.alerts.telling import AlertRound
from dashboards.finance.daily_reports import DailyReports
from gateway.configuration.environment import resolve_secret
from gateway.configuration.gateway_config import GatewayConfig
from gateway.low_priority_thread import LowPriorityThread
from gateway.wiring.events import begin_events
from gateway.wiring.metrics import AllMetrics
from proxy.shared.background_tasks import background, every

_ALERTS_S = 60.0
_CHECK_S = 60.0
_REPORTS_S = 60.0
_TRUE_UP_S = 300.0
_FORGET_S = 600.0
_MONTHS_S = 20.0
_RETENTION_S = 3_600.0

T = TypeVar("T")


async def open_drain(
    engine: AsyncEngine,
    config: GatewayConfig,
    metrics: AllMetrics,
    now_us: Callable[[], int],
    stack: contextlib.AsyncExitStack,
    spare: LowPriorityThread | None = None,
    boot_id: str | None = None,
) -> Drain:
    """Open the drain of this host's journals, and the watch over all budgets.

    What dead processes left behind is recovered before this returns, if no other process drains. `boot_id` is this
    process's own, if it has no journal.
    """
    section = config.cost
    await begin_events(engine, config.events)
    store, grants = LedgerStore(engine), GrantStore(engine)
    reaper = OrphanReaper(engine, store, host=socket.gethostname(), lost_after_s=section.lost_host_after_s)
    drain = Drain(
        section.journal_dir,
        store,
        boot_id=boot_id,
        presence=BudgetPresence(reaper, grants),
        places=JournalPlaces(engine),
        batch=section.drain_batch,
        interval_s=section.drain_interval_s,
        spare=None if spare is None else _SpareEntries(spare),
    )
    await drain.start()
    stack.push_async_callback(drain.aclose)
    watch = BudgetWatch(
        grants,
        functools.partial(boots, section.journal_dir),
        _teller(engine, config, metrics.budgets),
        poll_s=section.budgets.poll_s,
        now_us=now_us,
    )
    background(stack, watch.run())
    return drain


class _SpareEntries:
    """The ledger as it is written in spare time."""

    def __init__(self, spare: LowPriorityThread) -> None:
        self._spare = spare
        self._store = LedgerStore(spare.engine)

    @property
    def has_time(self) -> bool:
        return self._spare.has_time

    def rest(self) -> None:
        self._spare.rest()

    async def compute(self, work: Callable[[], T]) -> T:
        return await self._spare.compute(work)

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        return await self._spare.run(lambda: self._store.insert(entries, careful=careful))


async def keep_rounds(
    engine: AsyncEngine,
    live_config: Callable[[], GatewayConfig],
    metrics: AllMetrics,
    savings: SavingsCalculator,
    desk: CallbackDesk | None,
    now_us: Callable[[], int],
) -> contextlib.AsyncExitStack:
    """Start the periodic rounds; closing the returned stack ends them. `live_config` returns the configuration in effect."""
    config = live_config()
    stack = contextlib.AsyncExitStack()
    background(stack, every(_TRUE_UP_S, savings.rounds.run_due))
    background(stack, every(_CHECK_S, LedgerWatch(engine, metrics.ledger.set_ledger_check).check_due))
    background(stack, every(_MONTHS_S, MonthChecks(engine, now_us).check))
    retention = EndUserRetention(engine, lambda: live_config().cost.end_user_days, now_us)
    background(stack, every(_RETENTION_S, retention.forget))
    outbox = Outbox(engine)
    if config.cost.report is not None:
        reports = DailyReports(engine, config.cost.report, outbox, lambda: live_config().cost.pools)
        background(stack, every(_REPORTS_S, lambda: reports.deliver_due(now_us())))
    destinations = destinations_of(config.webhooks.destinations, resolve_secret, config.webhooks.mail)
    addresses = None if desk is None else team_addresses(config.webhooks, desk.addresses)
    if destinations or addresses is not None:
        sealed = None if desk is None else desk.sealed
        alerts = AlertRound(
            engine, outbox.put, destinations.keys(), now_us, config.accounts.operator, addresses, sealed
        )
        background(stack, every(_ALERTS_S, alerts.look))
    if destinations or desk is not None:
        mailer = mailer_of(config.webhooks.mail, resolve_secret)
        callbacks = None if desk is None else Callbacks(desk.addresses, desk.secrets.keys, mailer, desk.sealed.opened)
        sender = Sender(outbox, destinations, count=metrics.webhooks.count, callbacks=callbacks)
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
