"""What a period is likely to cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.forecast import LOOKS_BACK_DAYS, coming_days, forecast, habits_of
from cost.times import DAY_US

MONDAY = 3 * DAY_US + 100 * 7 * DAY_US + DAY_US
"""The epoch was a Thursday, so the fourth day after it was a Monday."""
NOON_US = DAY_US // 2


def test_too_few_days_are_no_forecast() -> None:
    """Today is not a whole day yet."""
    days = {MONDAY: 5, MONDAY + DAY_US: 5, MONDAY + 2 * DAY_US: 5}
    assert forecast(days, now_us=MONDAY + 2 * DAY_US + 1, end_us=MONDAY + 9 * DAY_US) is None
    assert forecast({}, now_us=MONDAY, end_us=MONDAY + 9 * DAY_US) is None


def test_even_days_go_on_evenly() -> None:
    """Half of today and the days after it, with nothing to doubt."""
    days = {MONDAY + number * DAY_US: 1_000 for number in range(5)}
    found = forecast(days, now_us=MONDAY + 5 * DAY_US + NOON_US, end_us=MONDAY + 10 * DAY_US)
    assert found is not None
    assert (found.rest_nanousd, found.low_nanousd, found.high_nanousd) == (4_500, 4_500, 4_500)
    assert (found.days_known, found.by_weekday) == (5, False)
    assert [expected for _, expected in found.by_day] == [500, 1_000, 1_000, 1_000, 1_000]


def test_weekends_are_told_apart_after_two_weeks() -> None:
    """A quiet weekend makes no working day cheaper, nor the other way round."""
    days = {MONDAY + number * DAY_US: 10 if number % 7 > 4 else 1_000 for number in range(14)}
    found = forecast(days, now_us=MONDAY + 14 * DAY_US, end_us=MONDAY + 21 * DAY_US)
    assert found is not None
    assert found.by_weekday
    assert [expected for _, expected in found.by_day] == [1_000] * 5 + [10] * 2
    assert found.high_nanousd == found.rest_nanousd == 5_020


def test_a_day_without_a_row_cost_nothing() -> None:
    """Holes between the first day and today are days of zero, not unknown ones."""
    found = forecast({MONDAY: 3_000}, now_us=MONDAY + 3 * DAY_US, end_us=MONDAY + 4 * DAY_US)
    assert found is not None
    assert (found.days_known, found.rest_nanousd) == (3, 1_000)
    assert found.low_nanousd < 1_000 < found.high_nanousd


def test_what_is_long_ago_is_forgotten() -> None:
    """Only the last four weeks count."""
    now_us = MONDAY + 60 * DAY_US
    recent = {now_us - number * DAY_US: 100 for number in range(1, LOOKS_BACK_DAYS + 1)}
    old = {now_us - number * DAY_US: 10**9 for number in range(LOOKS_BACK_DAYS + 1, 50)}
    found = forecast(recent | old, now_us=now_us, end_us=now_us + DAY_US)
    assert found is not None
    assert found.rest_nanousd == 100


def test_a_day_that_a_period_ends_within_counts_by_its_part() -> None:
    """As today does, whose rest alone is to come; and the days are those of the forecast."""
    days = {MONDAY + number * DAY_US: 1_000 for number in range(4)}
    now_us, end_us = MONDAY + 4 * DAY_US + DAY_US // 4, MONDAY + 6 * DAY_US + DAY_US // 2
    means = habits_of(days, now_us - now_us % DAY_US).means(now_us - now_us % DAY_US)
    assert means is not None
    coming = tuple(coming_days(means, now_us=now_us, end_us=end_us))
    assert coming == tuple(zip(range(MONDAY + 4 * DAY_US, end_us, DAY_US), (750, 1_000, 500), strict=True))
    whole = forecast(days, now_us=now_us, end_us=end_us)
    assert whole is not None
    assert whole.by_day == coming
    within = tuple(coming_days(means, now_us=now_us, end_us=now_us + DAY_US // 4))
    assert within == ((MONDAY + 4 * DAY_US, 250),)


@given(
    spent=st.lists(st.integers(min_value=-(10**12), max_value=10**15), min_size=3, max_size=40),
    now=st.integers(min_value=0, max_value=DAY_US - 1),
    ahead=st.integers(min_value=1, max_value=40),
)
def test_it_adds_up_and_lies_within_its_bounds(spent: list[int], now: int, ahead: int) -> None:
    """Whatever was spent: the days are the rest, and the bounds hold it where it is not below zero."""
    days = {MONDAY + number * DAY_US: amount for number, amount in enumerate(spent)}
    now_us = MONDAY + len(spent) * DAY_US + now
    found = forecast(days, now_us=now_us, end_us=MONDAY + (len(spent) + ahead) * DAY_US)
    assert found is not None
    assert sum(expected for _, expected in found.by_day) == found.rest_nanousd
    assert len(found.by_day) == ahead
    assert max(0, found.rest_nanousd) >= found.low_nanousd >= 0
    assert found.high_nanousd >= found.rest_nanousd


@pytest.mark.parametrize("end_us", [MONDAY + 4 * DAY_US, MONDAY])
def test_a_period_that_is_over_costs_nothing_more(end_us: int) -> None:
    """Nothing is expected of it."""
    days = {MONDAY + number * DAY_US: 1_000 for number in range(4)}
    found = forecast(days, now_us=MONDAY + 4 * DAY_US, end_us=end_us)
    assert found is not None
    assert (found.rest_nanousd, found.by_day) == (0, ())


@given(
    st.dictionaries(st.integers(0, 40), st.integers(-(10**12), 10**12)), st.integers(0, DAY_US - 1), st.integers(0, 31)
)
def test_no_forecast_is_less_than_nothing(spent: dict[int, int], into_us: int, left: int) -> None:
    """Whatever days cost or gave back, what is to come lies within its range, and each day of it is no gain."""
    now_us = MONDAY + 40 * DAY_US + into_us
    days = {MONDAY + day * DAY_US: amount for day, amount in spent.items()}
    found = forecast(days, now_us=now_us, end_us=MONDAY + (40 + left) * DAY_US)
    if found is not None:
        assert 0 <= found.low_nanousd <= found.rest_nanousd <= found.high_nanousd
        assert all(expected >= 0 for _, expected in found.by_day)
