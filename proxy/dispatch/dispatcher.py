"""Dispatch: tries the plan's candidates until the first token arrives, at which point the reply is committed.

Retries stay within one target (another deployment of it where there is one), fallbacks go on to the next candidate.
Going on to a deployment that is not known to fail is free; asking a failing one again draws on its target's retry
budget, so that a total outage is not multiplied.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from cost.errors import BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget
from cost.ledger.ledger import Books
from cost.scopes import ROWS
from providers.breaker import Breakers
from providers.config import HedgingConfig, RetryConfig
from providers.errors import (
    MalformedReply,
    RequestRejected,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from providers.parameters import DECISIVE, is_conditional
from providers.retry_budget import RetryBudget, RetryBudgets
from providers.target import Deployment, Target
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.upstream_faults import says_any
from providers.wire import Event
from proxy.admit.queues.queue_item import QueuePermit
from proxy.dispatch.attempt import Attempt, fields_sent, holds_less_later
from proxy.dispatch.attempt_policy import AttemptPolicy, first_to_succeed, no_time_left, tried_deployments
from proxy.dispatch.attempt_timeout import AttemptTimeout
from proxy.dispatch.load_balancer import LoadBalancer, QueueClient, ReplicaPool, TargetRoom
from proxy.dispatch.outcome import CALLER_GONE, QueueWaited
from proxy.dispatch.retry_policy import retrying, worth_another
from proxy.dispatch.upstream_fields import upstream_call
from proxy.errors import DeadlineExceeded, QueueRefusal, Refused, error_reply
from proxy.plan.refused_parameters import RefusedParameters
from proxy.plan.route_plan import Candidate, is_own
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.target_latency import LatencyTracker

_CLOSING_S: Final = 1.0
"""Our refusals that a provider gives for one of its models as well as for all of them."""
_MAY_BE_OF_A_NAME: Final = frozenset({"permission", "quota"})
"""Refusals of ours that a provider gives for one of its models as well as for all of them."""
_NOT_HELD: Final = (BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget)
"""Errors of the reservation: nothing was booked and nothing was sent."""


class Committed(msgspec.Struct, frozen=True):
    """An attempt whose first token has arrived (or, when held, its end): the open stream and the events read so far."""

    attempt: Attempt
    stream: UpstreamStream
    events: list[Event]
    whole: bool = False
    """True when the reply was held and `events` is all of it."""


class Dispatcher:
    """A runner of attempts with retries and fallbacks; it holds the upstream client, breakers, retry budgets and
    books they share.
    """

    def __init__(
        self,
        *,
        upstream: Upstream,
        breakers: Breakers,
        budgets: RetryBudgets,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        queues: QueueClient | None = None,
        latency: LatencyTracker | None = None,
        replicas: ReplicaPool | None = None,
        hedging: RetryBudget | None = None,
        refused: RefusedParameters | None = None,
    ) -> None:
        self.refused = refused or RefusedParameters(clock)
        """Parameters that targets refused by their names."""
        self._upstream = upstream
        self._budgets = budgets
        self._books = books
        self._clock = clock
        self._now_us = now_us
        self._sleep = sleep
        self._replicas = replicas
        self._balancer = LoadBalancer(breakers, rng, replicas)
        self.room = TargetRoom(queues=queues, replicas=replicas)
        self._policy = AttemptPolicy(
            room=self.room, balancer=self._balancer, latency=latency, clock=clock, hedging=hedging
        )

    def configure(self, retry: RetryConfig, hedging: HedgingConfig) -> None:
        """Adopt a reloaded configuration."""
        self._budgets.configure(retry)
        self._policy.configure(hedging.budget_share, retry.budget_window_s)

    async def dispatch(self, routed: RoutedRequest, attempts: list[Attempt], waits: list[QueueWaited]) -> Committed:
        """Try the candidates in order and return the first that commits; every attempt is appended to `attempts`, and every
        wait in a queue to `waits`, also one that ended without a place.

        A target that has no room, or cannot answer in time, is passed over: the request spills over to the next one.
        Raises the last UpstreamError when none answered, at once when the request itself is at fault; NoRoom or
        DeadlineExceeded when there was no place for it.
        """
        failure: UpstreamError | None = None
        short: Refused | None = None
        spent: Exception | None = None
        for planned in routed.plan.candidates:
            candidate = planned if short is None else _as_spill_over(planned, routed)
            if candidate is None:
                # A team whose requests stay on our own targets waits there, and pays for none that is sold.
                continue
            on_wait = _recording(waits, candidate, attempts) if routed.origin == "caller" else None
            try:
                queue_permit = await self._take_place(candidate, routed, on_wait)
            except (QueueRefusal, DeadlineExceeded) as error:
                # The first that was short is told: it is where the request would have gone.
                short = _first_short(short, error, candidate.target.target_id)
                self.room.record_overflow(candidate.target, routed.facts.input_tokens + candidate.output_tokens)
                continue
            if not self._may_ask(candidate, routed, failure):
                # In an outage the retry budget is what keeps all requests from walking the whole plan.
                _release(queue_permit)
                continue
            candidate = _having_waited(candidate, queue_permit, waits, attempts)
            asking = self._retrying(candidate, routed, attempts)
            try:
                return await (asking if queue_permit is None else _move_permit(queue_permit, asking))
            except UpstreamError as error:
                if not error.fall_back:
                    # The request is at fault, and would be so elsewhere.
                    raise
                failure = _telling(failure, error)
            except _NOT_HELD as error:
                # There is no money for where it would spill over to, but it may be served for less once there is room; or
                # the budget is this target's own.
                may_go_on = isinstance(short, QueueRefusal) or _is_of_target(error) or holds_less_later(planned, routed)
                if not may_go_on:
                    raise
                spent = spent or error
        raise _error_to_report(failure, short, spent, routed.plan.paced_s)

    async def escalate(self, routed: RoutedRequest, candidate: Candidate, attempts: list[Attempt]) -> Committed:
        """Make one attempt at one better target, without retries or queueing, as an answer exists already. Raises the
        attempt's error.
        """
        queue_permit = await self._take_place(candidate, routed)
        return await _move_permit(queue_permit, self._attempt(candidate, routed, attempts))

    async def _take_place(
        self, candidate: Candidate, routed: RoutedRequest, on_wait: Callable[[float], None] | None = None
    ) -> QueuePermit | None:
        """Take a place at the target; None where it needs none. Only with `on_wait` it is waited for. Raises NoRoom or
        DeadlineExceeded.
        """
        start_by = self._policy.start_by(candidate, routed)
        return await self.room.take(candidate, routed, start_by, on_wait)

    def _may_ask(self, candidate: Candidate, routed: RoutedRequest, failure: UpstreamError | None) -> bool:
        """Return True when a candidate may be asked, after the `failure` of one before it. Only going on from a
        failing candidate to another one that is known to fail draws on a budget: nothing else multiplies the load of
        an outage.
        """
        budget = self._budgets.of(candidate.target.entry)
        is_outage = failure is not None and failure.owner == "health"
        if is_outage and not self._balancer.has_healthy(candidate.target, routed.caller, ()):
            return budget.try_spend()
        budget.request()
        return True

    async def _retrying(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> Committed:
        """Make attempts at a candidate, with a second one beside the first when that is late and it is wanted."""
        try:
            late_s = self._policy.hedge_after_s(candidate.target, routed)
            if late_s is None:
                begun = await self._begin(candidate, routed, attempts)
            else:
                begun = await self._hedged(candidate, routed, attempts, late_s)
            return begun if routed.hold is None else await self._held_back(begun, attempts)
        except UpstreamError as error:
            failed = [error]
        # A request that does not fail pays for nothing of this.
        return await self._again(failed, candidate, routed, attempts)

    async def _again(
        self, failed: list[UpstreamError], candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]
    ) -> Committed:
        """Make further attempts at a candidate after the first, within the retry policy: `failed` has its error,
        which is taken out. Raises the last one's error.
        """
        target = candidate.target

        def is_time_up() -> bool:
            return self._policy.is_time_up(candidate, routed, attempts)

        def untried() -> bool:
            return self._balancer.has_untried(target, routed.caller, tried_deployments(attempts)) and not is_time_up()

        if not worth_another(failed[0], untried):
            # The same target would fail for the same reason; the next candidate may not.
            raise failed.pop()

        async def again() -> Committed:
            # tenacity is told of the first failure here.
            if failed:
                raise failed.pop()
            if routed.deadline.passed(self._clock()):
                raise routed.deadline.exceeded()
            if is_time_up():
                raise no_time_left(target.target_id)
            return await self._attempt(candidate, routed, attempts)

        def healthy() -> bool:
            return self._balancer.has_healthy(target, routed.caller, tried_deployments(attempts))

        budget = self._budgets.of(target.entry)
        return await retrying(budget, untried, healthy=healthy, attempts=routed.retry.attempts, sleep=self._sleep)(
            again
        )

    async def _attempt(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> Committed:
        begun = await self._begin(candidate, routed, attempts)
        return begun if routed.hold is None else await self._held_back(begun, attempts)

    async def _hedged(
        self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt], late_s: float
    ) -> Committed:
        """Begin an attempt, and one more when it has no token after `late_s`. The first to begin its answer is
        returned; the other one is cancelled, and booked with its use. Raises the first one's error when both fail.
        """
        earlier = len(attempts)
        racing = [asyncio.ensure_future(self._begin(candidate, routed, attempts))]
        won: Committed | None = None
        try:
            await asyncio.wait(racing, timeout=late_s)
            hedge = None if racing[0].done() else await self._hedge(candidate, routed, attempts)
            if hedge is not None:
                racing.append(asyncio.ensure_future(hedge))
            won = await first_to_succeed(racing)
        finally:
            for each in attempts[earlier:]:
                if won is not None and each is not won.attempt and each.settled is None:
                    each.unused = "hedge_lost"
            await end_race(racing, won)
        return won

    async def _hedge(
        self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]
    ) -> Coroutine[Any, Any, Committed] | None:
        """Return a second attempt to run beside the latest; None where no other has room, or the budget is used up."""
        for place in self._policy.hedges(candidate, routed, attempts):
            try:
                queue_permit = await self._take_place(place, routed)
            except (QueueRefusal, DeadlineExceeded):
                continue
            if self._policy.try_spend_hedge():
                return _move_permit(queue_permit, self._begin(place, routed, attempts), hedge=True)
            _release(queue_permit)
            break
        return None

    async def _begin(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> Committed:
        """Make one attempt, until the first token of its answer; and again without a parameter that the target refuses by
        its name and that may be left out. It did no work, so that costs nothing but the time.
        """
        for _ in range(_MOST_LEFT_OUT):
            try:
                return await self._begin_once(candidate, routed, attempts)
            except RequestRejected as error:
                without = self._without_refused(error, candidate.target, routed)
                if without is None or routed.deadline.passed(self._clock()):
                    raise
                routed = without
        return await self._begin_once(candidate, routed, attempts)

    def _without_refused(self, error: RequestRejected, target: Target, routed: RoutedRequest) -> RoutedRequest | None:
        """Return the request as it is to be sent without the parameter that was refused; None where it may not be left out,
        or nothing was refused by its name. What was refused is remembered.
        """
        refused, request = error.parameter, routed.request
        # What goes as its caller wrote it has other names than chat's.
        if refused is None or request.as_written is not None:
            return None
        name = refused.name
        is_sent = name in request.fields or (name == "stream_options" and request.stream)
        if not is_sent or name in routed.facts.lacking(target) or says_any(fields_sent(request), (refused.words,)):
            # A provider that only repeats what the request says has refused nothing.
            return None
        if not is_conditional(name, request.effort):
            self.refused.record(target.target_id, name, request.effort)
        if name in DECISIVE:
            return None
        facts = routed.facts
        known = facts.refused.get(target.target_id, frozenset()) | {name}
        return msgspec.structs.replace(
            routed, facts=msgspec.structs.replace(facts, refused={**facts.refused, target.target_id: known})
        )

    async def _begin_once(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> Committed:
        """Make one attempt, until the first token of its answer."""
        attempt = self._new_attempt(candidate, routed, attempts)
        stream: UpstreamStream | None = None
        timeout: AttemptTimeout | None = None
        try:
            await attempt.reserve()
            with self._policy.timeout(attempt, attempts) as timeout:
                if attempt.load_tracker is not None:
                    attempt.load_tracker.when_lost = timeout.expire
                if attempt.deployment.adapter is not None and self._replicas is not None:
                    await self._replicas.prepare(candidate.target, attempt.deployment)
                call = self._call(attempt)
                attempt.sent = True
                if attempt.load_tracker is not None:
                    read = await self._policy.prefill(self._upstream, attempt, call)
                    if read is not None:
                        # Made anew: reading took some of the time that the call may take.
                        call = self._call(attempt, read)
                stream = await self._upstream.open(call)
                events = await first_token(stream, attempt)
            attempt.healthy()
        except BaseException as error:
            cause = self._cause_of(attempt, error, timeout)
            await _close_failed(attempt, error if cause is None else cause, stream, attempts)
            if cause is None:
                raise
            raise cause from error
        return Committed(attempt, stream, events)

    async def _held_back(self, begun: Committed, attempts: list[Attempt]) -> Committed:
        """Read an answer that is to be judged to its end or its bounds; any other is returned as it is.

        A failure here is one like any other before commit: the next candidate may answer.
        """
        attempt, routed = begun.attempt, begun.attempt.routed
        if routed.hold is None:
            return begun
        try:
            held = await self._policy.hold(begun.stream, attempt, begun.events, routed.hold)
        except BaseException as error:
            cause = self._cause_of(attempt, error, None)
            await _close_failed(attempt, error if cause is None else cause, begun.stream, attempts)
            if cause is None:
                raise
            raise cause from error
        return Committed(attempt, held, begun.events, held.whole)

    def _new_attempt(self, candidate: Candidate, routed: RoutedRequest, attempts: list[Attempt]) -> Attempt:
        """Create the next attempt on a deployment that may be called now. Raises UpstreamUnavailable."""
        deployment, permit, load = self._balancer.take(candidate, routed, tried_deployments(attempts))
        # Not their count: two that run beside each other may be given up in any order.
        number = attempts[-1].number + 1 if attempts else 1
        attempt = Attempt(routed, number, candidate, deployment, permit, self._books, self._clock, self._now_us)
        attempt.load_tracker = load
        # A further attempt at the same candidate did not wait for it again.
        if candidate.queued_s and not (attempts and attempts[-1].candidate is candidate):
            attempt.queued_s = candidate.queued_s
        attempts.append(attempt)
        return attempt

    def _cause_of(self, attempt: Attempt, error: BaseException, timeout: AttemptTimeout | None) -> BaseException | None:
        """Return the failure to report in place of `error`, or None to keep it: an expired time-out becomes the fault
        of the deadline, the replica or the upstream.
        """
        deployment, deadline = attempt.deployment, attempt.routed.deadline
        heard = attempt.without_echo(error)
        if heard is not error:
            return heard
        if isinstance(error, TimeoutError) and timeout is not None and timeout.expired:
            return self._policy.timed_out(attempt)
        if isinstance(error, UpstreamError) and error.status == HTTPStatus.NOT_FOUND and deployment.adapter:
            self._adapter_missing(attempt.candidate.target, deployment, error)
        elif isinstance(error, UpstreamTimeout) and deadline.passed(self._clock()):
            # The call's own time ends when the attempt's does, and either may be looked at first.
            return self._policy.timed_out(attempt)
        elif isinstance(error, UpstreamError) and attempt.candidate.target.pattern:
            return _of_a_name(error, attempt)
        return None

    def _adapter_missing(self, target: Target, deployment: Deployment, error: UpstreamError) -> None:
        """Mark the adapter as evicted from the engine, so that a retry on the same deployment loads it again."""
        error.retry_same = True
        if self._replicas is not None:
            self._replicas.missing(target, deployment)

    def _call(self, attempt: Attempt, read: Mapping[str, Any] | None = None) -> UpstreamCall:
        return upstream_call(
            attempt.candidate.target,
            attempt.deployment,
            attempt.routed,
            self._clock(),
            reaches=attempt.reaches,
            drops=attempt.dropped.append,
            read=read,
        )


_MOST_LEFT_OUT: Final = 4
"""The most parameters that one request finds out about: most providers name one at a time."""


def _of_a_name(error: UpstreamError, attempt: Attempt) -> UpstreamError | None:
    """Return the error in place of one that a wildcard's provider told, None where it stands: the caller chose the
    name, so an error of that name alone must not set aside another name's deployment.
    """
    if error.status == HTTPStatus.NOT_FOUND or (error.owner == "operator" and error.reason == "model"):
        return _unknown_there(attempt)
    if error.key_refused and error.reason in _MAY_BE_OF_A_NAME:
        error.key_refused = False
        error.gateway_failure = True
    return None


def _unknown_there(attempt: Attempt) -> RequestRejected:
    """Return the error for a name that a wildcard passed on and its provider does not know, or does not let us have."""
    target_id = attempt.candidate.target.target_id
    return RequestRejected(
        f"The model `{target_id}` does not exist at its provider. Send `auto` or a name from GET /v1/models.",
        deployment_id=attempt.deployment.deployment_id,
        status=HTTPStatus.NOT_FOUND,
        param="model",
        code="model_not_found",
    )


async def _move_permit(
    queue_permit: QueuePermit | None, asking: Awaitable[Committed], *, hedge: bool = False
) -> Committed:
    """Move the permit to the attempt that commits, which releases it when it settles; otherwise release it here. A
    `hedge` has a permit of its own.
    """
    try:
        committed = await asking
    except BaseException:
        _release(queue_permit)
        raise
    if hedge or committed.attempt.candidate.reason != "hedge":
        committed.attempt.queue_permit = queue_permit
    else:
        _release(queue_permit)
    return committed


async def end_race(racing: Sequence[asyncio.Task[Committed]], won: Committed | None) -> None:
    """Cancel all attempts but the one that won, and wait until each is settled. None won when the caller is gone."""
    running = [each for each in racing if not each.done()]
    for each in running:
        each.cancel()
    if running:
        # Each settles as soon as it is cancelled; closing its connection may take longer, and is not waited for.
        await asyncio.wait(running, timeout=_CLOSING_S)
    for each in racing:
        if not each.done() or each.cancelled() or each.exception() is not None:
            continue
        begun = each.result()
        if begun is not won:
            # Both began in the same moment.
            _close_cancelled(begun.attempt, begun.stream)
            await close_quietly(begun.stream)


def _recording(waits: list[QueueWaited], candidate: Candidate, attempts: list[Attempt]) -> Callable[[float], None]:
    """Return what a queue tells a wait before the candidate to."""
    return lambda seconds: waits.append(QueueWaited(candidate.target.target_id, seconds, len(attempts)))


def _having_waited(
    candidate: Candidate, queue_permit: QueuePermit | None, waits: Sequence[QueueWaited], attempts: Sequence[Attempt]
) -> Candidate:
    """Return the candidate with the time that it waited for its place, and that its request waited since the last attempt."""
    if queue_permit is not None and queue_permit.waited_s:
        candidate = msgspec.structs.replace(candidate, waited_s=queue_permit.waited_s)
    queued_s = sum(each.waited_s for each in waits if each.attempts_before == len(attempts))
    return msgspec.structs.replace(candidate, queued_s=queued_s) if queued_s else candidate


def _release(queue_permit: QueuePermit | None) -> None:
    if queue_permit is not None:
        queue_permit.release()


async def _close_failed(
    attempt: Attempt, failure: BaseException, stream: UpstreamStream | None, attempts: list[Attempt]
) -> None:
    """Settle an attempt that gave no answer, and close its stream."""
    # Settled first: closing the stream may wait or fail, and nothing of this attempt may stay open.
    if isinstance(failure, asyncio.CancelledError):
        _close_cancelled(attempt, stream)
    else:
        attempt.close("failed", failure, status=error_reply(failure).status)
    if isinstance(failure, _NOT_HELD):
        # Nothing was booked, so it was no attempt: the next one, should there be one, takes its number.
        attempts.remove(attempt)
    await close_quietly(stream)


def _close_cancelled(attempt: Attempt, stream: UpstreamStream | None) -> None:
    """Settle an attempt whose caller is gone, or that another one has overtaken. The tokens that arrived were made,
    and cost.
    """
    attempt.observe([] if stream is None else stream.unread())
    if attempt.unused is not None:
        attempt.close("hedge_lost", status=HTTPStatus.OK, unused=attempt.unused)
    else:
        attempt.close("caller_gone", asyncio.CancelledError(), status=CALLER_GONE)


def _as_spill_over(candidate: Candidate, routed: RoutedRequest) -> Candidate | None:
    """Return the candidate marked as spill-over; None where the team does not let its requests go to paid targets."""
    if routed.caller.settings.spill_over or is_own(candidate.target, routed.pools):
        return msgspec.structs.replace(candidate, reason="spill-over")
    return None


def _telling(earlier: UpstreamError | None, error: UpstreamError) -> UpstreamError:
    """Return the failure that tells more: the latest, but a target's inability tells little where another one failed
    that was able.
    """
    return error if earlier is None or error.owner != "request" else earlier


def _first_short(short: Refused | None, error: Refused, target_id: str) -> Refused:
    """Return the first refusal, with the names of all targets that had no room."""
    short = short or error
    if isinstance(error, QueueRefusal):
        short.targets = (*short.targets, target_id)
    return short


def _is_of_target(error: Exception) -> bool:
    """Return True for a budget of one model or provider: another target may have money."""
    return isinstance(error, BudgetExceeded) and ROWS[error.scope].of_target


def _error_to_report(
    failure: UpstreamError | None, short: Refused | None, spent: Exception | None, paced_s: float | None
) -> Exception:
    """Return the error to report: a full queue first, because it passes by itself, else the upstream's failure. A
    failure that is the request's own only at the target asked passes by itself, too, where a target that could take
    it waits for its provider's pace.
    """
    if failure is not None and not isinstance(short, QueueRefusal):
        if failure.owner == "request" and paced_s is not None:
            return UpstreamRateLimited(
                "The provider's rate limit is reached.", deployment_id=failure.deployment_id, retry_after_s=paced_s
            )
        return failure
    found = short or spent
    assert found is not None  # noqa: S101  # A plan has at least one candidate.
    return found


async def first_token(stream: UpstreamStream, attempt: Attempt) -> list[Event]:
    """Read until the first token or the end of the reply; a chunk with only a role counts as neither. Raises
    MalformedReply when the stream ends without any choice.
    """
    events: list[Event] = []
    while not (attempt.token_events or attempt.finished):
        batch = await stream.read()
        if batch is None:
            if not any(event.choices for event in events):
                raise MalformedReply("The upstream answered nothing.", deployment_id=attempt.deployment.deployment_id)
            break
        attempt.observe(batch)
        events += batch
        if attempt.said_nothing:
            raise MalformedReply(
                "The model went on after the answer's limit, which a hard budget holds, and said nothing.",
                deployment_id=attempt.deployment.deployment_id,
            )
    return events


async def close_quietly(stream: UpstreamStream | None) -> None:
    """Close the stream, ignoring errors."""
    if stream is None:
        return
    try:  # noqa: SIM105  Each request closes one.
        await stream.aclose()
    except Exception:  # noqa: BLE001, S110  Nobody waits for it any more.
        pass
