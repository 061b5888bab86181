"""The request pipeline's parts, made from the configuration."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

from classifier.compiled import LIBRARY, is_damaged
from classifier.heuristic import HeuristicClassifier
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Classifier
from cost.fleet.pool_config import pool_of_target
from gateway.configuration.environment import Environment, resolve_secret
from gateway.configuration.gateway_config import GatewayConfig, ServerConfig
from gateway.configuration.peppers import peppers
from gateway.wiring.answer_cache import answers_digest
from gateway.wiring.policy import build_comparators, build_escalation, build_policy, informed
from guard.inspector import Guard
from providers.catalog import Catalog, unknown_facts
from providers.connections.forward_proxy import ForwardProxy
from providers.http_client import HttpLimits, HttpUpstream
from providers.key_files import KeyFiles
from providers.retry_budget import RetryBudget
from providers.spoken_dialects import SpokenDialect
from providers.target import Deployment, DeploymentKind
from providers.upstream import Upstream
from providers.upstreams import OPENAI_SHAPED, Upstreams
from proxy.admit.moderating import Moderation, services_of
from proxy.dispatch.attempt_policy import FIRST_HEDGES
from proxy.dispatch.dispatcher import Dispatcher
from proxy.learning.llama_guard import LlamaGuard, TargetRules
from proxy.plan.evidence import evidence_notes
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.quality_tolerance import Tolerances
from proxy.plan.route_plan import Policy, evidence_for_auto
from proxy.settle.observers.telemetry import Tracing, build_tracing
from proxy.settle.prompt_caches.watch import CacheDelta, PromptCacheWatch
from proxy.shared.background_tasks import background
from proxy.shared.moderation_client import ModerationClient
from selfhosted.prefixes.prefix_metrics import PrefixMetrics
from selfhosted.prefixes.store import HabitSink, PrefixWriter, Sink
from selfhosted.prefixes.tracker import PrefixTracker
from testing.scripted.upstream import ScriptedUpstream

_log = logging.getLogger("weighbridge.app")
_MOST_CONNECTIONS: Final = 2_000_000
"""Twice the highest `server.max_in_flight`."""


def open_prefix_tracker(
    config: GatewayConfig,
    environment: Environment,
    sink: HabitSink,
    metrics: PrefixMetrics,
    stack: contextlib.AsyncExitStack,
) -> PrefixTracker:
    """Watch how prompts begin, in one process; the beginnings are kept as hashes keyed by the pepper, never as text."""
    key = blake2b(b"prompt habits", key=peppers(config, environment)[0].secret[:64]).digest()
    habits = PrefixTracker(key=key, counted=metrics.count_beginnings)
    keeping = PrefixWriter(habits, sink, lost=lambda lost: metrics.count_beginnings("lost", lost))
    stack.push_async_callback(keeping.aclose)
    background(stack, keeping.run())
    return habits


def open_prompt_caches(
    config: GatewayConfig, environment: Environment, sink: Sink[CacheDelta], stack: contextlib.AsyncExitStack
) -> PromptCacheWatch | None:
    """Watch what prompts have from providers' caches, in one process; None where that is turned off."""
    if not config.telemetry.prompt_caches:
        return None
    key = blake2b(b"prompt caches", key=peppers(config, environment)[0].secret[:64]).digest()
    watch = PromptCacheWatch(key=key)
    keeping = PrefixWriter(watch, sink, what="what prompt caches gave")
    stack.push_async_callback(keeping.aclose)
    background(stack, keeping.run())
    return watch


def open_guard(config: GatewayConfig, environment: Environment) -> Guard:
    """Return the guard of one process. Its masks are keyed by the pepper: the same in each process and after each start."""
    key = blake2b(b"guard masks", key=peppers(config, environment)[0].secret[:64]).digest()
    return Guard(config.guard, key)


def open_moderation(
    config: GatewayConfig, dispatcher: Dispatcher, rules: Callable[[], TargetRules], stack: contextlib.AsyncExitStack
) -> Moderation:
    """Return who asks the services of the guard's rules. Raises NoKey."""
    services = services_of(config.guard, resolve_secret)
    moderation = Moderation(services, ModerationClient(), LlamaGuard(dispatcher, rules))
    stack.push_async_callback(moderation.aclose)
    return moderation


