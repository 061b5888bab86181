"""Reports of finished requests: the observers receive each outcome, some at a time and soon after its end.

No caller waits for a report, and work that is done for many in a row finds its code in the processor's caches: for one
at a time, among all that a request needs, it takes nearly twice as long.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence, Sized
from typing import Final

import msgspec

from cost.usage import Usage
from proxy.context import RequestContext
from proxy.dispatch.attempt import Attempt, Settled
from proxy.dispatch.outcome import CALLER_GONE, Observer, RequestOutcome, ShadowSampler
from proxy.judge.weak_answer import judge
from proxy.parse.chat_request import messages_digest
from proxy.plan.escalation_rules import KEPT_BYTES
from proxy.plan.routed_request import RoutedRequest
from proxy.settle.prompt_caches.watch import PromptCacheWatch
from proxy.shared.target_latency import LatencyTracker

_LATE_SCHEMA_STEPS: Final = 500
"""The schema steps of judging after the reply, which runs on the event loop: a few milliseconds at most."""


def succeeded(attempt: Attempt) -> bool:
    """Return True when the attempt's whole answer reached its caller; a cut one says nothing about the target."""
    return attempt.settled is not None and attempt.settled.outcome.result == "ok"


def judge_late(context: RequestContext) -> None:
    """Judge a retained answer after its reply, and record its weakness in the context."""
    attempt = context.answering
    if context.judged or attempt is None:
        return
    kept = attempt.kept
    if kept and sum(map(len, kept)) <= KEPT_BYTES and succeeded(attempt):
        context.judged = True
        context.weakness = judge(
            attempt.routed.request,
            kept,
            min_mean_logprob=context.config.escalation.min_mean_logprob,
            max_schema_steps=_LATE_SCHEMA_STEPS,
        )


_NO_USAGE: Final = Usage()


def error_code_of(context: RequestContext) -> str | None:
    """Return the code of the error that a finished request ended with; None for an answer."""
    return context.error_code or ("slow_reader" if context.ended_by == "slow_reader" else None)


def answered_by(context: RequestContext) -> Attempt | None:
    """Return the attempt whose answer the caller was given, or at least its beginning; None where there was none."""
    last = context.answering or (context.attempts[-1] if context.attempts else None)
    return last if last is not None and (last.token_events or last.finished) else None


def outcome_of(context: RequestContext, now: float) -> RequestOutcome:
    """Build the outcome that observers receive of a request that ended at `now`. One that was refused early has only
    the facts known by then.
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
    if context.cached is not None:
        outcome = _with_cache(outcome, context, context.cached)
    if context.agreement is not None:
        outcome = msgspec.structs.replace(outcome, agreement=context.agreement)
    if context.parsed is not None and context.parsed.request.end_user:
        outcome = msgspec.structs.replace(outcome, end_user=context.parsed.request.end_user)
    if context.guarded is not None:
        outcome = msgspec.structs.replace(outcome, guard=context.guarded.verdict.findings)
    if context.waits:
        outcome = msgspec.structs.replace(outcome, waits=tuple(context.waits))
    if context.error_code is not None:
        outcome = msgspec.structs.replace(outcome, out_of_use=_out_of_use(context))
    if context.routed is not None:
        outcome = _with_routing(outcome, context, context.routed)
    return _with_attempts(outcome, context, context.attempts) if context.attempts else outcome


def _out_of_use(context: RequestContext) -> tuple[str, ...]:
    """Return the targets for whose absence a request was refused: what its refusal names, and what its plan passed over."""
    rejected = () if context.routed is None else context.routed.plan.rejected
    return (*context.out_of_use, *(each.target_id for each in rejected if each.obstacle == "unavailable"))


def _with_cache(outcome: RequestOutcome, context: RequestContext, cached: str) -> RequestOutcome:
    """Return the outcome with what the cache had. An answer that was given again has no target: nobody was asked, and nothing is learnt."""
    outcome = msgspec.structs.replace(outcome, cached=cached)
    if cached != "hit" or context.answering is None:
        return outcome
    routed = context.answering.routed
    return msgspec.structs.replace(
        outcome, tier=routed.facts.tier, alias=routed.alias, stream=routed.request.stream, reason="cache"
    )


def _with_routing(outcome: RequestOutcome, context: RequestContext, routed: RoutedRequest) -> RequestOutcome:
    facts, prediction = routed.facts, routed.prediction
    # Only of a team that lets us learn is anything handed on that refers to its words.
    learnt = routed.caller.settings.learns
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
        prompt=context.parsed.prompt if learnt and context.parsed is not None else None,
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
        ttft_s=_ttft_s(context),
        tpot_s=None if booked is None else booked.outcome.tpot_s,
    )


def _cost_nanousd(settled: Iterable[Settled]) -> int | None:
    """Return the cost of all attempts together, in nano-dollars; None where that of one is not known."""
    total = 0
    for each in settled:
        if each.cost_nanousd is None:
            return None
        total += each.cost_nanousd
    return total


def observe_latency(latency: LatencyTracker, attempts: Iterable[Attempt]) -> None:
    """Add the attempts' latencies to the tracker: of streams to the first token and per token, of whole answers to
    the end, and the wait for those that gave neither.
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
    """Add the seconds that each target was waited for in vain, in all of the request's tries there."""
    waited_s: dict[str, float] = {}
    for each in missed:
        if each.settled is not None:
            target_id = each.deployment.target_id
            waited_s[target_id] = waited_s.get(target_id, 0.0) + each.settled.outcome.duration_s
    routed = missed[0].routed
    for target_id, total_s in waited_s.items():
        latency.observe_missed(target_id, total_s, routed.facts.tier, stream=routed.request.stream)


