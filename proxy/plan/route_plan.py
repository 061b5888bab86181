"""Planning: orders the targets for a request by the facts known of its prompt and of the targets. Pure.

Filter out the targets that cannot serve the request, then order the others by the cost of one more request: the
expected price of a paid target, the shadow price of our own GPUs (`proxy/plan/marginal_cost.py`). Every target ends up
either as a candidate with a reason or as a rejection with a reason.

Of the targets with a row the one of the greatest net benefit sets the chance that a prompt asks for (the rule is that
of `classifier/frontier.py`). `proxy/plan/evidence.py` decides which others are good enough, and ranks unknown targets.
"""

import bisect
import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import filterfalse
from typing import Final, Literal, TypeVar

import msgspec

from accounts.caller import Escalation
from classifier.frontier import alike
from classifier.prediction import Prediction, TargetPrediction
from cost.dimensions import Dimension
from cost.errors import BudgetExceeded
from cost.meters import NO_MEDIA, Media
from cost.price_book.book import Unpriced, is_bookable
from cost.prices import Price, ServiceTier
from cost.usage import Usage
from providers.breaker import LIMIT, Absence
from providers.catalog import Catalog, those_that_chat
from providers.errors import UpstreamRateLimited
from providers.provider_tools import AsWritten
from providers.target import (
    METERED_CAPABILITIES,
    NO_LIMITS,
    NOT_CHAT,
    OWN_ENGINES,
    Capability,
    Deployment,
    Dialect,
    Target,
    Tier,
)
from proxy.errors import (
    FAULTS,
    BadRequest,
    ContentFiltered,
    ContextTooLong,
    ModelNotFound,
    NoEligibleTarget,
    Refused,
    TargetsUnavailable,
    UnpricedModel,
)
from proxy.parse.chat_request import AUTO, DEFAULT_OUTPUT_TOKENS
from proxy.plan.evidence import (
    NO_EVIDENCE,
    TRUSTED,
    Evidence,
    Judged,
    Reference,
    measuring_hint,
    stand_in_asks,
    trust_baseline,
    trust_order,
)
from proxy.plan.marginal_cost import NO_ROOMS, MarginWhy, Room, Rooms, margin, resting_nanousd
from proxy.plan.routing_config import DEFAULT_FLOOR
from proxy.plan.scores import NO_SCORES, EligibleTarget, Scores
from proxy.plan.session_affinity import Kept, Sticky, TurnChoice
from proxy.plan.tool_loop import NO_LOOP, LoopRules, ToolLoop

NO_LIMIT_NANOUSD: Final = 1e15
"""A willingness to pay of a million US dollars for one more adequate answer: the target that is most likely to be
adequate is chosen.
"""

# Input tokens are an estimate: only what is clearly too long is refused here, the rest is the upstream's to count.
_ESTIMATE_SLACK = 0.9

Reason = Literal[
    "cheapest-capable",
    "prompt-cache",
    "most-capable",
    "baseline",
    "dearest",
    "named",
    "alias",
    "fallback",
    "hedge",
    "degraded",
    "escalated",
    "agreement",
    "holdout",
    "spill-over",
    "cache",
    "same-turn",
    "struggle",
]
_ANSWERS_NOTHING: Final[frozenset[Capability]] = frozenset({"embeddings", "rerank", "moderation"})
_SPOKEN: Final = frozenset({"modalities", "audio"})
"""Parameters that ask for an answer beside text."""
_TOLD_BY_UNIT: Final[frozenset[Capability]] = frozenset({"speech", "transcription"})
"""Answers that may tell no tokens, though their model is sold by tokens."""
_AGAIN_S: Final = 5.0
"""Seconds that a caller is told to wait where the time of the next call is not known."""
_EJECTED: Final = "every deployment is ejected by its breaker"
_NOBODY_READY: Final = "no replica of its pool takes work now"
_Kind = Literal["auto", "alias", "named"]
"""The kind of a requested name: `auto`, an alias for several targets, or one target."""
Obstacle = Literal[
    "not-allowed",
    "guard",
    "tier",
    "capability-missing",
    "context",
    "output",
    "parameter",
    "provider-tool",
    "unpriced",
    "unbounded",
    "budget",
    "weight-zero",
    "unavailable",
    "vetoed",
    "too-hard",
    "unknown",
]


NOT_SPENT: Final[Mapping[tuple[Dimension, str], BudgetExceeded]] = {}


class OwnPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of our own GPUs as planning and its previews see it."""

    name: str
    targets: tuple[str, ...]
    by_margin: bool = True
    """False when its targets are always compared by their average price."""
    replicas: int = 1
    """Replicas that are planned to be up."""
    input_s: float = 0.0
    """Seconds that one fully busy replica takes for a million tokens of prompts."""
    output_s: float = 0.0


class AutoRules(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of an alias for `auto` from `auto`."""

    targets: frozenset[str] | None = None
    """The target ids it chooses from; None for those of `auto`."""
    quality_floor: float | None = None
    """The share of the reference's quality to keep; None for the team's."""
    escalation: Escalation | None = None
    """The mode of escalation; None for the team's."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Names, fallbacks and strictness that planning follows.

    `capability_shift` is added to every declared capability: below 0 the gateway is stricter and
    sends more to the dear targets, above 0 it saves more. Targets with a row follow the willingness to pay instead.
    """

    auto_targets: tuple[str, ...] | None = None
    """Target ids that `auto` may choose from; None means all."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Target ids by alias, in the order to try them."""
    autos: Mapping[str, AutoRules] = {}
    """The aliases under which the gateway chooses as for `auto`."""
    fallbacks: Mapping[str, tuple[str, ...]] = {}
    """Target ids to try after a named target."""
    reference: str | None = None
    """The target that quality is measured against."""
    quality_floor: float = DEFAULT_FLOOR
    """The minimum quality of teams that set none; `Tolerances` converts it into a willingness to pay."""
    capability_shift: float = 0.0
    unpriced: Unpriced = "refuse"
    """The treatment of a named model without a price."""
    pooled: frozenset[str] = frozenset()
    """Ids of targets on our own GPUs, beside those that are marked as own."""
    pools: tuple[OwnPool, ...] = ()
    """Our own pools whose hours `cost.pools` bills."""
    evidence: Mapping[str, Evidence] = NO_EVIDENCE
    """The evidence of each target's quality, by target id."""
    grounds: Mapping[str, Evidence] = NO_EVIDENCE
    """The evidence that a choice of each target rests on, the baseline model counted in, by target id."""
    degrade: bool = False
    """True to try less capable targets, best first, after all capable ones."""
    max_candidates: int = 4
    stay_in_turn: bool = True
    """True to keep a tool loop at the target that its turn began with."""
    loops: LoopRules = LoopRules()
    """The thresholds from which on a tool loop is taken to struggle."""


class Counts(msgspec.Struct, frozen=True):
    """How many a request has of what some targets take only few of."""

    stops: int = 0
    tools: int = 0
    images: int = 0


