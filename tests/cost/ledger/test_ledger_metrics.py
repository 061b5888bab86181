from prometheus_client import CollectorRegistry

from cost.ledger.drain import DrainCounts
from cost.ledger.journal import JournalState
from cost.ledger.ledger_metrics import LedgerMetrics
from cost.ledger.shared_turn import Checked


def test_the_check_of_the_books_is_shown() -> None:
    """How many figures were wrong, and when that was found out; nothing was checked before the first time."""
    registry = CollectorRegistry()
    metrics = LedgerMetrics(registry)
    assert registry.get_sample_value("weighbridge_ledger_verified_timestamp_seconds") == 0
    metrics.set_ledger_check(Checked(begun_us=1, done_us=1_800_000_000_000_000, differences=3))
    assert registry.get_sample_value("weighbridge_ledger_differences") == 3
    assert registry.get_sample_value("weighbridge_ledger_verified_timestamp_seconds") == 1_800_000_000


def test_the_journal_shows_what_waits() -> None:
    """How much is not in the database yet, for how long, and how often the disk refused it."""
    registry = CollectorRegistry()
    metrics = LedgerMetrics(registry)
    for failures in (0, 3, 3):
        state = JournalState(depth=7, oldest_age_s=1.5, accepting=True, write_failures=failures, unwritten=1)
        metrics.set_journal(state)
    assert registry.get_sample_value("weighbridge_journal_depth") == 7
    assert registry.get_sample_value("weighbridge_journal_oldest_seconds") == 1.5
    assert registry.get_sample_value("weighbridge_journal_write_failures_total") == 3


def test_the_drain_counts_what_went_wrong() -> None:
    """Each kind by itself, and only what is new since the last time."""
    registry = CollectorRegistry()
    metrics = LedgerMetrics(registry)
    metrics.set_drain(DrainCounts(failures=2, orphans=5))
    metrics.set_drain(DrainCounts(failures=3, orphans=5, unbooked=1))
    events = {"failures": 3, "orphans": 5, "unbooked": 1, "damaged": 0}
    assert {
        event: registry.get_sample_value("weighbridge_ledger_drain_total", {"event": event}) for event in events
    } == events
