"""Target admission: reserves room at a target - a queue slot, free engines, and enough time before the deadline."""

import math
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from accounts.caller import Caller
from providers.target import Target, Tier
from proxy.admit.queues.queue_item import NoRoom, QueueState, QueueWait, Slot, Work
from proxy.dispatch.attempt_timeout import needed_s, patience_s, window_s
from proxy.dispatch.load_balancer import ReplicaPool
from proxy.plan.marginal_cost import Room
from proxy.plan.route_plan import Candidate, is_own
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.target_latency import LatencyTracker, TargetLatency
from selfhosted.replica import PoolFullness

_TOKEN_S: Final = 0.03
"""Seconds that a token of a whole answer is taken to need where nothing is known of the target."""
_HARDLY: Final = 0.95
"""The part of a target's time from which on it hardly is in time. Those who waited in vain had a hair less than all of it."""
_LEAST_PART: Final = 1 / 8
"""The part of a target's time that must be left for another try there."""
_FEWEST: Final = 4
"""The divisor of the predicted answer tokens that gives a safe lower bound: an answer may well have a quarter of them.
"""


TryLimit = Callable[[Candidate, RoutedRequest, float, float, bool], float | None]
"""`TargetRoom.soonest_s` or `TargetRoom.patience_s`."""


class QueueDoor(Protocol):
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

    def __init__(
        self,
        *,
        queues: QueueDoor | None,
        replicas: ReplicaPool | None,
        latency: LatencyTracker | None,
        clock: Callable[[], float],
        healthy: Callable[[Target, Caller], bool] = lambda _target, _caller: True,
    ) -> None:
        """`healthy` tells whether the target has a deployment that may be called now and is not known to fail."""
        self._queues = queues
        self._replicas = replicas
        self._latency = latency
        self._clock = clock
        self._healthy = healthy

    def starts_in_s(self, target: Target) -> float | None:
        """Seconds after which a replica of the target's pool may be there, where none takes requests; None where that is not known."""
        return None if self._replicas is None or target.pool is None else self._replicas.starts_in_s(target)

    def record_overflow(self, target: Target, tokens: int) -> None:
        """Report to a pool's autoscaler demand of `tokens` that could not be placed there."""
        if self._replicas is not None and target.pool is not None:
            self._replicas.turned_away(target, tokens)

    async def take(self, candidate: Candidate, routed: RoutedRequest, *, waits: bool) -> Slot | None:
        """Returns a slot at the target, after a wait if `waits`; None where the target has no queue.

        Raises NoRoom, or DeadlineExceeded for what the target cannot do in time, or usually does not where another candidate
        may.
        """
        target_id, stream, now = candidate.target.target_id, routed.request.stream, self._clock()
        expected = self.usual(candidate.target, routed.facts.tier)
        # A prediction is a median: what cannot be done is judged by far less.
        fewest = max(1, candidate.output_tokens // _FEWEST) if routed.prediction is not None else 1
        if routed.deadline.cannot_make_it(now, expected, fewest, stream=stream) or self._is_too_slow(
            candidate, routed, now
        ):
            raise routed.deadline.unreachable(target_id)
        if self._queues is None or self._queues.queue_of(target_id) is None:
            if candidate.target.pool is not None:
                self._check_engines(candidate.target)
            return None
        work = _work(candidate, routed, routed.deadline.start_by(now, expected, fewest, stream=stream))
        return await self._queues.enter(target_id, work) if waits else self._queues.try_enter(target_id, work)

    def first_look_s(self, routed: RoutedRequest) -> float | None:
        """Returns after how many seconds a request's first attempt may be late at the soonest; None for never. At least half of the
        time is its target's, and half of that its deployment's.
        """
        left_s = routed.deadline.remaining_s(self._clock()) / 4
        if routed.request.stream:
            left_s = min(left_s, routed.timeouts.first_token_s(routed.facts.tier))
        return None if math.isinf(left_s) else left_s

    def soonest_s(
        self, candidate: Candidate, routed: RoutedRequest, began_at: float, started_at: float, again: bool
    ) -> float | None:
        """Returns after how many seconds a try at the candidate may be late at the soonest, whoever else may answer then; None
        where nobody may. See `patience_s`.
        """
        left_s = routed.deadline.remaining_s(began_at)
        last = routed.plan.candidates[-1].target.target_id == candidate.target.target_id
        return self._patience_s(candidate, routed, began_at, started_at, None if last else left_s / 2, again)

    def patience_s(
        self, candidate: Candidate, routed: RoutedRequest, began_at: float, started_at: float, again: bool
    ) -> float | None:
        """Returns for how many seconds a try at the candidate is waited for, by who else may answer now; None for no limit.

        It `started_at`, the first one at the candidate `began_at`; `again` tells that another deployment of it may be tried
        after it.
        """
        kept_s = self._kept_s(candidate, routed, routed.deadline.remaining_s(began_at))
        return self._patience_s(candidate, routed, began_at, started_at, kept_s, again)

    def _patience_s(
        self,
        candidate: Candidate,
        routed: RoutedRequest,
        began_at: float,
        started_at: float,
        kept_s: float | None,
        again: bool,
    ) -> float | None:
        stream, usual_s = routed.request.stream, self._usually_s(candidate, routed)
        return patience_s(
            window_s(routed.deadline.remaining_s(began_at), usual_s, kept_s, stream=stream),
            started_at - began_at,
            usual_s,
            routed.timeouts.first_token_s(routed.facts.tier),
            stream=stream,
            others=kept_s is not None,
            again=again,
        )

    def is_time_up(self, candidate: Candidate, routed: RoutedRequest, began_at: float) -> bool:
        """Returns True when too little is left for another try at the candidate, as the rest is kept for others."""
        left_s = routed.deadline.remaining_s(began_at)
        kept_s = self._kept_s(candidate, routed, left_s)
        window = window_s(left_s, self._usually_s(candidate, routed), kept_s, stream=routed.request.stream)
        return kept_s is not None and window - (self._clock() - began_at) < _LEAST_PART * window

    def _is_too_slow(self, candidate: Candidate, routed: RoutedRequest, now: float) -> bool:
        """True when the target is known to take longer than the time that it would have, and a faster one may answer."""
        left_s, known_s = routed.deadline.remaining_s(now), self._known_s(candidate, routed)
        if known_s is None or known_s < left_s / 2 * _HARDLY:
            # Others are left no more than that.
            return False
        kept_s = self._kept_s(candidate, routed, left_s, faster_than_s=known_s)
        usual_s, stream = self._usually_s(candidate, routed), routed.request.stream
        return kept_s is not None and known_s >= window_s(left_s, usual_s, kept_s, stream=stream) * _HARDLY

    def _kept_s(
        self, candidate: Candidate, routed: RoutedRequest, left_s: float, *, faster_than_s: float = math.inf
    ) -> float | None:
        """Returns the seconds that are kept for the least demanding of those who may answer after the candidate; None where
        nobody may.
        """
        kept_s: float | None = None
        for each in _after(candidate, routed):
            known_s, wait_s = self._known_s(each, routed), self._wait_s(each, routed)
            if wait_s is None or (known_s is not None and wait_s + known_s >= min(left_s, faster_than_s)):
                continue
            if self._healthy(each.target, routed.caller):
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

    def _wait_s(self, candidate: Candidate, routed: RoutedRequest) -> float | None:
        """The wait before the target; None where it has no room."""
        target = candidate.target
        if self._queues is not None and self._queues.queue_of(target.target_id) is not None:
            wait = self._queues.expected(target.target_id, _work(candidate, routed, math.inf))
            return 0.0 if wait is None else None if wait.expected_s > wait.most_s else wait.expected_s
        full = target.pool is not None and self._replicas is not None and self._replicas.crowd(target) is not None
        return None if full else 0.0

    def usual(self, target: Target, tier: Tier) -> TargetLatency | None:
        """Returns the target's latency of late; None where this process has not seen enough of it."""
        return None if self._latency is None else self._latency.expect(target.target_id, tier)

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


def _after(candidate: Candidate, routed: RoutedRequest) -> Iterator[Candidate]:
    """Yields who may be asked in the candidate's place when it is late, whom a team pays for only where its requests may overflow."""
    following = iter(routed.plan.candidates)
    target_id = candidate.target.target_id
    if not any(each.target.target_id == target_id for each in following):
        return
    pays = routed.caller.settings.spill_over or not is_own(candidate.target, routed.pools)
    yield from (each for each in following if pays or is_own(each.target, routed.pools))


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
