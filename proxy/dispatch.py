"""Dispatch: walks the plan until the first real token. After that the reply is committed.

Retries stay within one target (another deployment of it where there is one), fallbacks go on to the
next candidate, and both draw on one retry budget, so that a total outage is not multiplied.
"""

import asyncio
import contextlib
import functools
import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from accounts.caller import Caller
from cost.errors import BudgetExceeded, BudgetsUnavailable, UnpricedUnderBudget
from cost.ledger.ledger import Books
from providers.breaker import Breakers, Permit
from providers.config import RetryConfig
from providers.errors import (
    AnswerLost,
    CannotCarry,
    ConnectFailed,
    FirstTokenTimeout,
    MalformedReply,
    ReplicaSilent,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from providers.retry_budget import RetryBudget
from providers.target import Deployment, Target
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import ChatRequest, Event
from proxy.attempt import CALLER_GONE, Attempt, Lease
from proxy.engine_fields import engine_fields
from proxy.errors import DeadlineExceeded, QueueRefusal, Refused, error_reply
from proxy.held_reply import hold
from proxy.job import Hold, Job
from proxy.latency import Paces
from proxy.policy import Candidate, is_own
from proxy.queues.work import NoRoom, QueueState, Slot, Work
from selfhosted.adapters import AdapterUnavailable
from selfhosted.replica import Ask, Choice, Crowd

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0
_FEWEST = 4
"""An answer may well have a quarter of the tokens that were predicted."""
_LEAST_S = 0.001
_MOST_UNREACHED = 8
"""Replicas that one request finds dead before it goes elsewhere: where a whole machine is gone, others wait for it."""
_UNSENT = (ConnectFailed, AdapterUnavailable)
"""No upstream saw the request."""
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


class ReplicaDoor(Protocol):
    """The replicas of our pools, which are the deployments of the targets that these serve."""

    def crowd(self, target: Target) -> Crowd | None:
        """How many are there, when no replica of the target's pool takes more."""
        ...

    def ask(
        self, target: Target, request: ChatRequest, *, input_tokens: int, output_tokens: int, caller: Caller
    ) -> Ask: ...

    def pick(self, target: Target, among: Sequence[Deployment], ask: Ask) -> tuple[Deployment, Choice] | None:
        """The best of these for the request. Takes nothing."""
        ...

    def take(self, target: Target, choice: Choice, ask: Ask, request: ChatRequest, caller: Caller) -> Lease:
        """Counts the request as load of its replica, from now until the lease ends."""
        ...

    def turned_away(self, target: Target, tokens: int) -> None:
        """A request that was meant for it found no room."""
        ...

    def missing(self, target: Target, deployment: Deployment) -> None:
        """The deployment's adapter is not there, whatever was known."""
        ...

    async def prepare(self, target: Target, deployment: Deployment) -> None:
        """Loads its adapter where that is missing. Raises an UpstreamError."""
        ...


class Committed(msgspec.Struct, frozen=True):
    """An attempt whose first token came, or whose end where it was held: its open stream and the events read so far."""

    attempt: Attempt
    stream: UpstreamStream
    events: list[Event]
    whole: bool = False
    """It was held, and `events` is all of it."""


class _NoRetryLeft(stop_base):
    """Stops after so many tries, or when the budget is spent, and takes one retry from it when it is not.

    Going on to another deployment after a failed connection is free, or where an adapter is missing: no upstream saw the
    request, so nothing is multiplied, and a dead replica among healthy ones is never noticed. So is going on after a replica of ours was lost
    with all that it was working on: the more that was, the less could a budget for outages hide it.
    """

    def __init__(
        self, budget: RetryBudget, untried: Callable[[], bool], *, attempts: int, free: tuple[type[Exception], ...]
    ) -> None:
        self._budget = budget
        self._untried = untried
        self._attempts = attempts
        self._free = free

    def __call__(self, retry_state: RetryCallState) -> bool:
        if _unsent(retry_state) and self._untried():
            return retry_state.attempt_number >= max(self._attempts, _MOST_UNREACHED if AnswerLost in self._free else 0)
        if retry_state.attempt_number >= self._attempts:
            return True
        if isinstance(_failure(retry_state), self._free) and self._untried():
            return False
        return not self._budget.try_spend()


class _Backoff(wait_base):
    """Waits before an upstream that is in trouble is asked again; another one need not be waited for."""

    _patient = wait_random_exponential(multiplier=_BACKOFF_FIRST_S, max=_BACKOFF_MAX_S)

    def __init__(self, free: tuple[type[Exception], ...]) -> None:
        self._free = free

    def __call__(self, retry_state: RetryCallState) -> float:
        return 0.0 if isinstance(_failure(retry_state), self._free) else self._patient(retry_state)


def _worth_another(error: BaseException, untried: Callable[[], bool]) -> bool:
    """Whether the same target may answer: this deployment again, or one that has limits or a key of its own."""
    if isinstance(error, UpstreamRateLimited | UpstreamRefusedUs | StreamCut):
        # A stream that was cut before its first token has shown nothing, but who cut it may do so again.
        return error.retry_same or untried()
    return isinstance(error, UpstreamError) and error.retry_same


def _failure(retry_state: RetryCallState) -> BaseException | None:
    return None if retry_state.outcome is None else retry_state.outcome.exception()


def _unsent(retry_state: RetryCallState) -> bool:
    return isinstance(_failure(retry_state), _UNSENT)


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
        replicas: ReplicaDoor | None = None,
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
        self._replicas = replicas

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
                self.turned_away(candidate.target, job.facts.input_tokens + candidate.output_tokens)
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
            self._look_for_room(candidate.target)
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

    def turned_away(self, target: Target, tokens: int) -> None:
        """What would have gone to a pool and cannot: its autoscaler has to know."""
        if self._replicas is not None and target.pool is not None:
            self._replicas.turned_away(target, tokens)

    def _look_for_room(self, target: Target) -> None:
        """A pool without a queue of ours takes what its engines take. Raises NoRoom."""
        crowd = None if self._replicas is None or target.pool is None else self._replicas.crowd(target)
        if crowd is not None:
            raise _too_crowded(crowd)

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

        free = _UNSENT if candidate.target.pool is None else (*_UNSENT, AnswerLost, ReplicaSilent, StreamCut)
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: _worth_another(error, untried)),
            stop=_NoRetryLeft(self._budget, untried, attempts=retry.attempts, free=free),
            wait=_Backoff(free),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(again)

    async def _attempt(self, candidate: Candidate, job: Job, attempts: list[Attempt]) -> Committed:
        deployment, permit, lease = self._acquire(candidate, job, _tried(attempts))
        attempt = Attempt(job, len(attempts) + 1, candidate, deployment, permit, self._books, self._clock, self._now_us)
        attempt.lease = lease
        attempts.append(attempt)
        stream: UpstreamStream | None = None
        whole = False
        patience: asyncio.Timeout | None = None
        try:
            await attempt.reserve()
            async with asyncio.timeout(self._patience_s(job, candidate)) as patience:
                if lease is not None:
                    lease.when_lost = functools.partial(_give_up, patience)
                if deployment.adapter is not None and self._replicas is not None:
                    await self._replicas.prepare(candidate.target, deployment)
                attempt.sent = True
                stream = await self._upstream.open(self._call(attempt))
                events = await first_token(stream, attempt)
            attempt.healthy()
            if job.hold is not None:
                # A failure here is one like any other before commit: the next candidate may answer.
                stream = held = await hold(stream, attempt, events, self._hold(job, job.hold))
                whole = held.whole
        except BaseException as error:
            failure = self._failure_of(attempt, error, patience)
            # Settled first: closing may wait or fail, and nothing of this attempt may stay open.
            if isinstance(failure, asyncio.CancelledError):
                attempt.observe([] if stream is None else stream.unread())
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

    def _failure_of(self, attempt: Attempt, error: BaseException, patience: asyncio.Timeout | None) -> BaseException:
        """What the attempt failed with, whose fault that is, and whether another try makes sense."""
        deployment, deadline = attempt.deployment, attempt.job.deadline
        if isinstance(error, TimeoutError) and patience is not None and patience.expired():
            return _silent(attempt) or self._late(attempt)
        if isinstance(error, UpstreamError) and error.status == HTTPStatus.NOT_FOUND and deployment.adapter:
            self._adapter_missing(attempt.candidate.target, deployment, error)
        elif isinstance(error, UpstreamTimeout) and deadline.passed(self._clock()):
            return deadline.exceeded()
        return error

    def _adapter_missing(self, target: Target, deployment: Deployment, error: UpstreamError) -> None:
        """Another one took its place meanwhile; it is loaded again before the next try."""
        error.retry_same = True
        if self._replicas is not None:
            self._replicas.missing(target, deployment)

    def _acquire(
        self, candidate: Candidate, job: Job, tried: Collection[str]
    ) -> tuple[Deployment, Permit, Lease | None]:
        """A deployment that may be called now, one not tried yet if there is one."""
        target = candidate.target
        waiting = list(self._breakers.available(target))
        fresh = [deployment for deployment in waiting if deployment.deployment_id not in tried] if tried else waiting
        pool = fresh or waiting
        ask = self._ask(candidate, job) if pool and target.pool is not None else None
        while pool:
            chosen, choice = self._chosen(target, pool, ask)
            permit = self._breakers.try_acquire(chosen.deployment_id)
            if permit is not None:
                if self._replicas is None or ask is None or choice is None:
                    return chosen, permit, None
                return chosen, permit, self._replicas.take(target, choice, ask, job.request, job.caller)
            pool.remove(chosen)
        ejected = UpstreamUnavailable(
            f"Every deployment of {target.target_id} is ejected.", deployment_id=target.target_id
        )
        ejected.retry_same = False
        raise ejected

    def _ask(self, candidate: Candidate, job: Job) -> Ask | None:
        if self._replicas is None:
            return None
        return self._replicas.ask(
            candidate.target,
            job.request,
            input_tokens=job.facts.input_tokens,
            output_tokens=candidate.output_tokens,
            caller=job.caller,
        )

    def _chosen(self, target: Target, pool: list[Deployment], ask: Ask | None) -> tuple[Deployment, Choice | None]:
        if len(pool) == 1 and ask is None:
            return pool[0], None
        if ask is not None and self._replicas is not None:
            found = self._replicas.pick(target, pool, ask)
            if found is not None:
                return found
        return self._rng.choices(pool, [deployment.weight for deployment in pool])[0], None

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
            engine_fields=engine_fields(attempt.deployment, job),
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
        # What was not sent yet waited for us: for its adapter.
        late.gateway_failure = patient and attempt.sent
        return late


