"""Amounts as people write them."""

from decimal import Decimal

import pytest

from cost.amounts import BadAmount, amount_in


@pytest.mark.parametrize(
    ("text", "amount"),
    [("500", "500"), ("0.25", "0.25"), (" $1,234.50 ", "1234.50"), ("1,000", "1000"), ("-20", "-20")],
)
def test_an_amount_is_exact(text: str, amount: str) -> None:
    """With a dollar sign and commas between thousands."""
    assert amount_in(text) == Decimal(amount)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("20,50", "write 20.50,"),
        ("1,5", "write 1.50,"),
        ("1.234,50", "write 1234.50,"),
        ("1 234,5", "write 1234.50,"),
        ("-0,5", "write -0.50,"),
        ("€20,50", "write 20.50,"),
        ("0,135", "write 0.135,"),
        ("lots", "write it like 20.50"),
        ("", "write it like 20.50"),
        ("nan", "write it like 20.50"),
        ("9" * 100_000 + ",5", "write it like 20.50"),
    ],
)
def test_what_is_no_amount_is_told_with_how_to_write_it(text: str, told: str) -> None:
    """By the same number, where it can be told."""
    with pytest.raises(BadAmount) as refused:
        amount_in(text)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 200
