"""Prometheus metrics of the autoscaler."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from selfhosted.scale.loop import ScaleObserver
from selfhosted.scale.model_swap_loop import TurnObserver
from selfhosted.scale.policy import Reason

_SWITCH_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ScaleMetrics(ScaleObserver):
    """The desired size of each pool, and the count of decisions by reason. Pools come from the configuration and
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


class TurnMetrics(TurnObserver):
    """The awake pool among those that share GPUs, and the seconds of a switch. All names come from the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._awake = Gauge(
            "weighbridge_pool_awake",
            "1 while the pool has the GPUs that it shares, 0 while it sleeps, drains others' or wakes.",
            ("gpus", "pool"),
            multiprocess_mode="livemostrecent",
            registry=registry,
        )
        self._switches = Histogram(
            "weighbridge_pool_switch_seconds",
            "Seconds from the decision to give a pool its shared GPUs until it was awake, the other one's drain included.",
            ("gpus", "pool"),
            buckets=_SWITCH_BUCKETS,
            registry=registry,
        )

    def set_awake(self, group: str, pools: Mapping[str, bool]) -> None:
        for pool, awake in pools.items():
            self._awake.labels(group, pool).set(awake)

    def switched(self, group: str, pool: str, seconds: float) -> None:
        self._switches.labels(group, pool).observe(seconds)
