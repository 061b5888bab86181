"""Construction of a request's outcome from its context."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cost.usage import Usage
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt, Settled
from proxy.dispatch.attempt_result import CALLER_GONE
from proxy.dispatch.outcome import RequestOutcome
from proxy.parse.chat_request import messages_digest
from proxy.plan.answer_retention import learns
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.target_latency import LatencyTracker

_NO_USAGE: Final = Usage()


def error_code_of(context: RequestContext) -> str | None:
    """The code of the error that a finished request ended with; None for an answer."""
    return context.error_code or ("slow_reader" if context.ended_by == "slow_reader" else None)


def answered_by(context: RequestContext) -> Attempt | None:
    """The attempt whose answer the caller was given, or at least its beginning; None where there was none."""
    last = context.answering or (context.attempts[-1] if context.attempts else None)
    return last if last is not None and (last.token_events or last.finished) else None


def outcome_of(context: RequestContext, now: float) -> RequestOutcome:
    """Builds the outcome that observers receive of a request that ended at `now`. One that was refused early has only what
    was known by then.
    """
    caller = context.caller
    # In three steps: a call with more than 15 names is slow, as it puts them into a dictionary first.
    outcome = RequestOutcome(
        request_id=context.request_id,
        organisation_id=caller.organisation_id if caller else "",
        team_id=caller.team_id if caller else "",
        key_id=caller.key_id if caller else "",
        settings=caller.settings if caller else None,
        operation=context.operation,
        asked_model=context.asked_model,
        status=CALLER_GONE if context.ended_by == "caller_gone" else context.reply.status,
        error_code=error_code_of(context),
        error_message=context.error_message,
        duration_s=now - context.started_at,
        told_after_s=context.reply.now - now,
        escalated_from=context.escalated_from,
        weakness=context.weakness,
    )
    if context.agreement is not None:
        outcome = msgspec.structs.replace(outcome, agreement=context.agreement)
    if context.routed is not None:
        outcome = _with_routing(outcome, context, context.routed)
    return _with_attempts(outcome, context, context.attempts) if context.attempts else outcome


def _with_routing(outcome: RequestOutcome, context: RequestContext, routed: RoutedRequest) -> RequestOutcome:
    facts, prediction = routed.facts, routed.prediction
    # Only of a team that lets us learn is anything handed on that refers to its words.
    learnt = learns(routed.caller)
    return msgspec.structs.replace(
        outcome,
        tier=facts.tier,
        alias=routed.alias,
        stream=routed.request.stream,
        loop_steps=facts.loop.steps,
        struggle=facts.loop.struggle,
        prediction=prediction,
        complexity=prediction.complexity if prediction else None,
        classifier=prediction.source if prediction else None,
        classify_s=context.classify_s if prediction else None,
        prompt=context.prompt if learnt else None,
        conversation=routed.conversation if learnt else None,
        request_digest=messages_digest(routed.request) if learnt else None,
    )


def _with_attempts(outcome: RequestOutcome, context: RequestContext, attempts: Sequence[Attempt]) -> RequestOutcome:
    settled = [attempt.settled for attempt in attempts if attempt.settled is not None]
    last = context.answering or attempts[-1]
    answered = answered_by(context)
    booked = last.settled
    usage = _NO_USAGE if booked is None else last.of_answer(booked.usage)
    return msgspec.structs.replace(
        outcome,
        target_id=None if answered is None else answered.deployment.target_id,
        reason="" if answered is None else answered.candidate.reason,
        attempts=tuple([each.outcome for each in settled]),
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
        cost_nanousd=_cost_nanousd(settled),
        baseline_nanousd=None if booked is None else booked.baseline_nanousd,
        ttft_s=_ttft_s(context, last),
        tpot_s=None if booked is None else booked.outcome.tpot_s,
    )


def _cost_nanousd(settled: Iterable[Settled]) -> int | None:
    """What all attempts cost together; None where that of one is not known."""
    total = 0
    for each in settled:
        if each.cost_nanousd is None:
            return None
        total += each.cost_nanousd
    return total


def observe_latency(latency: LatencyTracker, attempts: Iterable[Attempt]) -> None:
    """Adds the attempts' latencies to the tracker: of streams to the first token and per token, of whole answers to the end,
    and how long those were waited for that gave neither.
    """
    missed: list[Attempt] = []
    for attempt in attempts:
        routed, target_id, settled = attempt.routed, attempt.deployment.target_id, attempt.settled
        tier, stream = routed.facts.tier, routed.request.stream
        if routed.request.stream and (ttft_s := attempt.ttft_s) is not None:
            latency.observe(target_id, ttft_s, None if settled is None else settled.outcome.tpot_s, tier)
        elif settled is None or attempt.candidate.reason == "hedge":
            continue
        elif settled.outcome.result == "hedge_lost" and attempt.unused == "disputed":
            # It was cut where the other answer said nothing, however quick it would have been.
            continue
        elif settled.outcome.result == "hedge_lost" and stream:
            # Its first token would have taken longer still. Left out, what counts as late would come ever sooner.
            latency.observe(target_id, settled.outcome.duration_s, None, tier)
        elif settled.outcome.result in {"ok", "hedge_lost"} and not stream:
            latency.observe_whole(target_id, settled.outcome.duration_s, tier)
        elif settled.outcome.result == "timeout" and attempt.sent and not attempt.token_events:
            missed.append(attempt)
    if missed:
        _observe_missed(latency, missed)


def _observe_missed(latency: LatencyTracker, missed: Sequence[Attempt]) -> None:
    """Adds how long each target was waited for in vain, in all of the request's tries there."""
    waited_s: dict[str, float] = {}
    for each in missed:
        if each.settled is not None:
            target_id = each.deployment.target_id
            waited_s[target_id] = waited_s.get(target_id, 0.0) + each.settled.outcome.duration_s
    routed = missed[0].routed
    for target_id, total_s in waited_s.items():
        latency.observe_missed(target_id, total_s, routed.facts.tier, stream=routed.request.stream)


def _ttft_s(context: RequestContext, attempt: Attempt) -> float | None:
    """Seconds from the request to the caller's first token. A held answer counts from its release; None when never
    released.
    """
    if context.routed is not None and (context.routed.hold is not None or context.routed.agreement is not None):
        at = context.released_at
    elif attempt.routed.before is not None:
        at = attempt.routed.before.first_token_at
    else:
        at = attempt.first_token_at
    return None if at is None else at - context.started_at