def _give_up(patience: asyncio.Timeout) -> None:
    """Nothing more can come. It may have been given up already, a moment ago."""
    if not patience.expired():
        patience.reschedule(asyncio.get_running_loop().time())


def _silent(attempt: Attempt) -> ReplicaSilent | None:
    if attempt.lease is None or not attempt.lease.lost:
        return None
    return ReplicaSilent("The upstream stopped answering.", deployment_id=attempt.deployment.deployment_id)


def _spilled(candidate: Candidate, job: Job) -> Candidate | None:
    """A candidate behind one that was passed over; None where the team does not let its requests go there."""
    if job.caller.settings.spill_over or is_own(candidate.target, job.pools):
        return msgspec.structs.replace(candidate, reason="spill-over")
    return None


def _too_crowded(crowd: Crowd) -> NoRoom:
    state = QueueState(
        name=crowd.pool,
        waiting=crowd.waiting,
        waiting_tokens=0,
        in_flight=crowd.running,
        in_flight_tokens=0,
        capacity_tokens=crowd.kv_tokens,
        predicted_wait_s=crowd.retry_after_s,
    )
    return NoRoom(
        f"Every replica of the pool `{crowd.pool}` is full: {crowd.running} requests run there and {crowd.waiting} wait. "
        f"Try again in {crowd.retry_after_s:.1f} s, or name another model.",
        "full",
        state,
        retry_after_s=crowd.retry_after_s,
    )


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
