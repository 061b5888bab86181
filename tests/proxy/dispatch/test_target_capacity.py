"""What is known of a target's room, from the queue before it and the engines behind it."""

import math
from typing import Any

import msgspec
import pytest

from accounts.caller import TeamSettings
from providers.target import Target
from proxy.admit.queues.queue_item import QueueWait, Slot, Work
from proxy.dispatch.target_capacity import TargetRoom
from proxy.errors import DeadlineExceeded
from proxy.plan.marginal_cost import Room
from proxy.plan.route_plan import RoutePlan
from proxy.plan.routed_request import RoutedRequest
from proxy.shared.deadline import Deadline
from proxy.shared.target_latency import LatencyTracker
from selfhosted.replica import PoolRoom
from tests.providers.calls import chat_request
from tests.proxy.contexts import ALICE, a_candidate, a_routed_request
from tests.proxy.plan.test_route_plan import target

WORK = Work(team_id="a", weight=1.0, tier="interactive", priority=0, tokens=100, start_by=math.inf)
FIXED = target("fixed")
POOLED = msgspec.structs.replace(target("own"), pool="h100")


class _Queues:
    def __init__(self, wait: QueueWait | None) -> None:
        self.wait = wait

    def queue_of(self, target_id: str) -> str | None:
        return None if self.wait is None else target_id

    def expected(self, target_id: str, work: Work) -> QueueWait | None:
        del target_id, work
        return self.wait

    async def enter(self, target_id: str, work: Work) -> Slot:
        raise NotImplementedError

    def try_enter(self, target_id: str, work: Work) -> Slot:
        raise NotImplementedError


class _Replicas:
    def __init__(self, room: PoolRoom | None) -> None:
        self.room = room

    def free(self, target: Any, tokens: int) -> PoolRoom | None:
        del target, tokens
        return self.room


def room(queue: QueueWait | None, engines: PoolRoom | None) -> TargetRoom:
    replicas: Any = _Replicas(engines)
    return TargetRoom(queues=_Queues(queue), replicas=replicas, latency=None, clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("queue", "engines", "expected"),
    [
        (None, PoolRoom(0.2, 0.9), Room(0.2, 1.0, 0.9)),
        (QueueWait(0.3, 10.0), PoolRoom(0.2, 0.9), Room(0.5, 1.0)),
        (QueueWait(0.3, 0.5), PoolRoom(0.2, 0.9), Room(0.5, 0.5)),
        (QueueWait(0.3, 10.0), None, None),
        (None, None, None),
    ],
)
def test_a_pools_room_is_the_wait_in_both(
    queue: QueueWait | None, engines: PoolRoom | None, expected: Room | None
) -> None:
    """Queue and engines add up, the shorter patience counts, and a pool that nobody knows of has no known room."""
    assert room(queue, engines).expect(POOLED, WORK, 80, 1.0) == expected


def test_a_fixed_address_is_known_by_its_queue_alone() -> None:
    """No queue, no wait that anybody could know."""
    assert room(QueueWait(0.3, 10.0), None).expect(FIXED, WORK, 80, 1.0) == Room(0.3, 1.0)
    assert room(None, PoolRoom(0.0, 0.0)).expect(FIXED, WORK, 80, 1.0) is None
    bare = TargetRoom(queues=None, replicas=None, latency=None, clock=lambda: 0.0)
    assert bare.expect(POOLED, WORK, 80, 1.0) is None


class _Crowd(_Replicas):
    """The pools of these targets are full."""

    def __init__(self, *full: str) -> None:
        super().__init__(None)
        self.full = full

    def crowd(self, target: Target) -> object:
        return object() if target.target_id in self.full else None


def kept_room(
    latency: LatencyTracker | None = None, *, ill: tuple[str, ...] = (), full: tuple[str, ...] = ()
) -> TargetRoom:
    replicas: Any = _Crowd(*full)
    return TargetRoom(
        queues=None,
        replicas=replicas,
        latency=latency,
        clock=lambda: 0.0,
        healthy=lambda target, _caller: target.target_id not in ill,
    )