NO_COUNTS: Final = Counts()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a request that planning needs."""

    alias: str
    tier: Tier
    needs: frozenset[Capability]
    input_tokens: int
    max_output_tokens: int | None
    """The caller's limit of the answer's tokens, or None."""
    choices: int = 1
    allowed_models: frozenset[str] | None = None
    most_input_tokens: int = 0
    """An upper bound of `input_tokens` for hard budgets; 0 where nothing is reserved."""
    media: Media = NO_MEDIA
    """The kinds of media that the prompt may have tokens of."""
    longest_tokens: int | None = None
    """The tokens of the longest text, where several are embedded one by one; None where the whole prompt must fit."""
    willing_nanousd: float = NO_LIMIT_NANOUSD
    """The willingness to pay for one more adequate answer, in nano-dollars."""
    willing_with_room_nanousd: float | None = None
    """The same while our own GPUs have room, and so come first; None when it does not differ."""
    most_lost: float = 1.0
    """The most that the prompt may be expected to lose against the reference, as a difference of chances."""
    loop: ToolLoop = NO_LOOP
    """The tool loop after the last user message, for `auto`."""
    service_tier: ServiceTier | None = None
    """The provider's service tier that the caller asked for; None for the usual one."""
    decisive: frozenset[str] = frozenset()
    """The parameters sent that an answer must do justice to, such as `n`: targets that cannot take them are not
    asked.
    """
    search: str = ""
    """The search that the caller asks the provider for (`web_search_options`), as prices of tool calls name it."""
    unit: str = ""
    """The unit that the request uses beside tokens. Its expected amount and its most, in thousandths, follow, as in
    `ChatRequest`.
    """
    units_milli: int = 0
    most_units_milli: int = 0
    spares: bool = False
    """True where a spent budget lets the gateway choose: the cheapest comes first among the unknown."""
    bounded: bool = False
    """True under a hard budget: what is held for the answer is then the most that the upstream may write."""
    affordable_tokens: int | None = None
    """The most tokens of one choice that the rest of a hard budget pays for, where that is less than was wanted."""
    overruns: Mapping[str, str] = {}
    """Under a hard budget, the targets that broke such a bound, and how (`proxy.plan.overruns`)."""
    spent_targets: Mapping[tuple[Dimension, str], BudgetExceeded] = NOT_SPENT
    """Models and providers that have no budget left for this caller."""
    dialect: Dialect | None = None
    """The dialect that the target must be asked in; None where chat does."""
    provider_tools: Mapping[str, str] = {}
    """The tools that the target's provider must run, by name, each with its place in the request."""
    opening_tokens: int | None = None
    """The estimated tokens up to the last user message, by which prices are compared within its tool loop: later
    messages of the loop must not move it. None where no loop is under way.
    """
    effort: str = ""
    """The reasoning effort that is asked for; empty for the model's usual one."""
    counts: Counts = NO_COUNTS
    refused: Mapping[str, frozenset[str]] = {}
    """Parameters that targets refused lately, by target (`proxy.plan.refused_parameters`)."""
    scores: Scores = NO_SCORES
    """Vetoes and margins of scorers. A target that nothing else allows gains nothing by them."""
    own_only: bool = False
    """True where nobody but own engines may be asked, as a rule of the guard says."""

    def lacking(self, target: Target) -> frozenset[str]:
        """Return what the target cannot take of this request."""
        lacks = target.lacks_at(self.effort)
        return lacks | self.refused[target.target_id] if target.target_id in self.refused else lacks


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A target to try, the reason, and its expected and maximum cost in nano-dollars, as booked; None without a
    price. `margin_nanousd` is the cost it was compared by, and `margin_why` the origin of that.
    """

    target: Target
    reason: Reason
    expected_nanousd: int | None
    bound_nanousd: int | None
    margin_nanousd: int | None = None
    margin_why: MarginWhy = ""
    adequate: float | None = None
    """The predicted P(adequate) of its answer, where the target has a row."""
    strength: float = 0.0
    """The strength for this prompt in comparison with the plan's other candidates, where the gateway chose."""
    output_tokens: int = DEFAULT_OUTPUT_TOKENS
    """The expected answer tokens of all choices together."""
    waited_s: float = 0.0
    """Seconds for which it waited in the target's queue, once it did."""
    queued_s: float = 0.0
    """Seconds that its request waited in queues since the last attempt, also where it found no place."""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A target that is not asked, and its obstacle. One that is too weak was compared all the same; costs are
    nano-dollars.
    """

    target_id: str
    obstacle: Obstacle
    detail: str = ""
    """The obstacle in words; empty for a target that is too weak, as `why_too_weak` tells it from the numbers."""
    capability: float | None = None
    """The most complexity that it is trusted with, of one that was too weak by that."""
    expected_nanousd: int | None = None
    margin_nanousd: int | None = None
    margin_why: MarginWhy = ""
    adequate: float | None = None


class RoutePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates in the order to try them (at least one), and the rejected targets with their obstacles."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    complexity: float | None = None
    """The complexity that declared capability was compared with; None where the caller named a model."""
    tolerance: float | None = None
    """The most by which a target's P(adequate) may fall below the reference's for this prompt, below 0 where it must be higher;
    None where the caller named a model or declared capability decided.
    """
    reference_adequate: float | None = None
    """P(adequate) of the reference that targets with rows were compared with; None when declared capability decided."""
    stand_in: bool = False
    """True where the reference has no row, and the best of all known models stood for it."""
    willing_nanousd: float | None = None
    """The most that one more adequate answer may cost, where that decided; None where it did not."""
    grounds: Mapping[str, Evidence] = NO_EVIDENCE
    """The evidence that a choice of each target rests on, by target id; empty where the caller named a model."""
    cheapest_commercial: Target | None = None
    """The paid target of least expected cost among those capable of this prompt."""
    paced_s: float | None = None
    """Seconds until the provider's pace lets a target be asked again that could serve the request, too; None without one."""


Fleet = Mapping[str, tuple[Deployment, ...]]
"""A snapshot of the callable deployments by target id."""
Absences = Mapping[str, Absence]
"""The known reasons for targets without a callable deployment, by target id."""
NO_ABSENCES: Final[Absences] = {}


def plan(
    facts: Facts,
    prediction: Prediction | None,
    policy: Policy,
    catalog: Catalog,
    fleet: Fleet,
    sticky: Sticky | None = None,
    rooms: Rooms = NO_ROOMS,
    turn: TurnChoice | None = None,
    *,
    absences: Absences = NO_ABSENCES,
) -> RoutePlan:
    """Plan one request: filter the targets that can serve it and order them. `prediction`, `rooms` and `turn` are
    needed for `auto` only; without rooms our own GPUs are compared by their average price, and without the turn's
    earlier choice its tool loop is planned as the turn's first request was. Raises ModelNotFound, ContextTooLong,
    NoEligibleTarget or TargetsUnavailable when there is nothing to try.
    """
    pool, kind = _named_targets(facts, policy, catalog)
    eligible: list[Target] = []
    rejected: list[Rejection] = []
    shorter: list[Target] = []
    for target in pool:
        obstacle = _obstacle(target, facts, fleet, policy.unpriced, kind)
        if obstacle is None:
            eligible.append(target)
            continue
        rejected.append(obstacle)
        if obstacle.obstacle == "output":
            shorter.append(target)
    if not eligible and shorter:
        # A limit is no demand: where a target writes less, the answer ends at the target's own limit.
        eligible = shorter
        rejected = [each for each in rejected if each.obstacle != "output"]
    if not eligible:
        raise _no_target_error(facts, rejected, absences, catalog)
    if kind == AUTO:
        if prediction is None:
            raise ValueError("planning `auto` needs a prediction")
        reference = _reference(prediction, policy, catalog, facts) if prediction.outlooks else None
        stand_in = reference is None and prediction.best_known is not None
        best = prediction.best_known if stand_in else reference
        scales = _TargetComparison(facts, prediction, policy, best, stand_in)
        return _auto(eligible, rejected, scales, sticky, rooms, turn)
    first = eligible[0]
    candidates = _in_order(_limited(eligible, policy, _itself), facts, prediction, sticky, kind=kind)
    return RoutePlan(
        candidates=tuple(candidates),
        rejected=tuple(rejected),
        # A caller that names a model has decided about quality.
        cheapest_commercial=None if first.price is None or is_own(first, policy.pooled) else first,
    )


