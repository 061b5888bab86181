from prometheus_client import CollectorRegistry

from proxy.learning.learning_metrics import LearningMetrics


def test_what_was_judged_compared_and_lost() -> None:
    """Each in its own series."""
    registry = CollectorRegistry()
    metrics = LearningMetrics(registry)
    metrics.count_verdict("implicit", "refused")
    metrics.count_learning_dropped(3)
    metrics.count_shadow("queue-full")
    assert registry.get_sample_value("weighbridge_verdicts_total", {"source": "implicit", "signal": "refused"}) == 1
    assert registry.get_sample_value("weighbridge_learning_dropped_total") == 3
    assert registry.get_sample_value("weighbridge_shadow_total", {"result": "queue-full"}) == 1
