"""Whether a target has room for a request: a place in its queue, its engines' own room, and time enough."""

from collections.abc import Callable
from typing import Final, Protocol

from providers.target import Target
from proxy.deployment_choice import ReplicaDoor
from proxy.latency import LatencyTracker
from proxy.policy import Candidate
from proxy.queues.work import NoRoom, QueueState, Slot, Work
from proxy.routed_request import RoutedRequest
from selfhosted.replica import PoolFullness

_FEWEST: Final = 4
"""An answer may well have a quarter of the tokens that were predicted."""


class QueueDoor(Protocol):
    """The queues before targets that are short."""

    def queue_of(self, target_id: str) -> str | None: ...

    async def enter(self, target_id: str, work: Work) -> Slot:
        """A place, after a wait. Raises NoRoom."""
        ...

    def try_enter(self, target_id: str, work: Work) -> Slot:
        """A place at once, or none. Raises NoRoom."""
        ...


class TargetRoom:
    """Every target's room, as this process knows it. Without queues and pools there is always some."""

    def __init__(
        self,
        *,
        queues: QueueDoor | None,
        replicas: ReplicaDoor | None,
        latency: LatencyTracker | None,
        clock: Callable[[], float],
    ) -> None:
        self._queues = queues
        self._replicas = replicas
        self._latency = latency
        self._clock = clock

    async def take(self, candidate: Candidate, routed: RoutedRequest, *, waits: bool) -> Slot | None:
        """A place at the target, after a wait where there is a queue; None where nobody counts places.

        Raises NoRoom, or DeadlineExceeded for what the target cannot do in time.
        """
        target_id, stream, now = candidate.target.target_id, routed.request.stream, self._clock()
        expected = None if self._latency is None else self._latency.expect(target_id, routed.facts.tier)
        # A prediction is a median: what cannot be done is judged by far less.
        fewest = max(1, candidate.output_tokens // _FEWEST) if routed.prediction is not None else 1
        if routed.deadline.cannot_make_it(now, expected, fewest, stream=stream):
            raise routed.deadline.unreachable(target_id)
        if self._queues is None or self._queues.queue_of(target_id) is None:
            self._look_at_engines(candidate.target)
            return None
        settings, asked_for = routed.caller.settings, routed.origin == "caller"
        work = Work(
            team_id=routed.caller.team_id,
            weight=settings.weight,
            # What nobody asked for takes none of the room that is kept for those who wait.
            tier=routed.facts.tier if asked_for else "batch",
            priority=routed.request.priority if asked_for else -1,
            tokens=routed.facts.input_tokens + candidate.output_tokens,
            start_by=routed.deadline.start_by(now, expected, fewest, stream=stream),
        )
        return await self._queues.enter(target_id, work) if waits else self._queues.try_enter(target_id, work)

    def _look_at_engines(self, target: Target) -> None:
        """A pool without a queue of ours takes what its engines take. Raises NoRoom."""
        crowd = None if self._replicas is None or target.pool is None else self._replicas.crowd(target)
        if crowd is not None:
            raise _too_crowded(crowd)


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
