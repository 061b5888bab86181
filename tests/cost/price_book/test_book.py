"""Which price holds when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.price_book.book import DatedPrice, PriceBook, Source, is_bookable, price_book
from cost.prices import Price, price_from_usd


def price(version: str, input_usd: int = 1) -> Price:
    return price_from_usd(version=version, input_usd=input_usd, output_usd=2)


def dated(version: str, source: Source = "config", effective_us: int = 0, target_id: str = "m") -> DatedPrice:
    return DatedPrice(target_id=target_id, price=price(version), source=source, effective_us=effective_us)


def version_at(book: PriceBook, moment_us: int) -> str | None:
    found = book.at("m", moment_us)
    return None if found is None else found.version


def test_a_price_holds_from_its_first_microsecond() -> None:
    """Not a moment earlier, and until the next one does."""
    book = price_book([dated("second", effective_us=200), dated("first", effective_us=100)])
    assert [version_at(book, moment) for moment in (99, 100, 199, 200)] == [None, "first", "first", "second"]


def test_nothing_known_is_no_price() -> None:
    """A target without a price has None, which is not 0."""
    assert price_book([dated("v", target_id="other")]).at("m", 10**18) is None
    assert PriceBook().at("m", 0) is None


def test_an_override_comes_before_the_configuration_and_that_before_litellms_table() -> None:
    """Also where the lower one is dated later; before its date it does not count."""
    book = price_book(
        [dated("override", "override", 100), dated("later", "config", 200), dated("table", "litellm"), dated("config")]
    )
    assert [version_at(book, moment) for moment in (0, 100, 300)] == ["config", "override", "override"]


def test_of_two_from_the_same_moment_the_last_given_counts() -> None:
    """An operator who enters a second price for a day means that one."""
    book = price_book([dated("first", "override", 5), dated("second", "override", 5)])
    assert version_at(book, 5) == "second"


@given(st.lists(st.tuples(st.sampled_from(["config", "litellm", "override"]), st.integers(0, 20)), max_size=8))
def test_prices_only_change_at_the_moments_that_are_told(given_prices: list[tuple[Source, int]]) -> None:
    """Between now and `next_change_us` every price stays what it is."""
    book = price_book(dated(f"v{index}", source, at) for index, (source, at) in enumerate(given_prices))
    for moment in range(-1, 22):
        after = book.next_change_us(moment)
        until = 25 if after is None else after
        assert until > moment
        assert {version_at(book, each) for each in range(moment, until)} == {version_at(book, moment)}


@pytest.mark.parametrize(
    ("known", "unpriced", "auto", "bookable"),
    [
        (True, "refuse", True, True),
        (True, "refuse", False, True),
        (False, "refuse", False, False),
        (False, "book", False, True),
        (False, "book", True, False),
    ],
)
def test_what_has_no_price_is_refused_or_booked_and_never_chosen(
    known: bool,
    unpriced: str,
    auto: bool,
    bookable: bool,
) -> None:
    """`auto` weighs costs, so it has to know them."""
    assert is_bookable(price("v") if known else None, unpriced, auto=auto) is bookable  # type: ignore[arg-type]
