"""Prometheus metrics of learning from answers."""

from prometheus_client import CollectorRegistry, Counter

from proxy.learning.shadow import Counted
from proxy.settle.observers.learning import LearningObserver


class LearningMetrics(LearningObserver):
    """Counters of verdicts, shadow comparisons and dropped requests. Label values are our own names, so they are
    bounded.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._verdicts = Counter(
            "weighbridge_verdicts",
            "Verdicts on answers that were kept to learn from.",
            ("source", "signal"),
            registry=registry,
        )
        self._dropped = Counter(
            "weighbridge_learning_dropped",
            "Answered requests that should have been kept to learn from, and were not.",
            registry=registry,
        )
        self._shadow = Counter(
            "weighbridge_shadow",
            "What became of the requests that were to be answered by the baseline model too, and compared.",
            ("result",),
            registry=registry,
        )

    def count_verdict(self, source: str, signal: str) -> None:
        self._verdicts.labels(source, signal).inc()

    def count_learning_dropped(self, requests: int) -> None:
        self._dropped.inc(requests)

    def count_shadow(self, result: Counted) -> None:
        self._shadow.labels(result).inc()
