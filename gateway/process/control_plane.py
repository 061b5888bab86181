"""The control plane: one process a host, which does for all workers what no caller waits for, and serves the pages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from pathlib import Path

import msgspec
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.store import AccountStore
from api.live.readers import open_operations
from api.live.workers import Workers
from api.metrics.routes import METRICS_LISTENER
from api.operations.incident_round import IncidentRound
from api.savings_calculator import SavingsCalculator
from api.web.gateway import READS_AT_ONCE, Finance, Gateway, Jobs, ShownMetrics, Views
from classifier.learning.store import LearningStore
from cost.ledger.drain import Drain
from cost.reports.usage import UsageReader
from cost.times import wall_us
from gateway.configuration.environment import Environment, read_environment, resolve_secret
from gateway.configuration.file import ConfigError
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import peppers
from gateway.database import make_engine
from gateway.link.answering import answer_from_database
from gateway.link.connection import Connection
from gateway.link.data_sources import from_database
from gateway.link.hub import Hub
from gateway.link.worker_questions import VOCABULARY, PeekLimits, ReadReport, Reprice, ResponseQueued, WriteDown
from gateway.low_priority_thread import open_low_priority_thread
from gateway.process.reloads import ReloadTeller
from gateway.process.runtime_folder import RuntimeFolder
from gateway.process_pipeline import ProcessPipeline
from gateway.wiring.background_responses import keep_making
from gateway.wiring.batch import LineAnswers, keep_batches_going, open_batch_tier, open_callbacks
from gateway.wiring.counts import keep_counts
from gateway.wiring.events import keep_events
from gateway.wiring.fleet import FIRST_LOOK_S, open_fleet
from gateway.wiring.ledger_archive import keep_archive
from gateway.wiring.ledger_rounds import keep_rounds, open_drain
from gateway.wiring.measuring import keep_measuring
from gateway.wiring.metrics import AllMetrics, all_metrics
from gateway.wiring.other_hosts import OtherHosts, open_other_hosts
from gateway.wiring.overruns import share_overruns
from gateway.wiring.people import open_people
from gateway.wiring.prober import OpenProber, adopt_costs, open_prober
from gateway.wiring.processes import count_workers
from gateway.wiring.refused_parameters import share_refused_parameters
from gateway.wiring.rollouts import keep_rollouts
from gateway.wiring.scaling import keep_scaling
from gateway.wiring.web_app import ControlApp, metrics_app, serving_metrics, serving_web, web_app
from gateway.wiring.worker_ledger import ProcessParts, open_worker_ledger
from proxy.admin.worker_report import WorkerReport
from proxy.admit.limits.limit import Limit, Remaining
from proxy.admit.queues.queue_item import QueueSnapshot
from proxy.batch.backlog import Backlog
from proxy.batch.idle_capacity import IdleCapacity
from proxy.learning.retention import forget_what_may_not_stay
from proxy.settle.findings.store import FindingStore
from proxy.settle.observers.logs import configure_logging
from proxy.settle.prompt_caches.store import CacheLossStore
from proxy.settle.refusals.store import RefusalStore
from proxy.settle.traffic.store import TrafficStore
from proxy.shared.background_tasks import background, every
from proxy.shared.redis.live_processes import CountedProcesses, ReportedProcesses
from selfhosted.balance.sharing import PromptsSent
from selfhosted.health.bulletin import Bulletin
from selfhosted.health.host_messages import FROM_PROCESS, FromProcess, ToHost
from selfhosted.pools.fleet import Fleet
from selfhosted.prefixes.store import PrefixStore, keep_pruned
from selfhosted.scale.process_reports import FleetReport

_LOOK_S = 0.5
_INCIDENTS_S = 10.0
_READINGS_S = 5.0
_PURGE_S = 300.0
_RETENTION_S = 600.0


class ControlPlane:
    """The process's life: from its start to its last booked entry."""

    def __init__(
        self,
        config: GatewayConfig,
        environment: Environment,
        config_path: Path | None,
        folder: RuntimeFolder,
        metrics: AllMetrics | None = None,
    ) -> None:
        self._environment = environment
        self._config_path = config_path
        self._folder = folder
        self._metrics = metrics or all_metrics()
        self.live = ProcessPipeline(config, environment, config_path, self._metrics, serves_callers=False)
        self._is_draining = False
        self._reports: tuple[WorkerReport, ...] | None = None
        self.hub = Hub(VOCABULARY)
        share_overruns(self.hub, self.live.overruns)
        share_refused_parameters(self.hub, self.live.refused_parameters)
        self._reloaded: list[Callable[[], None]] = []
        """Called after a reload."""
        self.reloads = ReloadTeller(folder.reloads, "control")

    def begin_drain(self) -> None:
        """End streams of events, as their callers come again elsewhere."""
        self._is_draining = True

    def reload(self) -> None:
        """Read the file again, as the workers do, and tell what came of it."""
        outcome = self.live.reload()
        for reloaded in self._reloaded:
            reloaded()
        self.reloads.tell(outcome)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Gateway]:
        """Open everything in the order of need, and close it in reverse, the books last."""
        config, metrics, live = self.live.config, self._metrics, self.live
        log_lines = configure_logging(form=self._environment.logs)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(log_lines.close)
            connect = partial(make_engine, self._environment.database(), power_safe=config.cost.journal_sync == "power")
            engine = connect()
            stack.push_async_callback(engine.dispose)
            spare = await open_low_priority_thread(connect, stack)
            answer_from_database(self.hub.handlers, engine, spare)
            # Its own pipeline serves no caller, so it takes no share of what the workers divide; what it asks for
            # batches is bounded by the share that one more process would have.
            own_count = ReportedProcesses()
            sources = from_database(engine, own_count)
            # First, so that it is closed last: what this process booked itself is brought in, too.
            drain = await open_drain(engine, config, metrics, wall_us, stack, spare)
            opened = await open_worker_ledger(config.cost, sources.grants, metrics, wall_us, stack)
            boot_id = opened.ledger.boot_id
            savings = SavingsCalculator(
                engine,
                lambda: live.config.cost,
                wall_us,
                operator=config.accounts.operator,
                evidence=live.evidence,
                costs_nothing=live.costs_nothing,
            )
            published = Bulletin()
            probing = await open_prober(
                engine, config, boot_id, metrics, _Published(self.hub, published), live.keys, stack
            )
            self._hear_of_fleet(probing)
            prompts = _HostPrompts(self.hub)
            fleet = await open_fleet(
                config,
                metrics,
                partial(_tell, prompts, probing, boot_id),
                live.fleet_changed,
                live.keys,
                stack,
                hears_engines=False,
            )
            published.subscribe(fleet.hear)
            prompts.follow(fleet)
            prompts.others = await open_other_hosts(
                config, self._environment, boot_id, prompts.heard, metrics.hosts, stack
            )
            await fleet.known(FIRST_LOOK_S)
            await live.open(ProcessParts(engine, sources, opened, fleet), stack)
            counted = await count_workers(engine, self.hub, stack)
            background(stack, every(_LOOK_S, lambda: self._look_at_workers(own_count, counted)))
            backlog = Backlog()
            self._reloaded = [
                keep_scaling(
                    lambda: live.config, probing, lambda: counted.live, backlog, metrics.scale, metrics.turns, stack
                ),
                lambda: adopt_costs(probing.view, live.config, metrics),
            ]
            keep_rollouts(probing, config.accounts.operator, stack)
            accounts, learning = AccountStore(engine), LearningStore(engine)
            keep_measuring(
                engine,
                accounts=accounts,
                operator=config.accounts.operator,
                classifier=live.classifier,
                dispatcher=live.dispatcher,
                rules=live.measuring_rules,
                holder=boot_id,
                stack=stack,
            )
            gateway = Gateway(
                boot_id=boot_id,
                operator=config.accounts.operator,
                is_draining=lambda: self._is_draining,
                config=lambda: live.config,
                every_setting=self._every_setting,
                webhooks=frozenset(config.webhooks.names()),
                metrics_token=config.telemetry.metrics_token and resolve_secret(config.telemetry.metrics_token),
                database=engine,
                directory=live.directory,
                limit_book=live.gate.limit_book,
                rules=lambda: live.line.config,
                ready=live.breakers.ready,
                classifier=live.classifier,
                learning=learning,
                identity=open_people(engine, accounts, config, peppers(config, self._environment), stack),
                finance=Finance(
                    usage=UsageReader(engine),
                    prices=live.prices,
                    savings=savings,
                    drain=drain,
                    reads=asyncio.Semaphore(READS_AT_ONCE),
                    reprice=self._reprice,
                    write_down=partial(self._write_down, drain),
                ),
                metrics=ShownMetrics(metrics.requests, metrics.learning, metrics.registry),
                jobs=Jobs(
                    responses=live.responses,
                    background=live.background,
                    answering=LineAnswers(live.line),
                    batch=open_batch_tier(engine, config, self._environment.places, lambda: live.line.config),
                    callbacks=open_callbacks(engine, config, peppers(config, self._environment)),
                ),
                views=Views(
                    operations=open_operations(engine, stack),
                    refusals=RefusalStore(engine),
                    findings=FindingStore(engine),
                    guard=live.guard,
                    traffic=TrafficStore(engine),
                    workers=self._workers(),
                    fleet=probing.view,
                ),
                refused_parameters=live.refused_parameters.current,
            )
            if gateway.jobs.batch is not None and gateway.jobs.callbacks is not None:
                keep_batches_going(
                    gateway.jobs.batch,
                    accounts=accounts,
                    line=live.line,
                    backlog=backlog,
                    room=IdleCapacity(lambda: live.line.config.catalog, live.gate.queues, fleet, self._queue_looks),
                    metrics=metrics.batch,
                    outbox=gateway.jobs.callbacks.outbox,
                    boot_id=boot_id,
                    is_draining=lambda: self._is_draining,
                    stack=stack,
                )
            look = keep_making(
                live.responses,
                live.background,
                accounts=accounts,
                pipeline=live.line,
                section=lambda: live.config.responses,
                is_draining=lambda: self._is_draining,
                stack=stack,
            )
            self.hub.handlers.when_told(ResponseQueued, lambda _from, _queued: look())
            self._keep_house(engine, gateway, stack)
            keep_counts(
                self.hub,
                gateway.views,
                lambda marks: (
                    live.traffic.changed_after(marks[0], boot_id),
                    live.findings.changed_after(marks[1], boot_id),
                ),
                stack,
            )
            await stack.enter_async_context(
                await keep_rounds(engine, lambda: live.config, metrics, savings, gateway.jobs.callbacks, wall_us)
            )
            keep_events(engine, config.events, boot_id, metrics.events, stack, self._environment.forward_proxy())
            await self.hub.start(self._folder.link)
            stack.push_async_callback(self.hub.aclose)
            await stack.enter_async_context(
                serving_web(
                    ControlApp(web_app(litellm=config.accounts.litellm_routes), {"gateway": gateway}), self._folder.web
                )
            )
            if config.telemetry.metrics_listen is not None:
                scraped = ControlApp(metrics_app(), {"gateway": gateway, METRICS_LISTENER: True})
                await stack.enter_async_context(serving_metrics(scraped, config.telemetry.metrics_listen))
            yield gateway
            self.begin_drain()

    def _hear_of_fleet(self, probing: OpenProber) -> None:
        def hear(connection: Connection, message: FromProcess) -> None:
            probing.prober.hear(connection.boot_id, message)

        for each in FROM_PROCESS:
            self.hub.handlers.when_told(each, hear)
        self.hub.went.append(probing.prober.forget)

    async def _look_at_workers(self, own_count: ReportedProcesses, counted: CountedProcesses) -> None:
        own_count.live = counted.live + 1
        if self.live.gate.queues.names:
            self._reports = await self._ask_reports()

    async def _ask_reports(self) -> tuple[WorkerReport, ...]:
        return tuple((await self.hub.ask_all(ReadReport())).values())

    def _queue_looks(self, name: str) -> list[QueueSnapshot] | None:
        """Return a queue as the workers last told of it; None before they did."""
        if self._reports is None:
            return None
        return [each.snapshot for report in self._reports for each in report.queues if each.name == name]

    def _workers(self) -> Workers:
        async def peek(limits: tuple[Limit, ...]) -> list[tuple[Remaining, ...]]:
            return [tuple(each) for each in (await self.hub.ask_all(PeekLimits(list(limits)))).values()]

        return Workers(self._ask_reports, peek)

    async def _reprice(self) -> None:
        await self.live.prices.refresh()
        await self.hub.ask_all(Reprice())

    async def _write_down(self, drain: Drain) -> None:
        self.live.write_down()
        self._metrics.ledger.set_drain(drain.counts)
        await self.hub.ask_all(WriteDown())

    def _keep_house(self, engine: AsyncEngine, gateway: Gateway, stack: contextlib.AsyncExitStack) -> None:
        async def forget() -> None:
            keep_days = self.live.config.classifier.learning.keep_days
            await forget_what_may_not_stay(
                gateway.learning, gateway.identity.accounts, keep_days=keep_days, now_us=wall_us()
            )

        incidents = IncidentRound(gateway, self._metrics.states.tell)
        # So that an incident is known that nobody looked at.
        background(stack, every(_INCIDENTS_S, incidents.look))
        background(stack, every(_READINGS_S, gateway.identity.readings.save))
        background(stack, every(_RETENTION_S, incidents.forget))
        background(stack, every(_RETENTION_S, forget))
        background(stack, keep_pruned(PrefixStore(engine)))
        background(stack, keep_pruned(CacheLossStore(engine)))
        background(stack, every(_PURGE_S, gateway.jobs.responses.purge))
        keep_archive(engine, lambda: self.live.config, self._config_path, self._metrics.ledger.set_archive, stack)

    def _every_setting(self) -> tuple[BaseModel, BaseModel | None]:
        try:
            return self.live.config, read_environment()
        except ConfigError:
            # It was sound at the start, and somebody changed it since.
            return self.live.config, None


