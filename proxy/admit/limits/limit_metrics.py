"""Prometheus metrics of rate limits."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxy.admit.limits.limit import Kind, Scope
from proxy.admit.limits.limiter import LimitObserver


class LimitMetrics(LimitObserver):
    """Counters of local decisions and refusals, and gauges of how the limits are shared."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._local = Counter(
            "weighbridge_limits_local",
            "Requests whose limits were decided by this process's share of them.",
            registry=registry,
        )
        self._refused = Counter(
            "weighbridge_limits_refused",
            "Requests refused by a limit, by whose it was and what was used up.",
            ("scope", "kind"),
            registry=registry,
        )
        # The worst view is shown: one process without Redis enforces its share alone.
        self._shared = Gauge(
            "weighbridge_limits_shared",
            "1 while limits are decided in the shared Redis; 0 while each process enforces its share.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        # Every process counts the same ones, so the newest view is the true one.
        self._processes = Gauge(
            "weighbridge_replicas",
            "Processes that share the limits, as this gateway knows them.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )

    def count_local_admission(self) -> None:
        self._local.inc()

    def count_rate_refusal(self, scope: Scope, kind: Kind) -> None:
        self._refused.labels(scope, kind).inc()

    def set_limits_shared(self, *, shared: bool) -> None:
        self._shared.set(shared)

    def set_processes(self, live: int) -> None:
        self._processes.set(live)
