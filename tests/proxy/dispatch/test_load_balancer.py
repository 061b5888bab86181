"""The choice of a deployment, and what a pool's balancer is told of the request."""

import random
from typing import Any

import msgspec

from providers.breaker import Breakers
from providers.config import BreakerConfig
from proxy.dispatch.load_balancer import LoadBalancer
from selfhosted.replica import ReplicaRequest
from tests.proxy.contexts import a_candidate, a_routed_request
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
