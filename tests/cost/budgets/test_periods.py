"""Days, weeks and months in UTC, without gaps and overlaps."""

from datetime import UTC, datetime
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.budgets.budget import Budget, BudgetStatus
from cost.budgets.periods import LONGEST_DAYS, PERIODS, Period, end_us, start_us
from cost.times import DAY_US, iso, moment
from dashboards.limits.limit_fields import PERIOD_CHOICES
from dashboards.teams.figures import BudgetLine
from gateway.commands.budgets import set_budget


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


@given(st.sampled_from(sorted(PERIODS)), st.integers(0, 4_102_444_800_000_000))
def test_periods_follow_each_other(period: Period, at_us: int) -> None:
    """Every moment lies in one period, which begins at midnight; a week on Monday, a month on the first."""
    start, end = start_us(period, at_us), end_us(period, at_us)
    assert start <= at_us < end
    assert start % DAY_US == 0
    assert start_us(period, end) == end
    assert end_us(period, start) == end
    assert period != "week" or moment(start).weekday() == 0
    assert period != "month" or moment(start).day == 1


@pytest.mark.parametrize("period", PERIODS)
def test_no_period_is_longer_than_the_table_says(period: Period) -> None:
    """Warnings are remembered by the longest period, so none may be longer than its row tells."""
    starts = range(0, 4 * 366 * DAY_US, DAY_US)
    longest = max(end_us(period, at_us) - start_us(period, at_us) for at_us in starts)
    assert longest == PERIODS[period].longest_days * DAY_US
    assert PERIODS[period].longest_days <= LONGEST_DAYS


@pytest.mark.parametrize("period", PERIODS)
def test_every_surface_knows_every_period(period: Period) -> None:
    """A budget of any period has bounds, words, and a choice in forms and in the command."""
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
    assert BudgetLine(standing=standing, expected_nanousd=None, runs_out_us=None).amount_per
