"""Prometheus metrics of queues."""

from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from proxy.admit.queues.queue_item import QueueState, Why
from proxy.admit.queues.queues import QueueObserver

# Requests that start at once are in the first; the promise of a first token is 1 s, and the longest waits are batch work's.
WAIT_BUCKETS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class QueueMetrics(QueueObserver):
    """Gauges of waiting and running work, waits and refusals by queue. Queue names are configured, so label values are
    bounded.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting, self._waiting_tokens, self._in_flight, self._capacity = (
            Gauge(name, text, ("queue",), registry=registry, multiprocess_mode="livesum")
            for name, text in (
                ("weighbridge_queue_waiting", "Requests that wait for their turn."),
                ("weighbridge_queue_waiting_tokens", "Tokens, of prompts and expected answers, that wait."),
                ("weighbridge_queue_in_flight_tokens", "Tokens that were let through and are not done."),
                ("weighbridge_queue_capacity_tokens", "Tokens that may be in flight."),
            )
        )
        self._wait = Histogram(
            "weighbridge_queue_wait_seconds",
            "Seconds that a request waited until it was let through or its wait ended otherwise.",
            ("queue", "tier"),
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._refusals = Counter(
            "weighbridge_queue_refusals",
            f"Requests that a queue refused or gave up, by why: {', '.join(get_args(Why))}.",
            ("queue", "why"),
            registry=registry,
        )

    def set_queue(self, state: QueueState) -> None:
        self._waiting.labels(state.name).set(state.waiting)
        self._waiting_tokens.labels(state.name).set(state.waiting_tokens)
        self._in_flight.labels(state.name).set(state.in_flight_tokens)
        self._capacity.labels(state.name).set(state.capacity_tokens)

    def observe_queue_wait(self, queue: str, tier: str, seconds: float) -> None:
        self._wait.labels(queue, tier).observe(seconds)

    def count_queue_refusal(self, queue: str, why: Why) -> None:
        self._refusals.labels(queue, why).inc()

    def forget_queue(self, queue: str) -> None:
        """Zero the gauges of a removed queue, which worker files would otherwise go on showing."""
        for gauge in (self._waiting, self._waiting_tokens, self._in_flight, self._capacity):
            gauge.labels(queue).set(0)
