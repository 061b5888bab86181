"""Plan: the one place where a prompt's complexity meets the targets' capability. Pure.

Filter what cannot serve the request, then order what can by expected cost. Every target ends up
either as a candidate with a reason or as a rejection with a reason.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from classifier.prediction import Prediction
from cost.usage import Usage
from providers.catalog import Catalog
from providers.target import Capability, Deployment, Target, Tier
from proxy.affinity import Sticky
from proxy.errors import ContextTooLong, ModelNotFound, NoEligibleTarget, Refused, TargetsUnavailable

AUTO = "auto"

DEFAULT_OUTPUT_TOKENS = 300
"""Expected answer of a request that was not classified (the caller named the model)."""

# Input tokens are an estimate: only what is clearly too long is refused here, the rest is the upstream's to count.
_ESTIMATE_SLACK = 0.9

Reason = Literal["cheapest-capable", "prompt-cache", "most-capable", "named", "alias", "fallback", "degraded"]
_Kind = Literal["auto", "alias", "named"]
"""Whether the gateway chooses, an alias stands for targets, or the caller named one."""
Obstacle = Literal[
    "not-allowed", "tier", "capability-missing", "context", "unpriced", "weight-zero", "unavailable", "too-hard"
]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How names become targets and how strict `auto` is.

    `capability_shift` is added to every target's capability: below 0 the gateway is stricter and
    sends more to the dear targets, above 0 it saves more.
    """

    auto_targets: tuple[str, ...] | None = None
    """Targets that `auto` may choose from; None means all of them."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Name → targets in the order to try them."""
    fallbacks: Mapping[str, tuple[str, ...]] = {}
    """Target → targets to try after it when a caller named it."""
    capability_shift: float = 0.0
    degrade: bool = False
    """After every capable target, try the less capable ones too, best first."""
    max_candidates: int = 4


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What planning needs to know of a request."""

    alias: str
    tier: Tier
    needs: frozenset[Capability]
    input_tokens: int
    max_output_tokens: int | None
    """The caller's own bound, or None."""
    choices: int = 1
    allowed_models: frozenset[str] | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A target to try, why, and what it should cost. `bound_nanousd` is the most it can cost."""

    target: Target
    reason: Reason
    expected_nanousd: int | None
    bound_nanousd: int | None


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    target_id: str
    obstacle: Obstacle
    detail: str


class RoutePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Candidates in the order to try them (at least one), and why the others are not among them."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]


Fleet = Mapping[str, tuple[Deployment, ...]]
"""Snapshot: target → its deployments that may be called now."""


def plan(
    facts: Facts,
    prediction: Prediction | None,
    policy: Policy,
    catalog: Catalog,
    fleet: Fleet,
    sticky: Sticky | None = None,
) -> RoutePlan:
    """Orders the targets for one request.

    `prediction` is needed for `auto` only. Raises ModelNotFound, ContextTooLong, NoEligibleTarget or
    TargetsUnavailable when there is nothing to try.
    """
    pool, kind = _pool(facts, policy, catalog)
    eligible: list[Target] = []
    rejected: list[Rejection] = []
    for target in pool:
        obstacle = _obstacle(target, facts, fleet, auto=kind == AUTO)
        if obstacle is None:
            eligible.append(target)
        else:
            rejected.append(obstacle)
    if not eligible:
        raise _nothing(facts, rejected)
    if kind == AUTO:
        candidates, too_hard = _auto(eligible, facts, prediction, policy, sticky)
        rejected += too_hard
    else:
        candidates = _in_order(eligible, facts, prediction, sticky, kind=kind)
    return RoutePlan(candidates=tuple(candidates[: policy.max_candidates]), rejected=tuple(rejected))


def _pool(facts: Facts, policy: Policy, catalog: Catalog) -> tuple[list[Target], Literal["auto", "alias", "named"]]:
    """The targets that a name stands for, in order; a target that the team may not use does not exist for it."""
    if facts.alias == AUTO:
        names: Iterable[str] = policy.auto_targets if policy.auto_targets is not None else catalog.targets
        return [catalog.targets[name] for name in names], "auto"
    kind: _Kind = "alias" if facts.alias in policy.aliases else "named"
    names = policy.aliases.get(facts.alias) or (facts.alias, *policy.fallbacks.get(facts.alias, ()))
    pool = [catalog.targets[name] for name in names if name in catalog.targets]
    if facts.alias not in policy.aliases and facts.alias not in catalog.targets:
        pool = []
    known = [target for target in pool if facts.allowed_models is None or target.target_id in facts.allowed_models]
    if not known:
        raise ModelNotFound(
            f"The model `{facts.alias}` does not exist or your team may not use it. "
            "Send `auto` or a name from GET /v1/models.",
            param="model",
        )
    return known, kind


def _obstacle(target: Target, facts: Facts, fleet: Fleet, *, auto: bool) -> Rejection | None:
    """The first reason why a target cannot serve the request."""
    found: tuple[Obstacle, str] | None = None
    missing = facts.needs - target.capabilities
    room = int(facts.input_tokens * _ESTIMATE_SLACK) + (facts.max_output_tokens or 1)
    if facts.allowed_models is not None and target.target_id not in facts.allowed_models:
        found = ("not-allowed", "the team may not use it")
    elif facts.tier not in target.tiers:
        found = ("tier", f"does not serve the {facts.tier} tier")
    elif missing:
        found = ("capability-missing", f"cannot do {', '.join(sorted(missing))}")
    elif room > target.max_context_tokens:
        found = ("context", f"{room} tokens do not fit its {target.max_context_tokens}")
    elif auto and target.price is None:
        found = ("unpriced", "its price is unknown")
    elif auto and target.routing_weight <= 0:
        found = ("weight-zero", "its routing weight is 0")
    elif not fleet.get(target.target_id):
        found = ("unavailable", "every deployment is ejected by its breaker")
    return found and Rejection(target_id=target.target_id, obstacle=found[0], detail=found[1])


def _nothing(facts: Facts, rejected: list[Rejection]) -> Refused:
    obstacles = {rejection.obstacle for rejection in rejected}
    told = (rejection for rejection in rejected if rejection.obstacle != "not-allowed")
    reasons = "; ".join(f"{rejection.target_id}: {rejection.detail}" for rejection in told)
    if "unavailable" in obstacles:
        return TargetsUnavailable(f"No eligible target can be called right now ({reasons}).", retry_after_s=5.0)
    if "context" in obstacles:
        return ContextTooLong(
            f"The request needs about {facts.input_tokens + (facts.max_output_tokens or 1)} tokens and fits no target "
            f"that could serve it ({reasons}). Shorten the messages or lower max_tokens.",
            param="messages",
        )
    return NoEligibleTarget(
        f"No target can serve this request ({reasons or 'no target is configured for it'}).", param="model"
    )


def _auto(
    eligible: list[Target], facts: Facts, prediction: Prediction | None, policy: Policy, sticky: Sticky | None
) -> tuple[list[Candidate], list[Rejection]]:
    """The capable ones by expected cost; when none is, the most capable one alone leads."""
    if prediction is None:
        raise ValueError("planning `auto` needs a prediction")
    capable: list[Target] = []
    weak: list[Target] = []
    for target in eligible:
        enough = prediction.complexity <= target.capability + policy.capability_shift
        (capable if enough else weak).append(target)
    weak.sort(key=lambda target: (-target.capability, target.target_id))
    cost = {target.target_id: _expected(target, facts, prediction, sticky) for target in eligible}
    capable.sort(key=lambda target: _rank(target, cost))
    ordered: list[tuple[Target, Reason]] = [(target, "fallback") for target in capable]
    if capable:
        ordered[0] = (capable[0], _why_first(capable, facts, prediction, sticky))
    else:
        ordered = [(weak.pop(0), "most-capable")]
    if policy.degrade:
        ordered += [(target, "degraded") for target in weak]
        weak = []
    candidates = [_candidate(target, facts, reason, cost) for target, reason in ordered[: policy.max_candidates]]
    too_hard = [
        Rejection(
            target_id=target.target_id,
            obstacle="too-hard",
            detail=f"complexity {prediction.complexity:.2f} is above its {target.capability + policy.capability_shift:.2f}",
        )
        for target in weak
    ]
    return candidates, too_hard


def _rank(target: Target, cost: Mapping[str, int | None]) -> tuple[float, str]:
    """Expected cost, made smaller by the routing weight: at weight 2 a target counts as half as dear."""
    expected = cost[target.target_id]
    return (math.inf if expected is None else expected / target.routing_weight, target.target_id)


def _why_first(capable: list[Target], facts: Facts, prediction: Prediction, sticky: Sticky | None) -> Reason:
    """Whether the first would be first without what it has cached of this conversation."""
    if sticky is None or sticky.target_id != capable[0].target_id:
        return "cheapest-capable"
    cold = {target.target_id: _expected(target, facts, prediction, None) for target in capable}
    return "cheapest-capable" if min(capable, key=lambda each: _rank(each, cold)) is capable[0] else "prompt-cache"


def _in_order(
    eligible: list[Target],
    facts: Facts,
    prediction: Prediction | None,
    sticky: Sticky | None,
    *,
    kind: _Kind,
) -> list[Candidate]:
    cost = {target.target_id: _expected(target, facts, prediction, sticky) for target in eligible}
    first: Reason = "alias" if kind == "alias" else "named" if eligible[0].target_id == facts.alias else "fallback"
    return [_candidate(target, facts, "fallback" if index else first, cost) for index, target in enumerate(eligible)]


def _candidate(target: Target, facts: Facts, reason: Reason, cost: Mapping[str, int | None]) -> Candidate:
    return Candidate(
        target=target, reason=reason, expected_nanousd=cost[target.target_id], bound_nanousd=_bound(target, facts)
    )


def _expected(target: Target, facts: Facts, prediction: Prediction | None, sticky: Sticky | None) -> int | None:
    """Input tokens are known, output tokens predicted; the sticky target still has its cache."""
    if target.price is None:
        return None
    cached = min(sticky.cached_tokens, facts.input_tokens) if sticky and sticky.target_id == target.target_id else 0
    predicted = prediction.expected_output_tokens if prediction is not None else DEFAULT_OUTPUT_TOKENS
    output = min(predicted, _output_limit(target, facts)) * facts.choices
    return target.price.cost_nanousd(
        Usage(input_tokens=facts.input_tokens, cached_input_tokens=cached, output_tokens=output)
    )


def _bound(target: Target, facts: Facts) -> int | None:
    """The most one attempt can cost: nothing cached, everything written to the cache, the whole output."""
    if target.price is None:
        return None
    written = facts.input_tokens if target.price.cache_write_nanousd > target.price.input_nanousd else 0
    # The caller's own bound goes upstream as it is, so it counts even above what the target is said to manage.
    output = (facts.max_output_tokens or target.max_output_tokens) * facts.choices
    return target.price.cost_nanousd(
        Usage(input_tokens=facts.input_tokens, cache_write_tokens=written, output_tokens=output)
    )


def _output_limit(target: Target, facts: Facts) -> int:
    room = max(1, target.max_context_tokens - facts.input_tokens)
    return min(facts.max_output_tokens or target.max_output_tokens, target.max_output_tokens, room)
