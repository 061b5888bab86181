"""Prometheus metrics of events. Sinks are those of the configuration, so their number is bounded."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

Result = Literal["sent", "refused", "dropped"]


class EventMetrics:
    """How late each sink is, and what became of events. Only the process that tells them has any."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter(
            "weighbridge_events",
            "Events by sink: sent (acknowledged), refused (set aside, as the sink took others), dropped (waited too long).",
            ("sink", "result"),
            registry=registry,
        )
        self._failures = Counter(
            "weighbridge_event_failures",
            "Batches that a sink did not take; they are tried again.",
            ("sink",),
            registry=registry,
        )
        self._lag = Gauge(
            "weighbridge_event_lag_seconds",
            "Seconds that the oldest event which a sink has not acknowledged has waited.",
            ("sink",),
            registry=registry,
            multiprocess_mode="livemax",
        )

    def count(self, sink: str, result: Result, events: int) -> None:
        """Count events that are done with."""
        if events:
            self._events.labels(sink, result).inc(events)

    def failed(self, sink: str) -> None:
        """Count a batch that was not taken."""
        self._failures.labels(sink).inc()

    def set_lag(self, sink: str, seconds: float) -> None:
        """Set how late a sink is; 0 where nothing waits, or another process tells it."""
        self._lag.labels(sink).set(max(0.0, seconds))
