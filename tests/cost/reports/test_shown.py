"""Figures for people look alike wherever they are shown."""

from decimal import Decimal

import pytest

from cost.reports.shown import nano_money, percent


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (-1_500, "-$0.000001500"),
        (1_000_000, "$0.001000"),
        (999_999_999, "$1.000000"),
        (1_234_567_000_000, "$1,234.57"),
        (-2_500_000_000, "-$2.50"),
        (10**18 + 1, "$1,000,000,000.00"),
    ],
)
def test_money(amount: int, told: str) -> None:
    """Cents from a dollar on, more decimals below it, the sign first; what is not nothing never looks so."""
    assert nano_money(amount) == told


def test_shares() -> None:
    """One decimal, a sign where it is a change; what is unknown is a dash."""
    assert [percent(share) for share in (None, Decimal("0.4"), 0.25)] == ["-", "40.0%", "25.0%"]
    assert percent(Decimal("0.125"), signed=True) == "+12.5%"
