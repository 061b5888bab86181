from prometheus_client import CollectorRegistry

from proxy.admit.limits.limit_metrics import LimitMetrics


def test_where_limits_are_decided_and_what_they_refused() -> None:
    """Each in its own series."""
    registry = CollectorRegistry()
    metrics = LimitMetrics(registry)
    metrics.count_local_admission()
    metrics.count_rate_refusal("team", "tokens")
    metrics.set_limits_shared(shared=True)
    metrics.set_processes(4)
    assert registry.get_sample_value("weighbridge_limits_local_total") == 1
    assert registry.get_sample_value("weighbridge_limits_refused_total", {"scope": "team", "kind": "tokens"}) == 1
    assert registry.get_sample_value("weighbridge_limits_shared") == 1
    assert registry.get_sample_value("weighbridge_replicas") == 4
