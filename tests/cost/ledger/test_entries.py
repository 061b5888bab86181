"""How reserves are closed without an attempt's own words."""

from cost.ledger.entries import orphan_settlement, void_of
from tests.cost.entries import reserve


def test_a_void_books_nothing() -> None:
    """A reserve that is taken back costs nothing and used nothing."""
    void = void_of(reserve())
    assert (void.entry, void.cost_nanousd, void.input_tokens, void.usage_source) == ("void", 0, 0, "none")
    assert (void.request_id, void.attempt) == ("req_1", 1)


def test_an_orphan_is_settled_at_its_reserve() -> None:
    """Nobody knows what it used: the most it may have cost is booked, marked, and no savings are claimed."""
    settled = orphan_settlement(reserve(flags=("odd",)))
    assert (settled.entry, settled.cost_nanousd, settled.usage_source) == ("settle", 5_000_000, "estimated")
    assert (settled.flags, settled.baseline_nanousd, settled.status) == (("odd", "orphaned"), None, 0)
    assert orphan_settlement(reserve(cost_nanousd=None)).cost_nanousd is None
