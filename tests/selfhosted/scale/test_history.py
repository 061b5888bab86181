"""What was expected, beside what came."""

import math

import pytest

from selfhosted.scale.history import History, Step

MIDNIGHT = 1_699_833_600.0


def watch(history: History, minutes: int, *, cold_s: float = 360.0) -> None:
    """A decision every 15 s: 100 a second more in each minute, and each forecast says 5,000 more than there is now."""
    for tick in range(minutes * 4):
        work = 100.0 * (tick // 4)
        at_s = MIDNIGHT + tick * 15
        history.expect(work + 5_000, at_s + cold_s)
        history.observe(work, at_s, desired=3, ready=2)


def test_a_forecast_stands_beside_the_time_that_it_was_made_for() -> None:
    """Not beside that at which it was made; before the first of them nothing was expected."""
    history = History()
    watch(history, 21)
    steps = history.steps
    assert [step.at_s - MIDNIGHT for step in steps] == [0, 300, 600, 900]
    assert [step.came for step in steps] == [400, 900, 1_400, 1_900]
    assert [step.expected for step in steps] == [None, 5_300, 5_800, 6_300]
    assert {(step.desired, step.ready) for step in steps} == {(3, 2)}


def test_it_remembers_a_day() -> None:
    """However long it runs."""
    history = History()
    watch(history, 60 * 26)
    assert len(history.steps) == 288
    assert History(history.steps).steps == history.steps


def test_a_day_is_one_by_the_clock() -> None:
    """Whatever was before a time in which nobody decided is forgotten, however few steps there are since."""
    history = History([Step(MIDNIGHT - 90_000, 1, 1, 1, 1), Step(MIDNIGHT - 80_000, 2, 2, 1, 1)])
    watch(history, 11)
    assert [step.at_s - MIDNIGHT for step in history.steps] == [-80_000, 0, 300]


@pytest.mark.parametrize("odd", [Step(math.nan, 1, 1, 1, 1), Step(1, -1, 1, 1, 1), Step(1, 1, math.inf, 1, 1)])
def test_what_cannot_have_been_is_not_believed(odd: Step) -> None:
    """It may come from another version."""
    assert History([odd]).steps == []
