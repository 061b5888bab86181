"""Room at targets, and the deployment for an attempt: queues, own pools by their load, and breakers."""

import math
import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from accounts.caller import Caller
from providers.breaker import LIMIT, Absence, Breakers, Permit, name_of
from providers.errors import UpstreamError, UpstreamRateLimited, UpstreamUnavailable
from providers.target import Deployment, Target
from providers.wire import ChatRequest
from proxy.admit.queues.queue_item import NoRoom, QueueItem, QueuePermit, QueueState, QueueWait
from proxy.plan.marginal_cost import Room
from proxy.plan.route_plan import Candidate
from proxy.plan.routed_request import RoutedRequest
from selfhosted.engines.continuation import goes_on
from selfhosted.pools.fleet import ReadResult
from selfhosted.pools.pool import Reader, ReadingAhead
from selfhosted.replica import PoolFullness, PoolRoom, ReplicaChoice, ReplicaRequest


class LoadTracker(Protocol):
    """The share of one attempt in a replica's load, counted from `take` until `end`."""

    when_lost: Callable[[], None] | None
    """The callback for the moment the replica is found dead before its first token."""

    @property
    def version(self) -> str:
        """The model's version that the replica runs; empty when it is not known."""
        ...

    @property
    def other_version(self) -> bool:
        """True when a rollout meant another version for the conversation, which no replica could serve."""
        ...

    @property
    def lost(self) -> bool: ...

    def first_token(self) -> None:
        """Mark the prompt as computed, and cached, on the replica."""
        ...

    def postponed(self) -> None:
        """Note that the replica is asked later: until then its silence tells nothing about it."""
        ...

    def asked(self) -> None:
        """Note that the postponed request is sent to the replica now."""
        ...

    def watch(self, when_down: Callable[[], None]) -> None:
        """Call `when_down` if the replica is found dead before the load ends."""
        ...

    def end(
        self,
        *,
        failed: bool | None,
        silent: bool = False,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
        tpot_s: float | None = None,
    ) -> None:
        """End the load; called once. `failed` is True when the replica failed, None when that is unknown; `silent`
        marks a failure that was only a missing answer. The token counts are the engine's own, None when it reported
        none.
        """
        ...


class ReplicaPool(Protocol):
    """The replicas of our own pools, as the dispatcher sees them. A replica is a deployment of the targets it serves."""

    def crowd(self, target: Target) -> PoolFullness | None:
        """Return the pool's fullness when no replica of the target takes more work, else None."""
        ...

    def free(self, target: Target, tokens: int) -> PoolRoom | None:
        """Return the pool's room for one more request with a prompt of `tokens`; None when it is not known."""
        ...

    def starts_in_s(self, target: Target) -> float | None:
        """Return the seconds after which a replica may be there, where none takes requests; None where that is not
        known.
        """
        ...

    def ask(
        self, target: Target, request: ChatRequest, *, input_tokens: int, output_tokens: int, caller: Caller
    ) -> ReplicaRequest: ...

    def pick(
        self, target: Target, among: Sequence[Deployment], ask: ReplicaRequest
    ) -> tuple[Deployment, ReplicaChoice] | None:
        """Return the best of these deployments for the request, or None without a reason to prefer one. Reserves
        nothing.
        """
        ...

    def take(
        self, target: Target, choice: ReplicaChoice, ask: ReplicaRequest, request: ChatRequest, caller: Caller
    ) -> LoadTracker:
        """Count the request as load of the chosen replica until the returned load ends."""
        ...

    def reader(self, target: Target, load: LoadTracker, tried: Collection[str]) -> Reader | None:
        """Return a replica that reads the prompt for the one of the load, none of those tried before (by their
        names), counted as load there; None where that one should read it itself.
        """
        ...

    def ahead(self, target: Target, load: LoadTracker) -> ReadingAhead | None:
        """Return the plan for reading the prompt of the load's request in pieces before the request; None where it is
        read as one.
        """
        ...

    def read(self, target: Target, result: ReadResult) -> None:
        """Count the result of asking such a replica."""
        ...

    def record_overflow(self, target: Target, tokens: int) -> None:
        """Report demand of `tokens` that found no room, for the autoscaler."""
        ...

    def missing(self, target: Target, deployment: Deployment) -> None:
        """Record that the deployment's LoRA adapter is not loaded, against earlier knowledge."""
        ...

    async def prepare(self, target: Target, deployment: Deployment) -> None:
        """Load the deployment's LoRA adapter if it is missing. Raises an UpstreamError."""
        ...


