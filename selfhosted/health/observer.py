"""The events that a watch reports for metrics."""

from typing import Literal

from selfhosted.engines.fetching import Failure
from selfhosted.replica import EngineStats, ReplicaState

ScrapeResult = Literal["ok", "status", "unreadable"] | Failure


class WatchObserver:
    """Receives what a pool's dashboard shows; this base class ignores it. Implementations must be quick and never
    raise.
    """

    def set_replica_state(self, pool: str, replica: str, state: ReplicaState) -> None: ...

    def set_replica_load(self, pool: str, replica: str, stats: EngineStats | None) -> None:
        """`stats` is None when unknown."""

    def set_replica_version(self, pool: str, replica: str, version: str) -> None:
        """`version` is empty when nobody says it."""

    def count_scrape(self, pool: str, result: ScrapeResult) -> None: ...

    def set_prefix_hit_rate(self, pool: str, rate: float) -> None: ...

    def forget_replica(self, pool: str, replica: str) -> None: ...
