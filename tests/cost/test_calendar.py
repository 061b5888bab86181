"""An organisation's calendar over all times: days lie side by side, whatever took whose place."""

import itertools
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.budgets.periods import Period, bounds_us
from cost.calendar import UTC_CALENDAR, WEEKDAYS, Calendar
from cost.times import DAY_US, HOUR_US, MINUTE_US, day_of, iso, start_of

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
)
FIRST = date(2026, 1, 1)


def changed(*changes: tuple[date, str, str]) -> Calendar:
    """Return the calendar of an organisation that took these from the midnight of a day on."""
    found = UTC_CALENDAR
    for day, zone, week_start in changes:
        found = Calendar(zone, week_start, Calendar(zone).start(day), found)  # type: ignore[arg-type]
    return found


calendars = st.lists(
    st.tuples(st.integers(2, 380), st.sampled_from(ZONES), st.sampled_from(WEEKDAYS)),
    max_size=3,
    unique_by=lambda each: each[0],
).map(lambda found: changed(*((FIRST + timedelta(days=days), zone, week) for days, zone, week in sorted(found))))


@given(calendars, st.integers(0, 400), st.integers(0, 2 * 24 * 4))
def test_each_moment_is_in_one_day(calendar: Calendar, days: int, quarters: int) -> None:
    """The day that a moment is in begins not after it, and the next one after it; the offsets say the same day."""
    at_us = start_of(FIRST) + days * DAY_US + quarters * 15 * MINUTE_US
    day = calendar.day(at_us)
    assert calendar.start(day) <= at_us < calendar.start(day + timedelta(days=1))
    from_us = at_us - 40 * HOUR_US
    offsets = calendar.offsets(from_us, at_us + 60 * HOUR_US) or ((from_us, 0),)
    offset_us = [offset for since, offset in offsets if since <= at_us][-1]
    assert day_of(at_us + offset_us) == day


@given(calendars, st.integers(0, 400), st.sampled_from(["day", "week", "month", "year"]))
def test_a_period_ends_when_it_says(calendar: Calendar, days: int, period: Period) -> None:
    """Until the moment that is told what counts now counts; from it on, what was before the next one begins does not."""
    at_us = start_of(FIRST) + days * DAY_US
    start, end = bounds_us(period, at_us, calendar)
    assert start <= at_us < end
    assert bounds_us(period, end - 1, calendar)[0] <= start
    assert start < bounds_us(period, end, calendar)[0] <= end


@pytest.mark.parametrize(
    ("zone", "period", "now", "resets"),
    [
        # Further east the next day begins before UTC's, further west after it.
        ("Europe/Berlin", "month", 23 * 60, "2026-12-31T23:00:00Z"),
        ("Europe/Berlin", "day", 0, "2026-12-31T23:00:00Z"),
        ("Pacific/Auckland", "day", 10 * 60 + 59, "2026-12-31T11:00:00Z"),
        ("Pacific/Auckland", "year", 0, "2026-12-31T11:00:00Z"),
        ("Asia/Kolkata", "month", 18 * 60, "2026-12-31T18:30:00Z"),
        ("America/New_York", "day", 23 * 60, "2027-01-01T05:00:00Z"),
        ("America/New_York", "day", 28 * 60, "2027-01-01T05:00:00Z"),
        ("America/New_York", "month", 0, "2027-01-01T05:00:00Z"),
        ("UTC", "month", 0, "2027-01-01T00:00:00Z"),
    ],
)
def test_a_budget_resets_on_the_eve_of_a_change_when_it_says(zone: str, period: Period, now: int, resets: str) -> None:
    """A calendar holds from New Year on: the old year's last period ends where the new one begins."""
    calendar = changed((date(2027, 1, 1), zone, "monday"))
    at_us = start_of(date(2026, 12, 31)) + now * MINUTE_US
    at_us = min(at_us, calendar.from_us - 1)
    end = bounds_us(period, at_us, calendar)[1]
    assert iso(end) == resets
    assert bounds_us(period, end, calendar)[0] == end


def test_weeks_that_begin_on_another_day_take_the_place_of_those_before() -> None:
    """From a Wednesday on weeks begin on Sundays: that week begins with the Sunday before, and ends on Saturday."""
    calendar = changed((date(2026, 12, 2), "UTC", "sunday"))
    tuesday = start_of(date(2026, 12, 1))
    assert [*map(iso, bounds_us("week", tuesday, calendar))] == ["2026-11-30T00:00:00Z", "2026-12-06T00:00:00Z"]
    assert [*map(iso, bounds_us("week", tuesday + DAY_US, calendar))] == [
        "2026-11-29T00:00:00Z",
        "2026-12-06T00:00:00Z",
    ]


def test_months_of_a_year_lie_side_by_side() -> None:
    """Where a zone changes within a month too: no hour is in two months, and none in no month."""
    calendar = changed((date(2026, 6, 17), "Asia/Kolkata", "monday"), (date(2026, 9, 1), "America/New_York", "monday"))
    firsts = [date(2026, month, 1) for month in range(1, 13)]
    found = [bounds_us("month", calendar.start(first), calendar) for first in firsts]
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(found))
    assert [iso(found[month][0]) for month in (5, 6, 8)] == [
        "2026-06-01T00:00:00Z",
        "2026-06-30T18:30:00Z",
        "2026-09-01T04:00:00Z",
    ]
