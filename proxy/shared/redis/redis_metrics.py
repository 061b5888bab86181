"""Prometheus metrics of the link to Redis."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from proxy.shared.redis.shared_state import FailureKind, LinkObserver

# A call takes a fraction of a millisecond; from 50 ms on it is slow, and from 100 ms on it is not waited for.
CALL_BUCKETS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class RedisMetrics(LinkObserver):
    """Call durations, failures, and whether Redis is in use."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._call = Histogram(
            "weighbridge_redis_call_seconds",
            "Seconds from sending a call to the shared Redis until its reply.",
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self._failures = Counter(
            "weighbridge_redis_failures",
            "Calls to the shared Redis that failed or were slow, by kind.",
            ("kind",),
            registry=registry,
        )
        # The worst view is shown: one process without Redis enforces its share alone.
        self._up = Gauge(
            "weighbridge_redis_up",
            "1 while the shared Redis answers in time; 0 while it does not, and where there is none.",
            registry=registry,
            multiprocess_mode="livemin",
        )

        self._primary_changes = Counter(
            "weighbridge_redis_primary_changes",
            "Times that calls went to another primary of the shared Redis than before, in each process.",
            registry=registry,
        )

    def observe_redis_call(self, seconds: float) -> None:
        self._call.observe(seconds)

    def count_redis_failure(self, kind: FailureKind) -> None:
        self._failures.labels(kind).inc()

    def set_redis_up(self, *, up: bool) -> None:
        self._up.set(up)

    def count_primary_change(self) -> None:
        self._primary_changes.inc()
