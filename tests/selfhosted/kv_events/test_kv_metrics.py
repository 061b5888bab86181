from prometheus_client import CollectorRegistry

from selfhosted.kv_events.kv_metrics import KvMetrics


def test_what_engines_tell() -> None:
    """What came of KV events, by pool."""
    registry = CollectorRegistry()
    metrics = KvMetrics(registry)
    metrics.count_kv("llama", "stored", 3)
    metrics.count_kv("llama", "gap")
    assert registry.get_sample_value("weighbridge_kv_events_total", {"pool": "llama", "result": "stored"}) == 3
    assert registry.get_sample_value("weighbridge_kv_events_total", {"pool": "llama", "result": "gap"}) == 1