class LoadBalancer:
    """Chooses by replica load in our own pools, and by weighted random choice elsewhere."""

    def __init__(self, breakers: Breakers, rng: random.Random, replicas: ReplicaPool | None) -> None:
        self._breakers = breakers
        self._rng = rng
        self.replicas = replicas

    def has_untried(self, target: Target, caller: Caller, tried: Collection[str]) -> bool:
        """Return True when the target has a deployment that may be called now, and that this request has not tried."""
        return any(each.deployment_id not in tried for each in self._breakers.available(target, caller.scope))

    def has_healthy(self, target: Target, caller: Caller, tried: Collection[str]) -> bool:
        """Return True when one of those is not known to fail."""
        scope = caller.scope
        return any(
            each.deployment_id not in tried and not self._breakers.is_failing(each.deployment_id, scope)
            for each in self._breakers.available(target, scope)
        )

    def take(
        self, candidate: Candidate, routed: RoutedRequest, tried: Collection[str]
    ) -> tuple[Deployment, Permit, LoadTracker | None]:
        """Take a deployment that may be called now, preferring those not in `tried`: with its breaker's permit, and with a load
        where it is a replica chosen by load. Raises UpstreamRateLimited or UpstreamUnavailable when none may be called.
        """
        target, scope = candidate.target, routed.caller.scope
        pool: Sequence[Deployment] = self._breakers.available(target, scope)
        if routed.before is not None:
            pool = [each for each in pool if goes_on(each, routed.request)]
        if tried:
            pool = [each for each in pool if each.deployment_id not in tried] or pool
        name, tokens = name_of(target), routed.facts.input_tokens + candidate.output_tokens
        ask = self._replica_request(candidate, routed) if pool and target.pool is not None else None
        while pool:
            deployment, choice = self._pick(target, pool, ask)
            permit = self._breakers.try_acquire(deployment.deployment_id, scope, tried=tried, name=name, tokens=tokens)
            if permit is not None:
                if self.replicas is None or ask is None or choice is None:
                    return deployment, permit, None
                return deployment, permit, self.replicas.take(target, choice, ask, routed.request, routed.caller)
            # A half-open breaker lets one probe through, and another request is that.
            pool = [each for each in pool if each is not deployment]
        raise _none_left(target, self._breakers.absence(target, scope))

    def _replica_request(self, candidate: Candidate, routed: RoutedRequest) -> ReplicaRequest | None:
        if self.replicas is None:
            return None
        ask = self.replicas.ask(
            candidate.target,
            routed.request,
            input_tokens=routed.facts.input_tokens,
            output_tokens=candidate.output_tokens,
            caller=routed.caller,
        )
        if routed.before is None and not candidate.waited_s:
            return ask
        version = "" if routed.before is None else routed.before.version
        return msgspec.structs.replace(ask, version=version, waited_s=candidate.waited_s)

    def _pick(
        self, target: Target, pool: Sequence[Deployment], ask: ReplicaRequest | None
    ) -> tuple[Deployment, ReplicaChoice | None]:
        if len(pool) == 1 and ask is None:
            return pool[0], None
        if ask is not None and self.replicas is not None:
            found = self.replicas.pick(target, pool, ask)
            if found is not None:
                return found
        return self._rng.choices(pool, [deployment.weight for deployment in pool])[0], None


def _none_left(target: Target, absence: Absence | None) -> UpstreamError:
    """Return the error of a target without a callable deployment since the request was planned."""
    if absence is not None and absence.owner == "pace":
        whose = "What may be sent there in a minute" if absence.reason == LIMIT else "The provider's rate limit"
        return UpstreamRateLimited(
            f"{whose} is reached.", deployment_id=target.target_id, retry_after_s=absence.again_s
        )
    ejected = UpstreamUnavailable(f"Every deployment of {target.target_id} is ejected.", deployment_id=target.target_id)
    ejected.retry_same = False
    return ejected


