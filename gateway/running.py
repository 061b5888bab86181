"""The life of one gateway process: every part is made once, loops run beside the requests, and all is taken down in order."""

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.directory import Directory
from accounts.store import AccountStore
from classifier.heuristic import HeuristicClassifier
from classifier.learning.requests import own_requests
from classifier.learning.store import LearningStore, Verdict
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from cost.budgets.books import BudgetedBooks
from cost.budgets.holds import Holds
from cost.price_book.book import PriceBook
from cost.price_book.store import PriceStore
from cost.price_book.watch import PriceWatch
from cost.reports.usage import UsageReader
from cost.times import wall_us
from dashboards.live.readers import open_operations
from dashboards.live.workers import Workers
from dashboards.savings import Claims
from dashboards.web.gateway import READS_AT_ONCE, Gateway, State
from gateway.configuration.file import ConfigError
from gateway.configuration.settings import (
    Environment,
    GatewayConfig,
    peppers,
    read_environment,
    reload,
    resolve_secret,
)
from gateway.database import make_engine
from gateway.wiring.admission import adopt, open_gate
from gateway.wiring.batch import LineAnswers, keep_batches_going, open_batch_tier, open_callbacks
from gateway.wiring.books import keep_rounds, open_books
from gateway.wiring.fleet import open_both, waiting_at_gate
from gateway.wiring.http import connection_limits
from gateway.wiring.measuring import keep_measuring
from gateway.wiring.metrics import all_metrics
from gateway.wiring.people import open_people
from gateway.wiring.pipeline import (
    open_prefix_tracker,
    open_upstreams,
    pipeline_config,
    retry_budget,
    warn_of_classifier,
    warn_of_models,
)
from gateway.wiring.pool_queues import sized
from gateway.wiring.scaling import keep_scaling
from providers.breaker import Breakers
from providers.catalog import Catalog, build_catalog, configured_prices, repriced, with_deployments
from providers.target import Deployment
from providers.upstreams import Upstreams
from proxy.affinity import Affinity
from proxy.answers import schema_check
from proxy.background import background, every
from proxy.batch.room import IdleRoom
from proxy.dispatch import Dispatcher
from proxy.gate import Gate
from proxy.hot_routes import elsewhere, hot_routes
from proxy.http.server import HttpServer, Route, Routes
from proxy.learning.learning_metrics import LearningMetrics
from proxy.learning.measuring import MeasuringRules
from proxy.learning.retention import forget_what_may_not_stay
from proxy.learning.shadow import Shadow, ShadowRules
from proxy.learning.tunings import TuningWatch
from proxy.limits.limit import Limit, Remaining
from proxy.line import RequestPipeline
from proxy.observers.learning import LearningLog
from proxy.observers.logs import RequestLog, configure_logging
from proxy.observers.telemetry import Tracing, build_tracing
from proxy.overload import AcceptBacklog
from proxy.pipeline_config import PipelineConfig
from proxy.queues.queues_config import QueueConfig
from proxy.stored_responses.sealing import Sealing
from proxy.stored_responses.store import ResponseStore
from proxy.stored_responses.stored_responses import StoredResponses
from proxy.tolerance import learn_from_own_requests
from proxy.worker_report import WorkerReport, report_of
from selfhosted.fleet import Fleet
from selfhosted.prefixes.store import PrefixStore, keep_pruned

_log = logging.getLogger("weighbridge.app")

_TICK_S = 1.0
_RETENTION_S = 600.0
_OWN_REQUESTS_S = 300.0
_PURGE_S = 300.0