def late(*names: str, left_s: float = 10.0, stream: bool = True, spill_over: bool = True) -> RoutedRequest:
    """A request with these candidates and so much time; the first one is our own, and those called `pool-…` are, too."""
    candidates = tuple(a_candidate(name) for name in names)
    candidates = tuple(
        msgspec.structs.replace(each, target=msgspec.structs.replace(each.target, pool="h100"))
        if each.target.target_id.startswith("pool-")
        else each
        for each in candidates
    )
    return a_routed_request(
        plan=RoutePlan(candidates=candidates, rejected=()),
        request=chat_request(stream=stream),
        deadline=Deadline(arrived_at=0.0, first_token_at=1.0, answer_at=left_s, own=True),
        caller=msgspec.structs.replace(ALICE, settings=TeamSettings(spill_over=spill_over)),
        pools={name: "h100" for name in names if name.startswith("pool-") or name == names[0]},
    )


@pytest.mark.parametrize(
    ("ill", "full", "spill_over", "waits_s"),
    [
        ((), (), True, 7.5),
        # Who comes after it is slower: 3 s, twice, but half of the time at most.
        (("fast",), (), True, 5.0),
        (("fast", "pool-b"), (), True, 10.0),
        (("fast",), ("pool-b",), True, 10.0),
        ((), (), False, 5.0),
        (("pool-b",), (), False, 10.0),
        ((), ("pool-b",), False, 10.0),
    ],
)
def test_time_is_kept_for_who_is_healthy_has_room_and_may_be_paid_for(
    ill: tuple[str, ...], full: tuple[str, ...], *, spill_over: bool, waits_s: float
) -> None:
    """For the least demanding of them; where nobody is, the target has all of the time."""
    latency = LatencyTracker(lambda: 0.0)
    for _ in range(8):
        latency.observe("fast", 1.0, 0.01)
        latency.observe("pool-b", 3.0, 0.01)
    routed = late("own", "fast", "pool-b", spill_over=spill_over)
    found = kept_room(latency, ill=ill, full=full).patience_s(routed.plan.candidates[0], routed, 0.0, 0.0, False)
    assert found == waits_s


@pytest.mark.parametrize(
    ("stream", "own_s", "next_s", "left_s", "asked"),
    [
        (True, 6.0, 1.0, 10.0, True),
        (True, 9.0, 1.0, 10.0, False),
        (True, 9.0, None, 10.0, False),
        (True, 9.0, 1.0, 60.0, True),
        # Nobody is faster.
        (True, 9.0, 9.5, 10.0, True),
        (True, None, 1.0, 10.0, True),
        (False, 6.0, 1.0, 10.0, True),
        (False, 9.0, 1.0, 10.0, True),
        (False, 9.9, 1.0, 10.0, False),
        (False, 9.9, None, 10.0, False),
        (False, 9.9, 9.95, 10.0, True),
        (False, None, 1.0, 10.0, True),
    ],
)
async def test_who_usually_takes_too_long_is_passed_over_for_a_faster_one(
    own_s: float | None, next_s: float | None, left_s: float, *, stream: bool, asked: bool
) -> None:
    """From the start; a whole answer only where it usually takes all of the time."""
    latency = LatencyTracker(lambda: 0.0)
    for name, usual_s in (("own", own_s), ("next", next_s)):
        for _ in range(8):
            if usual_s is not None and stream:
                latency.observe(name, usual_s, 0.0)
            elif usual_s is not None:
                latency.observe_whole(name, usual_s)
    routed = late("own", "next", left_s=left_s, stream=stream)
    taking = kept_room(latency).take(routed.plan.candidates[0], routed, waits=True)
    if asked:
        assert await taking is None
    else:
        with pytest.raises(DeadlineExceeded):
            await taking
