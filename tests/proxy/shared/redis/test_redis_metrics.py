from prometheus_client import CollectorRegistry

from proxy.shared.redis.redis_metrics import RedisMetrics


def test_how_calls_went() -> None:
    """A quick one is in the buckets, one that failed is counted by its kind."""
    registry = CollectorRegistry()
    metrics = RedisMetrics(registry)
    metrics.observe_redis_call(0.0004)
    metrics.count_redis_failure("late")
    metrics.set_redis_up(up=True)
    metrics.count_primary_change()
    assert registry.get_sample_value("weighbridge_redis_call_seconds_bucket", {"le": "0.0005"}) == 1
    assert registry.get_sample_value("weighbridge_redis_failures_total", {"kind": "late"}) == 1
    assert registry.get_sample_value("weighbridge_redis_up") == 1
    assert registry.get_sample_value("weighbridge_redis_primary_changes_total") == 1
