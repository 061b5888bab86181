"""Whether budgets last: by what they counted, to the limit in force, and unknown where days do not tell."""

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.budgets.budget import Budget, BudgetStatus, Outlook
from cost.budgets.outlook import outlook as outlook_by
from cost.budgets.store import BudgetStore
from cost.calendar import Calendar
from cost.forecast import LOOKS_BACK_DAYS, habits_of
from cost.tables import SpendDay
from cost.times import DAY_US, HOUR_US
from tests.cost.budgets.crowd import budget

TODAY = 20_549 * DAY_US
"""2026-04-06, a Monday: 25 days of its month are to come with itself."""
NOON = TODAY + DAY_US // 2
STEADY = {TODAY - number * DAY_US: 1_000 for number in range(1, 21)}
LIMIT = 100_000


def standing(spent: int = 6_000, **fields: Any) -> BudgetStatus:
    usual = {"organisation_id": "acme", "scope_id": "team_a", "limit_nanousd": LIMIT}
    named = {"budget_id": "b", "scope": "team", "period": "month", "kind": "soft"}
    return BudgetStatus(budget=Budget(**{**usual, **named, **fields}), at_us=NOON, spent_nanousd=spent)


def outlook(status: BudgetStatus, days: Mapping[int, int]) -> Outlook | None:
    return outlook_by(status, habits_of(days, TODAY))


def test_a_budget_that_lasts_has_a_forecast() -> None:
    """Half of today and 24 days more of a thousand each."""
    assert outlook(standing(), STEADY) == Outlook(expected_nanousd=6_000 + 24_500, runs_out_us=None)


def test_one_that_does_not_last_says_when() -> None:
    """On the day on which its limit is reached, not when it is passed."""
    for spent, later in ((97_500, 2), (97_501, 2), (97_499, 3), (99_999, 0)):
        found = outlook(standing(spent), STEADY)
        assert found is not None
        assert found.runs_out_us == TODAY + later * DAY_US, spent


@pytest.mark.parametrize(("days", "later"), [(1, 2), (20, 20)])
def test_a_raise_counts_as_long_as_it_lasts(days: int, later: int) -> None:
    """Afterwards the limit is what it was."""
    raised = {"raised_nanousd": 10 * LIMIT, "raised_until_us": TODAY + days * DAY_US}
    found = outlook(standing(LIMIT - 1_600, **raised), STEADY)
    assert found is not None
    assert found.runs_out_us == TODAY + later * DAY_US


def test_what_never_resets_is_looked_at_for_a_while() -> None:
    """A balance runs out or does not within 90 days; there is no end to forecast an amount for."""
    for period in ("prepaid", "lifetime"):
        assert outlook(standing(LIMIT - 30_000, period=period), STEADY) == Outlook(
            expected_nanousd=None, runs_out_us=TODAY + 30 * DAY_US
        )
        assert outlook(standing(0, period=period), STEADY) == Outlook(expected_nanousd=None, runs_out_us=None)


def test_what_days_do_not_tell_is_not_known() -> None:
    """Too few of them, the hours of one, and a budget that stands for many."""
    few = {day: spent for day, spent in STEADY.items() if day >= TODAY - 2 * DAY_US}
    assert outlook(standing(), few) is None
    assert outlook(standing(), {}) is None
    assert outlook(standing(period="hour"), STEADY) is None
    assert outlook(standing(scope="end_user", scope_id="team_a/*"), STEADY) is None


def test_a_period_of_another_zone_ends_within_a_day() -> None:
    """The part of the last UTC day that belongs to it counts: seven hours of May in UTC are April in California."""
    found = outlook(
        BudgetStatus(budget=standing().budget, at_us=NOON, spent_nanousd=0, calendar=Calendar("America/Los_Angeles")),
        STEADY,
    )
    assert found is not None
    assert found.expected_nanousd == 24_500 + round(1_000 * 7 * HOUR_US / DAY_US)


async def test_the_store_tells_it_of_each_budget_by_its_own_spending(engine: AsyncEngine) -> None:
    """One scope's days are nobody else's, in lists and alone."""
    store = BudgetStore(engine, lambda: NOON)
    one = budget(30_000, budget_id="one", scope_id="team_a")
    await store.put(one)
    await store.put(budget(30_000, budget_id="two", scope_id="team_b"))
    async with engine.begin() as connection:
        rows = [
            {"scope": "team", "scope_id": "team_a", "day_us": day, "spent_nanousd": spent}
            for day, spent in STEADY.items()
        ]
        await connection.execute(insert(SpendDay), rows)
    found = {each.budget.budget_id: each for each in await store.of_organisation(one.organisation_id)}
    # Five days of April are booked.
    assert (found["one"].spent_nanousd, found["one"].expected_nanousd) == (5_000, 29_500)
    assert (found["one"].lasts, found["one"].runs_out_us) == (True, None)
    assert (found["two"].lasts, found["two"].expected_nanousd) == (None, None)
    assert (await store.get("one")).outlook == found["one"].outlook


async def test_the_database_adds_up_the_days_as_they_are_here(engine: AsyncEngine) -> None:
    """By weekday, with gaps, of the last four weeks, and nothing of today: uneven days, of as many budgets as one question has not."""
    store = BudgetStore(engine, lambda: NOON)
    names = [f"team_{number}" for number in range(3)]
    for name in names:
        await store.put(budget(LIMIT, budget_id=name, scope_id=name, period="month"))
    spent = {
        name: {TODAY - age * DAY_US: (age + 1) ** 3 * (place + 1) for age in range(0, LOOKS_BACK_DAYS + 1, place + 1)}
        for place, name in enumerate(names)
    }
    async with engine.begin() as connection:
        for name, days in spent.items():
            rows = [
                {"scope": "team", "scope_id": name, "day_us": day, "spent_nanousd": each} for day, each in days.items()
            ]
            await connection.execute(insert(SpendDay), rows)
    found = await store.of_organisation("default")
    assert [each.budget.budget_id for each in found] == names
    for each in found:
        assert each.outlook == outlook(each, spent[each.budget.budget_id])
