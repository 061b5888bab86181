from prometheus_client import CollectorRegistry

from selfhosted.pools.fleet_metrics import FleetMetrics


def test_where_requests_were_sent() -> None:
    """By pool and reason."""
    registry = CollectorRegistry()
    FleetMetrics(registry).count_choice("llama", "prefix")
    assert registry.get_sample_value("weighbridge_balancer_choices_total", {"pool": "llama", "why": "prefix"}) == 1
