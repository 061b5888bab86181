from prometheus_client import CollectorRegistry

from proxy.admit.queues.queue_item import QueueState
from proxy.admit.queues.queue_metrics import QueueMetrics


def test_a_queue_that_is_gone_shows_nothing_that_waits() -> None:
    """Its gauges fall to 0; what it counted stays."""
    registry = CollectorRegistry()
    metrics = QueueMetrics(registry)
    metrics.set_queue(
        QueueState(
            name="llama",
            waiting=1,
            waiting_tokens=20,
            in_flight=2,
            in_flight_tokens=300,
            capacity_tokens=4_000,
            predicted_wait_s=0.0,
        )
    )
    metrics.observe_queue_wait("llama", "batch", 0.3)
    metrics.count_queue_refusal("llama", "late")
    gauges = ("waiting", "waiting_tokens", "in_flight_tokens", "capacity_tokens")

    def shown() -> list[float | None]:
        return [registry.get_sample_value(f"weighbridge_queue_{name}", {"queue": "llama"}) for name in gauges]

    assert shown() == [1, 20, 300, 4_000]
    metrics.forget_queue("llama")
    assert shown() == [0, 0, 0, 0]
    assert registry.get_sample_value("weighbridge_queue_refusals_total", {"queue": "llama", "why": "late"}) == 1
    waited = {"queue": "llama", "tier": "batch", "le": "0.5"}
    assert registry.get_sample_value("weighbridge_queue_wait_seconds_bucket", waited) == 1
