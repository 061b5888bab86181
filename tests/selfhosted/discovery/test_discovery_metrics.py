from prometheus_client import CollectorRegistry

from selfhosted.discovery.discovery_metrics import DiscoveryMetrics


def test_how_looks_ended() -> None:
    """By pool, source and result; and what was claimed twice."""
    registry = CollectorRegistry()
    metrics = DiscoveryMetrics(registry)
    metrics.discovery_looked("llama", "dns", "empty")
    metrics.discovery_conflict("llama", "address")
    looked = {"pool": "llama", "source": "dns", "result": "empty"}
    assert registry.get_sample_value("weighbridge_discovery_looks_total", looked) == 1
    assert registry.get_sample_value("weighbridge_discovery_conflicts_total", {"pool": "llama", "kind": "address"}) == 1
