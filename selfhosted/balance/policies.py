"""What to compare with: the usual ways to choose a replica, with the same bookkeeping behind them."""

import random
from collections.abc import Callable, Sequence
from typing import Final

from selfhosted.balance.balancer import Balancer
from selfhosted.balance.load import Load
from selfhosted.config import BalanceConfig, RoomConfig
from selfhosted.replica import ReplicaChoice, ReplicaRequest


class _Plain(Balancer):
    """Chooses without regard to what is cached."""

    def choose(self, ask: ReplicaRequest, candidates: Sequence[Load], now: float) -> ReplicaChoice:
        del now
        load = self._one_of(ask, candidates)
        blocks = self.index.depths(ask.blocks).get(load.name, 0)
        return ReplicaChoice(
            replica=load.name,
            why="load" if len(candidates) > 1 else "only",
            matched_tokens=min(ask.tokens, int(blocks * ask.block_tokens)),
        )

    def _one_of(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        raise NotImplementedError


class RoundRobin(_Plain):
    """One after the other."""

    _turn = -1

    def _one_of(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        del ask
        self._turn += 1
        return candidates[self._turn % len(candidates)]


class LeastLoaded(_Plain):
    """The one with the fewest requests."""

    def _one_of(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        del ask
        least = min(load.in_flight for load in candidates)
        return self.rng.choice([load for load in candidates if load.in_flight == least])


class RandomTwo(_Plain):
    """The one with fewer requests of two that are drawn."""

    def _one_of(self, ask: ReplicaRequest, candidates: Sequence[Load]) -> Load:
        del ask
        drawn = self.rng.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=lambda load: load.in_flight)


POLICIES: Final[dict[str, Callable[..., Balancer]]] = {
    "prefix": Balancer,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
    "random-two": RandomTwo,
}


def policy_of(name: str, config: BalanceConfig, room: RoomConfig, rng: random.Random) -> Balancer:
    """Raises KeyError for a name that is none of `POLICIES`."""
    return POLICIES[name](config, room, rng=rng)
