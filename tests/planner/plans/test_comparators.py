"""Other people's prices."""

from decimal import Decimal

import pytest

from planner.plans.comparators import COMPARATORS, comparator_named
from planner.plans.plan_errors import PlanRefused

HALF = Decimal("0.5")


def test_prices_are_dated_and_exact() -> None:
    """GPT-4o: 2.50 / 1.25 / 10, and it says that it leaves."""
    offer = comparator_named("gpt-4o")
    assert (offer.input_usd, offer.cached_input_usd, offer.output_usd) == (
        Decimal("2.50"),
        Decimal("1.25"),
        Decimal(10),
    )
    assert "14 January 2027" in offer.state
    assert all(each.as_of and each.state for each in COMPARATORS.values())


def test_a_blend_has_the_discounts_that_would_have_been_had() -> None:
    """Cached input at its own price where there is one; half of everything for a batch."""
    gpt, groq = comparator_named("gpt-4o"), comparator_named("groq-llama-3.3-70b")
    assert gpt.blended_usd(1, 1, cached_share=Decimal(0), batch=False) == Decimal("6.25")
    assert gpt.blended_usd(1, 1, cached_share=Decimal(1), batch=False) == Decimal("5.625")
    assert gpt.blended_usd(1, 1, cached_share=Decimal(0), batch=True) == Decimal("3.125")
    assert groq.blended_usd(1, 1, cached_share=HALF, batch=False) == Decimal("0.69")


def test_ones_own_contract_is_taken() -> None:
    """With and without a price for cached input."""
    assert comparator_named("ours=2/8").output_usd == 8
    three = comparator_named("ours=2/0.5/8")
    assert (three.cached_input_usd, three.output_usd) == (Decimal("0.5"), Decimal(8))


@pytest.mark.parametrize("text", ["gpt-9", "x=", "x=1", "x=1/2/3/4", "x=a/b", "=1/2", "x=-1/2", "x=NaN/1", "x=1e9/1"])
def test_nonsense_is_refused(text: str) -> None:
    """With what should have been written."""
    with pytest.raises(PlanRefused):
        comparator_named(text)
