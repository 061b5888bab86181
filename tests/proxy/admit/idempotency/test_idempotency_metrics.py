from prometheus_client import CollectorRegistry

from proxy.admit.idempotency.idempotency_metrics import IdempotencyMetrics


def test_what_happened_with_keys() -> None:
    """By event, several at once."""
    registry = CollectorRegistry()
    IdempotencyMetrics(registry).count("purged", 5)
    assert registry.get_sample_value("weighbridge_idempotent_requests_total", {"event": "purged"}) == 5
