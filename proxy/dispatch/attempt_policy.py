"""The policy of attempts in time: when one is started, given up, hedged, read ahead or held back.

The dispatcher asks one `AttemptPolicy` and acts on its answers. The functions below it are pure: the time is passed in.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from providers.errors import AnswerLate, FirstTokenTimeout, ReplicaSilent, UpstreamError
from providers.retry_budget import RetryBudget
from providers.target import Target
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import METERED, Event
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.attempt_timeout import AttemptTimeout, AttemptTimeouts
from proxy.dispatch.buffered_reply import HeldStream, hold
from proxy.dispatch.load_balancer import LoadBalancer, TargetRoom
from proxy.dispatch.prefill import prefill
from proxy.errors import Refused
from proxy.plan.route_plan import Candidate, is_own
from proxy.plan.routed_request import Hold, RoutedRequest
from proxy.shared.target_latency import LatencyTracker

_Result = TypeVar("_Result")

FIRST_HEDGES: Final = 1
"""The second attempts that a process makes before any request has earned one."""
_LEAST_S: Final = 0.001
_USUAL: Final = 3.0
"""The multiple of its usual time from which on an attempt is late."""
_KEPT: Final = 2.0
"""The multiple of a candidate's usual time that is kept for it: the usual time is a median."""
_TOKEN_S: Final = 0.03
"""The assumed seconds of a token of a whole answer where nothing is known of the target."""
_HARDLY: Final = 0.95
"""The part of a target's time from which on it is taken as barely in time. Requests that waited in vain had a hair
less than all of it.
"""
_LEAST_PART: Final = 1 / 8
"""The part of a target's time that must be left for another try there."""
_FEWEST: Final = 4
"""The divisor of the predicted answer tokens that gives a safe lower bound: an answer may well have a quarter of them."""
_NOBODY: Final = "None of these answered. Send it again shortly."


