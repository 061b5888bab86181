"""Conversion of the `policy` and `cost` sections to the types of planning and escalation."""

from cost.config import CostSection
from cost.fleet.pool_config import PoolSection, pool_of_target
from proxy.escalation import EscalationRules
from proxy.policy import OwnPool, Policy
from proxy.policy_config import EscalationConfig, PolicyConfig, ToolLoopsConfig
from proxy.tool_loop import LoopRules


def build_policy(config: PolicyConfig, cost: CostSection) -> Policy:
    """Builds the routing policy from both sections."""
    return Policy(
        auto_targets=config.auto,
        aliases={name: (to,) if isinstance(to, str) else to for name, to in config.aliases.items()},
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
    """Builds the escalation rules."""
    return EscalationRules(
        max_share=config.max_share,
        max_running=config.max_running,
        min_mean_logprob=config.min_mean_logprob,
        hold_max_bytes=config.hold_max_bytes,
        hold_max_s=config.hold_max_s,
    )
