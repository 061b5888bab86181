from prometheus_client import CollectorRegistry

from classifier.classifier_metrics import ClassifierMetrics


def test_which_classifier_weighs() -> None:
    """1 for the trained one, 0 for the rule."""
    registry = CollectorRegistry()
    metrics = ClassifierMetrics(registry)
    for trained in (True, False):
        metrics.set_trained(trained=trained)
        assert registry.get_sample_value("weighbridge_classifier_trained") == trained
