"""Prices as they are told and as they are entered."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.prices.listing import (
    BadPrice,
    checked_prices,
    day_of,
    figures_told,
    parse_prices,
    prices_as_json,
    today,
)
from cost.meters import METER_NAMES
from cost.price_book.book import DatedPrice, PriceBook, price_book
from cost.prices import Price, nanousd
from tests.cost.test_prices import any_prices


@given(any_prices())
def test_no_digit_is_lost_in_what_is_told(price: Price) -> None:
    """Each figure is exact text without an exponent, for long prompts and batches too."""
    shown = figures_told(price)
    figures = dict(zip(METER_NAMES, price.figures(), strict=True))
    assert {name: nanousd(text) for name, text in shown["usd_per_million_tokens"].items()} == {
        name: figure for name, figure in figures.items() if name != "request"
    }
    assert nanousd(shown["usd_per_request"]) == price.request_nanousd
    assert "e" not in "".join(shown["usd_per_million_tokens"].values()).lower()
    assert [each["above_tokens"] for each in shown["long_prompts"]] == [
        each.above_tokens for each in price.long_prompts
    ]
    assert (shown["batch"] is None) == (price.batch is None)


def test_what_is_unknown_is_null() -> None:
    """And never 0; what is to come is told in its order."""
    prices = [checked_prices({"input": day, "output": 1, "effective_from": f"2026-01-0{day}"}) for day in (3, 2)]
    entered = [each.entered(date(2026, 1, 1)) for each in prices]
    book = price_book(
        DatedPrice(target_id="m", price=price, source="override", effective_us=at_us) for price, at_us in entered
    )
    shown = prices_as_json(book, "m", 0)
    assert (shown["version"], shown["usd_per_million_tokens"], shown["usd_per_request"]) == (None, None, None)
    assert [each["effective_from"] for each in shown["upcoming"]] == ["2026-01-02", "2026-01-03"]
    assert prices_as_json(PriceBook(), "m", 0)["upcoming"] == []
    assert (day_of(entered[0][1]), today(entered[0][1] + 1)) == ("2026-01-03", date(2026, 1, 3))


@given(st.integers(0, 10**15))
def test_a_number_in_json_is_the_decimal_that_stood_there(amount: int) -> None:
    """Not the float next to it."""
    written = f"{Decimal(amount).scaleb(-9):f}"
    entered = checked_prices(parse_prices(f'{{"input": {written}, "output": "{written}"}}'))
    assert nanousd(entered.input) == nanousd(entered.output) == amount


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ("{", "", "not JSON"),
        ("[]", "", "not an object"),
        (b"\xff", "", "not JSON"),
        ("[" * 100_000, "", "not JSON"),
        ('{"input": 1, "input": 2, "output": 1}', "", "twice"),
        ('{"input": NaN, "output": 1}', "", "NaN is no price"),
        ('{"input": 1}', "output", "is required"),
        ('{"input": -1, "output": 1}', "input", "at least 0"),
        ('{"input": 1e30, "output": 1}', "input", "at most 1000000"),
        ('{"input": "1e-12", "output": 1}', "input", "nano-dollars"),
        ('{"input": true, "output": 1}', "input", "a number"),
        ('{"input": 1, "outptu": 1}', "outptu", "is not known; did you mean `output`?"),
        ('{"input": 1, "output": 1, "price": 1}', "price", "is not known"),
        ('{"input": 1, "output": 1, "long_prompts": [{"above_tokens": 1}]}', "long_prompts.0.input", "is required"),
        ('{"input": 1, "output": 1, "version": "a/b"}', "version", "not a value"),
        ('{"input": 1, "output": 1, "effective_from": "soon"}', "effective_from", "a date such as"),
        ('{"input": 1, "output": 1, "note": "' + "x" * 1_001 + '"}', "note", "at most 1000"),
    ],
)
def test_what_is_no_price_is_told(body: str | bytes, field: str, says: str) -> None:
    """The first thing that is wrong, where it is, and what it may be."""
    with pytest.raises(BadPrice) as raised:
        checked_prices(parse_prices(body))
    assert raised.value.field == field
    assert says in str(raised.value)
