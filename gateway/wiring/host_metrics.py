"""Prometheus metrics of what hosts tell each other."""

from prometheus_client import CollectorRegistry, Counter

from gateway.wiring.other_hosts import NewsObserver, NewsResult


class HostMetrics(NewsObserver):
    """Counts other hosts' messages by what came of them; there are four results, so no cap is needed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._news = Counter(
            "weighbridge_hosts_news",
            "Messages of other hosts on what they sent to replicas: heard; left out for other_pepper, other_hashes, unreadable.",
            ("result",),
            registry=registry,
        )

    def count_news(self, result: NewsResult) -> None:
        self._news.labels(result).inc()
