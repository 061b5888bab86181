"""Prometheus metrics of the classifier. Its latency is recorded with each request's outcome."""

from prometheus_client import CollectorRegistry, Gauge


class ClassifierMetrics:
    """A gauge that shows whether the trained model or the heuristic scores prompts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._trained = Gauge(
            "weighbridge_classifier_trained",
            "1 when the trained model weighs prompts, 0 when the plain rule stands in for it.",
            registry=registry,
            multiprocess_mode="livemin",
        )

    def set_trained(self, *, trained: bool) -> None:
        """Set the gauge to 1 for the trained model, 0 for the heuristic."""
        self._trained.set(trained)
