"""Rules for the answers that are not just relayed: held back to be judged, asked for twice, or retained to be learned from. Pure."""

from collections.abc import Container
from typing import Final

import msgspec

from accounts.caller import Caller, Escalation
from classifier.prediction import Prediction
from proxy.parse.chat_request import AUTO
from proxy.parse.parsed_request import ParsedRequest
from proxy.plan.agreement import AgreementRates, Pair, pair_for
from proxy.plan.answer_form import asked_form
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import Candidate, Facts, RoutePlan
from proxy.plan.routed_request import Hold, RoutedRequest

KEPT_BYTES: Final = 256 * 1024
"""The most payload bytes that a request retains to be judged after its reply."""
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""The most payload bytes of an answer that a shadow request is compared with: a stream's events are some sixty times the size of their text."""
_KEPT_IN_ALL_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of held or retained answers in a process, so that thousands of streams do not exhaust its memory."""
_OF_STREAMS: Final[frozenset[Escalation]] = frozenset({"all", "agreement-all"})
_PART_OF_TIME: Final = 0.3
"""The part of the caller's time within which two cheap answers must be there."""
_LEAST_TIME_S: Final = 0.2
"""With less time than this for two answers nobody is asked beside the plan."""


def hold_of(
    config: PipelineConfig, caller: Caller, parsed: ParsedRequest, facts: Facts, route: RoutePlan, in_flight: int
) -> Hold | None:
    """Return the limits for holding the answer to be judged before it is given; None where no weak one is escalated."""
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


def _may_ask_two(config: PipelineConfig, caller: Caller, parsed: ParsedRequest) -> bool:
    """Return True when two cheap targets may be asked before a dear one: where that is wanted, and for lines of batches that must
    keep as much quality as the operator says.
    """
    request, wanted = parsed.request, _wanted(parsed, caller, config)
    if asks_two(wanted, stream=request.stream):
        return True
    least = config.escalation.batch_agreement_from
    if least is None or request.tier != "batch" or request.stream or parsed.parse_escalation == "off":
        return False
    rules, policy = config.policy.autos.get(request.alias), config.policy
    floors = (None if rules is None else rules.quality_floor, caller.settings.quality_floor, policy.quality_floor)
    return next(each for each in floors if each is not None) >= least


def pair_of(
    config: PipelineConfig, parsed: ParsedRequest, routed: RoutedRequest, rates: AgreementRates, now: float
) -> Pair | None:
    """Return the two targets to ask first; None where that is not wanted, their answers could not be compared, or it is worth less
    than the plan's choice.
    """
    prediction = routed.prediction
    if prediction is None or routed.downgraded or routed.facts.alias != AUTO:
        return None
    if not _may_ask_two(config, routed.caller, parsed):
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
    """Return the request's own choice, else that of the alias that it was sent under, else the team's."""
    if parsed.parse_escalation is not None:
        return parsed.parse_escalation
    rules = config.policy.autos.get(parsed.request.alias)
    return caller.settings.escalation if rules is None or rules.escalation is None else rules.escalation


def portion_bytes(most: int, in_flight: int) -> int:
    """Return one request's memory bound: `most`, or its equal share of the process's total for `in_flight` requests."""
    return most if most * in_flight <= _KEPT_IN_ALL_BYTES else _KEPT_IN_ALL_BYTES // in_flight


def kept_bytes(caller: Caller, prediction: Prediction | None, in_flight: int, *, compared: bool) -> int:
    """Return the payload bytes to retain of an answer; 0 where nothing is learned from it. `compared` marks an answer
    that a shadow request may be compared with.
    """
    if prediction is None or not caller.settings.learns:
        return 0
    return portion_bytes(MAX_PAYLOAD_BYTES if compared else KEPT_BYTES, in_flight)


def asks_two(wanted: Escalation, *, stream: bool) -> bool:
    """Return True when two cheap targets may be asked before a dear one."""
    return wanted == "agreement-all" or (wanted == "agreement" and not stream)


def may_escalate(plan: RoutePlan, *, alias: str, stream: bool, wanted: Escalation) -> bool:
    """Return True when the answer is to be held and judged: escalation is wanted and there is a better target."""
    allowed = wanted in _OF_STREAMS or (wanted != "off" and not stream)
    return allowed and alias == AUTO and escalation_candidate(plan, plan.candidates[0], ()) is not None


def escalation_candidate(plan: RoutePlan, answered: Candidate, tried: Container[str]) -> Candidate | None:
    """Return the cheapest untried candidate that is more capable of this prompt than `answered`, or None."""
    better = [
        candidate
        for candidate in plan.candidates
        if candidate.target.target_id not in tried and candidate.strength > answered.strength
    ]
    # Candidates come in the order of their margins, except those after the capable ones.
    chosen = min(better, key=_margin, default=None)
    return chosen and msgspec.structs.replace(chosen, reason="escalated")


def _margin(candidate: Candidate) -> float:
    return float("inf") if candidate.margin_nanousd is None else float(candidate.margin_nanousd)