def eligible_targets(
    facts: Facts,
    prediction: Prediction | None,
    policy: Policy,
    catalog: Catalog,
    fleet: Fleet,
) -> tuple[EligibleTarget, ...]:
    """Return the targets that the request may go to, before anybody scores them. Raises ModelNotFound."""
    pool, kind = _named_targets(facts, policy, catalog)
    obstacles = {each.target_id: _obstacle(each, facts, fleet, policy.unpriced, kind) for each in pool}
    # One that writes shorter answers is asked where all do.
    allowed = [each for each in pool if (found := obstacles[each.target_id]) is None or found.obstacle == "output"]
    options = [_option(each, facts, prediction, None, "fallback") for each in allowed]
    return tuple(
        [
            EligibleTarget(
                target_id=each.target.target_id,
                provider=each.target.provider,
                own=is_own(each.target, policy.pooled),
                expected_nanousd=each.expected,
                adequate=None if each.outlook is None else each.outlook.adequate,
                max_context_tokens=each.target.max_context_tokens,
            )
            for each in options
        ]
    )


def why_too_weak(
    *,
    complexity: float | None,
    capability: float | None,
    adequate: float | None,
    reference: float | None,
    tolerance: float | None,
    stand_in: bool = False,
) -> str:
    """Return in words the reason for which a target was too weak: its declared `capability`, or its predicted chance.
    Empty where too little is known.
    """
    if capability is not None and complexity is not None:
        return f"complexity {complexity:.2f} is above its {capability:.2f}"
    if adequate is None or reference is None or tolerance is None:
        return ""
    compared = "the best known model, as nothing is known of the baseline model," if stand_in else "the baseline model"
    return (
        f"adequate with {adequate:.3f}, {compared} with {reference:.3f}: "
        f"this prompt asks for {reference - tolerance:.3f}"
    )


def planned_rooms(policy: Policy) -> Rooms:
    """Return rooms in which every pool that is planned to be up has room, and nobody waits: for previews of
    decisions.
    """
    return Rooms(
        {name: Room(0.0, 1.0) for pool in policy.pools if pool.by_margin and pool.replicas for name in pool.targets},
        0.0,
    )


def _itself(target: Target) -> Target:
    return target


def absent(facts: Facts, policy: Policy, catalog: Catalog, fleet: Fleet) -> list[Target]:
    """Return our own targets that were unavailable but eligible otherwise; their pools' autoscalers learn of the
    demand only here.
    """
    pool, kind = _named_targets(facts, policy, catalog)
    found: list[Target] = []
    for target in pool:
        obstacle = _obstacle(target, facts, fleet, policy.unpriced, kind)
        if obstacle is None and kind != AUTO:
            break
        if obstacle is not None and obstacle.obstacle == "unavailable" and target.pool is not None:
            found.append(target)
    return found


def choosable(policy: Policy, catalog: Catalog, allowed: frozenset[str] | None) -> list[Target]:
    """Return the targets that `auto` could choose for a team if all were healthy."""
    names: Iterable[str] = policy.auto_targets if policy.auto_targets is not None else catalog.targets
    targets = (catalog.targets[name] for name in names if allowed is None or name in allowed)
    return [target for target in targets if target.price is not None and target.routing_weight > 0 and target.chats]


def evidence_for_auto(policy: Policy, catalog: Catalog, allowed: frozenset[str] | None = None) -> dict[str, Evidence]:
    """Return the evidence of each target that `auto` could choose, by target id."""
    return {each.target_id: policy.evidence.get(each.target_id, "none") for each in choosable(policy, catalog, allowed)}


def reference_targets(
    known: Container[str], policy: Policy, catalog: Catalog, allowed: frozenset[str] | None
) -> tuple[str, ...]:
    """Return the ids of the targets whose best P(adequate) is the reference, of those with rows; empty where none may
    stand for it. The configured reference counts also where it cannot serve the request: the floor is a promise about
    its quality, and the choice of one target must not depend on the health of another. Where none is configured the
    best of the targets with rows stands for it, unless one without a row is declared more capable than all of them: a
    small model that happens to be the only known one must not be its own reference.
    """
    if policy.reference is not None:
        return (policy.reference,) if policy.reference in known else ()
    pool = choosable(policy, catalog, allowed)
    ours = [target for target in pool if target.target_id in known]
    declared = max((each.capability or 0.0 for each in pool if each.target_id not in known), default=0.0)
    if declared > 0 and all((target.capability or 0.0) < declared for target in ours):
        return ()
    return tuple(target.target_id for target in ours)


def _reference(prediction: Prediction, policy: Policy, catalog: Catalog, facts: Facts) -> float | None:
    outlooks = prediction.outlooks
    names = reference_targets(outlooks, policy, catalog, facts.allowed_models)
    return max((outlooks[name].adequate for name in names), default=None)


def _named_targets(facts: Facts, policy: Policy, catalog: Catalog) -> tuple[Sequence[Target], _Kind]:
    """Return the targets behind a name, in order, and the name's kind. Targets the team may not use are left out.
    Raises ModelNotFound.
    """
    if facts.alias == AUTO:
        if policy.auto_targets is None:
            return catalog.chatting, "auto"
        return those_that_chat(tuple(catalog.targets[name] for name in policy.auto_targets)), "auto"
    kind: _Kind = "alias" if facts.alias in policy.aliases else "named"
    names = names_behind(facts.alias, policy)
    pool = [catalog.targets[name] for name in names if name in catalog.targets]
    named = catalog.targets.get(facts.alias)
    if kind == "named" and (named is None or not may_use(facts.allowed_models, named)):
        # Who may not use a model does not reach another one by its name.
        pool = []
    known = [target for target in pool if may_use(facts.allowed_models, target)]
    if not known:
        raise ModelNotFound(
            f"The model `{facts.alias}` does not exist, or your team or this key may not use it. "
            "Send `auto` or a name from GET /v1/models.",
            param="model",
        )
    return known, kind


def names_behind(alias: str, policy: Policy) -> tuple[str, ...]:
    """Return the names that a sent one stands for, in the order in which they are tried."""
    return policy.aliases.get(alias) or (alias, *policy.fallbacks.get(alias, ()))


def may_use(allowed: frozenset[str] | None, target: Target) -> bool:
    """Return True when a caller who may use these models, None for all, may use the target. A caller who may use
    `openai/*` may use all that it matches.
    """
    return allowed is None or target.target_id in allowed or target.pattern in allowed


def stays_here(target: Target) -> bool:
    """Return True for a target all of whose deployments are own engines: what is sent to it goes to nobody else."""
    return target.pool is not None or all(each.kind in OWN_ENGINES for each in target.deployments)


