"""Prices in another unit than dollars per million tokens are found, by litellm's table or by what anybody asks."""

from typing import Any

import pytest

from providers.config import ProvidersSection
from providers.price_units import price_hints


def _hints(model_id: str, prices: Any, kind: str = "openai") -> list[str]:
    deployment = {"kind": kind, "base_url": "https://api.openai.com/v1"}
    model = {"model_id": model_id, "provider": "openai", "prices": prices, "deployments": [deployment]}
    return list(price_hints(ProvidersSection.model_validate({"models": [model]})))


@pytest.mark.parametrize(
    ("prices", "figure", "factor"),
    [
        ({"input": "0.0025", "output": "0.01"}, "$0.0025", "the price of 1,000 tokens, so multiply by 1,000"),
        ({"input": "0.0000025", "output": "0.00001"}, "$0.0000025", "the price of one token, so multiply by 1,000,000"),
        ({"input": "2500", "output": "10000"}, "$2500", "is it the price of another number of tokens?"),
    ],
)
def test_both_figures_are_told(prices: dict[str, str], figure: str, factor: str) -> None:
    """The file's and the table's, and by what to multiply."""
    (hint,) = _hints("gpt-4o", prices)
    assert hint.startswith(
        f"gpt-4o: prices.input is {figure} for a million tokens, and litellm's table has $2.5 for `gpt-4o`"
    )
    assert hint.endswith(factor)


def test_one_figure_is_enough() -> None:
    """An output price alone may be in another unit."""
    (hint,) = _hints("gpt-4o", {"input": "2.5", "output": "0.01"})
    assert hint.startswith("gpt-4o: prices.output is $0.01 for a million tokens")


def test_discounts_and_gifts_are_nobodys_mistake() -> None:
    """Half, double, and nothing at all are prices."""
    for prices in ({"input": "1.25", "output": "5"}, {"input": "5", "output": "20"}, {"input": 0, "output": 0}):
        assert _hints("gpt-4o", prices) == []


def test_without_a_row_only_what_nobody_asks_is_told() -> None:
    """A model that the table lacks may cost anything between a tenth of a cent and thousands."""
    assert _hints("house-model", {"input": "0.02", "output": "3"}) == []
    (hint,) = _hints("house-model", {"input": "0.0000002", "output": "0.0000008"})
    assert "which nobody asks" in hint
    assert _hints("house-model", {"input": "0.05", "output": "0.05"}, kind="vllm") == []


def test_prices_with_dates_are_looked_at() -> None:
    """A list's prices as one alone."""
    dated = [{"input": "2.5", "output": "10"}, {"input": "0.0025", "output": "0.01", "effective_from": "2026-01-01"}]
    (hint,) = _hints("gpt-4o", dated)
    assert "$0.0025" in hint
