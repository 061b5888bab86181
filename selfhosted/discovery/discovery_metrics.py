"""Prometheus metrics of replica discovery."""

from prometheus_client import CollectorRegistry, Counter

from selfhosted.discovery.discovery import Conflict, DiscoveryObserver, Result
from selfhosted.replica import Source as SourceName


class DiscoveryMetrics(DiscoveryObserver):
    """The counts of polls by result, and of conflicting claims. Pools come from the configuration and the other labels
    have fixed values, so no cap is needed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._looks = Counter(
            "weighbridge_discovery_looks",
            "Polls of a pool's replicas by result: ok, empty, failed.",
            ("pool", "source", "result"),
            registry=registry,
        )
        self._conflicts = Counter(
            "weighbridge_discovery_conflicts",
            "Times that a replica claimed a name or an address that another has.",
            ("pool", "kind"),
            registry=registry,
        )

    def discovery_looked(self, pool: str, source: SourceName, result: Result) -> None:
        self._looks.labels(pool, source, result).inc()

    def discovery_conflict(self, pool: str, kind: Conflict) -> None:
        self._conflicts.labels(pool, kind).inc()