class Running:
    """The process's life: from its start to its last booked entry."""

    def __init__(self, config: GatewayConfig, environment: Environment, config_path: Path | None) -> None:
        self._config = config
        self._environment = environment
        self._config_path = config_path
        self._line: RequestPipeline | None = None
        self._gate: Gate | None = None
        self._catalog: Catalog | None = None
        self._classifier: OnnxClassifier | HeuristicClassifier | None = None
        self._pools = config.selfhosted.pool_of_target()
        """Decided at the start."""
        self._breakers = Breakers(config.providers.breaker, time.monotonic)
        self._shadow: Shadow | None = None
        self._fleet: Fleet | None = None
        self._is_refreshing = False
        self._queues: dict[str, QueueConfig] = {}
        self._metrics = all_metrics()
        self._prices: PriceWatch | None = None
        self._server: HttpServer | None = None

    def begin_drain(self) -> None:
        """Readiness turns false and new work is refused; what runs goes on."""
        if self._line is not None:
            self._line.draining = True
        if self._shadow is not None:
            self._shadow.drain()

    def cut_off(self) -> None:
        """The time to drain is over: what still runs is ended, told and settled."""
        if self._line is not None:
            self._line.cut_off()

    def watch_backlog(self, backlog: AcceptBacklog) -> None:
        """The overload guard sees from now on who waits to be accepted."""
        if self._gate is not None:
            self._gate.guard.watch(backlog)

    def elsewhere(self, otherwise: Route) -> Route:
        """What the line serves at other paths, once it is open, and `otherwise`."""
        return otherwise if self._line is None else elsewhere(self._line, otherwise)

    def hot_routes(self) -> Routes:
        """What the line serves itself, once it is open."""
        return {} if self._line is None else hot_routes(self._line)

    def adopt_server(self, server: HttpServer) -> None:
        """The server's limits follow the configuration from now on."""
        self._server = server

    def _every_setting(self) -> tuple[GatewayConfig, Environment | None]:
        try:
            return self._config, read_environment()
        except ConfigError:
            # It was sound at the start, and somebody changed it since.
            return self._config, None

    def _in_flight(self) -> int:
        return 0 if self._line is None else self._line.in_flight

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[State]:
        """Starts everything in the order of need; stops it in reverse, the books last."""
        config = self._config
        log_lines = configure_logging()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(log_lines.close)
            engine = make_engine(self._environment.database(), power_safe=config.cost.journal_sync == "power")
            stack.push_async_callback(engine.dispose)
            metrics = self._metrics
            ledger, drain, holds, books = await open_books(engine, config, metrics, wall_us, stack)
            claims = Claims(engine, lambda: self._config.cost, wall_us, operator=config.accounts.operator)
            directory = self._directory(engine)
            stack.push_async_callback(directory.aclose)
            self._prices = prices = PriceWatch(
                PriceStore(engine), configured_prices(config.providers), self._repriced, wall_us
            )
            await prices.refresh()
            fleet, probing = await open_both(engine, config, ledger.boot_id, metrics, self._fleet_changed, stack)
            self._fleet = fleet
            self._breakers.ready, fleet.cleared = fleet.ready, self._breakers.cleared
            self._catalog = catalog = self._built(config, prices.book)
            self._breakers.adopt(catalog)
            upstreams = await open_upstreams(catalog, config.server.max_in_flight)
            stack.push_async_callback(upstreams.aclose)
            tracing = self._tracing(stack)
            await asyncio.to_thread(schema_check.prepare)
            learning, accounts = LearningStore(engine), AccountStore(engine)
            learning_log = LearningLog(learning, accounts.learning_of, observer=metrics.learning)
            learning_log.start()
            stack.push_async_callback(learning_log.aclose)
            self._classifier = classifier = load_classifier(config.classifier, catalog.abilities)
            warn_of_classifier(classifier, catalog)
            warn_of_models(config, catalog)
            metrics.classifier.set_trained(trained=classifier.fallback_reason is None)
            self._gate = gate = await open_gate(
                engine, config, self._sized(), self._environment, ledger.boot_id, metrics, self._in_flight, stack
            )
            dispatcher, line = self._open_line(
                engine,
                catalog=catalog,
                classifier=classifier,
                upstreams=upstreams,
                books=books,
                holds=holds,
                directory=directory,
                learning_log=learning_log,
                tracing=tracing,
                gate=gate,
                replicas=fleet,
                stack=stack,
            )
            keep_scaling(config, probing, gate.sharers, metrics.scale, stack)
            self._shadow = shadow = self._shadow_of(line, dispatcher, learning, accounts, metrics.learning)
            stack.push_async_callback(shadow.aclose)
            shadow.start()
            line.shadow = shadow
            keep_measuring(
                engine,
                accounts=accounts,
                operator=config.accounts.operator,
                classifier=classifier,
                dispatcher=dispatcher,
                rules=lambda: self._measuring_rules(line),
                holder=ledger.boot_id,
                stack=stack,
            )
            gateway = Gateway(
                rules=lambda: line.config,
                directory=directory,
                limit_book=gate.limit_book,
                is_draining=lambda: line.draining,
                fleet_view=probing.view,
                ledger=ledger,
                drain=drain,
                usage=UsageReader(engine),
                metrics=metrics.requests,
                ledger_metrics=metrics.ledger,
                learning_metrics=metrics.learning,
                registry_metrics=metrics.registry,
                learning=learning,
                learning_log=learning_log,
                classifier=classifier,
                prices=prices,
                claims=claims,
                database=engine,
                reads=asyncio.Semaphore(READS_AT_ONCE),
                webhooks=frozenset(config.webhooks.names()),
                operator=config.accounts.operator,
                metrics_token=config.telemetry.metrics_token and resolve_secret(config.telemetry.metrics_token),
                accounts=accounts,
                workers=self._workers(ledger.boot_id, line, gate),
                ready=self._breakers.ready,
                operations=open_operations(engine, stack),
                batch=open_batch_tier(engine, config, self._environment.data_dir),
                responses=self._stored_responses(engine),
                callbacks=open_callbacks(engine, config, peppers(config, self._environment)),
                config=lambda: self._config,
                every_setting=self._every_setting,
                **open_people(engine, config, peppers(config, self._environment), stack),
            )
            self._keep_going(line, gateway, accounts, stack)
            await stack.enter_async_context(
                await keep_rounds(engine, config, metrics, claims, gateway.callbacks, wall_us)
            )
            watch = TuningWatch(learning, classifier, self._retuned)
            await watch.refresh()
            background(stack, every(config.classifier.learning.poll_s, watch.refresh))
            self._listen_for_reload(stack)
            app.state.ledger, app.state.drain, app.state.holds, app.state.gateway = ledger, drain, holds, gateway
            app.state.tuning_watch, app.state.line, app.state.breakers = watch, line, self._breakers
            yield {"gateway": gateway}
            line.draining = True

    def _open_line(
        self,
        engine: AsyncEngine,
        *,
        catalog: Catalog,
        classifier: OnnxClassifier | HeuristicClassifier,
        upstreams: Upstreams,
        books: BudgetedBooks,
        holds: Holds,
        directory: Directory,
        learning_log: LearningLog,
        tracing: Tracing,
        gate: Gate,
        replicas: Fleet,
        stack: contextlib.AsyncExitStack,
    ) -> tuple[Dispatcher, RequestPipeline]:
        dispatcher = Dispatcher(
            upstream=upstreams,
            breakers=self._breakers,
            budget=retry_budget(self._config),
            books=books,
            clock=time.monotonic,
            now_us=wall_us,
            rng=random.Random(),  # noqa: S311 - it spreads load, it guards nothing
            queues=gate.queues,
            latency=gate.latency,
            replicas=replicas,
        )
        line = self._line = RequestPipeline(
            config=pipeline_config(self._config, catalog, classifier),
            directory=directory,
            limiter=gate.limiter,
            classifier=classifier,
            affinity=Affinity(time.monotonic),
            breakers=self._breakers,
            dispatcher=dispatcher,
            observers=(
                self._metrics.requests,
                RequestLog(share=self._config.telemetry.log_success_share),
                learning_log,
            ),
            tracing=tracing,
            clock=time.monotonic,
            budgets=holds,
            guard=gate.guard,
            once=gate.once,
            latency=gate.latency,
            habits=open_prefix_tracker(
                self._config, self._environment, PrefixStore(engine), self._metrics.prefixes, stack
            ),
            responses=self._stored_responses(engine),
        )
        return dispatcher, line

    def _stored_responses(self, engine: AsyncEngine) -> StoredResponses:
        sealing = Sealing(peppers(self._config, self._environment))
        return StoredResponses(ResponseStore(engine), sealing, lambda: self._config.responses)

    def _workers(self, boot_id: str, line: RequestPipeline, gate: Gate) -> Workers:
        async def ask() -> list[WorkerReport]:
            scored_by_rule = getattr(self._classifier, "fallbacks", 0)
            return [report_of(boot_id, line, gate, self._breakers, scored_by_rule)]

        async def peek(limits: tuple[Limit, ...]) -> list[tuple[Remaining, ...]]:
            return [await gate.limiter.peek(limits)]

        return Workers(ask, peek)

    def _keep_going(
        self, line: RequestPipeline, gateway: Gateway, accounts: AccountStore, stack: contextlib.AsyncExitStack
    ) -> None:
        """The loops of this process itself."""
        engine = gateway.database
        background(stack, every(_TICK_S, lambda: self._tick(line, gateway)))
        background(stack, every(_RETENTION_S, lambda: self._expire_learning(gateway.learning, accounts)))
        background(stack, every(_OWN_REQUESTS_S, lambda: self._learn_own_requests(line, engine)))
        background(stack, keep_pruned(PrefixStore(engine)))
        background(stack, every(_PURGE_S, gateway.responses.purge))
        background(stack, gateway.prices.follow(self._config.cost.prices_poll_s))
        self._keep_batches(line, gateway, stack)

    def _keep_batches(self, line: RequestPipeline, gateway: Gateway, stack: contextlib.AsyncExitStack) -> None:
        if gateway.batch is not None and gateway.callbacks is not None and self._gate is not None:
            keep_batches_going(
                gateway.batch,
                accounts=gateway.accounts,
                answering=LineAnswers(line),
                rules=lambda: line.config,
                room=IdleRoom(lambda: line.config.catalog, self._gate.queues, self._fleet),
                metrics=self._metrics.batch,
                outbox=gateway.callbacks.outbox,
                boot_id=gateway.ledger.boot_id,
                is_draining=lambda: line.draining,
                stack=stack,
            )

    def _built(self, config: GatewayConfig, book: PriceBook) -> Catalog:
        """The catalog with the replicas that are known now."""
        catalog = build_catalog(config.providers, resolve_secret, book, wall_us(), self._pools)
        return catalog if self._fleet is None else with_deployments(catalog, self._fleet.deployments())

    def _fleet_changed(self) -> None:
        """Replicas came, went, or are in another state. Many tell so at once."""
        if self._line is not None and not self._is_refreshing:
            self._is_refreshing = True
            asyncio.get_running_loop().call_soon(self._refresh_deployments)

    def _refresh_deployments(self) -> None:
        self._is_refreshing = False
        if self._line is None or self._fleet is None or self._catalog is None:
            return
        before = self._catalog
        catalog = with_deployments(before, self._fleet.deployments())
        if catalog != before:
            self._catalog = catalog
            self._line.config = msgspec.structs.replace(self._line.config, catalog=catalog)
            self._breakers.adopt(catalog)
            self._metrics.requests.keep_deployments({each.deployment_id for each in catalog.deployments})
        self._resize()

    def _sized(self) -> dict[str, QueueConfig]:
        queues = self._config.queues
        return dict(queues) if self._fleet is None else sized(queues, self._queues, self._fleet.tokens)

    def _resize(self) -> None:
        """Queues that are as large as the pools behind them."""
        queues = self._sized()
        if self._gate is not None and queues != self._queues:
            self._queues = queues
            self._gate.queues.adopt(queues)

    def _measuring_rules(self, line: RequestPipeline) -> MeasuringRules:
        catalog = line.config.catalog
        return MeasuringRules(
            catalog=catalog,
            fleet={name: self._breakers.available(target) for name, target in catalog.targets.items()},
            timeouts=line.config.timeouts,
            retry=line.config.retry,
            pools=line.config.pools,
        )

    def _shadow_of(
        self,
        line: RequestPipeline,
        dispatcher: Dispatcher,
        learning: LearningStore,
        accounts: AccountStore,
        metrics: LearningMetrics,
    ) -> Shadow:
        def rules() -> ShadowRules:
            catalog = line.config.catalog
            return ShadowRules(
                catalog=catalog,
                reference=self._config.cost.reference_target,
                fleet={name: self._breakers.available(target) for name, target in catalog.targets.items()},
                timeouts=line.config.timeouts,
                pools=line.config.pools,
            )

        async def keep(verdicts: Sequence[Verdict]) -> None:
            await learning.add_verdicts(verdicts)
            for verdict in verdicts:
                metrics.count_verdict(verdict.source, verdict.signal)

        return Shadow(
            section=self._config.classifier.shadow,
            rules=rules,
            dispatcher=dispatcher,
            keep=keep,
            learning_of=accounts.learning_of,
            clock=time.monotonic,
            now_us=wall_us,
            count=metrics.count_shadow,
        )

    def _reloaded_rules(self, config: GatewayConfig, catalog: Catalog) -> PipelineConfig:
        """The classifier's targets come first: what a floor means is computed from their abilities."""
        before = self._catalog
        if self._classifier is None:
            return pipeline_config(config, catalog, None)
        self._classifier.adopt(catalog.abilities)
        try:
            return pipeline_config(config, catalog, self._classifier)
        except Exception:
            if before is not None:
                self._classifier.adopt(before.abilities)
            raise

    def _retuned(self) -> None:
        """What was computed from the classifier's old rows is computed anew."""
        if self._line is not None and self._catalog is not None:
            self._line.config = pipeline_config(self._config, self._catalog, self._classifier)

    def _repriced(self) -> None:
        """Other prices came into effect: the rules are swapped whole, as a reload does."""
        if self._line is not None and self._catalog is not None and self._prices is not None:
            self._catalog = repriced(self._catalog, self._prices.book, wall_us())
            self._line.config = pipeline_config(self._config, self._catalog, self._classifier)

    def _directory(self, engine: AsyncEngine) -> Directory:
        section = self._config.accounts
        return Directory(
            AccountStore(engine),
            peppers(self._config, self._environment),
            fresh_s=section.fresh_s,
            outage_s=section.outage_s,
            lookup_timeout_s=section.lookup_timeout_s,
            max_entries=section.max_entries,
        )

    def _tracing(self, stack: contextlib.AsyncExitStack) -> Tracing:
        tracing = build_tracing(
            self._environment.otlp_endpoint or self._config.telemetry.otlp_endpoint, deployment_of=self._deployment
        )
        stack.push_async_callback(tracing.aclose)
        return tracing

    def _deployment(self, deployment_id: str) -> Deployment | None:
        if self._catalog is None:
            return None
        entry = deployment_id.rpartition("/")[0]
        target = self._catalog.targets.get(entry)
        deployments = self._catalog.deployments if target is None else target.deployments
        return next((each for each in deployments if each.deployment_id == deployment_id), None)

    async def _tick(self, line: RequestPipeline, gateway: Gateway) -> None:
        self._resize()
        gate = self._gate
        if self._fleet is not None and gate is not None:
            self._fleet.tick(_TICK_S, lambda pool: waiting_at_gate(pool, gate))
        self._metrics.ledger.set_journal(gateway.ledger.state())
        self._metrics.ledger.set_drain(gateway.drain.counts)
        self._metrics.requests.write()
        self._metrics.requests.set_in_flight(line.in_flight)
        for target in line.config.catalog.targets.values():
            for deployment in target.deployments:
                self._metrics.requests.set_breaker(
                    deployment.deployment_id, self._breakers.state(deployment.deployment_id)
                )

    async def _expire_learning(self, learning: LearningStore, accounts: AccountStore) -> None:
        keep_days = self._config.classifier.learning.keep_days
        await forget_what_may_not_stay(learning, accounts, keep_days=keep_days, now_us=wall_us())

    async def _learn_own_requests(self, line: RequestPipeline, engine: AsyncEngine) -> None:
        """What a floor means for a team comes from its own requests once there are enough of them."""
        found = line.config.tolerances
        if found is not None:
            artifact, width = found.artifact, found.width
            await learn_from_own_requests(found, lambda team_id: own_requests(engine, team_id, artifact, width))

    def _listen_for_reload(self, stack: contextlib.AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):
            # Signals reach the main thread only; an app run elsewhere (in a test) reloads by calling.
            loop.add_signal_handler(signal.SIGHUP, self.reload)

            def stop_listening() -> None:
                loop.remove_signal_handler(signal.SIGHUP)
                # The books are still to be closed: a late reload must not end the process before that.
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

            stack.callback(stop_listening)

    def reload(self) -> None:
        """Reads the file again and swaps the rules whole; a bad file changes nothing."""
        answer = reload(self._config, self._config_path, self._environment)
        if answer.refused is not None:
            _log.error("reload refused, the old configuration stays: %s", answer.refused)
            return
        try:
            if self._line is None or self._gate is None or self._prices is None:
                return
            configured = configured_prices(answer.config.providers)
            book = self._prices.with_configured(configured)
            catalog = self._built(answer.config, book)
            # Before anything is taken over: the classifier would already know the new targets only.
            if catalog.needs_litellm and not self._line.config.catalog.needs_litellm:
                _log.error("reload refused, the old configuration stays: targets through litellm need a restart")
                return
            rules = self._reloaded_rules(answer.config, catalog)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the new one, the old one stays
            _log.error("reload refused, the old configuration stays: %s", error)
            return
        self._config = answer.config
        if self._server is not None:
            self._server.limits = connection_limits(answer.config.server)
        self._prices.adopt(configured)
        self._catalog = rules.catalog
        self._line.config = rules
        self._breakers.adopt(rules.catalog)
        self._queues = self._sized()
        adopt(self._gate, answer.config, self._queues)
        self._breakers.configure(answer.config.providers.breaker)
        for key in answer.needs_restart:
            _log.warning("reloaded, but `%s` takes effect only after a restart", key)
        _log.warning("configuration reloaded: %d targets", len(rules.catalog.targets))
