"""What the availability run calls a missed bar."""

from typing import Any

import pytest

from benchmarks.availability import missed


def _trial(*, met: bool, outage: bool = False) -> dict[str, Any]:
    return {
        "bar": "bar",
        "name": "name",
        "met": met,
        "outage": outage,
        "requests": 60,
        "answered": 14,
        "failed": {"429 rate_limited": 46},
        "calls_per_request": 1.5,
    }


def _mix(answered: int) -> dict[str, Any]:
    return {"tiers": {"interactive": {"requests": 10_000, "answered": answered}}}


@pytest.mark.parametrize(("answered", "count"), [(10_000, 0), (9_990, 0), (9_989, 1)])
def test_the_mix_may_lose_one_of_a_thousand(answered: int, count: int) -> None:
    """99.9 % of a tier, to the request."""
    assert len(missed({"trials": [], "mix": _mix(answered)})) == count


def test_a_tier_that_nobody_asked_is_no_success() -> None:
    """A run without requests shows nothing."""
    assert missed({"trials": [], "mix": {"tiers": {"batch": {"requests": 0, "answered": 0}}}})


def test_a_trial_is_told_with_its_figures() -> None:
    """Answers and their reasons, or calls where everything was down."""
    trials = [_trial(met=True), _trial(met=False), _trial(met=False, outage=True)]
    answers, calls = missed({"trials": trials, "mix": _mix(10_000)})
    assert "14 of 60 answered; 46 of 429 rate_limited" in answers
    assert "1.50 calls a request" in calls
