"""Hours, days, weeks, months and years in any zone, without gaps and overlaps; and what never ends."""

from datetime import UTC, date, datetime, timedelta
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.budgets.budget import Budget, BudgetStatus
from cost.budgets.periods import LONGEST_DAYS, NEVER_US, PERIODS, Period, end_us, parts_of, start_us
from cost.calendar import WEEKDAYS, Calendar, UnknownTimeZone, Weekday, check_time_zone
from cost.times import DAY_US, HOUR_US, QUARTER_US, in_us, iso
from dashboards.limits.limit_fields import PERIOD_CHOICES
from dashboards.teams.figures import BudgetLine
from gateway.commands.budgets import set_budget


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("day", "2026-04-05T00:00:00Z", "2026-04-06T00:00:00Z"),
        ("week", "2026-03-30T00:00:00Z", "2026-04-06T00:00:00Z"),
        ("hour", "2026-04-05T12:00:00Z", "2026-04-05T13:00:00Z"),
        ("month", "2026-04-01T00:00:00Z", "2026-05-01T00:00:00Z"),
        ("year", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
    ],
)
def test_a_sunday_at_noon(period: Period, start: str, end: str) -> None:
    """The fifth of April 2026 is the last day of its week."""
    at_us = int(datetime(2026, 4, 5, 12, tzinfo=UTC).timestamp()) * 1_000_000
    assert (iso(start_us(period, at_us)), iso(end_us(period, at_us))) == (start, end)


ZONES = (
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "America/Havana",
    "Africa/Cairo",
    "Australia/Lord_Howe",
)
RENEWING = sorted(period for period, row in PERIODS.items() if row.renews)


@given(
    st.sampled_from(RENEWING),
    st.integers(0, 4_102_444_800_000_000),
    st.sampled_from(ZONES),
    st.sampled_from(WEEKDAYS),
)
def test_periods_follow_each_other(period: Period, at_us: int, zone: str, week_start: Weekday) -> None:
    """In every zone each moment lies in one period; a week begins on its day, a month on the first; all begin at quarters of an hour."""
    calendar = Calendar(zone, week_start)
    start, end = start_us(period, at_us, calendar), end_us(period, at_us, calendar)
    assert start <= at_us < end
    assert start % QUARTER_US == 0
    assert start_us(period, end, calendar) == end
    assert end_us(period, start, calendar) == end
    assert end - start <= (PERIODS[period].longest_days * 24 + 1) * HOUR_US
    first = calendar.day(start)
    assert period != "week" or WEEKDAYS[first.weekday()] == week_start or zone == "Pacific/Apia"
    assert period not in {"month", "year"} or first.day == 1
    assert period != "year" or first.month == 1


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("America/Havana", "2026-03-08", 23),
        ("America/Havana", "2026-11-01", 25),
        ("Asia/Kolkata", "2026-03-29", 24),
    ],
)
def test_days_of_a_clock_change(zone: str, day: str, hours: int) -> None:
    """A day is as long as it is there, also where the clock skips midnight or strikes it twice."""
    calendar, first = Calendar(zone), date.fromisoformat(day)
    noon = calendar.start(first) + 12 * HOUR_US
    assert calendar.day(noon) == first
    start, end = start_us("day", noon, calendar), end_us("day", noon, calendar)
    assert (start, (end - start) / HOUR_US) == (calendar.start(first), hours)
    assert calendar.day(start - 1) == first - timedelta(days=1)
    assert calendar.day(end) == first + timedelta(days=1)


def test_december_ends_with_its_year() -> None:
    """The month after it is the first of the next year, a leap year or none."""
    for year in (2026, 2027, 2028):
        at_us = in_us(datetime(year, 12, 31, 23, 59, tzinfo=UTC))
        assert (iso(start_us("month", at_us)), iso(end_us("month", at_us))) == (
            f"{year}-12-01T00:00:00Z",
            f"{year + 1}-01-01T00:00:00Z",
        )


def test_a_month_ends_where_it_ends_there() -> None:
    """November in New York ends at five in the morning UTC, the year in Auckland eleven at the day before."""
    at_us = in_us(datetime(2026, 12, 1, 4, 59, tzinfo=UTC))
    assert iso(end_us("month", at_us, Calendar("America/New_York"))) == "2026-12-01T05:00:00Z"
    assert iso(start_us("month", at_us, Calendar("America/New_York"))) == "2026-11-01T04:00:00Z"
    assert iso(end_us("year", at_us, Calendar("Pacific/Auckland"))) == "2026-12-31T11:00:00Z"


@pytest.mark.parametrize("period", ["lifetime", "prepaid"])
def test_what_never_renews(period: Period) -> None:
    """It holds all that was ever booked, and no later period comes."""
    assert (start_us(period, 5), end_us(period, 5)) == (0, NEVER_US)
    assert not PERIODS[period].renews
    assert (PERIODS[period].longest_days, iso(NEVER_US)) == (0, "9999-01-01T00:00:00Z")


def test_the_longest_of_each_period() -> None:
    """Of a year before a leap year, that one, and the next; what is remembered of a period is kept as long."""
    moments = [day * DAY_US for day in range(20_454, 20_454 + 3 * 366)]
    for period in RENEWING:
        longest = max(end_us(period, at_us) - start_us(period, at_us) for at_us in moments)
        assert PERIODS[period].longest_days == -(-longest // DAY_US)
    assert LONGEST_DAYS == 366


@given(st.integers(0, 10 * DAY_US), st.integers(0, 10 * DAY_US))
def test_parts_cover_a_time_once(from_us: int, length: int) -> None:
    """Whole UTC days and the quarters before and after are the time itself, without gap or overlap."""
    from_us, to_us = from_us - from_us % QUARTER_US, from_us + length
    to_us -= to_us % QUARTER_US
    parts = parts_of(from_us, to_us)
    pieces = [piece for piece in (parts[0:2], parts[2:4], parts[4:6]) if piece[0] < piece[1]]
    assert sum(end - start for start, end in pieces) == max(0, to_us - from_us)
    assert parts.days_from % DAY_US == parts.days_to % DAY_US == 0
    assert pieces == sorted(pieces)
    # What is summed by quarters is less than a day at either end.
    assert parts.head_to - parts.head_from < DAY_US
    assert parts.tail_to - parts.tail_from < DAY_US


@pytest.mark.parametrize("name", ["Europe/Berlin ", "europe", "../etc/passwd", "", "CET\0"])
def test_unknown_time_zones_are_told(name: str) -> None:
    """By their name, with how zones are called."""
    with pytest.raises(UnknownTimeZone, match="IANA names"):
        check_time_zone(name)


@pytest.mark.parametrize("period", PERIODS)
def test_every_surface_knows_every_period(period: Period) -> None:
    """A budget of any period has bounds, words, and a choice in forms and in the command."""
    assert set(PERIODS) == set(get_args(Period))
    assert all((PERIODS[period].adjective, PERIODS[period].every, PERIODS[period].amount_per))
    assert period in dict(PERIOD_CHOICES)
    assert period in get_args(get_type_hints(set_budget)["period"])
    budget = Budget(
        budget_id="b1",
        organisation_id="default",
        scope="team",
        scope_id="search",
        period=period,
        kind="hard",
        limit_nanousd=1,
    )
    standing = BudgetStatus(budget=budget, at_us=0, spent_nanousd=1)
    assert standing.start_us <= 0 < standing.resets_us
    assert BudgetLine(standing).amount_per
