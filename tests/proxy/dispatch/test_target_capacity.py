"""What is known of a target's room, from the queue before it and the engines behind it."""

import math
from typing import Any

import msgspec
import pytest

from proxy.admit.queues.queue_item import QueueWait, Slot, Work
from proxy.dispatch.target_capacity import TargetRoom
from proxy.plan.marginal_cost import Room
from selfhosted.replica import PoolRoom
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
    return TargetRoom(queues=_Queues(queue), replicas=replicas)


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
    bare = TargetRoom(queues=None, replicas=None)
    assert bare.expect(POOLED, WORK, 80, 1.0) is None
