"""Wires one gateway process: builds every part once, runs the background loops, and takes it all down in order."""

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypedDict

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.exceptions import HTTPException
from starlette.responses import Response

from accounts.audit.log import AuditLog
from accounts.directory import Directory
from accounts.errors import AccountsError
from accounts.keys import Pepper
from accounts.people.links import Links
from accounts.people.passwords import Passwords
from accounts.people.people import PeopleStore
from accounts.people.sessions import Sessions
from accounts.people.sign_in import SignIn
from accounts.store import AccountStore
from classifier.heuristic import HeuristicClassifier
from classifier.learning.requests import own_requests
from classifier.learning.store import LearningStore, Verdict
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from classifier.prediction import Classifier
from cost.fleet.pool_config import pool_of_target
from cost.price_book.book import PriceBook
from cost.price_book.store import PriceStore
from cost.price_book.watch import PriceWatch
from cost.reports.usage import UsageReader
from cost.times import wall_us
from dashboards.admin_routers import ROUTERS as ADMIN
from dashboards.api_docs.document import Described
from dashboards.budgets import api as budgets
from dashboards.feedback import api as feedback
from dashboards.finance import focus_api as focus
from dashboards.finance import litellm_spend_api as litellm_shapes
from dashboards.finance import organization_api as organization
from dashboards.finance import savings_api as savings
from dashboards.finance import usage_api as usage
from dashboards.fleet import api as fleet
from dashboards.fleet import prefixes_api as prefixes
from dashboards.health import api as health
from dashboards.limits import api as limits
from dashboards.live.readers import open_operations
from dashboards.model_list import api as models
from dashboards.openid.providers import Providers, open_providers
from dashboards.operations import api as operations
from dashboards.page_routers import ROUTERS as PAGES
from dashboards.policy import api as policy
from dashboards.prices import api as price_routes
from dashboards.savings import Claims
from dashboards.web.error_pages import error_page, is_page
from dashboards.web.forms import FormError
from dashboards.web.gateway import READS_AT_ONCE, Gateway, State
from gateway.asgi import Doorway
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
from gateway.wiring.books import keep_rounds, open_books
from gateway.wiring.fleet import OpenFleet, open_fleet
from gateway.wiring.metrics import all_metrics
from gateway.wiring.policy import build_escalation, build_policy
from gateway.wiring.pool_queues import sized
from gateway.wiring.scaling import keep_scaling
from providers.breaker import Breakers
from providers.catalog import Catalog, build_catalog, configured_prices, peopled, repriced
from providers.direct import DirectLimits, DirectUpstream
from providers.retry_budget import RetryBudget
from providers.scripted import ScriptedUpstream
from providers.target import Deployment, DeploymentKind
from providers.upstream import Upstream
from providers.upstreams import OPENAI_SHAPED, Upstreams
from proxy.affinity import Affinity
from proxy.answers import schema_check
from proxy.background import background, every
from proxy.comparisons import build_comparators
from proxy.dispatch import Dispatcher
from proxy.errors import BadRequest, Refused, UsageUnavailable, error_reply
from proxy.gate import Gate
from proxy.learning.learning_metrics import LearningMetrics
from proxy.learning.retention import forget_what_may_not_stay
from proxy.learning.shadow import Shadow, ShadowRules
from proxy.learning.tunings import TuningWatch
from proxy.line import RequestPipeline
from proxy.observers.learning import LearningLog
from proxy.observers.logs import RequestLog, configure_logging
from proxy.observers.telemetry import Tracing, build_tracing
from proxy.overload import Door
from proxy.pipeline_config import PipelineConfig
from proxy.queues.queues_config import QueueConfig
from proxy.tolerance import Tolerances, learn_from_own_requests
from selfhosted.prefixes.habits import Habits
from selfhosted.prefixes.prefix_metrics import PrefixMetrics
from selfhosted.prefixes.store import HabitStore, KeepHabits

_log = logging.getLogger("weighbridge.app")

_TICK_S = 1.0
_RETENTION_S = 600.0
_OWN_REQUESTS_S = 300.0


