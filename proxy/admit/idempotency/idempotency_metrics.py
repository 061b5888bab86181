"""Prometheus metrics of Idempotency-Keys."""

from prometheus_client import CollectorRegistry, Counter


class IdempotencyMetrics:
    """A counter of idempotency events, labelled by event."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "weighbridge_idempotent_requests",
            "What happened with Idempotency-Keys: claimed, replayed, in_flight, reused, kept, freed, too_large, "
            "not_kept, refused, unavailable, taken_over, lost, failed_writes, purged.",
            ("event",),
            registry=registry,
        )

    def count(self, event: str, times: int) -> None:
        """Count an event. The names are the fields of Counts, so label values are bounded."""
        self._requests.labels(event).inc(times)
