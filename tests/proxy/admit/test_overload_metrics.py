from prometheus_client import CollectorRegistry

from proxy.admit.overload_metrics import OverloadMetrics


def test_how_late_and_who_was_sent_away() -> None:
    """The last lag, and every refusal."""
    registry = CollectorRegistry()
    metrics = OverloadMetrics(registry)
    for lag in (0.5, 0.1):
        metrics.set_loop_lag(lag)
        metrics.count_refusal()
    assert registry.get_sample_value("weighbridge_loop_lag_seconds") == 0.1
    assert registry.get_sample_value("weighbridge_overload_refusals_total") == 2
