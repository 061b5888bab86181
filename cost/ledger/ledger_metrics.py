"""Prometheus metrics of the ledger: each process's journal, the drain, and the last check of the roll-ups."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from cost.ledger.drain import DrainCounts
from cost.ledger.journal import JournalState
from cost.ledger.shared_turn import Checked

_NO_COUNTS = DrainCounts()


class LedgerMetrics:
    """Metrics of a process's journal and drain, and gauges of the last check of the roll-ups."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._journal_depth = Gauge(
            "weighbridge_journal_depth",
            "Ledger entries in the journal that are not in the database yet.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._journal_oldest = Gauge(
            "weighbridge_journal_oldest_seconds",
            "Seconds that the oldest entry in a journal has waited for the database; with several workers the longest.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._write_failures = Counter(
            "weighbridge_journal_write_failures_total",
            "Times that the disk refused a write or a flush of a journal.",
            registry=registry,
        )
        self._drain = Counter(
            "weighbridge_ledger_drain_total",
            "Faults between journals and the database, by event.",
            ["event"],
            registry=registry,
        )
        self._written_before = 0
        self._counted = _NO_COUNTS
        # Every process knows of the last check, whoever did it, so the newest view is the true one.
        self._differences = Gauge(
            "weighbridge_ledger_differences",
            "Figures of the roll-ups that were not what the ledger says when it was checked last. Must be 0.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._verified = Gauge(
            "weighbridge_ledger_verified_timestamp_seconds",
            "When the roll-ups were last checked against the ledger; 0 before the first time.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )

        self._to_archive = Gauge(
            "weighbridge_ledger_months_to_archive",
            "Months that `cost.archive` wants in files and that the last round left in the database.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )

    def set_journal(self, state: JournalState) -> None:
        """Set the gauges of this process's journal."""
        self._journal_depth.set(state.depth)
        self._journal_oldest.set(state.oldest_age_s)
        self._write_failures.inc(state.write_failures - self._written_before)
        self._written_before = state.write_failures

    def set_drain(self, counts: DrainCounts) -> None:
        """Add the counts of this process's drain since the last call."""
        for event in counts.__struct_fields__:
            self._drain.labels(event).inc(getattr(counts, event) - getattr(self._counted, event))
        self._counted = counts

    def set_ledger_check(self, checked: Checked) -> None:
        """Set the result and time of the last check."""
        self._differences.set(checked.differences)
        self._verified.set(checked.done_us / 1_000_000)

    def set_archive(self, checked: Checked) -> None:
        """Set what the last round of archiving left."""
        self._to_archive.set(checked.differences)
