"""A double of a vLLM replica."""

from selfhosted.engines.dialects import read_stats
from testing.counting_server import CountingServer


def test_a_stand_in_tells_its_load() -> None:
    """In vLLM's words, as the gateway reads them."""
    stats = read_stats("vllm", CountingServer("replica-1").page().encode(), 0.0)
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.kv_usage is not None
