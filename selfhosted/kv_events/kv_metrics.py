"""What /metrics shows of engines' KV events."""

from prometheus_client import CollectorRegistry, Counter

from selfhosted.kv_events.following import KvObserver, KvResult


class KvMetrics(KvObserver):
    """What engines told. Pools are configured, and the results are words of our own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "weighbridge_kv_events",
            "What engines told of their KV caches: batches, blocks stored and removed, caches cleared, events "
            "passed_over, garbage, gaps, replayed, dropped (knowledge that was), restart; and prompts learned, unseen, "
            "failed, known, busy.",
            ("pool", "result"),
            registry=registry,
        )

    def count_kv(self, pool: str, result: KvResult, count: int = 1) -> None:
        self._events.labels(pool, result).inc(count)
