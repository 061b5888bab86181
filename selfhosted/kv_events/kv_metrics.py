"""Prometheus metrics of engines' KV events."""

from prometheus_client import CollectorRegistry, Counter

from selfhosted.kv_events.subscriber import KvObserver, KvResult


class KvMetrics(KvObserver):
    """The counts of KV events by pool and result. Pools come from the configuration and results are fixed, so no cap is
    needed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "weighbridge_kv_events",
            "Engines' events about their KV caches: batches, blocks stored, kept below the GPU and removed, caches cleared, events "
            "passed_over, garbage, gaps, replayed, dropped (knowledge that was), restart; and prompts learned, unseen, "
            "failed, known, busy.",
            ("pool", "result"),
            registry=registry,
        )

    def count_kv(self, pool: str, result: KvResult, count: int = 1) -> None:
        self._events.labels(pool, result).inc(count)
