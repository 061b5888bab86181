"""Prometheus metrics of webhooks."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter

Result = Literal["delivered", "retried", "given_up", "disabled"]


class WebhookMetrics:
    """Counter of delivery attempts by result. Results are a fixed set, so cardinality needs no cap."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tries = Counter(
            "weighbridge_webhooks", "Attempts to deliver a message, by result.", ("result",), registry=registry
        )

    def count(self, result: Result) -> None:
        self._tries.labels(result).inc()
