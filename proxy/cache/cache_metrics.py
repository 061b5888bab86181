"""Prometheus metrics of the answer cache."""

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxy.cache.answer_cache import CacheObserver, CacheResult


class CacheMetrics(CacheObserver):
    """Counters of requests by what the cache had for them, and the size of what a process keeps itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "weighbridge_cache_requests",
            "Requests by what the answer cache had for them: hit, miss, bypass, refresh.",
            ("result",),
            registry=registry,
        )
        self._requests = {result: requests.labels(result) for result in get_args(CacheResult)}
        self._stored = Counter(
            "weighbridge_cache_stored_bytes", "Bytes of answers that were kept, sealed.", registry=registry
        )
        self._evicted = Counter(
            "weighbridge_cache_evictions",
            "Answers that a process without Redis gave up for newer ones.",
            registry=registry,
        )
        self._held = Gauge(
            "weighbridge_cache_bytes",
            "Bytes of answers that processes without Redis keep.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def count(self, result: CacheResult) -> None:
        self._requests[result].inc()

    def count_stored(self, size: int) -> None:
        self._stored.inc(size)

    def set_bytes(self, held: int) -> None:
        self._held.set(held)

    def count_evicted(self) -> None:
        self._evicted.inc()
