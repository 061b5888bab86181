from prometheus_client import CollectorRegistry

from cost.ledger.ledger_metrics import LedgerMetrics
from cost.ledger.watch import Checked


def test_the_check_of_the_books_is_shown() -> None:
    """How many figures were wrong, and when that was found out; nothing was checked before the first time."""
    registry = CollectorRegistry()
    metrics = LedgerMetrics(registry)
    assert registry.get_sample_value("weighbridge_ledger_verified_timestamp_seconds") == 0
    metrics.set_ledger_check(Checked(begun_us=1, done_us=1_800_000_000_000_000, differences=3))
    assert registry.get_sample_value("weighbridge_ledger_differences") == 3
    assert registry.get_sample_value("weighbridge_ledger_verified_timestamp_seconds") == 1_800_000_000


def test_the_journal_shows_its_depth() -> None:
    """What is not in the database yet."""
    registry = CollectorRegistry()
    LedgerMetrics(registry).set_journal_depth(7)
    assert registry.get_sample_value("weighbridge_journal_depth") == 7