def _obstacle(target: Target, facts: Facts, fleet: Fleet, unpriced: Unpriced, kind: _Kind) -> Rejection | None:
    """Return the first reason why a target cannot serve the request, or None."""
    auto, wanted = kind == AUTO, facts.max_output_tokens
    found: tuple[Obstacle, str]
    if (forbidden := _forbidden(target, facts)) is not None:
        found = forbidden
    elif facts.tier not in target.tiers:
        found = ("tier", f"does not serve the {facts.tier} tier")
    elif (inability := _inability(target, facts)) is not None:
        found = inability
    elif not has_price(target, facts) and not is_bookable(None, unpriced, auto=auto):
        found = ("unpriced", "its price is unknown")
    elif facts.spent_targets and _spent(target, facts) is not None:
        found = ("budget", "its budget is used up")
    elif auto and target.routing_weight <= 0:
        found = ("weight-zero", "its routing weight is 0")
    elif not fleet.get(target.target_id):
        found = ("unavailable", _EJECTED if target.pool is None else _NOBODY_READY)
    elif auto and wanted is not None and longest_answer(target, facts) != wanted:
        # Last, since it is no obstacle where everybody has it.
        found = ("output", f"answers with at most {target.max_output_tokens} tokens, {wanted} are wanted")
    else:
        return None
    return Rejection(target_id=target.target_id, obstacle=found[0], detail=found[1])


def _forbidden(target: Target, facts: Facts) -> tuple[Obstacle, str] | None:
    """Return who keeps the request from a target that may well be able to serve it: its caller's models, the guard, or a scorer."""
    if facts.allowed_models is not None and not may_use(facts.allowed_models, target):
        return "not-allowed", "the team may not use it"
    if facts.own_only and not stays_here(target):
        return "guard", "a rule of the guard lets this request go to own engines alone"
    veto = facts.scores.vetoes.get(target.target_id)
    return None if veto is None else ("vetoed", veto)


def _spent(target: Target, facts: Facts) -> BudgetExceeded | None:
    """Return the refusal of the target's own budget, or of its provider's; None while there is room."""
    spent = facts.spent_targets
    return spent.get(("model", target.target_id)) or spent.get(("provider", target.provider))


def _inability(target: Target, facts: Facts) -> tuple[Obstacle, str] | None:
    """Return the obstacle that lies in the target's abilities, or None."""
    needed = facts.needs
    at_once = facts.input_tokens if facts.longest_tokens is None else facts.longest_tokens
    answer = 0 if target.answer_beside else facts.max_output_tokens or 0
    if (needed or not target.chats) and (missing := _missing_capability(target, needed)) is not None:
        return "capability-missing", missing
    if facts.dialect is not None and (missing := _not_run(target, facts)):
        return "provider-tool", missing
    if facts.bounded and (why := _unbounded(target, facts)):
        return "unbounded", why
    if (facts.decisive or target.limits is not NO_LIMITS) and (untaken := _untaken(target, facts)):
        return "parameter", untaken
    if at_once * _ESTIMATE_SLACK // 1 + (answer or 1) > target.max_context_tokens:
        return "context", f"about {at_once + answer} tokens do not fit its {target.max_context_tokens}"
    return None


def _untaken(target: Target, facts: Facts) -> str:
    """Return in words what the request has that the target does not take, or has too much of; empty for nothing."""
    if lacking := facts.decisive & facts.lacking(target):
        return f"cannot take {', '.join(sorted(lacking))}"
    counts, limits = facts.counts, target.limits
    for what, given, most in (
        ("stop sequences", counts.stops, limits.stops),
        ("tools", counts.tools, limits.tools),
        ("images", counts.images, limits.images),
    ):
        if most is not None and given > most:
            return f"takes at most {most} {what}, {given} are sent"
    return ""


def _not_run(target: Target, facts: Facts) -> str:
    """Return the obstacle to the provider-run tools of the request in words; empty for none."""
    if target.dialect != facts.dialect:
        return f"is not asked in the dialect of {facts.dialect}, in which {', '.join(sorted(facts.provider_tools))} is asked for"
    missing = facts.provider_tools.keys() - target.provider_tools
    return f"its provider does not run {', '.join(sorted(missing))}" if missing else ""


def _missing_capability(target: Target, needed: frozenset[Capability]) -> str | None:
    """Return in words the ability that the target lacks, or the one it has instead; None where it lacks none."""
    if not needed.isdisjoint(METERED_CAPABILITIES) and not needed <= target.capabilities:
        (served,) = needed
        return f"does not serve this route; a model that does has `{served}` in its `capabilities`"
    if needed and not needed <= target.capabilities and "capabilities" not in target.assumed:
        return f"cannot do {', '.join(sorted(needed - target.capabilities))}"
    if needed.isdisjoint(NOT_CHAT) and (instead := target.capabilities & NOT_CHAT):
        return f"makes {', '.join(sorted(instead))}, and answers nothing"
    return None


def _no_target_error(
    facts: Facts, rejected: list[Rejection], absences: Absences, catalog: Catalog
) -> Refused | BudgetExceeded:
    obstacles = {rejection.obstacle for rejection in rejected}
    if facts.alias != AUTO and "unpriced" in obstacles and obstacles <= {"unpriced", "not-allowed"}:
        return UnpricedModel(next(each.target_id for each in rejected if each.obstacle == "unpriced"))
    told = (rejection for rejection in rejected if rejection.obstacle != "not-allowed")
    reasons = "; ".join(f"{rejection.target_id}: {_detail(rejection, absences)}" for rejection in told)
    if "unavailable" in obstacles:
        away = [each.target_id for each in rejected if each.obstacle == "unavailable"]
        return _unavailable(reasons, away, [absences.get(each) for each in away])
    if "budget" in obstacles:
        able = (catalog.targets[each.target_id] for each in rejected if each.obstacle == "budget")
        spent = [found for each in able if (found := _spent(each, facts)) is not None]
        # Where a request may go elsewhere instead, it does; else the first to have room again is told.
        return min(spent, key=lambda each: (not each.downgrade, each.retry_after_s))
    if "context" in obstacles:
        return _too_long(facts, reasons)
    if "provider-tool" in obstacles:
        return _nobody_runs(facts.provider_tools, f" that this request may go to ({reasons})")
    return _nobody(reasons, guarded="guard" in obstacles)


def _nobody(reasons: str, *, guarded: bool) -> Refused:
    if guarded:
        return ContentFiltered.of_own(reasons)
    return NoEligibleTarget(
        f"No target can serve this request ({reasons or 'no target is configured for it'}).", param="model"
    )


def _too_long(facts: Facts, reasons: str) -> ContextTooLong:
    if facts.longest_tokens is not None:
        return ContextTooLong(
            f"The longest text fits no target that could take it ({reasons}). Send it in parts.", param="input"
        )
    return ContextTooLong(
        f"The request fits no target that could serve it ({reasons}). Shorten the messages or lower max_tokens.",
        param="messages",
    )


def _detail(rejection: Rejection, absences: Absences) -> str:
    absence = absences.get(rejection.target_id) if rejection.obstacle == "unavailable" else None
    if absence is None or absence.owner == "health":
        return rejection.detail
    if absence.owner == "pace":
        whose = "what may be sent there in a minute" if absence.reason == LIMIT else "its provider's rate limit"
        return f"{whose} is reached for another {max(1, math.ceil(absence.again_s))} s"
    return "its provider refuses this gateway, which its operators must mend"


