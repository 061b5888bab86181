"""What /metrics shows of webhooks."""

from prometheus_client import CollectorRegistry, Counter

from dashboards.webhooks.sender import Result


class WebhookMetrics:
    """What became of tries to deliver. Their results are words of our own, so they need no cap."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tries = Counter(
            "weighbridge_webhooks", "What became of tries to deliver a message.", ("result",), registry=registry
        )

    def count(self, result: Result) -> None:
        self._tries.labels(result).inc()
