from prometheus_client import CollectorRegistry

from api.webhooks.webhook_metrics import WebhookMetrics


def test_what_became_of_tries() -> None:
    """By their result."""
    registry = CollectorRegistry()
    WebhookMetrics(registry).count("given_up")
    assert registry.get_sample_value("weighbridge_webhooks_total", {"result": "given_up"}) == 1