class AttemptPolicy:
    """Decisions on time for the attempts of one process, from its plan, its deadline and the latency of targets."""

    def __init__(
        self,
        *,
        room: TargetRoom,
        balancer: LoadBalancer,
        latency: LatencyTracker | None,
        clock: Callable[[], float],
        hedging: RetryBudget | None = None,
    ) -> None:
        """`hedging` bounds the second attempts by the requests; without it, or without `latency`, there are none."""
        self._room = room
        self._balancer = balancer
        self._latency = latency
        self._clock = clock
        self._hedging = hedging
        self._timeouts = AttemptTimeouts()

    def configure(self, hedged_share: float, window_s: float) -> None:
        """Adopt another budget of second attempts."""
        if self._hedging is not None:
            self._hedging.configure(hedged_share, FIRST_HEDGES, window_s)

    # Starting attempts.

    def start_by(self, candidate: Candidate, routed: RoutedRequest) -> float:
        """Return the latest start at the candidate, on the monotonic clock. Raises DeadlineExceeded for a target that
        cannot be in time, or usually is not where another candidate may.
        """
        target_id, stream, now = candidate.target.target_id, routed.request.stream, self._clock()
        expected = None if self._latency is None else self._latency.expect(target_id, routed.facts.tier)
        # A prediction is a median: what cannot be done is judged by far less.
        fewest = max(1, candidate.output_tokens // _FEWEST) if routed.prediction is not None else 1
        latest = routed.deadline.start_by(now, expected, fewest, stream=stream)
        if latest is None or self._is_too_slow(candidate, routed, now):
            raise routed.deadline.unreachable(target_id)
        return latest

    async def prefill(self, upstream: Upstream, attempt: Attempt, call: UpstreamCall) -> Mapping[str, Any] | None:
        """Have the prompt read before the call where the attempt's pool does so: see `prefill.prefill`."""
        replicas = self._balancer.replicas
        return None if replicas is None else await prefill(upstream, replicas, attempt, call)

    # When to give up.

    def timeout(self, attempt: Attempt, attempts: list[Attempt]) -> AttemptTimeout:
        """Return the time-out of an attempt that begins now, to be entered by its task. The other deployments that
        may answer are looked up only once the attempt may be late, and anew each time that it is due.
        """
        # Nearly all requests are answered by their first attempt long before it may be late.
        is_first = len(attempts) == 1
        limit_s = self._first_look_s(attempt) if is_first else self._left_s(attempt, attempts, first=True)
        return self._timeouts.within(limit_s, lambda: self._left_s(attempt, attempts))

    def timed_out(self, attempt: Attempt) -> UpstreamError | Refused:
        """Return the error of an attempt whose time-out has expired now."""
        return timeout_error(attempt, self._clock())

    def is_time_up(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> bool:
        """Return True when too little is left for another try at the candidate, as the rest is kept for others."""
        began_at = _began_at(candidate, attempts)
        left_s = routed.deadline.remaining_s(began_at)
        kept_s = self._kept_s(candidate, routed, left_s)
        window = window_s(left_s, kept_s)
        return kept_s is not None and window - (self._clock() - began_at) < _LEAST_PART * window

    async def hold(self, stream: UpstreamStream, attempt: Attempt, events: list[Event], limits: Hold) -> HeldStream:
        """Read an answer to its end or its limits before any of it is given. Raises the errors of its upstream."""
        return await hold(stream, attempt, events, hold_within(attempt.routed, limits, self._clock()))

    # When to hedge.

    def hedge_after_s(self, target: Target, routed: RoutedRequest) -> float | None:
        """Return the seconds after which an attempt at `target` is late: those within which 95 of 100 have answered
        there. None where nothing is hedged, or where this process has not seen enough of the target; and for answers
        whose duration follows their length, such as recordings.
        """
        if self._hedging is None or self._latency is None:
            return None
        if routed.facts.tier not in target.hedged_tiers or routed.origin != "caller":
            return None
        if routed.request.operation in METERED:
            return None
        self._hedging.request()
        return self._latency.late_s(target.target_id, routed.facts.tier, stream=routed.request.stream)

    def hedges(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> Iterator[Candidate]:
        """Yield the candidates at which a second attempt may run beside the latest one, which is at `candidate`. A
        request has one such attempt, and only once its first was sent: before that it waits for us.
        """
        if not attempts[-1].sent or any(each.candidate.reason == "hedge" for each in attempts):
            return iter(())
        sibling = self._balancer.has_untried(candidate.target, routed.caller, tried_deployments(attempts))
        return places(candidate, routed, sibling=sibling)

    def try_spend_hedge(self) -> bool:
        """Take one second attempt from the budget; False when there is none left."""
        return self._hedging is not None and self._hedging.try_spend()

    # The time of a target, and the part kept for others.

    def _first_look_s(self, attempt: Attempt) -> float | None:
        """Return the least seconds after which a request's first attempt may be late; None for never.

        At least half of the time is its target's, and half of that its deployment's.
        """
        routed = attempt.routed
        left_s = routed.deadline.remaining_s(self._clock()) / 4
        if routed.request.stream:
            left_s = min(left_s, attempt.first_token_timeout_s)
        return None if math.isinf(left_s) else left_s

    def _left_s(self, attempt: Attempt, attempts: list[Attempt], *, first: bool = False) -> float | None:
        """Return the seconds that the attempt is still waited for; None for no limit. The `first` look assumes that a
        later candidate may answer, which is cheapest to find out.
        """
        candidate, routed, began_at = attempt.candidate, attempt.routed, _began_at(attempt.candidate, attempts)
        if first:
            left_s = routed.deadline.remaining_s(began_at)
            last = routed.plan.candidates[-1].target.target_id == candidate.target.target_id
            kept_s = None if last else left_s / 2
        else:
            kept_s = self.kept_s(candidate, routed, began_at)
        again = self._others_may_answer(attempt, attempts)
        first_token_s = attempt.first_token_timeout_s
        limit_s = self.patience_s(candidate, routed, began_at, attempt.started_at, again, kept_s, first_token_s)
        return None if limit_s is None else limit_s - (self._clock() - attempt.started_at)

    def _others_may_answer(self, attempt: Attempt, attempts: list[Attempt]) -> bool:
        """Return True where another deployment of the target may be tried after it, or an answer is there already."""
        routed, target = attempt.routed, attempt.candidate.target
        if routed.before is not None or _is_beside(attempt.candidate, routed):
            # A caller with the first part of an answer is told soon when the rest does not come, and one with a weak answer when
            # no better one does.
            return True
        # The last try at this target is waited for, too.
        tries = sum(each.candidate.target.target_id == target.target_id for each in attempts)
        return tries < routed.retry.attempts and self._balancer.has_untried(
            target, routed.caller, tried_deployments(attempts)
        )

    def patience_s(
        self,
        candidate: Candidate,
        routed: RoutedRequest,
        began_at: float,
        started_at: float,
        again: bool,
        kept_s: float | None,
        first_token_s: float | None = None,
    ) -> float | None:
        """Return the seconds that a try at the candidate is waited for in all; None for no limit. It `started_at`,
        the first one at the candidate `began_at`; `again` is True when another deployment of it may be tried after
        it, `kept_s` are the seconds that are kept for other candidates, and `first_token_s` is the deployment's own.
        """
        stream, usual_s = routed.request.stream, self._usually_s(candidate, routed)
        return patience_s(
            window_s(routed.deadline.remaining_s(began_at), kept_s),
            started_at - began_at,
            usual_s,
            first_token_s or routed.timeouts.first_token_s(routed.facts.tier),
            stream=stream,
            others=kept_s is not None,
            again=again,
        )

    def kept_s(self, candidate: Candidate, routed: RoutedRequest, began_at: float) -> float | None:
        """Return the seconds kept for others of the time at `began_at`; None where no other candidate may answer."""
        return self._kept_s(candidate, routed, routed.deadline.remaining_s(began_at))

    def _is_too_slow(self, candidate: Candidate, routed: RoutedRequest, now: float) -> bool:
        """Return True when the target is known to take longer than its time, and a faster one may answer."""
        left_s, known_s = routed.deadline.remaining_s(now), self._known_s(candidate, routed)
        if known_s is None or known_s < left_s / 2 * _HARDLY:
            # Others are left no more than that.
            return False
        kept_s = self._kept_s(candidate, routed, left_s, faster_than_s=known_s)
        return kept_s is not None and known_s >= window_s(left_s, kept_s) * _HARDLY

    def _kept_s(
        self, candidate: Candidate, routed: RoutedRequest, left_s: float, *, faster_than_s: float = math.inf
    ) -> float | None:
        """Return the seconds kept for the least demanding of the candidates that may answer after this one; None
        without one.
        """
        kept_s: float | None = None
        for each in _after(candidate, routed):
            known_s, wait_s = self._known_s(each, routed), self._room.wait_s(each, routed)
            if wait_s is None or (known_s is not None and wait_s + known_s >= min(left_s, faster_than_s)):
                # Without room, or too late itself.
                continue
            if self._balancer.has_healthy(each.target, routed.caller, ()):
                guess_s = routed.timeouts.first_token_s(routed.facts.tier)
                if not routed.request.stream:
                    guess_s += _TOKEN_S * each.output_tokens
                needed = needed_s(known_s, guess_s, left_s)
                kept_s = needed if kept_s is None else min(kept_s, needed)
        return kept_s

    def _usually_s(self, candidate: Candidate, routed: RoutedRequest) -> float | None:
        if self._latency is None:
            return None
        return self._latency.usually_s(
            candidate.target.target_id, routed.facts.tier, candidate.output_tokens, stream=routed.request.stream
        )

    def _known_s(self, candidate: Candidate, routed: RoutedRequest) -> float | None:
        if self._latency is None:
            return None
        return self._latency.known_s(
            candidate.target.target_id, routed.facts.tier, candidate.output_tokens, stream=routed.request.stream
        )


def tried_deployments(attempts: list[Attempt]) -> Collection[str]:
    """Return the ids of the deployments that a request has tried."""
    return {attempt.deployment.deployment_id for attempt in attempts} if attempts else ()


def needed_s(usual_s: float | None, guess_s: float, left_s: float) -> float:
    """Return the seconds of the time left that are kept for a candidate: twice its usual time, `guess_s` where that
    is not known, and at most half of the time left. One that is usually quick has a quarter of the time, or the guess
    if that is less: a request at the last moment is answered too late by the slightest delay.
    """
    wanted_s = guess_s if usual_s is None else max(_KEPT * usual_s, min(guess_s, left_s / 4))
    return min(wanted_s, left_s / 2)


def window_s(left_s: float, kept_s: float | None) -> float:
    """Return the seconds that all tries at one target may take together, of the `left_s` that are left when the first
    begins. `kept_s` is kept for candidates that may answer instead; None where there is none, and all the time is the
    target's. Also a whole answer that is usually long leaves them their time: late it is worth nothing.
    """
    return left_s if kept_s is None else left_s - kept_s


def patience_s(
    window: float,
    spent_s: float,
    usual_s: float | None,
    first_token_s: float,
    *,
    stream: bool,
    others: bool,
    again: bool,
) -> float | None:
    """Return the time-out in seconds of one try, until its first token or the end of a whole answer; None for no
    limit. It is the rest of the target's `window` after `spent_s`. Where another deployment of the target may be
    tried after it (`again`), a stream leaves half of that; and where any other may answer instead (`again` or
    `others`), it is waited for no longer than its tier's `first_token_s`. It has three times the usual time all the
    same.
    """
    limit = rest = window - spent_s
    usually = _USUAL * (usual_s or 0.0)
    if stream and again:
        limit = max(rest / 2, min(rest, usually))
    if stream and (again or others):
        limit = min(limit, max(first_token_s, usually))
    return None if math.isinf(limit) else max(_LEAST_S, limit)


def hold_within(routed: RoutedRequest, limits: Hold, now: float) -> Hold:
    """Return the hold, shortened to half of the time left, so that the answer is released before the deadline cuts it."""
    left_s = routed.deadline.remaining_s(now)
    return msgspec.structs.replace(limits, max_s=max(_LEAST_S, min(limits.max_s, left_s / 2)))


def timeout_error(attempt: Attempt, now: float) -> UpstreamError | Refused:
    """Return the error of a timed-out attempt: ReplicaSilent for a replica found dead, the deadline's error, or
    FirstTokenTimeout and AnswerLate of one that was left while there was time.

    A caller's own deadline is never the upstream's fault, as a whole answer may just be long. A stream without a first
    token at its tier's deadline is, unless earlier attempts had used up that time.
    """
    deployment_id = attempt.deployment.deployment_id
    if attempt.load_tracker is not None and attempt.load_tracker.lost:
        return ReplicaSilent("The upstream stopped answering.", deployment_id=deployment_id)
    routed, patient = attempt.routed, attempt.was_patient
    target_id, tries = attempt.candidate.target.target_id, attempt.number
    if routed.deadline.passed(now) and (routed.deadline.own or not (routed.request.stream and patient)):
        return routed.deadline.exceeded(f"`{target_id}` was the last of {tries} attempts" if tries > 1 else "")
    waited_s = now - attempt.started_at
    if routed.deadline.passed(now):
        words = routed.deadline.exceeded().message
    else:
        what = "first token" if routed.request.stream else "complete answer"
        words = f"`{target_id}` gave no {what} within {waited_s:.1f} s, and was left for others that might be in time. {_NOBODY}"
    if not routed.request.stream:
        return AnswerLate(words, deployment_id=deployment_id)
    late = FirstTokenTimeout(words, deployment_id=deployment_id)
    # A call that was not sent yet waited for the gateway, which loads its adapter.
    late.gateway_failure = patient and attempt.sent
    return late


def no_time_left(target_id: str) -> UpstreamError:
    """Return the error for a target that is not tried again, as the time left is kept for others."""
    late = FirstTokenTimeout(
        f"`{target_id}` failed, and what was left of the time was kept for others. {_NOBODY}", deployment_id=target_id
    )
    late.gateway_failure = False
    return late


def places(candidate: Candidate, routed: RoutedRequest, *, sibling: bool) -> Iterator[Candidate]:
    """Yield the candidates at which a late attempt at `candidate` may be hedged: another deployment of its target if
    there is such a `sibling`, then the next candidate. The next one is left out where it is a lesser answer, another
    arm of the experiment, or paid for by a team whose requests stay on our own targets as long as these answer.
    """
    if sibling:
        yield msgspec.structs.replace(candidate, reason="hedge")
    following = iter(routed.plan.candidates)
    for each in following:
        if each.target.target_id == candidate.target.target_id:
            break
    after = next(following, None)
    if after is None or after.reason == "degraded" or routed.arm == "holdout":
        return
    if routed.caller.settings.spill_over or is_own(after.target, routed.pools):
        yield msgspec.structs.replace(after, reason="hedge")


async def first_to_succeed(racing: Sequence[asyncio.Task[_Result]]) -> _Result:
    """Return the result of the task that has one first, the earlier of two that have it at once. Raises the error of
    the first of them when all failed.
    """
    running = set(racing)
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in racing:
            if each in done and not each.cancelled() and each.exception() is None:
                return each.result()
    return racing[0].result()


def _after(candidate: Candidate, routed: RoutedRequest) -> Iterator[Candidate]:
    """Yield the candidates that may be asked in place of a late one; paid ones only where the team's requests may overflow."""
    following = iter(routed.plan.candidates)
    target_id = candidate.target.target_id
    if not any(each.target.target_id == target_id for each in following):
        return
    pays = routed.caller.settings.spill_over or not is_own(candidate.target, routed.pools)
    yield from (each for each in following if pays or is_own(each.target, routed.pools))


def _began_at(candidate: Candidate, attempts: list[Attempt]) -> float:
    """Return the time at which the first attempt at the candidate's target began."""
    target_id = candidate.target.target_id
    return next((each.started_at for each in attempts if each.candidate.target.target_id == target_id), math.inf)


def _is_beside(candidate: Candidate, routed: RoutedRequest) -> bool:
    """Return True for a candidate that the plan does not have: it is asked for a better answer than the present one."""
    return all(each.target.target_id != candidate.target.target_id for each in routed.plan.candidates)
