from prometheus_client import CollectorRegistry

from selfhosted.scale.scale_metrics import ScaleMetrics


def test_what_was_decided() -> None:
    """How many, and why; no series before the first decision."""
    registry = CollectorRegistry()
    metrics = ScaleMetrics(registry)
    assert registry.get_sample_value("weighbridge_pool_desired_replicas", {"pool": "llama"}) is None
    metrics.set_desired_replicas("llama", 3)
    metrics.count_scale_decision("llama", "queue")
    assert registry.get_sample_value("weighbridge_pool_desired_replicas", {"pool": "llama"}) == 3
    assert registry.get_sample_value("weighbridge_scale_decisions_total", {"pool": "llama", "reason": "queue"}) == 1