def _ttft_s(context: RequestContext) -> float | None:
    """Return the seconds from the request to the caller's first token. A held answer counts from its release; None
    when never released.
    """
    at = None if context.answering is None else context.answering.given_at
    return None if at is None else at - context.started_at


_WAIT_S: Final = 0.02
"""The most seconds that a finished request waits for others."""
_SLACK_S: Final = 0.001
"""Seconds by which the event loop's timers may be early."""
_AT_A_STRETCH_S: Final = 0.001
"""Seconds after which the event loop has its turn: judging an answer by a schema takes longer than all else."""
_LARGE_TOKENS: Final = 250_000
"""The possible tokens of a prompt, as many as its body has bytes, from which on the request is not kept in memory for
others.
"""


class Reports:
    """The queue of finished requests before the observers, in order."""

    def __init__(
        self,
        observers: tuple[Observer, ...],
        at_once: tuple[int, int] = (1, 1),
        under_way: Sized = (),
        prompt_caches: PromptCacheWatch | None = None,
    ) -> None:
        """Bound the number of requests that are reported together: as many as are `under_way`, within `at_once`. A
        caller that asks again at once waits for them, which is nothing to one of many. By default each is reported
        when it ends.
        """
        self._observers = observers
        self._at_least, self._at_most = at_once
        self._under_way = under_way
        self._prompt_caches = prompt_caches
        self._waiting: deque[tuple[RequestContext, float, ShadowSampler | None]] = deque()
        self._is_timed = False

    def add(self, context: RequestContext, now: float, shadow: ShadowSampler | None) -> None:
        """Add a finished request, which nothing changes any more. `shadow` is offered its answer."""
        self._waiting.append((context, now, shadow))
        wanted = max(self._at_least, min(len(self._under_way), self._at_most))
        if len(self._waiting) >= wanted or not _may_wait(context):
            self._report_some(_AT_A_STRETCH_S)
        elif not self._is_timed:
            self._report_later(_WAIT_S)

    def flush(self) -> None:
        """Report all finished requests."""
        self._report_some(math.inf)

    def _report_some(self, most_s: float) -> None:
        """Report some requests, for `most_s` seconds at most. Each step is done for all before the next, for the
        caches' sake.
        """
        until = time.monotonic() + most_s
        told = []
        while self._waiting:
            context, now, shadow = self._waiting.popleft()
            judge_late(context)
            told.append((context, outcome_of(context, now), shadow))
            if time.monotonic() > until:
                break
        for observer in self._observers:
            for _, outcome, _ in told:
                observer.finished(outcome)
        for context, outcome, shadow in told:
            _hand_on(context, outcome, shadow)
        if self._prompt_caches is not None:
            for context, _, _ in told:
                # What was given again from the answer cache was no attempt.
                if context.answering is not None and context.attempts:
                    self._prompt_caches.note(context.answering)
        if self._waiting and not self._is_timed:
            self._report_later(_WAIT_S)

    def _report_later(self, wait_s: float) -> None:
        self._is_timed = True
        asyncio.get_running_loop().call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        self._is_timed = False
        if not self._waiting:
            return
        context, ended_at, _ = self._waiting[0]
        left_s = ended_at + _WAIT_S - context.reply.now
        if left_s > _SLACK_S:
            # Those that it was for have been told of by then.
            self._report_later(left_s)
        else:
            self._report_some(_AT_A_STRETCH_S)


def _hand_on(context: RequestContext, outcome: RequestOutcome, shadow: ShadowSampler | None) -> None:
    caller, answering = context.caller, context.answering
    # Neither the reference nor a judge is asked of a request that a scorer kept from a target.
    if (
        shadow is not None
        and caller is not None
        and answering is not None
        and context.attempts
        and succeeded(answering)
        and not answering.routed.facts.scores.vetoes
    ):
        shadow.offer(answering.routed.request, caller, outcome, answering.kept)
    if context.trace is not None:
        context.trace.finish(outcome, outcome.alias, outcome.stream)


def _may_wait(context: RequestContext) -> bool:
    """Return False for a request that holds much memory, or might, and for one that is traced until now."""
    if context.routed is None or (context.trace is not None and context.trace.is_recorded):
        return False
    return context.routed.facts.most_input_tokens < _LARGE_TOKENS