def with_pace(route: RoutePlan, absences: Absences) -> RoutePlan:
    """Return the plan with the seconds until the first target is called again whose provider's pace alone keeps the
    request from it.
    """
    if not absences:
        return route
    found = (absences.get(each.target_id) for each in route.rejected if each.obstacle == "unavailable")
    paced_s = min((each.again_s for each in found if each is not None and each.owner == "pace"), default=None)
    return msgspec.structs.replace(route, paced_s=paced_s)


def _unavailable(reasons: str, away: Sequence[str], absences: Sequence[Absence | None]) -> TargetsUnavailable:
    """Return the error for a request whose eligible targets are all out of use. Where one only waits for its
    provider's pace, that is a 429, as the provider's own was; its time is that of the first target to be called
    again.
    """
    known = [each for each in absences if each is not None]
    again_s = min((each.again_s for each in known), default=_AGAIN_S)
    error = TargetsUnavailable(
        f"No eligible target can be called right now ({reasons}).", retry_after_s=again_s or _AGAIN_S
    )
    error.targets = tuple(away)
    if known and len(known) == len(absences) and all(each.owner == "operator" for each in known):
        # As for the first caller: an operator must act first, and clients would wait in vain.
        error.should_retry = False
    if any(each.owner == "pace" for each in known):
        error.fault = FAULTS[UpstreamRateLimited]
    return error


def refuse_unrun_tools(written: AsWritten, catalog: Catalog) -> None:
    """Check that a model here runs the tools, so that nothing is asked, or queued, in vain. Raises BadRequest."""
    if not any(
        target.dialect == written.dialect and written.tools.keys() <= target.provider_tools for target in catalog
    ):
        raise _nobody_runs(written.tools, " here")


def _nobody_runs(tools: Mapping[str, str], where: str) -> BadRequest:
    names = ", ".join(f"`{name}`" for name in tools)
    return BadRequest(
        f"Tools that a provider runs itself are asked for ({names}), and no model{where} has all of them. Leave them out "
        '(Codex: `web_search = "disabled"`) and send tools that you run yourself, or have the gateway\'s operators add a '
        "model whose `provider_tools` have them.",
        param=next(iter(tools.values())),
        code="unsupported_parameter",
    )


class _Option(msgspec.Struct, eq=False):
    """An eligible target with its figures for one request. Costs are nano-dollars, None without a price."""

    target: Target
    outlook: TargetPrediction | None
    """The prediction for the target, where it was measured."""
    output_tokens: int
    expected: int | None
    compared: int | None
    """The cost it is compared by: within a tool loop the expected cost of the turn's first request."""
    judged: Judged = TRUSTED
    reason: Reason = "fallback"
    margin_nanousd: int | None = None
    margin_why: MarginWhy = ""
    overflows: bool = False
    """True when our own has no room for this request, and the cheapest alternative comes first."""
    rank: tuple[float, bool, str] = (math.inf, False, "")


_rank: Final = operator.attrgetter("rank")


def _nowhere(_target_id: str) -> bool:
    """Return False: our own GPUs have no room."""
    return False


class _TargetComparison(msgspec.Struct, eq=False):
    """A comparison of targets for one prompt."""

    facts: Facts
    prediction: Prediction
    policy: Policy
    reference: float | None
    """The P(adequate) of the reference; None when there is none."""
    stand_in: bool
    """True where the best known model stands for the reference."""

    def option(self, target: Target, sticky: Sticky | None) -> _Option:
        """Return the target with the cost of one more request by its price, and the rank that follows from it and the
        routing weight: unpriced last.
        """
        facts, prediction, policy, target_id = self.facts, self.prediction, self.policy, target.target_id
        outlook = prediction.outlooks.get(target_id)
        predicted = prediction.expected_output_tokens if outlook is None else outlook.output_tokens
        output, expected = _expected(target, facts, facts.input_tokens, predicted, sticky)
        compared = expected
        if facts.opening_tokens is not None:
            _, compared = _expected(target, facts, facts.opening_tokens, predicted, sticky)
        if compared is None:
            return _Option(target, outlook, output, expected, None, rank=(math.inf, False, target_id))
        if facts.scores.margins:
            compared = max(0, compared + facts.scores.margins.get(target_id, 0))
        return _Option(
            target,
            outlook,
            output,
            expected,
            compared,
            margin_nanousd=compared,
            margin_why="average" if is_own(target, policy.pooled) else "bought",
            rank=(compared / target.routing_weight, False, target_id),
        )

    def judge(self, options: Sequence[_Option], rooms: Rooms, kept: Kept | None) -> float | None:
        """Mark the options that are good enough, and return the chance that the prompt asks for: that of the option
        of the greatest net benefit; None where no row decides. A better option costs more than it is worth, or comes
        first for its price; a worse one saves too little. The target that the turn began with stays good enough where
        it was so with room or without: each keeps the minimum, and the room may have changed since.
        """
        least, at_turn = self._asked(options, rooms, kept)
        complexity, reference, shift = self.prediction.complexity, self.reference, self.policy.capability_shift
        usual = Reference(complexity, reference, least, shift)
        kept_id = None if kept is None or at_turn is None else kept.target_id
        for option in options:
            outlook, target = option.outlook, option.target
            judging = usual if target.target_id != kept_id else Reference(complexity, reference, at_turn, shift)
            declared = None if self.measured_only else target.capability
            option.judged = judging.judge(None if outlook is None else outlook.adequate, declared)
        return least

    @property
    def measured_only(self) -> bool:
        """True at a minimum of 1, where anything is measured: an operator's word does not make a model as good as the best."""
        return self.facts.most_lost <= 0 and self.reference is not None

    def _asked(self, options: Sequence[_Option], rooms: Rooms, kept: Kept | None) -> tuple[float | None, float | None]:
        """Return the chance that the prompt asks for now, and the least that it asked for when the turn may have
        begun.
        """
        if self.reference is None:
            return None, None
        if self.stand_in:
            asked = stand_in_asks(self.reference, self.facts.most_lost)
            return asked, asked
        willing, has_room = self.weighed_by(options, rooms)
        least = self._chance_at(options, willing, has_room)
        if least is None or kept is None:
            return least, least
        roomy, full = self.facts.willing_with_room_nanousd, self.facts.willing_nanousd
        without = self._chance_at(options, full, _nowhere) or 0.0
        with_room = self._chance_at(options, full if roomy is None else roomy, rooms.by_target.__contains__) or 0.0
        return least, min(least, without, with_room)

    def weighed_by(self, options: Iterable[_Option], rooms: Rooms) -> tuple[float, Callable[[str], bool]]:
        """Return the willingness to pay for one more adequate answer now, and the test for targets that are compared
        as having room.
        """
        roomy = self.facts.willing_with_room_nanousd
        if roomy is not None and any(rooms.has_room(option.target.target_id) for option in options):
            return roomy, rooms.has_room
        return self.facts.willing_nanousd, _nowhere

    def _chance_at(self, options: Sequence[_Option], willing: float, has_room: Callable[[str], bool]) -> float | None:
        reference, most = self.reference or 0.0, self.facts.most_lost
        chances = [each.outlook.adequate for each in options if each.outlook is not None]
        if not chances:
            return None
        bar, near = min(reference - most, max(chances)), alike(most)
        best, chance, first = -math.inf, None, ""
        for option in options:
            outlook, cost = option.outlook, option.compared
            if cost is None or outlook is None:
                continue
            adequate, target = outlook.adequate, option.target
            if adequate < bar:
                continue
            if has_room is not _nowhere and has_room(target.target_id):
                cost = resting_nanousd(cost, None)
            compared = reference if -near <= adequate - reference <= near else adequate
            benefit = willing * compared - cost / target.routing_weight
            # Of equals the first by name, as everywhere.
            if benefit > best or (benefit == best and target.target_id < first):
                best, chance, first = benefit, adequate, target.target_id
        return chance

    def loses_nothing(self, option: _Option) -> bool:
        """Return True for a target with a row that is at least as likely to be adequate as the reference."""
        return option.outlook is not None and self.reference is not None and option.outlook.adequate >= self.reference

    def too_weak(self, option: _Option) -> Rejection:
        target, outlook, policy = option.target, option.outlook, self.policy
        is_unknown = option.judged.standing == "unknown"
        by_row = outlook is not None and self.reference is not None
        unknown = "nothing is known of how good it is"
        if target.capability is not None:
            unknown = "it was not measured, and a minimum of 100 % takes measured models alone"
        return Rejection(
            target_id=target.target_id,
            obstacle="unknown" if is_unknown else "too-hard",
            detail=f"{unknown}; {measuring_hint(target.target_id)}" if is_unknown else "",
            capability=None if by_row or target.capability is None else target.capability + policy.capability_shift,
            expected_nanousd=option.expected,
            margin_nanousd=option.margin_nanousd,
            margin_why=option.margin_why,
            adequate=None if outlook is None else outlook.adequate,
        )


