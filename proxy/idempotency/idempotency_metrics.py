"""What /metrics shows of Idempotency-Keys."""

from prometheus_client import CollectorRegistry, Counter


class IdempotencyMetrics:
    """What became of requests that bring a key, and of what is kept for them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "weighbridge_idempotent_requests",
            "What happened with Idempotency-Keys: claimed, replayed, in_flight, reused, kept, freed, too_large, "
            "not_kept, refused, unavailable, taken_over, lost, failed_writes, purged.",
            ("event",),
            registry=registry,
        )

    def count(self, event: str, times: int) -> None:
        """A name of our own, so it needs no cap."""
        self._requests.labels(event).inc(times)
