"""Conversion of the `policy` and `cost` sections to the types of planning and escalation."""

from collections.abc import Mapping

import msgspec

from classifier.config import ClassifierSection
from classifier.shipped_rows import shipped_rows
from cost.config import CostSection
from cost.fleet.pool_config import PoolSection, pool_of_target
from cost.savings.comparators import Comparators
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.catalog import catalog_of
from providers.catalog import Catalog
from proxy.parse.chat_request import AUTO
from proxy.plan.evidence import Evidence, evidence_by_target, evidence_of_name, grounds, less_sure
from proxy.plan.known_names import KnownNames
from proxy.plan.pipeline_config import EscalationRules
from proxy.plan.route_plan import AutoRules, OwnPool, Policy
from proxy.plan.routing_config import AutoAlias, EscalationConfig, PolicyConfig, ToolLoopsConfig
from proxy.plan.tool_loop import LoopRules


def build_policy(config: PolicyConfig, cost: CostSection) -> Policy:
    """Build the routing policy from both sections."""
    return Policy(
        auto_targets=config.auto,
        aliases={name: targets for name, to in config.aliases.items() if (targets := _targets(to))},
        autos={name: _auto_rules(to) for name, to in config.aliases.items() if not _targets(to)},
        fallbacks=config.fallbacks,
        reference=cost.reference_target,
        pooled=frozenset(pool_of_target(cost.pools)),
        pools=tuple(map(_own_pool, cost.pools)),
        unpriced=cost.unpriced,
        quality_floor=config.quality_floor,
        capability_shift=config.capability_shift,
        degrade=config.degrade,
        max_candidates=config.max_candidates,
        stay_in_turn=config.tool_loops.stay,
        loops=_loop_rules(config.tool_loops),
    )


def names_of(config: GatewayConfig) -> KnownNames:
    """Return the names that budgets and limits may have, by the file alone."""
    return KnownNames(catalog_of(config), build_policy(config.policy, config.cost))


def informed(policy: Policy, catalog: Catalog, classifier: object) -> Policy:
    """Return the policy with what is known of each target, by the classifier in use and its tuning."""
    evidence = evidence_by_target(catalog.targets.values(), classifier)
    return msgspec.structs.replace(policy, evidence=evidence, grounds=grounds(evidence, policy.reference))


def choice_evidence(target_id: str, policy: Policy, catalog: Catalog, classifier: object) -> Evidence:
    """Return the evidence that a choice of a target rests on, the baseline model counted in; also for one without an entry of its own."""
    found = policy.grounds.get(target_id)
    if found is not None:
        return found
    baseline: Evidence = "measured" if policy.reference is None else policy.evidence.get(policy.reference, "none")
    return less_sure(evidence_of_name(target_id, catalog, classifier), baseline)


def _targets(behind: str | tuple[str, ...] | AutoAlias) -> tuple[str, ...]:
    """Return the targets behind an alias; empty for one by which the gateway chooses."""
    if isinstance(behind, AutoAlias) or behind == AUTO:
        return ()
    return (behind,) if isinstance(behind, str) else behind


def _auto_rules(behind: str | tuple[str, ...] | AutoAlias) -> AutoRules:
    if not isinstance(behind, AutoAlias):
        return AutoRules()
    return AutoRules(
        targets=None if behind.auto is None else frozenset(behind.auto),
        quality_floor=behind.quality_floor,
        escalation=behind.escalation,
    )


def _loop_rules(config: ToolLoopsConfig) -> LoopRules:
    return LoopRules(
        same_call=config.same_call,
        errors=config.errors,
        unchanged=config.unchanged,
        max_steps=config.max_steps,
        max_raises=config.max_raises,
    )


def _own_pool(pool: PoolSection) -> OwnPool:
    return OwnPool(
        name=pool.name,
        targets=pool.targets,
        by_margin=pool.price == "margin",
        replicas=pool.replicas,
        input_s=float(pool.seconds_per_million.input),
        output_s=float(pool.seconds_per_million.output),
    )


def build_escalation(config: EscalationConfig) -> EscalationRules:
    """Build the escalation rules."""
    return EscalationRules(
        max_share=config.max_share,
        max_running=config.max_running,
        min_mean_logprob=config.min_mean_logprob,
        hold_max_bytes=config.hold_max_bytes,
        hold_max_s=config.hold_max_s,
        agreement_wait_s=config.agreement_wait_s,
        batch_agreement_from=config.batch_agreement_from,
    )


def build_comparators(catalog: Catalog, reference: str | None, hosted: Mapping[str, str]) -> Comparators:
    """Build the comparators. `hosted` maps each own target to the paid target that hosts the same weights."""
    known = {name: target.comparator for name, target in catalog.targets.items() if target.comparator is not None}
    return Comparators(
        reference=known.get(reference or ""),
        hosted={target: known[host] for target, host in hosted.items() if host in known},
    )


class ShippedRows:
    """The rows that targets have without any tuning, for those who ask before a classifier is loaded."""

    def __init__(self, section: ClassifierSection, catalog: Catalog) -> None:
        table = shipped_rows(section.artifact_dir) if section.enabled else {}
        self.rows = {target_id: table[name] for target_id, name in catalog.abilities.items() if name in table}
        """Rows by target id."""
