"""Prometheus metrics of the autoscaler."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from selfhosted.scale.observer import ScaleObserver
from selfhosted.scale.policy import Reason


class ScaleMetrics(ScaleObserver):
    """Exports the desired size of each pool, and counts decisions by reason. Pools come from the configuration and
    reasons are fixed, so no cap is needed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._desired = Gauge(
            "weighbridge_pool_desired_replicas",
            "How many replicas a pool should have, without those that drain; no series until it was decided.",
            ("pool",),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._decisions = Counter(
            "weighbridge_scale_decisions",
            "Decisions on how many replicas a pool should have, by what decided; made by one process of all.",
            ("pool", "reason"),
            registry=registry,
        )

    def set_desired_replicas(self, pool: str, desired: int) -> None:
        self._desired.labels(pool).set(desired)

    def count_scale_decision(self, pool: str, reason: Reason) -> None:
        self._decisions.labels(pool, reason).inc()
