"""The choice of a deployment, and what a pool's balancer is told of the request."""

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from providers.breaker import Breakers
from providers.config import BreakerConfig
from proxy.admit.queues.queue_item import QueueItem, QueuePermit, QueueWait
from proxy.dispatch.load_balancer import LoadBalancer, TargetRoom
from proxy.plan.marginal_cost import Room
from selfhosted.replica import PoolRoom, ReplicaRequest
from tests.proxy.contexts import a_candidate, a_routed_request
from tests.proxy.plan.test_route_plan import target
from tests.selfhosted.balance.pool import ask


class _Pool:
    """A pool that prefers no replica, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[ReplicaRequest] = []

    def ask(self, target: Any, request: Any, **told: Any) -> ReplicaRequest:
        del target, request, told
        return ask(1, 2, 3)

    def pick(self, target: Any, among: Any, request: ReplicaRequest) -> None:
        del target, among
        self.asked.append(request)


def test_the_balancer_hears_how_long_a_request_waited_in_its_queue() -> None:
    """As it decides how much a cache is worth."""
    pool = _Pool()
    given: Any = pool
    choice = LoadBalancer(Breakers(BreakerConfig(), lambda: 0.0), random.Random(1), given)
    candidate = a_candidate()
    own = msgspec.structs.replace(candidate, target=msgspec.structs.replace(candidate.target, pool="own"))
    for waited_s in (0.0, 2.5):
        choice.take(msgspec.structs.replace(own, waited_s=waited_s), a_routed_request(), ())
    assert [each.waited_s for each in pool.asked] == [0.0, 2.5]


WORK = QueueItem(team_id="a", weight=1.0, tier="interactive", priority=0, tokens=100, start_by=math.inf)
FIXED = target("fixed")
POOLED = msgspec.structs.replace(target("own"), pool="h100")


class _Queues:
    def __init__(self, wait: QueueWait | None) -> None:
        self.wait = wait

    def queue_of(self, target_id: str) -> str | None:
        return None if self.wait is None else target_id

    def expected(self, target_id: str, work: QueueItem) -> QueueWait | None:
        del target_id, work
        return self.wait

    async def enter(self, target_id: str, work: QueueItem, on_wait: Callable[[float], None]) -> QueuePermit:
        raise NotImplementedError

    def try_enter(self, target_id: str, work: QueueItem) -> QueuePermit:
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