class _Published:
    """The fleet's news, for the workers and this process's own pipeline."""

    def __init__(self, hub: Hub, own: Bulletin) -> None:
        self._hub = hub
        self._own = own

    def publish(self, key: Hashable, message: msgspec.Struct) -> None:
        self._hub.publish(key, message)
        self._own.publish(key, message)

    def forget(self, key: Hashable) -> None:
        self._hub.forget(key)
        self._own.forget(key)


class _HostPrompts:
    """News of prompts that went to replicas, from each process of the host to all others, and to and from other hosts."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._fleet: Fleet | None = None
        self.others: OtherHosts | None = None

    def follow(self, fleet: Fleet) -> None:
        """Pass the news on to this process's own fleet, too, from now on."""
        self._fleet = fleet
        self._hub.handlers.when_told(PromptsSent, self._told)

    def sent(self, boot_id: str, message: PromptsSent) -> None:
        """Hand on the prompts that a process of this host, by its boot id, told of."""
        message = msgspec.structs.replace(message, process=boot_id)
        self._hub.tell_others(boot_id, message)
        if self.others is not None:
            self.others.tell(message)

    def heard(self, message: PromptsSent) -> None:
        """Hand on the prompts that a process of another host told of."""
        self._hub.tell_others(message.process, message)
        if self._fleet is not None:
            self._fleet.hear(message)

    def _told(self, connection: Connection, message: PromptsSent) -> None:
        self.sent(connection.boot_id, message)
        if self._fleet is not None:
            self._fleet.hear(msgspec.structs.replace(message, process=connection.boot_id))


def _tell(prompts: _HostPrompts, probing: OpenProber, boot_id: str, message: ToHost) -> None:
    if isinstance(message, PromptsSent):
        prompts.sent(boot_id, message)
    # Nobody waits at this process's gate, so it has nothing to say of that.
    elif not isinstance(message, FleetReport):
        probing.prober.hear(boot_id, message)
