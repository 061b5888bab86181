from prometheus_client import CollectorRegistry

from selfhosted.lora.adapter_metrics import AdapterMetrics


def test_what_became_of_adapters() -> None:
    """By pool and result."""
    registry = CollectorRegistry()
    AdapterMetrics(registry).count_adapter_load("llama", "loaded")
    assert registry.get_sample_value("weighbridge_adapter_loads_total", {"pool": "llama", "result": "loaded"}) == 1
