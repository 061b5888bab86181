"""Baseline policies to compare with: round-robin, least-loaded, the best of two random choices, consistent hashing."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from selfhosted.balance.balancer import Balancer, cached_tokens
from selfhosted.balance.load import Load
from selfhosted.config import BalanceConfig, RoomConfig
from selfhosted.replica import ReplicaChoice, ReplicaRequest


class _CacheBlind(Balancer):
    """Base of the policies that ignore what is cached, with the same bookkeeping as the balancer."""

    def choose(self, ask: ReplicaRequest, candidates: Sequence[Load], now: float) -> ReplicaChoice:
        del now
        load = self._select(ask, candidates)
        blocks = self.index.depths(ask.blocks).get(load.name, 0)
        return ReplicaChoice(
            replica=load.name,
            why="load" if len(candidates) > 1 else "only",
            matched_tokens=cached_tokens(ask, blocks),
        )

    def _select(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        raise NotImplementedError


class RoundRobin(_CacheBlind):
    """The policy that sends requests to the replicas in turn."""

    _last = -1

    def _select(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        del ask
        self._last += 1
        return candidates[self._last % len(candidates)]


class LeastLoaded(_CacheBlind):
    """The policy that sends a request to the replica with the fewest in flight, a random one among equals."""

    def _select(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        del ask
        least = min(load.in_flight for load in candidates)
        return self.rng.choice([load for load in candidates if load.in_flight == least])


class RandomTwo(_CacheBlind):
    """The policy that draws two replicas and sends the request to the one with fewer in flight."""

    def _select(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        del ask
        drawn = self.rng.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=lambda load: load.in_flight)


class ConsistentHash(_CacheBlind):
    """Consistent hashing with bounded loads: the first replica along the conversation's ring that would not have more
    than `load_bound` times the mean of the requests in flight, this one counted (Mirrokni, Thorup, Zadimoghaddam).
    """

    def _select(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        by_name = {load.name: load for load in candidates}
        total = sum(load.in_flight for load in candidates) + 1
        most = math.ceil(self.config.load_bound * total / len(candidates))
        homes = [by_name[name] for name in self.ring.walk(ask.root) if name in by_name]
        return next((load for load in homes if load.in_flight < most), homes[0])


POLICIES: Final[dict[str, Callable[..., Balancer]]] = {
    "prefix": Balancer,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
    "random-two": RandomTwo,
    "consistent-hash": ConsistentHash,
}


def policy_of(name: str, config: BalanceConfig, room: RoomConfig, rng: random.Random) -> Balancer:
    """Return the balancer of that name in `POLICIES`. Raises KeyError for any other name."""
    return POLICIES[name](config, room, rng=rng)
