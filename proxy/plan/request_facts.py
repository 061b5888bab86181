"""What goes into planning, and what follows from a plan: facts, arm, comparators, hold. Pure."""

from typing import Final

from msgspec.structs import replace

from accounts.caller import Caller, Escalation
from classifier.prediction import Prediction
from cost.claim.comparators import Comparators
from cost.claim.holdout import arm_of
from cost.ledger.entries import Arm
from proxy.parse.chat_request import AUTO, decisive_parameters, most_input_tokens, needs, opening_tokens
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.agreement import AgreementRates, Pair, pair_for
from proxy.plan.answer_form import asked_form
from proxy.plan.answer_retention import portion_bytes
from proxy.plan.escalation_rules import asks_two, may_escalate
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.quality_tolerance import NO_CURVE
from proxy.plan.route_plan import Facts, Fleet, RoutePlan, held_out
from proxy.plan.routed_request import Hold, RoutedRequest
from proxy.plan.tool_loop import NO_LOOP, read_loop

_PART_OF_TIME: Final = 0.3
"""The part of the caller's time within which two cheap answers must be there."""
_LEAST_TIME_S: Final = 0.2
"""With less time than this for two answers nobody is asked beside the plan."""


def facts_of(
    parsed: ParsedRequest, caller: Caller, config: PipelineConfig, *, downgraded: bool, bounded: bool = False
) -> Facts:
    """Collects the facts that planning needs. A downgraded request is planned as `auto`, whatever model it named;
    `bounded` is True under a hard budget.
    """
    request, policy = parsed.request, config.policy
    floor, allowed = caller.settings.quality_floor, caller.allowed_models
    if (rules := policy.autos.get(request.alias)) is not None:
        floor = floor if rules.quality_floor is None else rules.quality_floor
        allowed = _narrowed(allowed, rules.targets)
    willing = NO_CURVE if config.tolerances is None else config.tolerances.of(floor, allowed, caller.team_id)
    # The bytes that came, whichever way.
    size = len(parsed.body) + (0 if request.upload is None else request.upload.size)
    # Who names a model gets it, and a spent budget is not spent further.
    loop = NO_LOOP if downgraded or request.model != AUTO else read_loop(request.messages, policy.loops)
    # In steps of few names: a call of more than fifteen is built from a dict, which takes five times as long.
    facts = Facts(
        alias=AUTO if downgraded else request.model,
        tier=request.tier,
        needs=needs(request),
        input_tokens=parsed.input_tokens,
        most_input_tokens=most_input_tokens(request, size, parsed.input_tokens),
        max_output_tokens=request.max_output_tokens,
        choices=request.n,
        allowed_models=allowed,
        service_tier=request.service_tier,
        decisive=decisive_parameters(request),
        bounded=bounded,
        willing_nanousd=willing.by_average,
        willing_with_room_nanousd=willing.with_room,
        most_lost=willing.most_lost,
        loop=loop,
    )
    if downgraded:
        facts = replace(facts, spares=True)
    if loop.steps and policy.stay_in_turn:
        facts = replace(facts, opening_tokens=opening_tokens(request, parsed.prompt, parsed.input_tokens))
    if request.as_written is not None:
        facts = replace(facts, dialect=request.as_written.dialect, provider_tools=request.as_written.tools)
    if request.operation != "chat":
        facts = replace(
            facts,
            longest_tokens=request.longest_tokens or None,
            unit=request.unit,
            units_milli=request.units_milli,
            most_units_milli=request.most_units_milli,
        )
    return facts


def _narrowed(allowed: frozenset[str] | None, targets: frozenset[str] | None) -> frozenset[str] | None:
    """Returns the models that a request may be sent to: its caller's, as far as the alias chooses from them."""
    if targets is None or allowed is None:
        return allowed if targets is None else targets
    return allowed & targets


def drawn_arm(
    request_id: str, config: PipelineConfig, route: RoutePlan, facts: Facts, prediction: Prediction, fleet: Fleet
) -> tuple[Arm, RoutePlan]:
    """Draws the experiment arm and returns it with its plan. Requests that the reference cannot serve are in no arm."""
    arm = arm_of(request_id, config.holdout_share)
    if not arm:
        return arm, route
    reference_first = held_out(route, facts, prediction, config.policy, config.catalog, fleet)
    if reference_first is None:
        return "", route
    return arm, reference_first if arm == "holdout" else route


def comparators_of(comparators: Comparators, route: RoutePlan) -> Comparators:
    """Returns the comparators of what no other model could have answered, such as embeddings: the named target is the
    reference.
    """
    if comparators.reference is None:
        return comparators
    return replace(comparators, reference=route.candidates[0].target.comparator)


def hold_of(
    config: PipelineConfig, caller: Caller, parsed: ParsedRequest, facts: Facts, route: RoutePlan, in_flight: int
) -> Hold | None:
    """Returns the limits for holding the answer to be judged before it is given; None where no weak one is escalated."""
    request = parsed.request
    # What another dialect says is not judged.
    if request.as_written is not None or not may_escalate(
        route,
        alias=facts.alias,
        stream=request.stream,
        wanted=_wanted(parsed, caller, config),
    ):
        return None
    rules = config.escalation
    return Hold(max_bytes=portion_bytes(rules.hold_max_bytes, in_flight), max_s=rules.hold_max_s)


def may_ask_two(config: PipelineConfig, caller: Caller, parsed: ParsedRequest) -> bool:
    """Returns True when two cheap targets may be asked before a dear one: where that is wanted, and for lines of batches that must
    keep as much quality as the operator says.
    """
    request, wanted = parsed.request, _wanted(parsed, caller, config)
    if asks_two(wanted, stream=request.stream):
        return True
    least = config.escalation.batch_agreement_from
    if least is None or request.tier != "batch" or request.stream or parsed.wants_escalation == "off":
        return False
    rules, policy = config.policy.autos.get(request.alias), config.policy
    floors = (None if rules is None else rules.quality_floor, caller.settings.quality_floor, policy.quality_floor)
    return next(each for each in floors if each is not None) >= least


def pair_of(
    config: PipelineConfig, parsed: ParsedRequest, routed: RoutedRequest, rates: AgreementRates, now: float
) -> Pair | None:
    """Returns the two targets to ask first; None where their answers could not be compared, or that is worth less than the plan's choice."""
    prediction = routed.prediction
    if prediction is None:
        return None
    asked = asked_form(parsed.request, parsed.prompt, prediction.expected_output_tokens)
    if asked is None:
        return None
    # Most of the time is the planned target's, should it be asked.
    wait_s = min(config.escalation.agreement_wait_s, parsed.deadline.remaining_s(now) * _PART_OF_TIME)
    if wait_s < _LEAST_TIME_S:
        return None
    opted_in = asks_two(_wanted(parsed, routed.caller, config), stream=parsed.request.stream)
    share = rates.share(routed.caller.team_id, asked.kind)
    return pair_for(
        asked,
        routed.plan,
        routed.facts,
        prediction,
        config.catalog,
        # Lines of batches that nobody opted in for are neither to cost more nor to keep less.
        unasked=not opted_in,
        share=share,
        wait_s=wait_s,
    )


def _wanted(parsed: ParsedRequest, caller: Caller, config: PipelineConfig) -> Escalation:
    """The request's own choice, else that of the alias that it was sent under, else the team's."""
    if parsed.wants_escalation is not None:
        return parsed.wants_escalation
    rules = config.policy.autos.get(parsed.request.alias)
    return caller.settings.escalation if rules is None or rules.escalation is None else rules.escalation
