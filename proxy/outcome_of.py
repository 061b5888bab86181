"""Construction of a request's outcome from its context."""

from collections.abc import Iterable

from proxy.attempt import Attempt
from proxy.context import RequestContext
from proxy.ending import CALLER_GONE
from proxy.kept_answer import learns
from proxy.latency import LatencyTracker
from proxy.outcome import RequestOutcome
from proxy.request import messages_digest


def outcome_of(context: RequestContext, now: float) -> RequestOutcome:
    """Builds the outcome that observers receive. A request that was refused early has only what was known by then."""
    caller, routed = context.caller, context.routed
    prediction = routed.prediction if routed is not None else None
    settled = [attempt.settled for attempt in context.attempts if attempt.settled is not None]
    last = context.answering or (context.attempts[-1] if context.attempts else None)
    answered = last if last is not None and last.token_events + last.finished else None
    costs = [each.cost_nanousd for each in settled]
    booked = last.settled if last is not None else None
    usage = last.of_answer(booked.usage) if last is not None and booked is not None else None
    # Only of a team that lets us learn is anything handed on that refers to its words.
    learnt = routed if caller is not None and learns(caller) else None
    return RequestOutcome(
        request_id=context.request_id,
        organisation_id=caller.organisation_id if caller else "",
        team_id=caller.team_id if caller else "",
        key_id=caller.key_id if caller else "",
        operation=context.operation,
        asked_model=context.asked_model,
        tier=routed.facts.tier if routed else "interactive",
        alias=routed.alias if routed else "",
        stream=routed.request.stream if routed else False,
        status=CALLER_GONE if context.ended_by == "caller_gone" else context.reply.status,
        error_code=context.error_code or ("slow_reader" if context.ended_by == "slow_reader" else None),
        error_message=context.error_message,
        target_id=answered.deployment.target_id if answered else None,
        reason=answered.candidate.reason if answered else "",
        complexity=prediction.complexity if prediction else None,
        classifier=prediction.source if prediction else None,
        classify_s=context.classify_s if prediction else None,
        attempts=tuple(each.outcome for each in settled),
        input_tokens=usage.input_tokens if usage else 0,
        cached_input_tokens=usage.cached_input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        cost_nanousd=None if None in costs else sum(cost for cost in costs if cost is not None),
        baseline_nanousd=booked.baseline_nanousd if booked is not None else None,
        ttft_s=_ttft_s(context, last),
        tpot_s=_tpot_s(last),
        duration_s=now - context.started_at,
        escalated_from=context.escalated_from,
        weakness=context.weakness,
        loop_steps=routed.facts.loop.steps if routed else 0,
        struggle=routed.facts.loop.struggle if routed else None,
        prediction=prediction,
        settings=caller.settings if caller else None,
        prompt=context.prompt if learnt else None,
        conversation=learnt.conversation if learnt else None,
        request_digest=messages_digest(learnt.request) if learnt else None,
    )


def observe_latency(latency: LatencyTracker, attempts: Iterable[Attempt]) -> None:
    """Adds the attempts' latencies to the tracker: of streams, as others do not show their first token, and of whole answers
    where the next one may be hedged.
    """
    for attempt in attempts:
        routed, target_id, settled = attempt.routed, attempt.deployment.target_id, attempt.settled
        tier, hedged = routed.facts.tier, attempt.candidate.target.hedged_tiers
        if routed.request.stream and (ttft_s := attempt.ttft_s) is not None:
            latency.observe(target_id, ttft_s, _tpot_s(attempt), tier)
        elif tier not in hedged or settled is None or attempt.candidate.reason == "hedge":
            continue
        elif settled.outcome.result == "hedge_lost" and routed.request.stream:
            # Its first token would have taken longer still. Left out, what counts as late would come ever sooner.
            latency.observe(target_id, settled.outcome.duration_s, None, tier)
        elif settled.outcome.result in {"ok", "hedge_lost"} and not routed.request.stream:
            latency.observe_whole(target_id, settled.outcome.duration_s, tier)


def _ttft_s(context: RequestContext, attempt: Attempt | None) -> float | None:
    """Seconds from the request to the caller's first token. A held answer counts from its release; None when never
    released.
    """
    if context.routed is not None and context.routed.hold is not None:
        return _since(context.released_at, context.started_at)
    if attempt is not None and attempt.routed.before is not None:
        return _since(attempt.routed.before.first_token_at, context.started_at)
    return _since(attempt.first_token_at if attempt is not None else None, context.started_at)


def _since(at: float | None, start: float) -> float | None:
    return None if at is None else at - start


def _tpot_s(attempt: Attempt | None) -> float | None:
    return None if attempt is None or attempt.settled is None else attempt.settled.outcome.tpot_s
