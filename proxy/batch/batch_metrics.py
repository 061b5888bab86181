"""Prometheus metrics of the batch tier."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from proxy.batch.batch import Batch
from proxy.batch.observers import BatchObserver, Event, LineCount, ProviderBatchCount
from proxy.batch.scheduler import Slack


class BatchMetrics(BatchObserver):
    """Counters of lines and batches, and gauges of the batches in progress. No label names a team or a batch."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lines = Counter(
            "weighbridge_batch_lines",
            "Lines of batches: answered, failed, repeated (begun again) and lost (answered after their lease had ended).",
            ("outcome",),
            registry=registry,
        )
        self._handed = Counter(
            "weighbridge_batch_handed_lines",
            "Lines at providers' batch APIs: handed (over), answered, returned (to other ways), unneeded (paid for, and answered "
            "otherwise meanwhile) and estimated (perhaps paid for, with no answer: booked at the most that they may cost).",
            ("outcome",),
            registry=registry,
        )
        self._ended = Counter("weighbridge_batches_ended", "Batches that ended.", ("event",), registry=registry)
        self._live = Gauge("weighbridge_batches_in_progress", "Batches in progress.", registry=registry)
        self._left = Gauge("weighbridge_batch_lines_left", "Lines without an answer.", registry=registry)
        self._tokens = Gauge("weighbridge_batch_tokens_left", "Estimated tokens without an answer.", registry=registry)
        self._speed = Gauge(
            "weighbridge_batch_tokens_per_second",
            "Measured tokens a second of all processes; NaN while unknown.",
            registry=registry,
        )
        self._slack = Gauge(
            "weighbridge_batch_least_laxity_seconds",
            "The least time to spare of any batch with a deadline; below 0 it will be late at this speed. NaN while unknown.",
            registry=registry,
        )
        self._off = Histogram(
            "weighbridge_batch_estimate_error_ratio",
            "How far the first estimate of a batch's completion was off, as a part of the time that it took.",
            buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=registry,
        )

    def observe_estimate(self, off: float) -> None:
        """Observe the relative error of an estimate that has come true or not."""
        self._off.observe(off)

    def count_lines(self, what: LineCount, number: int = 1) -> None:
        """Count lines by outcome."""
        if number:
            self._lines.labels(what).inc(number)

    def count_handed(self, what: ProviderBatchCount, number: int) -> None:
        """Count lines at providers by outcome."""
        if number:
            self._handed.labels(what).inc(number)

    def count_batch(self, event: Event) -> None:
        """Count a batch that ended."""
        self._ended.labels(event.removeprefix("batch.")).inc()

    def set_live(self, batches: list[Batch], found: Mapping[str, Slack], tokens_per_s: float | None) -> None:
        """Set the gauges of the batches in progress."""
        self._live.set(len(batches))
        self._left.set(sum(batch.left for batch in batches))
        self._tokens.set(sum(batch.tokens_left for batch in batches))
        self._speed.set(float("nan") if tokens_per_s is None else tokens_per_s)
        known = [each.slack_s for each in found.values() if each.slack_s is not None]
        self._slack.set(min(known, default=float("nan")))
