"""Prometheus metrics of the overload guard."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class OverloadMetrics:
    """The worker's event loop lag, and its refusals for overload."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # Each worker has its own loop: the latest one is shown.
        self._lag = Gauge(
            "weighbridge_loop_lag_seconds",
            "How late a worker's event loop was at worst within the last second or so.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._refusals = Counter(
            "weighbridge_overload_refusals",
            "Requests refused at the door because the worker had more work than it can do.",
            registry=registry,
        )

    def set_loop_lag(self, seconds: float) -> None:
        self._lag.set(seconds)

    def count_refusal(self) -> None:
        self._refusals.inc()
