"""Prometheus metrics of the choice between replicas."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from selfhosted.pools.fleet import FleetObserver, ReadResult


class FleetMetrics(FleetObserver):
    """The counts of requests by pool and by the reason for the replica. Pools come from the configuration and there are
    five reasons, so neither label needs a cap.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._choices = Counter(
            "weighbridge_balancer_choices",
            "Requests sent to replicas of a pool, by why that replica: prefix, adapter, ring, load, only.",
            ("pool", "why"),
            registry=registry,
        )
        self._readings = Counter(
            "weighbridge_prompts_read_apart",
            "Prompts that a replica was asked to read for another one, by result: handed, declined, failed.",
            ("pool", "result"),
            registry=registry,
        )
        self._of: dict[tuple[str, str], Callable[[], None]] = {}
        """The counter of each pair, as looking it up takes longer than counting."""

    def count_choice(self, pool: str, why: str) -> None:
        count = self._of.get((pool, why))
        if count is None:
            count = self._of[pool, why] = self._choices.labels(pool, why).inc
        count()

    def count_reading(self, pool: str, result: ReadResult) -> None:
        self._readings.labels(pool, result).inc()
