"""What a team's overview is made of; pure."""

from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pytest

from cost.budgets.budget import Budget, BudgetStatus, Outlook
from cost.calendar import Days
from cost.reports.usage import UsageSums
from cost.times import DAY_US, day_of
from dashboards.teams.figures import (
    HABITS,
    BudgetLine,
    SpendLinks,
    Usage,
    cache_chart,
    coverage,
    models_table,
    reference_chart,
    requests_chart,
    saved_share,
    spend_chart,
)

TODAY = 20_549 * DAY_US
"""2026-04-06, a Monday."""
NOON = TODAY + DAY_US // 2
LINKS = SpendLinks("/dashboard/teams/team_a/spend", "2026-11-01", "2026-11-30")


def sums(**fields: int) -> UsageSums:
    """A day's sums of one model."""
    usual: dict[str, Any] = {
        "requests": 10,
        "attempts": 10,
        "served": 10,
        "cost_nanousd": 1_000,
        "input_tokens": 100,
        "output_tokens": 10,
    }
    return UsageSums(**{**usual, **fields})


def usage(mix: dict[tuple[int, str, str], UsageSums], **fields: Any) -> Usage:
    today = day_of(TODAY)
    return Usage(**{"now_us": NOON, "span": Days(today - timedelta(days=6), today), "mix": mix, **fields})


def steady(days: int = 20, **fields: int) -> Usage:
    """The same on every whole day before today."""
    return usage({(TODAY - each * DAY_US, "small", "caller"): sums(**fields) for each in range(1, days + 1)})


def budget(**fields: Any) -> BudgetStatus:
    usual: dict[str, Any] = {
        "budget_id": "b",
        "organisation_id": "acme",
        "scope": "team",
        "scope_id": "team_a",
        "period": "month",
        "kind": "soft",
        "limit_nanousd": 100_000,
    }
    return BudgetStatus(budget=Budget(**usual), at_us=NOON, spent_nanousd=fields.pop("spent_nanousd", 6_000))


def test_the_period_ends_with_today() -> None:
    """Seven days are today and the six before it; the month is the calendar's."""
    mix = {(TODAY - each * DAY_US, "small", "caller"): sums() for each in range(10)}
    found = usage(mix)
    assert (found.period.requests, found.today.requests, found.month.requests) == (70, 10, 60)
    assert len(found.drawn_days()) == 7
    assert found.drawn_days()[-1] == TODAY


def test_a_usual_day_is_the_mean_of_the_week_before() -> None:
    """Without today, which is not over; None where nothing was spent."""
    assert steady(3).usual_day_nanousd == 3 * 1_000 // 7
    assert usage({(TODAY, "small", "caller"): sums()}).usual_day_nanousd is None


def test_models_are_told_with_what_each_answer_cost() -> None:
    """The dearest first; what has no price has no cost, and shares are of answers."""
    mix = {
        (TODAY, "small", "caller"): sums(served=30, cost_nanousd=3_000, baseline_rows=30, baseline_nanousd=9_000),
        (TODAY, "large", "caller"): sums(served=10, cost_nanousd=5_000, cached_input_tokens=25),
        (TODAY, "odd", "caller"): sums(served=0, cost_nanousd=0, unpriced_attempts=2),
        (TODAY, "large", "shadow"): sums(requests=0, served=0, cost_nanousd=1_000, input_tokens=0),
    }
    rows = models_table(usage(mix), {}, LINKS).rows
    assert [(row["model"], row["cost"], row["each"], row["saved"]) for row in rows] == [
        ("large", 6_000, 600, None),
        ("small", 3_000, 100, 6_000),
        ("odd", None, None, None),
    ]
    assert [str(row["share"]) for row in rows] == ["0.250", "0.750", "0.000"]
    assert str(rows[0]["cached"]) == "0.250"


