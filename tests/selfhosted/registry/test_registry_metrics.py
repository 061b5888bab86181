from prometheus_client import CollectorRegistry

from selfhosted.registry.registry_metrics import RegistryMetrics


def test_who_registered_and_how_long_nobody_watched() -> None:
    """Both by pool."""
    registry = CollectorRegistry()
    metrics = RegistryMetrics(registry)
    metrics.count_registration("llama", "taken")
    metrics.hours_unwatched("llama", 300)
    assert registry.get_sample_value("weighbridge_registrations_total", {"pool": "llama", "result": "taken"}) == 1
    assert registry.get_sample_value("weighbridge_pool_unwatched_seconds_total", {"pool": "llama"}) == 300