def create_app(config: GatewayConfig, environment: Environment, config_path: Path | None = None) -> Doorway:
    """The gateway as an ASGI application. `config_path` is the file that SIGHUP reads again."""
    running = _Running(config, environment, config_path)
    app = Described(
        title="Weighbridge",
        lifespan=running.lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # It would send people to whatever host they say that this is.
        redirect_slashes=False,
    )
    for module in (
        models,
        usage,
        focus,
        savings,
        organization,
        litellm_shapes,
        policy,
        price_routes,
        budgets,
        limits,
        fleet,
        prefixes,
        operations,
        feedback,
        health,
    ):
        app.include_router(module.router)
    for router in (*ADMIN, *PAGES):
        app.include_router(router)
    app.add_exception_handler(Refused, _tell)
    app.add_exception_handler(AccountsError, _tell)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(FormError, _tell_form)
    app.add_exception_handler(SQLAlchemyError, _tell_database)
    # Drivers let through what the network says of a connection that cannot be made.
    app.add_exception_handler(ConnectionError, _tell_database)
    app.add_exception_handler(Exception, _tell)
    app.state.begin_drain, app.state.cut_off, app.state.reload = running.begin_drain, running.cut_off, running.reload
    app.state.watch_door = running.watch_door
    return Doorway(app, app.state)


