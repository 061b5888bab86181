"""What /metrics shows of the classifier. How long it takes to score is told by each request's outcome."""

from prometheus_client import CollectorRegistry, Gauge


class ClassifierMetrics:
    """Which of the two classifiers weighs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._trained = Gauge(
            "weighbridge_classifier_trained",
            "1 when the trained model weighs prompts, 0 when the plain rule stands in for it.",
            registry=registry,
            multiprocess_mode="livemin",
        )

    def set_trained(self, *, trained: bool) -> None:
        self._trained.set(trained)
