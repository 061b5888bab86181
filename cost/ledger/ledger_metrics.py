"""Prometheus metrics of the ledger: its journal, and the last check of its roll-ups."""

from prometheus_client import CollectorRegistry, Gauge

from cost.ledger.watch import Checked


class LedgerMetrics:
    """Gauges of the journal's depth and of the last check of the roll-ups."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._journal_depth = Gauge(
            "weighbridge_journal_depth",
            "Ledger entries in the journal that are not in the database yet.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        # Every process knows of the last check, whoever did it, so the newest view is the true one.
        self._differences = Gauge(
            "weighbridge_ledger_differences",
            "Figures of the roll-ups that were not what the ledger says when it was checked last. Must be 0.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._verified = Gauge(
            "weighbridge_ledger_verified_timestamp_seconds",
            "When the roll-ups were last held against the ledger; 0 before the first time.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )

    def set_journal_depth(self, entries: int) -> None:
        """Set the number of entries that the database does not have yet."""
        self._journal_depth.set(entries)

    def set_ledger_check(self, checked: Checked) -> None:
        """Set the result and time of the last check."""
        self._differences.set(checked.differences)
        self._verified.set(checked.done_us / 1_000_000)
