"""Dispatch: walks the plan until the first real token. After that the reply is committed.

Retries stay within one target (another deployment of it where there is one), fallbacks go on to the
next candidate, and both draw on one retry budget, so that a total outage is not multiplied.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from cost.errors import BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget
from cost.ledger import Books
from providers.breaker import Breakers, Permit
from providers.config import RetryConfig
from providers.errors import (
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    MalformedReply,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.retry_budget import RetryBudget
from providers.target import Deployment, Target
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import Event
from proxy.answers.hold import hold
from proxy.attempt import CALLER_GONE, Attempt
from proxy.errors import DeadlineExceeded, QueueRefusal, Refused, error_reply
from proxy.gate.pace import Paces
from proxy.gate.queue.work import Slot, Work
from proxy.job import Hold, Job
from proxy.policy import Candidate, is_own

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
_FEWEST = 4
"""An answer may well have a quarter of the tokens that were predicted."""
_LEAST_S = 0.001
_NOT_HELD = (BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget)


class QueueDoor(Protocol):
    """The queues before targets that are short."""

    def queue_of(self, target_id: str) -> str | None: ...

    async def enter(self, target_id: str, work: Work) -> Slot:
        """Raises NoRoom."""
        ...

    def try_enter(self, target_id: str, work: Work) -> Slot:
        """Waits for nothing. Raises NoRoom."""
        ...


class Committed(msgspec.Struct, frozen=True):
    """An attempt whose first token came, or whose end where it was held: its open stream and the events read so far."""

    attempt: Attempt
    stream: UpstreamStream
    events: list[Event]
    whole: bool = False
    """It was held, and `events` is all of it."""


class _NoRetryLeft(stop_base):
    """Stops when the budget is spent, and takes one retry from it when it is not.

    Going on to another deployment after a failed connection is free: no upstream saw the request, so
    nothing is multiplied, and a dead replica among healthy ones is never noticed.
    """

    def __init__(self, budget: RetryBudget, untried: Callable[[], bool]) -> None:
        self._budget = budget
        self._untried = untried

    def __call__(self, retry_state: RetryCallState) -> bool:
        if _not_connected(retry_state) and self._untried():
            return False
        return not self._budget.try_spend()


class _Backoff(wait_base):
    """Waits before an upstream that is in trouble is asked again; another one need not be waited for."""

    _patient = wait_random_exponential(multiplier=_BACKOFF_FIRST_S, max=_BACKOFF_MAX_S)

    def __call__(self, retry_state: RetryCallState) -> float:
        return 0.0 if _not_connected(retry_state) else self._patient(retry_state)


def _worth_another(error: BaseException, untried: Callable[[], bool]) -> bool:
    """Whether the same target may answer: this deployment again, or one that has limits or a key of its own."""
    if isinstance(error, UpstreamRateLimited | UpstreamRefusedUs):
        return untried()
    return isinstance(error, UpstreamError) and error.retry_same


def _not_connected(retry_state: RetryCallState) -> bool:
    return retry_state.outcome is not None and isinstance(retry_state.outcome.exception(), ConnectFailed)


class Dispatcher:
    """Holds what attempts share: upstreams, breakers, the retry budget and the books."""

    def __init__(
        self,
        *,
        upstream: Upstream,
        breakers: Breakers,
        budget: RetryBudget,
        books: Books,
        clock: Callable[[], float],
        now_us: Callable[[], int],
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        queues: QueueDoor | None = None,
        paces: Paces | None = None,
    ) -> None:
        self._upstream = upstream
        self._breakers = breakers
        self._budget = budget
        self._books = books
        self._clock = clock
        self._now_us = now_us
        self._rng = rng
        self._sleep = sleep
        self._queues = queues
        self._paces = paces

    async def dispatch(self, job: Job, retry: RetryConfig, attempts: list[Attempt]) -> Committed:
        """Tries the candidates in order; every attempt made is appended to `attempts`.

        A target that has no room, or cannot answer in time, is passed over: the request spills over to the next one.
        Raises the last UpstreamError when none answered, at once when the request itself is at fault; NoRoom or
        DeadlineExceeded when there was no place for it.
        """
        self._budget.request()
        failure: UpstreamError | None = None
        short: Refused | None = None
        for planned in job.plan.candidates:
            candidate = planned if short is None else _spilled(planned, job)
            if candidate is None:
                continue
            try:
                slot = await self._place(candidate, job, waits=job.origin == "caller")
            except (QueueRefusal, DeadlineExceeded) as error:
                short = short or error
                continue
            try:
                # What was refused here, unsent, multiplies nothing.
                if failure is not None and not isinstance(failure, CannotCarry) and not self._budget.try_spend():
                    break
                return _placed(await self._retrying(candidate, job, retry, attempts), slot)
            except UpstreamError as error:
                if not error.fall_back:
                    raise
                failure = error
            except _NOT_HELD:
                # There is no money for where it would spill over to, but it may be served for less once there is room.
                if not isinstance(short, QueueRefusal):
                    raise
            finally:
                _give_back(slot, attempts)
        raise _gravest(failure, short)

    async def escalate(self, job: Job, candidate: Candidate, attempts: list[Attempt]) -> Committed:
        """Asks one better target, once: there is an answer already, so nothing is retried, and nothing waits.

        Raises what the attempt raises.
        """
        slot = await self._place(candidate, job, waits=False)
        try:
            return _placed(await self._attempt(candidate, job, attempts), slot)
        finally:
            _give_back(slot, attempts)

    async def _place(self, candidate: Candidate, job: Job, *, waits: bool) -> Slot | None:
        """A place at the target, after a wait where there is a queue. Raises NoRoom, or DeadlineExceeded for what the
        target cannot do in time.
        """
        target_id, stream, now = candidate.target.target_id, job.request.stream, self._clock()
        pace = None if self._paces is None else self._paces.expect(target_id, job.facts.tier)
        # A prediction is a median: what cannot be done is judged by far less.
        fewest = max(1, candidate.output_tokens // _FEWEST) if job.prediction is not None else 1
        if job.deadline.cannot_make_it(now, pace, fewest, stream=stream):
            raise job.deadline.unreachable(target_id)
        if self._queues is None or self._queues.queue_of(target_id) is None:
            return None
        settings, asked_for = job.caller.settings, job.origin == "caller"
        work = Work(
            team_id=job.caller.team_id,
            weight=settings.weight,
            # What nobody asked for takes none of the room that is kept for those who wait.
            tier=job.facts.tier if asked_for else "batch",
            priority=job.request.priority if asked_for else -1,
            tokens=job.facts.input_tokens + candidate.output_tokens,
            start_by=job.deadline.start_by(now, pace, fewest, stream=stream),
        )
        return await self._queues.enter(target_id, work) if waits else self._queues.try_enter(target_id, work)

    async def _retrying(self, candidate: Candidate, job: Job, retry: RetryConfig, attempts: list[Attempt]) -> Committed:
        def untried() -> bool:
            return not _tried(attempts).issuperset(
                deployment.deployment_id for deployment in self._breakers.available(candidate.target)
            )

        try:
            return await self._attempt(candidate, job, attempts)
        except UpstreamError as error:
            if not _worth_another(error, untried):
                raise
            failed: list[UpstreamError] = [error]

        async def again() -> Committed:
            # tenacity is told of the first failure here, so that a request which does not fail never pays for it.
            if failed:
                raise failed.pop()
            if job.deadline.passed(self._clock()):
                raise job.deadline.exceeded()
            return await self._attempt(candidate, job, attempts)

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: _worth_another(error, untried)),
            # In this order: the budget is asked only when another try would be made.
            stop=stop_after_attempt(retry.attempts) | _NoRetryLeft(self._budget, untried),
            wait=_Backoff(),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(again)

    async def _attempt(self, candidate: Candidate, job: Job, attempts: list[Attempt]) -> Committed:
        deployment, permit = self._acquire(candidate.target, _tried(attempts))
        attempt = Attempt(job, len(attempts) + 1, candidate, deployment, permit, self._books, self._clock, self._now_us)
        attempts.append(attempt)
        stream: UpstreamStream | None = None
        whole = False
        patience: asyncio.Timeout | None = None
        try:
            await attempt.reserve()
            async with asyncio.timeout(self._patience_s(job, candidate)) as patience:
                attempt.sent = True
                stream = await self._upstream.open(self._call(attempt))
                events = await first_token(stream, attempt)
            attempt.healthy()
            if job.hold is not None:
                # A failure here is one like any other before commit: the next candidate may answer.
                stream = held = await hold(stream, attempt, events, self._hold(job, job.hold))
                whole = held.whole
        except BaseException as error:
            failure = error
            if isinstance(error, TimeoutError) and patience is not None and patience.expired():
                failure = self._late(attempt)
            elif isinstance(error, UpstreamTimeout) and job.deadline.passed(self._clock()):
                failure = job.deadline.exceeded()
            # Settled first: closing may wait or fail, and nothing of this attempt may stay open.
            if isinstance(failure, asyncio.CancelledError):
                attempt.close("caller_gone", failure, status=CALLER_GONE)
            else:
                attempt.close("failed", failure, status=error_reply(failure).status)
            if isinstance(failure, _NOT_HELD):
                # Nothing was booked, so it was no attempt: the next one, should there be one, takes its number.
                attempts.remove(attempt)
            await close_quietly(stream)
            if failure is error:
                raise
            raise failure from error
        return Committed(attempt, stream, events, whole)

    def _acquire(self, target: Target, tried: Iterable[str]) -> tuple[Deployment, Permit]:
        """A deployment that may be called now, one not tried yet if there is one."""
        waiting = list(self._breakers.available(target))
        fresh = [deployment for deployment in waiting if deployment.deployment_id not in tried]
        pool = fresh or waiting
        while pool:
            chosen = (
                self._rng.choices(pool, [deployment.weight for deployment in pool])[0] if len(pool) > 1 else pool[0]
            )
            permit = self._breakers.try_acquire(chosen.deployment_id)
            if permit is not None:
                return chosen, permit
            pool.remove(chosen)
        ejected = UpstreamUnavailable(
            f"Every deployment of {target.target_id} is ejected.", deployment_id=target.target_id
        )
        ejected.retry_same = False
        raise ejected

    def _call(self, attempt: Attempt) -> UpstreamCall:
        job = attempt.job
        return UpstreamCall(
            deployment=attempt.deployment,
            request=job.request,
            request_id=job.request_id,
            connect_timeout_s=job.timeouts.connect_s,
            idle_timeout_s=job.timeouts.idle_s,
            total_timeout_s=job.deadline.total_timeout_s(
                self._clock(), job.timeouts.total_s, stream=job.request.stream
            ),
            headers=job.upstream_headers,
        )

    def _patience_s(self, job: Job, candidate: Candidate) -> float | None:
        """A stream owes its first token; a whole answer owes its end, which the upstream's own timer watches, too.

        What is left of its tier's time is not all for one target: while another could answer, half of it is.
        """
        now = self._clock()
        if job.request.stream:
            patience_s = job.timeouts.first_token_s(job.facts.tier)
            last = job.plan.candidates[-1].target.target_id
            if candidate.target.target_id != last and not job.deadline.own:
                patience_s = min(patience_s, max(_LEAST_S, job.deadline.remaining_s(now) / 2))
            return job.deadline.first_token_timeout_s(now, patience_s)
        left_s = job.deadline.remaining_s(now)
        return None if math.isinf(left_s) else max(_LEAST_S, left_s)

    def _hold(self, job: Job, limits: Hold) -> Hold:
        """What is held back is released in time to be read, rather than ended by its deadline."""
        left_s = job.deadline.remaining_s(self._clock())
        return msgspec.structs.replace(limits, max_s=max(_LEAST_S, min(limits.max_s, left_s / 2)))

    def _late(self, attempt: Attempt) -> UpstreamError | Refused:
        """Whose fault it is. A caller's own time says nothing of the upstream; a whole answer may just be long. But a
        stream without a first token when its tier's time is up comes from an upstream that hangs, if others had not used
        up that time before.
        """
        job, patient = attempt.job, attempt.was_patient
        if job.deadline.passed(self._clock()) and (job.deadline.own or not (job.request.stream and patient)):
            return job.deadline.exceeded()
        late = FirstTokenTimeout("No first token in time.", deployment_id=attempt.deployment.deployment_id)
        late.gateway_failure = patient
        return late


def _spilled(candidate: Candidate, job: Job) -> Candidate | None:
    """A candidate behind one that was passed over; None where the team does not let its requests go there."""
    if job.caller.settings.spill_over or is_own(candidate.target, job.pools):
        return msgspec.structs.replace(candidate, reason="spill-over")
    return None


def _placed(committed: Committed, slot: Slot | None) -> Committed:
    committed.attempt.slot = slot
    return committed


def _give_back(slot: Slot | None, attempts: list[Attempt]) -> None:
    """Unless an open attempt has it, which gives it back when it is settled."""
    if slot is not None and not (attempts and attempts[-1].slot is slot):
        slot.release()


def _gravest(failure: UpstreamError | None, short: Refused | None) -> Exception:
    """What to tell: that there is no room now, because that passes by itself; else what failed."""
    if failure is not None and not isinstance(short, QueueRefusal):
        return failure
    assert short is not None  # noqa: S101  # A plan has at least one candidate.
    return short


def _tried(attempts: list[Attempt]) -> set[str]:
    return {attempt.deployment.deployment_id for attempt in attempts}


async def first_token(stream: UpstreamStream, attempt: Attempt) -> list[Event]:
    """Reads up to the first token or the reply's end, whichever comes first; a role alone is neither."""
    events: list[Event] = []
    while not (attempt.token_events or attempt.finished):
        batch = await stream.read()
        if batch is None:
            if not any(event.choices for event in events):
                raise MalformedReply("The upstream answered nothing.", deployment_id=attempt.deployment.deployment_id)
            break
        attempt.observe(batch)
        events += batch
    return events


async def close_quietly(stream: UpstreamStream | None) -> None:
    """Gives the stream back; what goes wrong there is nobody's answer any more."""
    if stream is not None:
        with contextlib.suppress(Exception):
            await stream.aclose()
