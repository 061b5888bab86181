"""What the same work would have cost at three other targets."""

from decimal import Decimal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cost.prices import price_from_usd
from cost.savings.comparators import Baselines, Comparator, Comparators
from cost.usage import Usage

GPT_4O = price_from_usd(version="2026-05-01", input_usd="2.50", output_usd="10", cached_input_usd="1.25")
LLAMA = price_from_usd(version="june", input_usd="0.88", output_usd="0.88")


LLAMA_70B = Comparator(target_id="llama-3-70b", price=LLAMA)


def baselines(
    comparators: Comparators, usage: Usage, *, by: Comparator = LLAMA_70B, own: bool = True, batch: bool = False
) -> Baselines:
    return comparators.baselines(usage, by=by, own=own, cost_nanousd=5, cheapest=None, batch=batch)


def test_the_cached_share_keeps_its_discount() -> None:
    """A thousand tokens of which 400 were cached: 600 at 2.50, 400 at 1.25, 500 out at 10 dollars a million."""
    usage = Usage(input_tokens=1_000, cached_input_tokens=400, output_tokens=500)
    found = baselines(Comparators(reference=Comparator(target_id="gpt-4o", price=GPT_4O)), usage)
    assert found.reference_nanousd == 600 * 2_500 + 400 * 1_250 + 500 * 10_000
    assert found.reference_price == "gpt-4o@2026-05-01"
    assert (found.cheapest_nanousd, found.hosted_nanousd) == (None, None)


def test_batch_work_is_compared_with_the_batch_price() -> None:
    """The reference would have given its 50 % for it."""
    half = price_from_usd(version="2026-05-01", input_usd="1.25", output_usd="5", cached_input_usd="0.625")
    reference = Comparator(target_id="gpt-4o", price=msgspec.structs.replace(GPT_4O, batch=half))
    usage = Usage(input_tokens=1_000, output_tokens=100)
    found = Comparators(reference=reference)
    assert baselines(found, usage, batch=True).reference_nanousd == 1_000 * 1_250 + 100 * 5_000
    assert baselines(found, usage).reference_nanousd == 1_000 * 2_500 + 100 * 10_000


def test_tokens_are_converted_where_both_tokenizers_are_known() -> None:
    """A tokenizer that makes 20 % more of the same text than the reference's: what it counted is worth less there."""
    usage = Usage(input_tokens=1_200, output_tokens=600)
    measured = Comparator(target_id="gpt-4o", price=GPT_4O, tokenizer_ppm=1_000_000)
    assert measured.worth_nanousd(usage, batch=False, counted_ppm=1_200_000) == 1_000 * 2_500 + 500 * 10_000
    assert measured.worth_nanousd(usage, batch=False, counted_ppm=None) == 1_200 * 2_500 + 600 * 10_000


def test_what_was_bought_is_hosted_by_others_already() -> None:
    """Its own cost is the figure; our own work has one only where somebody hosts the same weights."""
    usage = Usage(input_tokens=1_000, output_tokens=1_000)
    comparators = Comparators(hosted={"llama-3-70b": Comparator(target_id="together", price=LLAMA)})
    own = baselines(comparators, usage)
    assert (own.hosted_nanousd, own.hosted_price) == (2_000 * 880, "together@june")
    bought = baselines(comparators, usage, by=Comparator(target_id="mini", price=LLAMA), own=False)
    assert (bought.hosted_nanousd, bought.hosted_price) == (5, "mini@june")
    other = Comparator(target_id="other", price=LLAMA)
    assert baselines(comparators, usage, by=other).hosted_nanousd is None


@given(
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(100_000, 10_000_000),
    st.integers(100_000, 10_000_000),
)
def test_converting_is_exact_to_half_a_nanodollar(tokens_in: int, tokens_out: int, ours: int, theirs: int) -> None:
    """Rounded once, after the ratio; a request's own price is not multiplied."""
    price = msgspec.structs.replace(GPT_4O, request_nanousd=7)
    found = Comparator(target_id="gpt-4o", price=price, tokenizer_ppm=ours).worth_nanousd(
        Usage(input_tokens=tokens_in, output_tokens=tokens_out), batch=False, counted_ppm=theirs
    )
    exact = (Decimal(tokens_in) * 2_500 + Decimal(tokens_out) * 10_000) * ours / theirs + 7
    assert abs(found - exact) <= Decimal("0.500001")
