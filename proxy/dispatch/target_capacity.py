"""Target admission: reserves room at a target - a queue slot, free engines, and enough time before the deadline."""

import math
from typing import Protocol

from providers.target import Target
from proxy.admit.queues.queue_item import NoRoom, QueueState, QueueWait, Slot, Work
from proxy.dispatch.load_balancer import ReplicaPool
from proxy.plan.marginal_cost import Room
from proxy.plan.route_plan import Candidate
from proxy.plan.routed_request import RoutedRequest
from selfhosted.replica import PoolFullness


class QueueClient(Protocol):
    """The queues before targets, as the dispatcher sees them."""

    def queue_of(self, target_id: str) -> str | None: ...

    def expected(self, target_id: str, work: Work) -> QueueWait | None:
        """Returns the expected wait of work that would come now, and the longest; None without a queue."""
        ...

    async def enter(self, target_id: str, work: Work) -> Slot:
        """Waits for a slot. Raises NoRoom."""
        ...

    def try_enter(self, target_id: str, work: Work) -> Slot:
        """Returns a slot without waiting. Raises NoRoom."""
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
            self._replicas.turned_away(target, tokens)

    async def take(self, candidate: Candidate, routed: RoutedRequest, start_by: float, *, waits: bool) -> Slot | None:
        """Return a place at the target, after a wait until `start_by` if `waits`; None where the target has no queue.

        Raises NoRoom.
        """
        target_id = candidate.target.target_id
        if self._queues is None or self._queues.queue_of(target_id) is None:
            if candidate.target.pool is not None:
                self._check_engines(candidate.target)
            return None
        work = _work(candidate, routed, start_by)
        return await self._queues.enter(target_id, work) if waits else self._queues.try_enter(target_id, work)

    def wait_s(self, candidate: Candidate, routed: RoutedRequest) -> float | None:
        """The wait before the target; None where it has no room."""
        target = candidate.target
        if self._queues is not None and self._queues.queue_of(target.target_id) is not None:
            wait = self._queues.expected(target.target_id, _work(candidate, routed, math.inf))
            return 0.0 if wait is None else None if wait.expected_s > wait.most_s else wait.expected_s
        full = target.pool is not None and self._replicas is not None and self._replicas.crowd(target) is not None
        return None if full else 0.0

    def expect(self, target: Target, work: Work, prompt_tokens: int, aim_s: float) -> Room | None:
        """Returns the room of one of our own targets for work that would come now; None when it is not known.

        `aim_s` is what is allowed to the first token; a queue that lets nobody wait as long shortens it.
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
        """Checks that the target's pool, which has no queue, has a replica that takes work. Raises NoRoom."""
        crowd = None if self._replicas is None else self._replicas.crowd(target)
        if crowd is not None:
            raise _too_crowded(crowd)


def _work(candidate: Candidate, routed: RoutedRequest, start_by: float) -> Work:
    asked_for = routed.origin == "caller"
    return Work(
        team_id=routed.caller.team_id,
        weight=routed.caller.settings.weight,
        # What nobody asked for takes none of the room that is kept for those who wait.
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
