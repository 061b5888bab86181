"""The request pipeline of one process, kept current with prices, tunings, limits, the fleet and reloads."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from accounts.directory import Directory
from accounts.named_keys import NamedKeys
from accounts.store import AccountStore
from classifier.learning.store import Verdict
from classifier.onnx_classifier import load_classifier
from cost.price_book.book import PriceBook
from cost.price_book.price_updates import PriceWatch
from cost.times import wall_us
from gateway.configuration.environment import Environment, resolve_secret
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import Outcome, reload
from gateway.link.data_sources import DataSources
from gateway.plugins.authenticating import OutsideCallers
from gateway.plugins.plugins import Plugins
from gateway.wiring.admission import adopt, open_gate
from gateway.wiring.answer_cache import open_answer_cache
from gateway.wiring.background_responses import open_background
from gateway.wiring.fleet import at_gate
from gateway.wiring.metrics import AllMetrics
from gateway.wiring.overruns import SharedOverruns
from gateway.wiring.pipeline import (
    hedging,
    open_guard,
    open_moderation,
    open_prefix_tracker,
    open_prompt_caches,
    open_tracing,
    open_upstreams,
    pipeline_config,
    warn_of_classifier,
    warn_of_evidence,
    warn_of_models,
)
from gateway.wiring.policy import choice_evidence
from gateway.wiring.refused_parameters import SharedRefusals
from gateway.wiring.told_hosts import EVERY_S, ToldHosts
from gateway.wiring.worker_ledger import ProcessParts
from providers.breaker import Breakers
from providers.catalog import Catalog, build_catalog, configured_prices, costs_nothing, repriced, with_deployments
from providers.key_files import KeyFiles
from providers.retry_budget import RetryBudgets
from providers.secret_references import secrets_in
from proxy.admin.worker_report import WorkerReport, report_of
from proxy.admit.admission import AdmissionControl
from proxy.admit.moderating import services_of
from proxy.admit.queues.pool_sizes import sized
from proxy.admit.queues.queues_config import QueueConfig
from proxy.dispatch.dispatcher import Dispatcher
from proxy.judge import schema_check
from proxy.learning.llama_guard import TargetRules
from proxy.learning.measuring import MeasuringRules
from proxy.learning.shadow import Shadow, ShadowRules
from proxy.learning.tunings import TuningWatch
from proxy.parse.parsed_request import RequestParser
from proxy.pipeline import RequestPipeline
from proxy.plan.evidence import Evidence
from proxy.plan.overruns import Overruns
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.quality_tolerance import learn_from_own_requests
from proxy.plan.refused_parameters import RefusedParameters
from proxy.plan.session_affinity import Affinity
from proxy.responses.stored.sealing import Sealing
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.settle.findings.counting import FindingCounts
from proxy.settle.hurt.counting import SLOW_SHARE
from proxy.settle.observers.learning import LearningLog
from proxy.settle.observers.logs import RequestLog
from proxy.settle.refusals.counting import Refusals
from proxy.settle.traffic.counting import Traffic
from proxy.shared.background_tasks import background, every
from settings.secret_ref import SecretRef

_log = logging.getLogger("weighbridge.app")

_SILENT = logging.getLogger("weighbridge.app.silent")
_SILENT.disabled = True
_TICK_S = 1.0
_OWN_REQUESTS_S = 300.0
_REPORTED_AT_ONCE = (8, 32)
_KEYS_READ_AGAIN = 3
"""Times that the keys in use are read again within the time for which an answer counts as fresh."""


class ProcessPipeline:
    """One process's pipeline; `open` it once."""

    def __init__(
        self,
        config: GatewayConfig,
        environment: Environment,
        config_path: Path | None,
        metrics: AllMetrics,
        *,
        serves_callers: bool,
    ) -> None:
        """Without `serves_callers` it is the control plane's own, which logs faults of the configuration for all
        processes and has no callers to report on.
        """
        self._serves_callers = serves_callers
        self._log = _SILENT if serves_callers else _log
        self.config = config
        self._environment = environment
        self._config_path = config_path
        self._metrics = metrics
        self._pools = config.selfhosted.pool_of_target()
        self._served_as = config.selfhosted.upstream_models()
        """Both keep their values of the start."""
        self.breakers = Breakers(config.providers.breaker, time.monotonic)
        self.overruns = Overruns(time.monotonic)
        self.refused_parameters = RefusedParameters(time.monotonic)
        self.refusals = Refusals(
            wall_us, lambda: SLOW_SHARE * self.config.providers.timeouts.first_token_s("interactive")
        )
        """Refusals told to callers; of the control plane's own pipeline nobody reads them."""
        self.traffic = Traffic(wall_us)
        """Answers given to callers, in the same way."""
        self.keys = KeyFiles(resolve_secret, metrics.keys, clock=time.monotonic, wall_s=time.time)
        self.guard = open_guard(config, environment)
        self.findings = FindingCounts(wall_us)
        """What the guard found, also in what the control plane sends."""
        self._is_refreshing = False
        self._is_open = False
        self._queues: dict[str, QueueConfig] = {}

    async def open(self, process: ProcessParts, stack: contextlib.AsyncExitStack) -> None:
        """Open every part in the order of need; `stack` closes them."""
        config, metrics, sources = self.config, self._metrics, process.sources
        self._ledger, self._fleet = process.books.ledger, process.fleet
        self.directory = self._open_directory(process, stack)
        self.prices = PriceWatch(sources.prices, configured_prices(config.providers), self._repriced, wall_us)
        await self.prices.refresh()
        self.breakers.ready, self._fleet.cleared = self._fleet.ready, self.breakers.cleared
        self._catalog = catalog = self._built(config, self.prices.book, self.keys.read)
        self.breakers.adopt(catalog)
        self.plugins = Plugins(config.plugins, resolve_secret, metrics.plugins)
        stack.push_async_callback(self.plugins.aclose)
        exporters = self.plugins.exporters(stack)
        upstreams = await open_upstreams(
            catalog, config.server, self._environment.forward_proxy(), self.plugins.dialects(), self.keys
        )
        stack.push_async_callback(upstreams.aclose)
        await asyncio.to_thread(schema_check.prepare)
        self.learning_log = LearningLog(sources.rows, sources.learning_of, observer=metrics.learning)
        self.learning_log.start()
        stack.push_async_callback(self.learning_log.aclose)
        self.classifier = load_classifier(config.classifier, catalog.abilities, catalog.efforts)
        if not self._serves_callers:
            warn_of_classifier(self.classifier, catalog)
            warn_of_models(config, catalog)
        metrics.classifier.set_trained(trained=self.classifier.fallback_reason is None)
        self._queues = self._sized()
        self.gate = gate = await open_gate(
            process,
            config,
            self._queues,
            self._environment,
            metrics,
            self._in_flight,
            stack,
            shares=self._serves_callers,
            shut_s=lambda queue: self._fleet.opens_in_s(queue.targets),
        )
        self.breakers.live = gate.sharers
        if gate.link is not None:
            for kind in (SharedOverruns(self.overruns), SharedRefusals(self.refused_parameters)):
                background(stack, every(EVERY_S, ToldHosts(gate.link, kind.key, kind).exchange))
        self.dispatcher = Dispatcher(
            upstream=upstreams,
            breakers=self.breakers,
            budgets=RetryBudgets(config.providers.retry, time.monotonic),
            books=process.books.budgeted,
            clock=time.monotonic,
            now_us=wall_us,
            rng=random.Random(),  # noqa: S311 - it spreads load, it guards nothing
            queues=gate.queues,
            latency=gate.latency,
            replicas=self._fleet,
            hedging=hedging(config),
            refused=self.refused_parameters,
        )
        sealing = Sealing(peppers(config, self._environment))
        self.responses = StoredResponses(ResponseStore(process.engine), sealing, lambda: self.config.responses)
        self.background = open_background(process.engine, self.responses, sealing, lambda: self.config.responses)
        answers = None
        if self._serves_callers:
            # What the control plane asks for itself is asked anew.
            answers = open_answer_cache(
                config, peppers(config, self._environment), gate.link, process.books.budgeted, metrics.cache
            )
        if answers is not None:
            await sealing.ready()
            stack.push_async_callback(answers.aclose)
        request_log = RequestLog(share=config.telemetry.log_success_share)
        stack.callback(request_log.tell_left_out)
        self.line = RequestPipeline(
            config=pipeline_config(config, catalog, self.classifier),
            parser=RequestParser(self.directory, self.responses, self._outside(process)),
            admission=AdmissionControl(
                gate.limiter,
                budgets=process.books.holds,
                load_shedding=gate.guard,
                idempotency=gate.once,
                record_shed=self._count_shed,
            ),
            classifier=self.classifier,
            affinity=Affinity(time.monotonic),
            overruns=self.overruns,
            breakers=self.breakers,
            dispatcher=self.dispatcher,
            observers=(
                metrics.requests,
                request_log,
                self.learning_log,
                self.refusals,
                self.traffic,
                *exporters,
                self.findings,
            ),
            tracing=open_tracing(config, self._environment, lambda: self._catalog, stack),
            clock=time.monotonic,
            latency=gate.latency,
            habits=open_prefix_tracker(config, self._environment, sources.habits, metrics.prefixes, stack),
            prompt_caches=open_prompt_caches(config, self._environment, sources.cache_losses, stack),
            # What the control plane asks for itself is answered at once.
            background=self.background if self._serves_callers else None,
            counter=upstreams,
            cache=answers,
            scoring=self.plugins.scoring(),
            guard=self.guard,
            moderation=open_moderation(config, self.dispatcher, self._target_rules, stack),
            plugin_guards=self.plugins.guards(),
            reported_at_once=_REPORTED_AT_ONCE,
        )
        stack.callback(self.line.reports.flush)
        self._is_open = True
        self.tunings = TuningWatch(sources.tunings, self.classifier, self._retuned)
        await self.tunings.refresh()
        if not self._serves_callers:
            # After the tuning, which may know more.
            warn_of_evidence(self.line.config.policy, catalog, self.classifier)
        self._keep_current(sources, stack)

    def _outside(self, process: ProcessParts) -> OutsideCallers | None:
        section = self.config.accounts
        return self.plugins.outside(
            NamedKeys(
                AccountStore(process.engine).find_named_key,
                fresh_s=section.fresh_s,
                outage_s=section.outage_s,
                lookup_timeout_s=section.lookup_timeout_s,
            )
        )

    def _open_directory(self, process: ProcessParts, stack: contextlib.AsyncExitStack) -> Directory:
        section = self.config.accounts
        directory = Directory(
            AccountStore(process.engine),
            peppers(self.config, self._environment),
            fresh_s=section.fresh_s,
            outage_s=section.outage_s,
            lookup_timeout_s=section.lookup_timeout_s,
            max_entries=section.max_entries,
            imported_keys=section.imported_keys,
        )
        stack.push_async_callback(directory.aclose)
        background(
            stack,
            every(section.fresh_s / _KEYS_READ_AGAIN, lambda: directory.refresh(process.sources.find_keys)),
        )
        return directory

    def _keep_current(self, sources: DataSources, stack: contextlib.AsyncExitStack) -> None:
        async def tick() -> None:
            self._tick()

        async def learn_own() -> None:
            """Learn a floor's meaning for a team from its own requests, once there are enough of them."""
            found = self.line.config.tolerances
            if found is not None:
                artifact, width = found.artifact, found.width
                await learn_from_own_requests(found, lambda team_id: sources.own_requests(team_id, artifact, width))

        background(stack, every(_TICK_S, tick))
        background(stack, every(_TICK_S, self._look_at_keys))
        background(stack, every(_OWN_REQUESTS_S, learn_own))
        background(stack, self.prices.follow(self.config.cost.prices_poll_s))
        background(stack, every(self.config.classifier.learning.poll_s, self.tunings.refresh))

    def open_shadow(self, sources: DataSources, stack: contextlib.AsyncExitStack) -> None:
        """Start to ask a second target in the background for a share of requests; the stack ends it."""
        metrics = self._metrics.learning

        def rules() -> ShadowRules:
            catalog = self.line.config.catalog
            return ShadowRules(
                catalog=catalog,
                reference=self.config.cost.reference_target,
                fleet=self.breakers.fleet(catalog.targets),
                timeouts=self.line.config.timeouts,
                pools=self.line.config.pools,
            )

        async def keep(verdicts: Sequence[Verdict]) -> None:
            await sources.add_verdicts(verdicts)
            for verdict in verdicts:
                metrics.count_verdict(verdict.source, verdict.signal)

        shadow = Shadow(
            section=self.config.classifier.shadow,
            rules=rules,
            dispatcher=self.dispatcher,
            keep=keep,
            learning_of=sources.learning_of,
            clock=time.monotonic,
            now_us=wall_us,
            count=metrics.count_shadow,
        )
        stack.push_async_callback(shadow.aclose)
        shadow.start()
        self.line.shadow = shadow

    def _target_rules(self) -> TargetRules:
        now = self.line.config
        fleet = self.breakers.fleet(now.catalog.targets)
        return TargetRules(catalog=now.catalog, fleet=fleet, timeouts=now.timeouts, pools=now.pools)

    def write_down(self) -> None:
        """Hand over the counts, so that other processes see them."""
        self.line.reports.flush()
        self._metrics.ledger.set_journal(self._ledger.state())
        self._metrics.requests.write()

    @property
    def boot_id(self) -> str:
        """Id of the process, as in its entries."""
        return self._ledger.boot_id

    def report(self) -> WorkerReport:
        """Report on the process as it is now."""
        scored_by_rule = getattr(self.classifier, "fallbacks", 0)
        return report_of(self._ledger, self.line, self.gate, self.breakers, scored_by_rule)

    def evidence(self, target_id: str) -> Evidence:
        """Return the evidence that a choice of the target rests on, the baseline model counted in; also for one that is configured no more."""
        rules = self.line.config
        return choice_evidence(target_id, rules.policy, rules.catalog, self.classifier)

    def costs_nothing(self, target_id: str) -> bool:
        """Return True for a target whose tokens are booked at nothing because it runs on an own engine."""
        return costs_nothing(self.line.config.catalog, target_id)

    def measuring_rules(self) -> MeasuringRules:
        """Return the rules by which a measurement calls targets now."""
        rules = self.line.config
        return MeasuringRules(
            catalog=rules.catalog,
            fleet=self.breakers.fleet(rules.catalog.targets),
            timeouts=rules.timeouts,
            retry=rules.retry,
            pools=rules.pools,
        )

    def _count_shed(self) -> None:
        self.refusals.count_shed()
        self.traffic.count_shed()

    def _in_flight(self) -> int:
        return self.line.in_flight if self._is_open else 0

    def _built(self, config: GatewayConfig, book: PriceBook, secret: Callable[[str], str]) -> Catalog:
        """Return the catalog with the replicas that are known now."""
        catalog = build_catalog(config.providers, secret, book, wall_us(), self._pools, self._served_as)
        return with_deployments(catalog, self._fleet.deployments())

    def fleet_changed(self) -> None:
        """Adopt a change of replicas, which came, went, or are in another state. Many changes come at once."""
        if self._is_open and not self._is_refreshing:
            self._is_refreshing = True
            asyncio.get_running_loop().call_soon(self._refresh_deployments)

    def _refresh_deployments(self) -> None:
        self._is_refreshing = False
        before = self._catalog
        catalog = with_deployments(before, self._fleet.deployments())
        if catalog != before:
            self._catalog = catalog
            self.line.config = msgspec.structs.replace(self.line.config, catalog=catalog)
            self._adopt_deployments(catalog)
        self._resize()

    def _adopt_deployments(self, catalog: Catalog) -> None:
        """Keep circuits and series of the catalog's deployments, and of no others."""
        self.breakers.adopt(catalog)
        self._metrics.requests.keep_deployments({each.deployment_id for each in catalog.deployments})

    def _sized(self) -> dict[str, QueueConfig]:
        return sized(self.config.queues, self._queues, self._fleet.tokens)

    def _resize(self) -> None:
        """Return queues that are as large as the pools behind them."""
        queues = self._sized()
        if queues != self._queues:
            self._queues = queues
            self.gate.queues.adopt(queues)

    def _reloaded_rules(self, config: GatewayConfig, catalog: Catalog) -> PipelineConfig:
        """Return the rules of a reloaded configuration. The classifier adopts the targets first: a floor follows from
        their abilities.
        """
        before = self._catalog
        self.classifier.adopt(catalog.abilities, catalog.efforts)
        try:
            return pipeline_config(config, catalog, self.classifier)
        except Exception:
            self.classifier.adopt(before.abilities, before.efforts)
            raise

    def _retuned(self) -> None:
        """Recompute everything that follows from the classifier's rows."""
        self.line.config = pipeline_config(self.config, self._catalog, self.classifier)

    def _repriced(self) -> None:
        """Swap the rules whole, as a reload does, because other prices came into effect."""
        if self._is_open:
            self._catalog = repriced(self._catalog, self.prices.book, wall_us())
            self.line.config = pipeline_config(self.config, self._catalog, self.classifier)

    def _tick(self) -> None:
        self._resize()
        self._fleet.tick(_TICK_S, lambda pool: at_gate(pool, self.gate))
        self.write_down()
        if not self._serves_callers:
            return
        metrics = self._metrics.requests
        self._metrics.limits.set_processes(self.gate.sharers())
        metrics.set_in_flight(self.line.in_flight)
        for target in self.line.config.catalog:
            for deployment in target.deployments:
                metrics.set_breaker(deployment.deployment_id, self.breakers.state(deployment.deployment_id))

    async def _look_at_keys(self) -> None:
        """Take over keys whose files were replaced; the circuits of their deployments begin anew."""
        if self.keys.has_files and await asyncio.to_thread(self.keys.look):
            rules = self._reloaded_rules(self.config, self._built(self.config, self.prices.book, self.keys.current))
            self._catalog, self.line.config = rules.catalog, rules
            self._adopt_deployments(rules.catalog)

    def reload(self) -> Outcome:
        """Read the file again and swap the rules whole; a bad file changes nothing. Return what came of it."""
        if not self._is_open:
            return Outcome(refused="it starts, or stops")
        answer = reload(self.config, self._config_path, self._environment)
        if answer.refused is not None:
            return self._refused(answer.refused)
        try:
            configured = configured_prices(answer.config.providers)
            book = self.prices.with_configured(configured)
            catalog = self._built(answer.config, book, self.keys.read)
            for each in _of_engines(self.config):
                self.keys.read(each)
            # Before anything is taken over: the classifier would already know the new targets only.
            if catalog.needs_litellm and not self.line.config.catalog.needs_litellm:
                return self._refused("targets through litellm need a restart")
            rules = self._reloaded_rules(answer.config, catalog)
            services = services_of(answer.config.guard, resolve_secret)
            self.plugins.check_guards(each.use for each in answer.config.guard.rules if each.use is not None)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the new one, the old one stays
            return self._refused(error)
        self.config = answer.config
        self.keys.keep(
            [*(each.reference for each in secrets_in(answer.config.providers, {})), *_of_engines(self.config)]
        )
        self.prices.adopt(configured)
        self._catalog = rules.catalog
        self.line.config = rules
        self.guard.adopt(answer.config.guard)
        if self.line.moderation is not None:
            self.line.moderation.services = services
        self._adopt_deployments(rules.catalog)
        self._queues = self._sized()
        adopt(self.gate, answer.config, self._queues)
        self.breakers.configure(answer.config.providers.breaker)
        self.dispatcher.configure(answer.config.providers.retry, answer.config.providers.hedging)
        for key in answer.needs_restart:
            self._log.warning("reloaded, but `%s` takes effect only after a restart", key)
        self._log.warning("configuration reloaded: %d targets", len(rules.catalog.targets))
        return Outcome(changed=answer.changed, needs_restart=answer.needs_restart, at_start=_at_start(self.config))

    def _refused(self, why: object) -> Outcome:
        self._log.error("reload refused, the old configuration stays: %s", why)
        return Outcome(refused=str(why))


def _at_start(config: GatewayConfig) -> tuple[str, ...]:
    """Return the references to secrets that no reload reads: variables, as a process keeps its own, and tokens of pools."""
    pools = {each.reference for each in secrets_in(config.selfhosted, {})} - set(_of_engines(config))
    every = {each.reference for each in secrets_in(config, {})}
    return tuple(sorted(each for each in every if each in pools or not each.startswith("file:")))


def _of_engines(config: GatewayConfig) -> list[SecretRef]:
    """Return the references to the pools' keys that stand in files."""
    return [each.api_key for each in config.selfhosted.pools if each.api_key and each.api_key.startswith("file:")]
