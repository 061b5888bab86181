"""Figures for people look alike wherever they are shown."""

from decimal import Decimal
from fractions import Fraction

import pytest

from cost.shown import fine_money, nano_money, percent, rounded_money


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
    assert [percent(share) for share in (None, Decimal("0.4"), 0.25)] == ["-", "40.0 %", "25.0 %"]
    assert percent(Decimal("0.125"), signed=True) == "+12.5 %"


@pytest.mark.parametrize(
    ("part", "places", "told"),
    [
        (0, 1, "0.0 %"),
        (0.0004, 1, "<0.1 %"),
        (-0.0004, 1, ">-0.1 %"),
        (0.99995, 1, ">99.9 %"),
        (1, 1, "100.0 %"),
        (0.004, 0, "<1 %"),
        (0.997, 0, ">99 %"),
        (Fraction(1, 3), 2, "33.33 %"),
        (12.5, 0, "1,250 %"),
        (-0.25, 1, "-25.0 %"),
    ],
)
def test_nearly_nothing_and_nearly_all_are_not_nothing_and_all(part: float, places: int, told: str) -> None:
    """Whatever the decimals."""
    assert percent(part, places) == told


def test_amounts_with_cents_or_as_fine_as_they_are() -> None:
    """The sign stands before the currency."""
    assert [fine_money(amount) for amount in (5 * 10**9, 1_250_000, -1, 0)] == [
        "$5.00",
        "$0.00125",
        "-$0.000000001",
        "$0.00",
    ]
    assert [rounded_money(-2.5), rounded_money(-0.00004, 4)] == ["-$2.50", "-$0.0000"]
