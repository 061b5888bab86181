"""Replicas of a pool that read prompts for the others, where prefill and decode are kept apart.

Such a replica reads a prompt and answers one token of it; the replica that answers the caller fetches what was read. They
are found, probed and billed as the rest of their pool, and never answer callers themselves.
"""

from collections.abc import Collection

import msgspec

from selfhosted.balance.balancer import Balancer
from selfhosted.balance.load import Lease
from selfhosted.config import PrefillConfig
from selfhosted.replica import PoolSnapshot


class Readers:
    """The replicas that read, and the choice among them."""

    def __init__(self, config: PrefillConfig, balancer: Balancer) -> None:
        self.balancer = balancer
        self._config = config
        self.unread_tokens = 0
        """Counter: tokens of prompts that one of them would have read, had any had room. The autoscaler reads it as demand."""
        self._whole: PoolSnapshot | None = None
        self._readers = self._others = PoolSnapshot(pool="", at=0.0, replicas=())

    def is_one(self, replica: str) -> bool:
        """Return True for the name of one that reads."""
        return self._config.reads(replica)

    def others(self, whole: PoolSnapshot) -> PoolSnapshot:
        """Return the pool without them: those that answer. The same object for the same snapshot."""
        self._split(whole)
        return self._others

    def see(self, whole: PoolSnapshot, now: float) -> None:
        """Take over who reads."""
        self._split(whole)
        self.balancer.see(self._readers, now)

    def pick(self, whole: PoolSnapshot, answering: Lease, tried: Collection[str], now: float) -> Lease | None:
        """Return the load of an answering replica's request at the one that reads it soonest; None where it has too few tokens that the
        answering one lacks, or none of them is ready, has room and runs the same version. `tried` are names.
        """
        ask = answering.ask
        if ask.adapter is not None or answering.uncached < self._config.from_tokens:
            return None
        self._split(whole)
        version = next((each.address.version for each in whole.replicas if each.name == answering.replica), "")
        allowed = frozenset(
            [each.name for each in self._readers.ready if each.name not in tried and each.address.version == version]
        )
        if not allowed or not self.balancer.has_room(self._readers, allowed, now):
            if not tried:
                self.unread_tokens += round(answering.uncached)
            return None
        reading = msgspec.structs.replace(ask, output_tokens=1, version="")
        choice = self.balancer.pick(reading, self._readers, allowed, now)
        return None if choice is None else self.balancer.take(choice, reading, now)

    def _split(self, whole: PoolSnapshot) -> None:
        if whole is self._whole:
            return
        self._whole = whole
        reads = {each.name for each in whole.replicas if self.is_one(each.name)}
        self._readers, self._others = (
            PoolSnapshot(
                pool=whole.pool,
                at=whole.at,
                replicas=tuple([each for each in whole.replicas if (each.name in reads) is which]),
            )
            for which in (True, False)
        )
