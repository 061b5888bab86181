"""A second currency is shown at its dated rate and changes no amount."""

from datetime import date
from decimal import Decimal

import pytest
from pydantic import TypeAdapter, ValidationError

from cost.currency import SecondCurrency, ShownCurrency, second_currency

EUR = SecondCurrency("EUR", Decimal("0.9215"), date(2026, 11, 27), "ECB")


@pytest.mark.parametrize(
    ("nanousd", "shown"),
    [
        (10**12, "921.50 EUR"),
        (0, "0.00 EUR"),
        (-(10**9), "-0.92 EUR"),
        (10**6, "0.00092 EUR"),
        (1, "0.00000000092 EUR"),
    ],
)
def test_amounts_are_exact_and_shown_with_cents(nanousd: int, shown: str) -> None:
    """Unrounded in files, readable on pages; rate, day and source are told with both."""
    assert EUR.of(nanousd) == Decimal(nanousd) * Decimal("0.0000000009215")
    assert EUR.shown(nanousd) == shown
    assert EUR.told == "0.9215 EUR to the US dollar of 2026-11-27 (ECB)"
    assert EUR.column == "_eur_at_0.9215_of_2026-11-27"


def test_what_is_configured() -> None:
    """One currency by its code, or none."""
    rates = TypeAdapter(ShownCurrency)
    assert second_currency(rates.validate_python({})) is None
    given = {"EUR": {"rate": "0.9215", "as_of": "2026-11-27", "source": "ECB"}}
    assert second_currency(rates.validate_python(given)) == EUR


@pytest.mark.parametrize(
    "given",
    [
        {"eur": {"rate": 1, "as_of": "2026-11-27", "source": "ECB"}},
        {"USD": {"rate": 1, "as_of": "2026-11-27", "source": "ECB"}},
        {"EUR": {"rate": 0, "as_of": "2026-11-27", "source": "ECB"}},
        {"EUR": {"rate": 1, "as_of": "yesterday", "source": "ECB"}},
        {"EUR": {"rate": 1, "as_of": "2026-11-27"}},
        {"EUR": 0.92},
    ],
)
def test_a_rate_needs_its_day_and_source(given: object) -> None:
    """A rate without them, of no currency or of the dollar itself is refused."""
    with pytest.raises(ValidationError):
        TypeAdapter(ShownCurrency).validate_python(given)