def _auto(
    eligible: list[Target],
    rejected: list[Rejection],
    scales: _TargetComparison,
    sticky: Sticky | None,
    rooms: Rooms,
    turn: TurnChoice | None,
) -> RoutePlan:
    """Plan `auto`: the capable targets by the cost of one more request or, when there is none, the most trusted one
    first. Within a tool loop the turn's target stays first, or a better one when the loop struggles.
    """
    facts, policy = scales.facts, scales.policy
    kept = turn.at(facts.loop.raises) if turn is not None and facts.loop.steps else None
    options = [scales.option(target, sticky) for target in eligible]
    least = scales.judge(options, rooms, kept)
    capable = [option for option in options if option.judged.standing == "good-enough"]
    others = [option for option in options if option.judged.standing != "good-enough"]
    if rooms is not NO_ROOMS:
        _price_rooms(capable, rooms)
        _price_rooms(others, rooms)
    if others:
        others = _by_trust(others, capable, facts, policy)
    if capable:
        capable.sort(key=_rank)
        capable[0].reason = _first_reason(capable, scales, sticky, rooms)
        cheapest = _cheapest_bought(capable)
        if others and others[0].judged is TRUSTED:
            capable.append(others.pop(0))
    else:
        # Unknown targets cannot be ordered by strength, so none of them is a fallback of another.
        all_unknown = others[0].judged.standing == others[-1].judged.standing == "unknown"
        capable, others = (others, []) if all_unknown else ([others[0]], others[1:])
        capable[0].reason = _reason_without_any(capable[0], policy)
        cheapest = _cheapest_bought(capable[:1])
    ordered = capable
    if facts.loop is not NO_LOOP:
        by_cache = capable[0].reason == "prompt-cache"
        cold = _first_without_cache(capable, scales, rooms) if by_cache else capable[0]
        ordered = _within_turn(capable, cold, kept, scales)
    if scales.reference is not None:
        # A better one being chosen makes the baseline model no weak one: it stands behind, and so does what loses nothing to it.
        ordered, others = (
            [*ordered, *filter(scales.loses_nothing, others)],
            list(filterfalse(scales.loses_nothing, others)),
        )
    if policy.degrade and others:
        for option in others:
            option.reason = "degraded"
        ordered = [*ordered, *others]
        others = []
    if len(ordered) > policy.max_candidates:
        ordered = _limited(ordered, policy, lambda each: each.target)
    return RoutePlan(
        candidates=tuple([_candidate(option, facts) for option in ordered]),
        rejected=(*rejected, *map(scales.too_weak, others)),
        complexity=scales.prediction.complexity,
        tolerance=None if least is None or scales.reference is None else scales.reference - least,
        reference_adequate=scales.reference,
        stand_in=scales.stand_in,
        willing_nanousd=None if least is None or scales.stand_in else scales.weighed_by(options, rooms)[0],
        grounds=policy.grounds,
        cheapest_commercial=cheapest,
    )


def _by_trust(others: list[_Option], capable: list[_Option], facts: Facts, policy: Policy) -> list[_Option]:
    """Return the options that are not good enough, or unknown, the most trusted first. The reference is told apart
    here.
    """
    unknown = [option for option in others if option.judged.standing == "unknown"]
    if not unknown:
        return sorted(others, key=_by_strength)
    baseline = next((option for option in unknown if option.target.target_id == policy.reference), None)
    if baseline is not None and not facts.spares:
        known = [_price_of(option) for option in (*capable, *others) if option.judged.standing != "unknown"]
        if trust_baseline(known, _price_of(baseline)):
            baseline.judged = TRUSTED
    # Only prices of paid targets hint at strength; the cost of our own GPUs does not.
    return sorted(
        others,
        key=lambda each: (
            *trust_order(each.judged, _price_of(each) if each in unknown else each.rank[0], spares=facts.spares),
            each.rank,
        ),
    )


def _by_strength(option: _Option) -> tuple[float, tuple[float, bool, str]]:
    return -option.judged.strength, option.rank


def _price_of(option: _Option) -> int:
    return option.compared or 0


def _reason_without_any(option: _Option, policy: Policy) -> Reason:
    """Return the reason of the first candidate where no target is known to be good enough."""
    if option.judged.standing != "unknown":
        return "most-capable"
    return "baseline" if option.target.target_id == policy.reference else "dearest"


def _within_turn(ordered: list[_Option], cold: _Option, kept: Kept | None, scales: _TargetComparison) -> list[_Option]:
    """Put the turn's target first, and before it, for each raise that it has not had yet, the next better one: of
    those that are more capable of this prompt, the first in the order of margins, as after a weak answer. `cold`
    would come first if nothing was cached. Raises count from there where the turn has no target yet: the first for
    its cache may be the one that the turn before was raised to, and then it is no step below. Our own that have no
    room for this request count as not available, even when the turn began there.
    """
    first = ordered[0]
    reason = first.reason
    begun = _begun_with(ordered, kept)
    raises = scales.facts.loop.raises
    present = cold if begun is None else begun
    for _ in range(raises if begun is None or kept is None else raises - kept.raises):
        present = next((option for option in ordered if _is_better(option, present)), present)
    if begun is None and not (raises and _is_better(present, first)):
        return ordered
    if raises and _is_better(present, first if begun is None else cold):
        reason = "struggle"
    elif present is not first:
        reason = "same-turn"
    first.reason = "fallback"
    present.reason = reason
    front = {each.target.target_id: each for each in (present, begun or first)}
    return [*front.values(), *(option for option in ordered if option.target.target_id not in front)]


def _is_better(option: _Option, than: _Option) -> bool:
    return option.judged.strength > than.judged.strength


def _begun_with(ordered: list[_Option], kept: Kept | None) -> _Option | None:
    """Return the target that the turn began with, when it may go on there."""
    for option in ordered if kept is not None else ():
        if kept is not None and kept.target_id == option.target.target_id and not option.overflows:
            return option
    return None


