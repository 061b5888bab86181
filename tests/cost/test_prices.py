"""Money is exact."""

from decimal import ROUND_FLOOR, Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cost.prices import NANO_PER_USD, Price, nanousd, price_from_usd, usd, usd_per_million
from cost.usage import Usage

amounts = st.integers(0, 10**14)
prices = st.builds(
    Price,
    version=st.just("v1"),
    input_nanousd=amounts,
    output_nanousd=amounts,
    cached_input_nanousd=amounts,
    cache_write_nanousd=amounts,
)
tokens = st.integers(0, 10**7)
usages = st.builds(
    lambda fresh, cached, written, output: Usage(
        input_tokens=fresh + cached + written,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=output,
        source="upstream",
    ),
    tokens,
    tokens,
    tokens,
    tokens,
)


@given(prices, usages)
def test_cost_is_the_exact_amount_rounded_once(price: Price, usage: Usage) -> None:
    """The cost is a whole number, never negative, and half a nano-dollar from the exact amount at most."""
    cost = price.cost_nanousd(usage)
    meters = [
        (usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens, price.input_nanousd),
        (usage.cached_input_tokens, price.cached_input_nanousd),
        (usage.cache_write_tokens, price.cache_write_nanousd),
        (usage.output_tokens, price.output_nanousd),
    ]
    exact = sum((Decimal(count) * each / 1_000_000 for count, each in meters), Decimal(0))
    assert type(cost) is int
    assert cost >= 0
    assert cost == int((exact + Decimal("0.5")).to_integral_value(ROUND_FLOOR))


@given(prices, usages, usages)
def test_cost_is_additive_to_the_rounding(price: Price, first: Usage, second: Usage) -> None:
    """Two attempts cost what one with the tokens of both would, to a nano-dollar."""
    both = Usage(
        input_tokens=first.input_tokens + second.input_tokens,
        cached_input_tokens=first.cached_input_tokens + second.cached_input_tokens,
        cache_write_tokens=first.cache_write_tokens + second.cache_write_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
    )
    assert abs(price.cost_nanousd(both) - price.cost_nanousd(first) - price.cost_nanousd(second)) <= 1


@given(st.integers(0, 10**15))
def test_dollars_and_nano_dollars_are_the_same_amount(amount: int) -> None:
    """There and back again changes nothing."""
    assert nanousd(usd(amount)) == amount


@given(st.integers(0, 10**15))
def test_a_price_from_yaml_is_the_text_that_stood_there(amount: int) -> None:
    """A price written in a configuration is read exactly, with or without quotes."""
    written = f"{Decimal(amount) / NANO_PER_USD:f}"
    assert usd_per_million(yaml.safe_load(f"'{written}'")) == amount
    if len(written.replace(".", "").lstrip("0")) <= 15:
        assert usd_per_million(yaml.safe_load(written)) == amount


@pytest.mark.parametrize(
    ("listed", "amount"),
    [(0.15, 150_000_000), ("2.50", 2_500_000_000), (15, 15_000_000_000), (Decimal("0.075"), 75_000_000)],
)
def test_listed_prices(listed: float | str | Decimal, amount: int) -> None:
    """The usual ways to write a price."""
    assert usd_per_million(listed) == amount


@pytest.mark.parametrize("bad", [-1, "-0.1", "NaN", float("inf"), "cheap", True, "0.0000000001", 10**7])
def test_what_is_no_price_is_refused(bad: float | str) -> None:
    """Nothing becomes a price by accident, least of all zero."""
    with pytest.raises(ValueError, match=r"price|nano-dollars"):
        usd_per_million(bad)


def test_a_cache_without_a_price_costs_what_input_costs() -> None:
    """No discount is assumed that nobody gave."""
    price = price_from_usd(version="v1", input_usd="2.5", output_usd=10, cache_write_usd="3.125")
    assert (price.cached_input_nanousd, price.cache_write_nanousd) == (2_500_000_000, 3_125_000_000)