class QueueClient(Protocol):
    """The queues before targets, as the dispatcher sees them."""

    def queue_of(self, target_id: str) -> str | None: ...

    def expected(self, target_id: str, work: QueueItem) -> QueueWait | None:
        """Return the expected wait of work that would come now, and the longest; None without a queue."""
        ...

    async def enter(self, target_id: str, work: QueueItem, on_wait: Callable[[float], None]) -> QueuePermit:
        """Wait for a permit; `on_wait` is called with the seconds, however the wait ended. Raises NoRoom."""
        ...

    def try_enter(self, target_id: str, work: QueueItem) -> QueuePermit:
        """Return a permit without waiting. Raises NoRoom."""
        ...


class TargetRoom:
    """The room of every target, as this process knows it. Unlimited without queues and pools."""

    def __init__(self, *, queues: QueueClient | None, replicas: ReplicaPool | None) -> None:
        self._queues = queues
        self._replicas = replicas

    def starts_in_s(self, target: Target) -> float | None:
        """Seconds after which a replica of the target's pool may be there, where none takes requests; None where that is not known."""
        return None if self._replicas is None or target.pool is None else self._replicas.starts_in_s(target)

    def record_overflow(self, target: Target, tokens: int) -> None:
        """Report to a pool's autoscaler demand of `tokens` that could not be placed there."""
        if self._replicas is not None and target.pool is not None:
            self._replicas.record_overflow(target, tokens)

    async def take(
        self,
        candidate: Candidate,
        routed: RoutedRequest,
        start_by: float,
        on_wait: Callable[[float], None] | None,
    ) -> QueuePermit | None:
        """Take a place at the target; None where the target has no queue. It is waited for until `start_by`, and `on_wait` is called
        with the seconds waited; without `on_wait` nothing waits. Raises NoRoom.
        """
        target_id = candidate.target.target_id
        if self._queues is None or self._queues.queue_of(target_id) is None:
            if candidate.target.pool is not None:
                self._check_engines(candidate.target)
            return None
        work = _work(candidate, routed, start_by)
        if on_wait is None:
            return self._queues.try_enter(target_id, work)
        return await self._queues.enter(target_id, work, on_wait)

    def wait_s(self, candidate: Candidate, routed: RoutedRequest) -> float | None:
        """Return the wait before the target; None where it has no room."""
        target = candidate.target
        if self._queues is not None and self._queues.queue_of(target.target_id) is not None:
            wait = self._queues.expected(target.target_id, _work(candidate, routed, math.inf))
            return 0.0 if wait is None else None if wait.expected_s > wait.most_s else wait.expected_s
        full = target.pool is not None and self._replicas is not None and self._replicas.crowd(target) is not None
        return None if full else 0.0

    def expect(self, target: Target, work: QueueItem, prompt_tokens: int, aim_s: float) -> Room | None:
        """Return the room of one of our own targets for work that would come now; None when it is not known. `aim_s`
        are the seconds allowed to the first token; a queue with a shorter longest wait shortens it.
        """
        queue = None if self._queues is None else self._queues.expected(target.target_id, work)
        engines = None
        if target.pool is not None:
            engines = None if self._replicas is None else self._replicas.free(target, prompt_tokens)
            if engines is None:
                return None
        if queue is None:
            return None if engines is None else Room(engines.wait_s, aim_s, engines.fill)
        # In front of a queue a full pool is no wall: its capacity shrinks, and what waits for it is in the wait.
        return Room(queue.expected_s + (0.0 if engines is None else engines.wait_s), min(aim_s, queue.most_s))

    def _check_engines(self, target: Target) -> None:
        """Check that the target's pool, which has no queue, has a replica that takes work. Raises NoRoom."""
        crowd = None if self._replicas is None else self._replicas.crowd(target)
        if crowd is not None:
            raise _too_crowded(crowd)


def _work(candidate: Candidate, routed: RoutedRequest, start_by: float) -> QueueItem:
    asked_for = routed.origin == "caller"
    return QueueItem(
        team_id=routed.caller.team_id,
        weight=routed.caller.settings.weight,
        # The gateway's own requests take none of the room that is kept for interactive callers.
        tier=routed.facts.tier if asked_for else "batch",
        priority=routed.request.priority if asked_for else -1,
        tokens=routed.facts.input_tokens + candidate.output_tokens,
        start_by=start_by,
    )


def _too_crowded(crowd: PoolFullness) -> NoRoom:
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