def _price_rooms(options: list[_Option], rooms: Rooms) -> None:
    """Set the cost of one more request at those of our own whose room is known, and their ranks. An option that
    overflows comes right after the first that does not. Options that are not priced by their room are the
    alternatives of those that are.
    """
    own = [option for option in options if option.target.target_id in rooms.by_target]
    others = [option for option in options if option.target.target_id not in rooms.by_target]
    first = min((option.rank[0] for option in others), default=math.inf)
    costs = [option.compared for option in others if option.compared is not None] if rooms.may_overflow else []
    alternative = min(costs, default=None)
    for option in own:
        if option.compared is None:
            continue
        target = option.target
        led = margin(option.compared, alternative, rooms.by_target[target.target_id], rooms.place)
        option.margin_nanousd, option.margin_why, option.overflows = led.nanousd, led.why, led.overflows
        rank = first if led.overflows else led.nanousd / target.routing_weight
        option.rank = (rank, led.overflows, target.target_id)


_Each = TypeVar("_Each")


def _limited(ordered: list[_Each], policy: Policy, target_of: Callable[[_Each], Target]) -> list[_Each]:
    """Cut the order to `max_candidates`. When those are all our own, the last place goes to the first paid target:
    our own often share machines, so they are full or down together.
    """
    if len(ordered) <= policy.max_candidates:
        return ordered
    kept, rest = ordered[: policy.max_candidates], ordered[policy.max_candidates :]
    if len(kept) > 1 and all(is_own(target_of(each), policy.pooled) for each in kept):
        kept[-1] = next((each for each in rest if not is_own(target_of(each), policy.pooled)), kept[-1])
    return kept


def is_own(target: Target, pooled: Container[str]) -> bool:
    """Return True for a target on our own GPUs."""
    return target.own or target.target_id in pooled


def _cheapest_bought(good_enough: Iterable[_Option]) -> Target | None:
    """Return the paid target of least cost. Routing weights are ignored: they express preference, not the cost
    elsewhere.
    """
    cheapest: _Option | None = None
    for option in good_enough:
        if option.margin_why == "bought" and (cheapest is None or _booked(option) < _booked(cheapest)):
            cheapest = option
    return None if cheapest is None else cheapest.target


def _booked(option: _Option) -> tuple[int, str]:
    return option.expected or 0, option.target.target_id


def held_out(
    route: RoutePlan, facts: Facts, prediction: Prediction, policy: Policy, catalog: Catalog, fleet: Fleet
) -> RoutePlan | None:
    """Return the plan of a holdout request, with the reference first; None when the reference cannot serve it. The
    original candidates follow the reference, so that the experiment costs nobody an answer.
    """
    reference = catalog.targets.get(policy.reference or "")
    if (
        reference is None
        or reference.price is None
        or _obstacle(reference, facts, fleet, policy.unpriced, AUTO) is not None
    ):
        return None
    first = _candidate(_option(reference, facts, prediction, None, "holdout"), facts)
    others = tuple(each for each in route.candidates if each.target.target_id != reference.target_id)
    return msgspec.structs.replace(route, candidates=(first, *others)[: policy.max_candidates])


def _first_reason(capable: list[_Option], scales: _TargetComparison, sticky: Sticky | None, rooms: Rooms) -> Reason:
    """Return the reason of the first candidate: `spill-over` when it stands in for our own that have no room,
    `prompt-cache` when only its cached tokens make it first.
    """
    first = capable[0]
    if rooms is not NO_ROOMS and first.margin_why == "bought" and any(each.overflows for each in capable):
        return "spill-over"
    if sticky is None or sticky.target_id != first.target.target_id:
        return "cheapest-capable"
    return "cheapest-capable" if _first_without_cache(capable, scales, rooms) is first else "prompt-cache"


def _first_without_cache(capable: list[_Option], scales: _TargetComparison, rooms: Rooms) -> _Option:
    """Return the target that would come first if no target had the conversation cached."""
    cold = [scales.option(each.target, None) for each in capable]
    _price_rooms(cold, rooms)
    first = min(cold, key=_rank).target
    return next(each for each in capable if each.target is first)


def _in_order(
    eligible: list[Target],
    facts: Facts,
    prediction: Prediction | None,
    sticky: Sticky | None,
    *,
    kind: _Kind,
) -> list[Candidate]:
    first: Reason = "alias" if kind == "alias" else "named" if eligible[0].target_id == facts.alias else "fallback"
    options = [
        _option(target, facts, prediction, sticky, "fallback" if index else first)
        for index, target in enumerate(eligible)
    ]
    return [_candidate(option, facts) for option in options]


def _option(
    target: Target, facts: Facts, prediction: Prediction | None, sticky: Sticky | None, reason: Reason
) -> _Option:
    """Return a target as an option that is compared with no other."""
    outlook = None if prediction is None else prediction.outlooks.get(target.target_id)
    predicted = DEFAULT_OUTPUT_TOKENS if prediction is None else prediction.expected_output_tokens
    predicted = predicted if outlook is None else outlook.output_tokens
    output, expected = _expected(target, facts, facts.input_tokens, predicted, sticky)
    if facts.unit:
        # Billed by the requested units: the expected cost is the maximum.
        expected = likely_most_nanousd(target, facts)
    judged = TRUSTED if outlook is None else Judged("good-enough", outlook.adequate)
    return _Option(target, outlook, output, expected, None, judged, reason)


def _candidate(option: _Option, facts: Facts) -> Candidate:
    return Candidate(
        target=option.target,
        reason=option.reason,
        expected_nanousd=option.expected,
        bound_nanousd=likely_most_nanousd(option.target, facts),
        margin_nanousd=option.margin_nanousd,
        margin_why=option.margin_why,
        adequate=None if option.outlook is None else option.outlook.adequate,
        strength=option.judged.strength,
        output_tokens=option.output_tokens,
    )


def candidate_of(target: Target, facts: Facts, prediction: Prediction, reason: Reason) -> Candidate:
    """Return a target as a candidate that is asked beside the plan."""
    return _candidate(_option(target, facts, prediction, None, reason), facts)


def _expected(
    target: Target, facts: Facts, input_tokens: int, predicted_tokens: int, sticky: Sticky | None
) -> tuple[int, int | None]:
    """Return the expected answer tokens of all choices beside `input_tokens` of prompt, and the expected cost in
    nano-dollars: estimated input, predicted output, and the conversation's cached tokens at the sticky target.
    """
    output_tokens = 0
    if not facts.needs or facts.needs.isdisjoint(_ANSWERS_NOTHING):
        output_tokens = min(predicted_tokens, facts.max_output_tokens or predicted_tokens, target.max_output_tokens)
        room = target.max_context_tokens - input_tokens
        if output_tokens > room:
            output_tokens = min(output_tokens, max(1, room))
        output_tokens *= facts.choices
    price = target.price
    if price is None:
        return output_tokens, None
    cached = 0
    if sticky is not None and sticky.target_id == target.target_id:
        cached = min(sticky.cached_tokens, input_tokens)
    return output_tokens, likely_nanousd(price, facts, input_tokens, output_tokens, cached)


def likely_nanousd(price: Price, facts: Facts, input_tokens: int, output_tokens: int, cached: int = 0) -> int:
    """Return the cost in nano-dollars of so many tokens, of which `cached` came from a cache, at the meters that they fall under."""
    if "audio" not in facts.media and not asks_for_media(facts):
        return price.tokens_nanousd(input_tokens, output_tokens, cached)
    used = Usage(input_tokens=input_tokens, cached_input_tokens=cached, output_tokens=output_tokens)
    return price.cost_nanousd(as_sound(used, facts))


