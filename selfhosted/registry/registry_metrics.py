"""Prometheus metrics of registrations, and of the hours counted."""

from prometheus_client import CollectorRegistry, Counter

from selfhosted.registry.uptime import HoursObserver


class RegistryMetrics(HoursObserver):
    """The counts of registrations by result, and of unwatched seconds. Pools come from the configuration and results
    are fixed, so no cap is needed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registrations = Counter(
            "weighbridge_registrations",
            "Registrations of replicas by result: registered, renewed, left, taken, full.",
            ("pool", "result"),
            registry=registry,
        )
        self._unwatched = Counter(
            "weighbridge_pool_unwatched_seconds",
            "Seconds in which no process watched a pool, so that nobody knows whether its replicas were up.",
            ("pool",),
            registry=registry,
        )

    def count_registration(self, pool: str, result: str) -> None:
        self._registrations.labels(pool, result).inc()

    def hours_unwatched(self, pool: str, seconds: float) -> None:
        self._unwatched.labels(pool).inc(seconds)
