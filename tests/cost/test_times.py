"""Days, moments and microseconds say the same."""

from datetime import UTC, date, datetime

from hypothesis import given
from hypothesis import strategies as st

from cost.times import day_of, iso, moment, start_of


@given(st.dates())
def test_a_day_begins_and_ends(day: date) -> None:
    """Its first and its last microsecond are its own."""
    assert day_of(start_of(day)) == day_of(start_of(day) + 86_400_000_000 - 1) == day


def test_a_moment_is_exact() -> None:
    """No float comes in between; a text has whole seconds."""
    at_us = start_of(date(2026, 4, 5)) + 1
    assert moment(at_us) == datetime(2026, 4, 5, 0, 0, 0, 1, tzinfo=UTC)
    assert iso(at_us) == "2026-04-05T00:00:00Z"
