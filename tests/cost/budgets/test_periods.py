"""Days, weeks and months in UTC, without gaps and overlaps."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.budgets.periods import Period, end_us, start_us
from cost.times import DAY_US, iso, moment

PERIODS: tuple[Period, ...] = ("day", "week", "month")


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("day", "2026-04-05T00:00:00Z", "2026-04-06T00:00:00Z"),
        ("week", "2026-03-30T00:00:00Z", "2026-04-06T00:00:00Z"),
        ("month", "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z"),
    ],
)
def test_a_sunday_at_noon(period: Period, start: str, end: str) -> None:
    """The fifth of April 2026 is the last day of its week."""
    at_us = int(datetime(2026, 4, 5, 12, tzinfo=UTC).timestamp()) * 1_000_000
    assert (iso(start_us(period, at_us)), iso(end_us(period, at_us))) == (start, end)


@given(st.sampled_from(PERIODS), st.integers(0, 4_102_444_800_000_000))
def test_periods_follow_each_other(period: Period, at_us: int) -> None:
    """Every moment lies in one period, which begins at midnight; a week on Monday, a month on the first."""
    start, end = start_us(period, at_us), end_us(period, at_us)
    assert start <= at_us < end
    assert start % DAY_US == 0
    assert start_us(period, end) == end
    assert end_us(period, start) == end
    assert period != "week" or moment(start).weekday() == 0
    assert period != "month" or moment(start).day == 1