def test_charts_draw_every_day_and_no_more() -> None:
    """Also those without a row; what is unknown of a day is a gap and not a zero."""
    mix = {
        (TODAY, "small", "caller"): sums(served=8, baseline_rows=8, baseline_nanousd=4_000),
        (TODAY - 6 * DAY_US, "odd", "caller"): sums(cost_nanousd=0, unpriced_attempts=1, input_tokens=0),
        (TODAY - 7 * DAY_US, "small", "caller"): sums(),
    }
    found = usage(mix)
    spend, reference, requests, cache = (
        make(found) for make in (partial(spend_chart, links=LINKS), reference_chart, requests_chart, cache_chart)
    )
    assert [list(each.values) for each in spend.series] == [[0, 0, 0, 0, 0, 0, 1_000]]
    assert list(reference.series[0].values)[:2] == [None, 0]
    assert list(reference.series[1].values) == [None] * 6 + [4_000]
    assert [list(each.values)[-1] for each in requests.series] == [8, 2]
    assert list(cache.series[0].values) == [None] * 6 + [0.0]


def test_many_models_are_drawn_as_a_few() -> None:
    """The rest together, so that nothing is left out of the bar."""
    mix = {(TODAY, f"m{each}", "caller"): sums(cost_nanousd=1_000 - each) for each in range(9)}
    series = spend_chart(usage(mix), LINKS).series
    assert [each.label for each in series] == ["m0", "m1", "m2", "m3", "m4", "4 other models"]
    assert sum(list(each.values)[-1] or 0 for each in series) == sum(1_000 - each for each in range(9))


def test_what_budgets_count_has_no_true_up() -> None:
    """As budgets do themselves: at the planned rate."""
    plain = steady()
    posted = {**plain.mix, **{(day, "small", "true-up"): sums(cost_nanousd=-900) for day, _, _ in plain.mix}}
    found = msgspec.structs.replace(plain, mix=posted)
    assert found.trued_up_nanousd == -900 * 5
    assert found.counted_nanousd == 1_000 * 5
    assert found.counted_nanousd + found.trued_up_nanousd == found.month.cost_nanousd


@pytest.mark.parametrize(
    ("spent", "runs_out_us", "tone"), [(6_000, None, "accent"), (6_000, TODAY, "warn"), (100_001, None, "bad")]
)
def test_a_budget_that_will_not_last_is_marked_before(spent: int, runs_out_us: int | None, tone: str) -> None:
    """By what is expected of it; one that is used up is told as that."""
    outlook = Outlook(expected_nanousd=1, runs_out_us=runs_out_us)
    assert BudgetLine(msgspec.structs.replace(budget(spent_nanousd=spent), outlook=outlook)).tone == tone


def test_shares_without_a_whole_are_unknown() -> None:
    """Nothing to compare with is no saving of nothing."""
    assert (saved_share(sums()), coverage(UsageSums())) == (None, None)
    compared = sums(baseline_rows=5, baseline_nanousd=4_000)
    assert (str(saved_share(compared)), str(coverage(compared))) == ("0.75", "0.500")


def test_a_correction_is_no_habit() -> None:
    """What was posted once comes into what was spent, but neither into a usual day nor into what is to come."""
    plain = steady()
    posted = {
        (TODAY - 2 * DAY_US, "small", "correction"): sums(requests=0, cost_nanousd=-900_000),
        (TODAY - 3 * DAY_US, "small", "reconciliation"): sums(requests=0, cost_nanousd=70_000),
    }
    found = usage({**plain.mix, **posted})
    assert found.month.cost_nanousd == plain.month.cost_nanousd - 830_000
    assert found.usual_day_nanousd == plain.usual_day_nanousd == 1_000
    assert found.forecast(found.month_end_us, HABITS) == plain.forecast(plain.month_end_us, HABITS)


def test_a_share_is_rounded_as_the_report_is() -> None:
    """What is not quite the target never reads as if it were."""
    assert saved_share(sums(cost_nanousd=60_001, baseline_nanousd=100_000, baseline_rows=1)) == Decimal("0.3999")