def open_tracing(
    config: GatewayConfig, environment: Environment, catalog: Callable[[], Catalog], stack: contextlib.AsyncExitStack
) -> Tracing | None:
    """Open the traces of one process, where somebody takes them."""

    def deployment(deployment_id: str) -> Deployment | None:
        known = catalog()
        target = known.targets.get(deployment_id.rpartition("/")[0])
        deployments = known.deployments if target is None else target.deployments
        return next((each for each in deployments if each.deployment_id == deployment_id), None)

    tracing = build_tracing(environment.otlp_endpoint or config.telemetry.otlp_endpoint, deployment_of=deployment)
    if tracing is not None:
        stack.push_async_callback(tracing.aclose)
    return tracing


async def open_upstreams(
    catalog: Catalog,
    server: ServerConfig,
    proxy: ForwardProxy | None,
    dialects: Mapping[str, SpokenDialect],
    keys: KeyFiles,
) -> Upstreams:
    """Return one client for each kind of deployment. litellm is imported only when a target needs it, and finds the proxy itself."""
    # The pipeline bounds the requests in flight; none of them may ever wait for a connection of the pool.
    limits = HttpLimits(
        max_connections=_MOST_CONNECTIONS,
        max_connections_per_host=_MOST_CONNECTIONS,
        max_replies_bytes=server.max_replies_bytes,
    )
    direct = HttpUpstream(limits, proxy, dialects)
    by_kind: dict[DeploymentKind, Upstream] = dict.fromkeys(OPENAI_SHAPED, direct)
    by_kind["scripted"] = ScriptedUpstream()
    if catalog.needs_litellm:
        from providers.litellm_client import LitellmUpstream  # noqa: PLC0415 - only a target behind it needs the door

        litellm = by_kind["litellm"] = LitellmUpstream()
        # Importing litellm takes seconds: at the start, not in somebody's request.
        await litellm.prepare()
    return Upstreams(by_kind, keys)


def warn_of_models(config: GatewayConfig, catalog: Catalog) -> None:
    """Log, once a start, the assumed facts of models, and a baseline model without a batch price, as batch work is then
    compared with its full price.
    """
    for said in unknown_facts(config.providers, catalog, unpriced=config.cost.unpriced):
        _log.warning("%s", said)
    target = catalog.targets.get(config.cost.reference_target or "")
    if target is not None and target.price is not None and target.price.batch is None:
        _log.warning(
            "the baseline model %s has no batch price: work of the batch tier is compared with its full price, though its "
            "provider may give a discount; set `batch_discount` among its prices",
            target.target_id,
        )


def warn_of_classifier(classifier: OnnxClassifier | HeuristicClassifier, catalog: Catalog) -> None:
    """Log that the compiled library is damaged, why the plain rule classifies, and which targets the trained classifier does not know."""
    if is_damaged(LIBRARY):
        _log.warning(
            "classifier/%s is not as it was compiled and is not used, so scores take longer; install anew", LIBRARY.name
        )
    if classifier.fallback_reason is not None:
        _log.warning("prompts are classified by the plain rule: %s", classifier.fallback_reason)
    if isinstance(classifier, OnnxClassifier):
        for target_id, name in catalog.abilities.items():
            if name not in classifier.manifest.abilities:
                _log.warning(
                    "target %s: the classifier's table has no row %s (`weighbridge classifier explain --all hello` lists the rows)",
                    target_id,
                    name,
                )


def warn_of_evidence(policy: Policy, catalog: Catalog, classifier: Classifier) -> None:
    """Log the targets that `auto` may choose without a measured quality, with the remedy."""
    for note in evidence_notes(evidence_for_auto(policy, catalog), trained=isinstance(classifier, OnnxClassifier)):
        _log.warning("%s", note)


def hedging(config: GatewayConfig) -> RetryBudget:
    """Return the budget of the second attempts beside late ones."""
    window_s = config.providers.retry.budget_window_s
    return RetryBudget(config.providers.hedging.budget_share, FIRST_HEDGES, window_s, time.monotonic)


def pipeline_config(config: GatewayConfig, catalog: Catalog, classifier: Classifier | None) -> PipelineConfig:
    """Return everything that a reload swaps whole. Without a classifier no tolerances are known."""
    chosen = informed(build_policy(config.policy, config.cost), catalog, classifier)
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
        max_upload_bytes=config.server.max_upload_bytes,
        body_timeout_s=config.server.body_timeout_s,
        escalation=build_escalation(config.policy.escalation),
        deadlines=config.deadlines,
        cache_marks=config.policy.cache_marks,
        answers_digest=answers_digest(config),
    )
