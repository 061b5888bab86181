"""Months: where they begin and end, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.close.month import Month, month_of, parse_month
from cost.times import start_of

MONTHS = st.builds(Month, st.integers(1971, 9996), st.integers(1, 12))


@given(MONTHS)
def test_a_month_reads_back(month: Month) -> None:
    """Its text, its first and its last moment all lead to it, and its neighbours touch it."""
    assert parse_month(month.text) == month == month_of(month.start_us) == month_of(month.end_us - 1)
    assert month.next.start_us == month.end_us
    assert month.next.previous == month
    assert start_of(month.last_day) < month.end_us
    assert (month.is_over(month.end_us - 1), month.is_over(month.end_us)) == (False, True)


def test_months_have_names() -> None:
    """As people write them."""
    assert Month(2026, 2).title == "February 2026"
    assert Month(2026, 2).last_day.isoformat() == "2026-02-28"


@pytest.mark.parametrize(
    "text", ["", "2026", "2026-13", "2026-00", "2026-1", "0000-01", "9999-12", "\uff12026-01", "2026-11-01"]
)
def test_what_is_no_month_is_refused(text: str) -> None:
    """Misspelt, or no time of ours."""
    with pytest.raises(ValueError, match="month"):
        parse_month(text)