class _Running:
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
        self._fleet: OpenFleet | None = None
        self._repeopling = False
        self._queues: dict[str, QueueConfig] = {}
        self._metrics = all_metrics()
        self._prices: PriceWatch | None = None

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

    def watch_door(self, door: Door) -> None:
        """The overload guard sees from now on who waits to be accepted."""
        if self._gate is not None:
            self._gate.guard.watch(door)

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
            ledger, holds, books = await open_books(engine, config, metrics, wall_us, stack)
            claims = Claims(engine, lambda: self._config.cost, wall_us, operator=config.accounts.operator)
            directory = self._directory(engine)
            stack.push_async_callback(directory.aclose)
            self._prices = prices = PriceWatch(
                PriceStore(engine), configured_prices(config.providers), self._repriced, wall_us
            )
            await prices.look()
            self._fleet = pools = await open_fleet(engine, config, ledger.boot_id, metrics, self._fleet_changed, stack)
            self._breakers.ready, pools.fleet.cleared = pools.fleet.ready, self._breakers.cleared
            self._catalog = catalog = self._built(config, prices.book)
            self._breakers.adopt(catalog)
            upstreams = await _upstreams(catalog, config.server.max_in_flight)
            stack.push_async_callback(upstreams.aclose)
            tracing = self._tracing(stack)
            await asyncio.to_thread(schema_check.prepare)
            learning, accounts = LearningStore(engine), AccountStore(engine)
            learning_log = LearningLog(learning, accounts.learning_of, observer=metrics.learning)
            learning_log.start()
            stack.push_async_callback(learning_log.aclose)
            self._classifier = classifier = load_classifier(config.classifier, catalog.abilities)
            _tell_of(classifier, catalog)
            _tell_of_reference(config.cost.reference_target, catalog)
            metrics.classifier.set_trained(trained=classifier.fallback_reason is None)
            breakers = self._breakers
            self._gate = gate = await open_gate(
                engine, config, self._sized(), self._environment, ledger.boot_id, metrics, self._in_flight, stack
            )
            dispatcher = Dispatcher(
                upstream=upstreams,
                breakers=breakers,
                budget=_retry_budget(config),
                books=books,
                clock=time.monotonic,
                now_us=wall_us,
                rng=random.Random(),  # noqa: S311 - it spreads load, it guards nothing
                queues=gate.queues,
                latency=gate.latency,
                replicas=pools.fleet,
            )
            self._line = line = RequestPipeline(
                rules=_rules(config, catalog, classifier),
                directory=directory,
                limiter=gate.limiter,
                classifier=classifier,
                affinity=Affinity(time.monotonic),
                breakers=breakers,
                dispatcher=dispatcher,
                observers=(metrics.requests, RequestLog(share=config.telemetry.log_success_share), learning_log),
                tracing=tracing,
                clock=time.monotonic,
                budgets=holds,
                guard=gate.guard,
                once=gate.once,
                latency=gate.latency,
                habits=_habits(config, self._environment, engine, metrics.prefixes, stack),
            )
            keep_scaling(config, pools, gate, metrics.scale, stack)
            self._shadow = shadow = self._shadow_of(line, dispatcher, learning, accounts, metrics.learning)
            stack.push_async_callback(shadow.aclose)
            shadow.start()
            line.shadow = shadow
            gateway = Gateway(
                line=line,
                gate=gate,
                fleet_view=pools.view,
                ledger=ledger,
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
                breakers=breakers,
                operations=open_operations(engine, stack),
                config=lambda: self._config,
                every_setting=self._every_setting,
                **_people(engine, config, peppers(config, self._environment), stack),
            )
            self._keep_going(gateway, accounts, stack)
            await stack.enter_async_context(await keep_rounds(engine, config, metrics, claims, wall_us))
            watch = TuningWatch(learning, classifier, self._retuned)
            await watch.look()
            background(stack, every(config.classifier.learning.poll_s, watch.look))
            self._listen_for_reload(stack)
            app.state.ledger, app.state.gateway, app.state.tuning_watch = ledger, gateway, watch
            yield {"gateway": gateway}
            line.draining = True

    def _keep_going(self, gateway: Gateway, accounts: AccountStore, stack: contextlib.AsyncExitStack) -> None:
        """The loops of this process itself."""
        line, engine = gateway.line, gateway.database
        background(stack, every(_TICK_S, lambda: self._tick(gateway)))
        background(stack, every(_RETENTION_S, lambda: self._forget(gateway.learning, accounts)))
        background(stack, every(_OWN_REQUESTS_S, lambda: self._learn_own_requests(line, engine)))
        background(stack, gateway.prices.follow(self._config.cost.prices_poll_s))

    def _built(self, config: GatewayConfig, book: PriceBook) -> Catalog:
        """The catalog with the replicas that are known now."""
        catalog = build_catalog(config.providers, resolve_secret, book, wall_us(), self._pools)
        return catalog if self._fleet is None else peopled(catalog, self._fleet.fleet.deployments())

    def _fleet_changed(self) -> None:
        """Replicas came, went, or are in another state. Many tell so at once."""
        if self._line is not None and not self._repeopling:
            self._repeopling = True
            asyncio.get_running_loop().call_soon(self._repeople)

    def _repeople(self) -> None:
        self._repeopling = False
        if self._line is None or self._fleet is None or self._catalog is None:
            return
        before = self._catalog
        catalog = peopled(before, self._fleet.fleet.deployments())
        if catalog != before:
            self._catalog = catalog
            self._line.rules = msgspec.structs.replace(self._line.rules, catalog=catalog)
            self._breakers.adopt(catalog)
            self._metrics.requests.keep_deployments({each.deployment_id for each in catalog.deployments})
        self._resize()

    def _sized(self) -> dict[str, QueueConfig]:
        queues = self._config.queues
        return dict(queues) if self._fleet is None else sized(queues, self._queues, self._fleet.fleet.tokens)

    def _resize(self) -> None:
        """Queues that are as large as the pools behind them."""
        queues = self._sized()
        if self._gate is not None and queues != self._queues:
            self._queues = queues
            self._gate.queues.adopt(queues)

    def _shadow_of(
        self,
        line: RequestPipeline,
        dispatcher: Dispatcher,
        learning: LearningStore,
        accounts: AccountStore,
        metrics: LearningMetrics,
    ) -> Shadow:
        def rules() -> ShadowRules:
            catalog = line.rules.catalog
            return ShadowRules(
                catalog=catalog,
                reference=self._config.cost.reference_target,
                fleet={name: self._breakers.available(target) for name, target in catalog.targets.items()},
                timeouts=line.rules.timeouts,
                pools=line.rules.pools,
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
            return _rules(config, catalog, None)
        self._classifier.adopt(catalog.abilities)
        try:
            return _rules(config, catalog, self._classifier)
        except Exception:
            if before is not None:
                self._classifier.adopt(before.abilities)
            raise

    def _retuned(self) -> None:
        """What was computed from the classifier's old rows is computed anew."""
        if self._line is not None and self._catalog is not None:
            self._line.rules = _rules(self._config, self._catalog, self._classifier)

    def _repriced(self) -> None:
        """Other prices came into effect: the rules are swapped whole, as a reload does."""
        if self._line is not None and self._catalog is not None and self._prices is not None:
            self._catalog = repriced(self._catalog, self._prices.book, wall_us())
            self._line.rules = _rules(self._config, self._catalog, self._classifier)

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
        target = self._catalog and self._catalog.targets.get(deployment_id.rpartition("/")[0])
        deployments = target.deployments if target else ()
        return next((each for each in deployments if each.deployment_id == deployment_id), None)

    async def _tick(self, gateway: Gateway) -> None:
        gateway.line.cut_the_slow()
        self._resize()
        if self._fleet is not None:
            self._fleet.fleet.give_up_the_silent()
        self._metrics.ledger.set_journal_depth(gateway.ledger.depth)
        self._metrics.requests.set_in_flight(gateway.line.in_flight)
        for target in gateway.line.rules.catalog.targets.values():
            for deployment in target.deployments:
                self._metrics.requests.set_breaker(
                    deployment.deployment_id, self._breakers.state(deployment.deployment_id)
                )

    async def _forget(self, learning: LearningStore, accounts: AccountStore) -> None:
        keep_days = self._config.classifier.learning.keep_days
        await forget_what_may_not_stay(learning, accounts, keep_days=keep_days, now_us=wall_us())

    async def _learn_own_requests(self, line: RequestPipeline, engine: AsyncEngine) -> None:
        """What a floor means for a team comes from its own requests once there are enough of them."""
        found = line.rules.tolerances
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
            if catalog.needs_litellm and not self._line.rules.catalog.needs_litellm:
                _log.error("reload refused, the old configuration stays: targets through litellm need a restart")
                return
            rules = self._reloaded_rules(answer.config, catalog)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the new one, the old one stays
            _log.error("reload refused, the old configuration stays: %s", error)
            return
        self._config = answer.config
        self._prices.adopt(configured)
        self._catalog = rules.catalog
        self._line.rules = rules
        self._breakers.adopt(rules.catalog)
        self._queues = self._sized()
        adopt(self._gate, answer.config, self._queues)
        self._breakers.configure(answer.config.providers.breaker)
        for key in answer.needs_restart:
            _log.warning("reloaded, but `%s` takes effect only after a restart", key)
        _log.warning("configuration reloaded: %d targets", len(rules.catalog.targets))


class _People(TypedDict):
    people: PeopleStore
    sessions: Sessions
    sign_in: SignIn
    links: Links
    audit: AuditLog
    providers: Providers
    peppers: tuple[Pepper, ...]


def _people(
    engine: AsyncEngine, config: GatewayConfig, peppers: tuple[Pepper, ...], stack: contextlib.AsyncExitStack
) -> _People:
    """Who may use the pages, and what is remembered of what they change."""
    section = config.sign_in
    providers = open_providers(section, resolve_secret, peppers[0], wall_us)
    stack.push_async_callback(providers.aclose)
    passwords = Passwords(min_chars=section.password_min_chars)
    return {
        "people": PeopleStore(engine),
        "sessions": Sessions(engine, section, peppers, now_us=wall_us),
        "sign_in": SignIn(engine, section, peppers, passwords, now_us=wall_us),
        "links": Links(engine, section, peppers, passwords, now_us=wall_us),
        "audit": AuditLog(engine, now_us=wall_us),
        "providers": providers,
        "peppers": peppers,
    }


def _habits(
    config: GatewayConfig,
    environment: Environment,
    engine: AsyncEngine,
    metrics: PrefixMetrics,
    stack: contextlib.AsyncExitStack,
) -> Habits:
    """Their skeletons are hashes that only who has the pepper can make."""
    key = blake2b(b"prompt habits", key=peppers(config, environment)[0].secret[:64]).digest()
    habits = Habits(key=key, counted=metrics.count_beginnings)
    keeping = KeepHabits(habits, HabitStore(engine), lost=lambda lost: metrics.count_beginnings("lost", lost))
    stack.push_async_callback(keeping.aclose)
    background(stack, keeping.run())
    return habits


async def _upstreams(catalog: Catalog, max_in_flight: int) -> Upstreams:
    # The line bounds what is in flight; the pool must never be what a request waits for.
    direct = DirectUpstream(DirectLimits(max_connections=2 * max_in_flight, max_connections_per_host=2 * max_in_flight))
    by_kind: dict[DeploymentKind, Upstream] = dict.fromkeys(OPENAI_SHAPED, direct)
    by_kind["scripted"] = ScriptedUpstream()
    if catalog.needs_litellm:
        from providers.litellm_door import LitellmUpstream  # noqa: PLC0415 - only a target behind it needs the door

        litellm = by_kind["litellm"] = LitellmUpstream()
        # Importing litellm takes seconds: at the start, not in somebody's request.
        await litellm.prepare()
    return Upstreams(by_kind)


def _tell_of(classifier: OnnxClassifier | HeuristicClassifier, catalog: Catalog) -> None:
    if classifier.fallback_reason is not None:
        _log.warning("prompts are weighed by the plain rule: %s", classifier.fallback_reason)
    if isinstance(classifier, OnnxClassifier):
        for target_id, name in catalog.abilities.items():
            if name not in classifier.manifest.abilities:
                _log.warning(
                    "target %s: the classifier knows no ability %s, so its declared capability counts "
                    "(`weighbridge classifier explain --all hello` lists the abilities)",
                    target_id,
                    name,
                )


def _tell_of_reference(reference: str | None, catalog: Catalog) -> None:
    target = catalog.targets.get(reference or "")
    if target is not None and target.price is not None and target.price.batch is None:
        _log.warning(
            "the reference %s has no batch price: work of the batch tier is compared with its full price, though its "
            "provider may give a discount; set `batch_discount` among its prices",
            target.target_id,
        )


def _retry_budget(config: GatewayConfig) -> RetryBudget:
    retry = config.providers.retry
    return RetryBudget(retry.budget_share, retry.budget_floor, retry.budget_window_s, time.monotonic)


def _rules(config: GatewayConfig, catalog: Catalog, classifier: Classifier | None) -> PipelineConfig:
    chosen = build_policy(config.policy, config.cost)
    return PipelineConfig(
        catalog=catalog,
        policy=chosen,
        tolerances=None if classifier is None else Tolerances(catalog=catalog, policy=chosen, classifier=classifier),
        comparators=build_comparators(catalog, config.cost.reference_target, config.cost.hosted),
        pools=pool_of_target(config.cost.pools),
        holdout_share=config.cost.holdout_share,
        timeouts=config.providers.timeouts,
        retry=config.providers.retry,
        max_in_flight=config.server.max_in_flight,
        max_body_bytes=config.server.max_body_bytes,
        body_timeout_s=config.server.body_timeout_s,
        slow_reader_s=config.server.slow_reader_s,
        escalation=build_escalation(config.policy.escalation),
        deadlines=config.deadlines,
    )


async def _tell(request: Request, error: Exception) -> Response:
    told = error_reply(error)
    headers = {name.decode(): value.decode() for name, value in told.headers}
    if is_page(request):
        return error_page(error, told.status, told.message, headers.get("retry-after"))
    return Response(told.body, told.status, headers, media_type="application/json")


async def _tell_form(request: Request, error: Exception) -> Response:
    """A page that does not show its form again says at least what was wrong."""
    assert isinstance(error, FormError)  # noqa: S101 - registered for exactly this
    return await _tell(request, BadRequest(f"`{error.field}` is not valid: {error.message}", param=error.field))


async def _tell_database(request: Request, error: Exception) -> Response:
    # The route, and not the address: a one-time link's token is a part of that.
    place = getattr(request.scope.get("route"), "path", "an address of no route")
    _log.error("the database did not answer for %s: %s", place, type(error).__name__)
    return await _tell(request, UsageUnavailable("The database does not answer; nothing is lost, try again shortly."))


async def _tell_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for exactly this
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _tell(request, BadRequest(f"`{name}` is not valid: {first['msg']}.", param=name))


async def _tell_http(request: Request, error: Exception) -> Response:
    """Unknown paths and methods answer in the same shape as everything else."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for exactly this
    told = error_reply(BadRequest(f"{request.method} {request.scope['path'][:200]}: {error.detail}.", code="not_found"))
    if is_page(request):
        return error_page(error, error.status_code, "There is no such page; the address may be mistyped.")
    return Response(told.body, error.status_code, error.headers, media_type="application/json")