def as_sound(usage: Usage, facts: Facts) -> Usage:
    """Return a usage of our own count with the tokens as sound that are likely to be: all of a prompt that has some, and all of an
    answer that is asked for as such.
    """
    if "audio" in facts.media:
        usage = msgspec.structs.replace(usage, audio_input_tokens=usage.input_tokens - usage.cached_input_tokens)
    return msgspec.structs.replace(usage, audio_output_tokens=usage.output_tokens) if asks_for_media(facts) else usage


def likely_most_nanousd(target: Target, facts: Facts) -> int | None:
    """Return the maximum cost of one attempt by the estimates, in nano-dollars: nothing cached, everything written to
    the cache, the longest output. Where media are read or asked for, all tokens may be of the dearest of them.
    """
    most, price = _most_output_tokens(target, facts), _price(target, facts)
    if price is None:
        return None
    if facts.media or asks_for_media(facts):
        bound = price.most_nanousd(facts.input_tokens, most, facts.media)
        return bound + (price.units_nanousd(facts.unit, facts.units_milli) or 0) if facts.unit else bound
    written = facts.input_tokens if price.cache_write_nanousd > price.input_nanousd else 0
    bound = price.tokens_nanousd(facts.input_tokens, most, 0, written)
    if search := search_of(target, facts):
        bound += _search_nanousd(target, search)
    return bound + (price.units_nanousd(facts.unit, facts.units_milli) or 0) if facts.unit else bound


def asks_for_media(facts: Facts) -> bool:
    """Return True where the answer may be more than text because the caller asks for it."""
    return not facts.decisive.isdisjoint(_SPOKEN)


def most_nanousd(target: Target, facts: Facts) -> int | None:
    """Return an upper bound of cost in nano-dollars that no honest upstream exceeds: the dearest meters and the most
    input tokens.
    """
    price = _price(target, facts)
    if price is None:
        return None
    most = price.most_nanousd(longest_prompt(target, facts), _most_output_tokens(target, facts), facts.media)
    if search := search_of(target, facts):
        most += _MOST_SEARCHES * _search_nanousd(target, search)
    return most + (price.units_nanousd(facts.unit, facts.most_units_milli) or 0) if facts.unit else most


def search_of(target: Target, facts: Facts) -> str:
    """Return the search that the target makes for a chat, as prices of tool calls name it; empty for none."""
    return facts.search or (target.searches if facts.dialect is None else "")


def _search_nanousd(target: Target, search: str) -> int:
    """Return the price of one search; searches cost the same in each service tier."""
    return 0 if target.price is None else target.price.call_nanousd(search) or 0


_MOST_SEARCHES: Final = 10
"""Searches in one answer: those that Claude is allowed to make for the largest `search_context_size`; others make one."""


def longest_prompt(target: Target, facts: Facts) -> int:
    """Return the most tokens that the prompt can come to at the target: those of the body's bytes and of the target's template, or
    its context, since what is longer is refused there.
    """
    tokens = facts.most_input_tokens + (target.template_tokens or 0)
    if facts.longest_tokens is not None:
        return tokens
    return min(tokens, max(target.max_context_tokens, facts.input_tokens))


def has_price(target: Target, facts: Facts) -> bool:
    """Return True when the cost of such a request at the target is known, by tokens or by another unit."""
    price = target.price
    if price is None or not facts.unit or price.has_tokens:
        return price is not None
    return price.priced_unit(facts.unit) is not None


def _unbounded(target: Target, facts: Facts) -> str:
    """Return why the most that an answer may cost is not known; empty where it is."""
    if (found := facts.overruns.get(target.target_id)) is not None:
        return f"is set aside for hard budgets for a day, because it {found}"
    missing = _missing_bound(target, facts)
    return f"a hard budget cannot hold what its answer may cost; set the model's {missing}" if missing else ""


def _missing_bound(target: Target, facts: Facts) -> str:
    """Return what has to be set for the most that a metered answer may cost to be known; empty for nothing."""
    price = target.price
    if price is None or not facts.unit or price.priced_unit(facts.unit) is not None:
        return ""
    if not facts.needs.isdisjoint(_TOLD_BY_UNIT):
        return f"`prices.units.{facts.unit}`"
    is_written = facts.needs.isdisjoint(_ANSWERS_NOTHING)
    return "`max_output_tokens`" if is_written and "max_output_tokens" in target.assumed else ""


def _price(target: Target, facts: Facts) -> Price | None:
    """Return the price to hold for: the dearer of the usual one and that of the asked tier, which the provider may
    not grant. None where the cost of such a request is not known.
    """
    price = target.price
    if price is None or (facts.unit and not has_price(target, facts)):
        return None
    if facts.service_tier is None:
        return price
    asked = price.of_tier(facts.service_tier)
    return max(price, asked, key=lambda each: each.output_nanousd)


def longest_answer(target: Target, facts: Facts) -> int | None:
    """Return the most tokens of one choice to ask the target for; None leaves it to the target. The caller's limit is
    cut to the target's. Without one, a hard budget bounds it by the amount held.
    """
    wanted, most = facts.max_output_tokens, target.max_output_tokens
    if facts.affordable_tokens is not None:
        return facts.affordable_tokens
    if wanted is None:
        return most if facts.bounded and facts.needs.isdisjoint(NOT_CHAT) else None
    return most if wanted > most and "max_output_tokens" not in target.assumed else wanted


def affordable_tokens(target: Target, facts: Facts, left_nanousd: int) -> int | None:
    """Return the most answer tokens of one choice with which the request costs no more than `left_nanousd`, fewer than it may have now;
    None where it has none, and 0 where the prompt alone costs more.
    """
    if facts.needs and not facts.needs.isdisjoint(NOT_CHAT):
        return None

    def fits(tokens: int) -> bool:
        most = most_nanousd(target, msgspec.structs.replace(facts, affordable_tokens=tokens))
        return most is not None and most <= left_nanousd

    longest = longest_answer(target, facts) or target.max_output_tokens
    return bisect.bisect_left(range(1, longest), True, key=lambda tokens: not fits(tokens))


def _most_output_tokens(target: Target, facts: Facts) -> int:
    """Return the most answer tokens of all choices."""
    if facts.needs and not facts.needs.isdisjoint(_ANSWERS_NOTHING):
        return 0
    return (longest_answer(target, facts) or target.max_output_tokens) * facts.choices


def costliest_nanousd(facts: Facts, policy: Policy, catalog: Catalog) -> int | None:
    """Return the most, by the estimates and in nano-dollars, that one attempt may cost at any target that could serve
    the request, healthy or not; None where one of them has no price, and 0 where there is none.
    """
    try:
        pool, kind = _named_targets(facts, policy, catalog)
    except ModelNotFound:
        return 0
    # Targets that are merely unavailable count: they may be back when the request is sent.
    told = ((target, _obstacle(target, facts, {}, policy.unpriced, kind)) for target in pool)
    able = [target for target, obstacle in told if obstacle is None or obstacle.obstacle == "unavailable"]
    bounds = [likely_most_nanousd(target, facts) for target in able]
    return None if None in bounds else max((bound or 0 for bound in bounds), default=0)
