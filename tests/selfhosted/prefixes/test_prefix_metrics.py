from prometheus_client import CollectorRegistry

from selfhosted.prefixes.prefix_metrics import PrefixMetrics


def test_what_became_of_beginnings() -> None:
    """By what was done with them."""
    registry = CollectorRegistry()
    PrefixMetrics(registry).count_beginnings("sampled_out", 2)
    assert registry.get_sample_value("weighbridge_prompt_beginnings_total", {"result": "sampled_out"}) == 2
