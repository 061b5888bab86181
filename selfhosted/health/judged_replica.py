"""One replica as a process knows it, and the `Replica` value of the snapshot."""

from selfhosted.health.messages import NEVER
from selfhosted.health.verdict import Health, unknown
from selfhosted.replica import NOT_READ_YET, Address, EngineStats, Replica, ReplicaState


class JudgedReplica:
    """The mutable record of one replica. Owned by one PoolJudge."""

    __slots__ = (
        "_replica",
        "adapters",
        "adapters_at",
        "address",
        "answered_at",
        "drains_since",
        "health",
        "heard_at",
        "restarted_at",
        "scraped_at",
        "stats",
        "stats_why",
        "told",
    )

    def __init__(self, address: Address, now: float) -> None:
        self.address = address
        self.drains_since = now
        self.health: Health = unknown(now)
        self.stats: EngineStats | None = None
        self.stats_why = NOT_READ_YET
        self.scraped_at = NEVER
        self.restarted_at: float | None = None
        """Time of the last restart; None until anything was heard."""
        self.answered_at = NEVER
        self.adapters: frozenset[str] = frozenset()
        self.adapters_at = NEVER
        self.heard_at = now
        """Time at which anything was last heard of it."""
        self.told = self.health.doubt
        """The doubt that was told last."""
        self._replica: Replica | None = None

    @property
    def state(self) -> ReplicaState:
        """The replica's state. Draining overrides every other but `down`: a draining replica takes nothing new,
        whatever its health.
        """
        return "draining" if self.address.draining and self.health.state != "down" else self.health.state

    @property
    def replica(self) -> Replica:
        """The snapshot's value, rebuilt after a change and cached."""
        if self._replica is None:
            self._replica = Replica(
                address=self.address,
                state=self.state,
                since=self.drains_since if self.state == "draining" else self.health.since,
                why=self.health.why or ("" if self.stats is not None else self.stats_why),
                stats=self.stats,
                adapters=self.adapters,
            )
        return self._replica

    def adopt(self, address: Address, now: float) -> None:
        """Take over a new address of the same replica, which may have begun or stopped draining or come from another
        source.
        """
        if address.draining and not self.address.draining:
            self.drains_since = now
        self.address = address
        self.touch()

    def touch(self) -> None:
        """Discard the cached value after a change."""
        self._replica = None


def is_same(one: Address, other: Address) -> bool:
    """Return whether both are the same engine process, as far as addresses tell."""
    return (one.url, one.kind) == (other.url, other.kind)
