"""Shares of batches: never more than there is, never late while there is time, fair between teams."""

import math
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch.scheduler import Standing, Turns, left_until_due_s, shares, slacks
from proxy.batch.speed import Speed
from selfhosted.replica import PoolReading

_standings = st.lists(
    st.builds(
        Standing,
        batch_id=st.uuids().map(str),
        team_id=st.sampled_from(["a", "b", "c"]),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        priority=st.sampled_from([-1, 0, 1]),
        left_s=st.none() | st.floats(-100, 86_400),
        tokens_left=st.integers(0, 10**7),
        lines_left=st.integers(0, 300),
        running=st.just(0),
        idle=st.floats(0, 1),
        order=st.integers(0, 100),
    ),
    max_size=8,
)
_speed = st.none() | st.floats(0.1, 10**5)


def at(tokens_per_s: float | None) -> Callable[[float], float | None]:
    """A speed that is the same whatever comes."""
    return lambda _left_s: tokens_per_s


def standing(name: str = "b", **given: object) -> Standing:
    values = {
        "batch_id": name, "team_id": "a", "left_s": 3_600.0, "tokens_left": 36_000, "lines_left": 100, "idle": 0.0, **given,
    }  # fmt: skip
    return msgspec.convert(values, Standing)


@given(standings=_standings, speed=_speed, at_once=st.integers(1, 200))
def test_shares_stay_within_what_there_is(standings: list[Standing], speed: float | None, at_once: int) -> None:
    """No batch gets more than it has lines, all together no more than may run at once, and nothing depends on the order."""
    found = shares(standings, slacks(standings, at(speed)), at_once)
    assert found.keys() == {each.batch_id for each in standings}
    assert all(0 <= found[each.batch_id] <= each.lines_left for each in standings)
    assert sum(found.values()) <= at_once


@given(standings=_standings, speed=_speed, at_once=st.integers(1, 200))
def test_nothing_idle_and_nothing_pressing_begins_nothing(
    standings: list[Standing], speed: float | None, at_once: int
) -> None:
    """Interactive work keeps all that it uses while batches have time."""
    calm = [msgspec.structs.replace(each, idle=0.0) for each in standings]
    found = slacks(calm, at(speed))
    given_ = shares(calm, found, at_once)
    pressing = {batch_id for batch_id, each in found.items() if each.pressure > 0}
    assert {batch_id for batch_id, lines in given_.items() if lines} <= pressing


@given(standings=_standings, at_once=st.integers(1, 200))
def test_what_is_late_takes_everything(standings: list[Standing], at_once: int) -> None:
    """As many lines as may run at once, or as late batches have."""
    late = [msgspec.structs.replace(each, left_s=-1.0, idle=0.0) for each in standings]
    found = shares(late, slacks(late, at(100.0)), at_once)
    assert sum(found.values()) == min(at_once, sum(each.lines_left for each in late))


@given(needed=st.floats(0.01, 10), more=st.floats(1, 5))
def test_pressure_grows_as_time_goes(needed: float, more: float) -> None:
    """Of the same work, less time never presses less; 95 % of the time needed do not press, all of it presses fully."""
    speed = 36_000 / 3_600 / needed
    now = slacks([standing()], at(speed))["b"]
    later = slacks([standing(left_s=3_600 / more)], at(speed))["b"]
    assert later.pressure >= now.pressure
    assert (now.pressure > 0) == (needed > 0.95 + 1e-9) or math.isclose(needed, 0.95, rel_tol=1e-6)
    assert math.isclose(now.pressure, 1.0) or needed < 1.0 + 1e-9
    assert now.is_easy == (needed <= 0.5) or math.isclose(needed, 0.5, rel_tol=1e-6)
    assert now.slack_s is not None
    assert math.isclose(now.slack_s, 3_600 - 3_600 * needed, abs_tol=0.01)


def test_work_that_is_due_earlier_takes_time_from_what_is_due_later() -> None:
    """Slack counts both."""
    early, late = standing("early", left_s=1_000.0, tokens_left=9_000), standing("late", left_s=2_000.0)
    found = slacks([late, early], at(100.0))
    assert found["early"].slack_s == 1_000 - 90
    assert found["late"].slack_s == 2_000 - 90 - 360


def test_teams_share_by_weight_and_the_earliest_deadline_is_first_within_one() -> None:
    """A team with many late batches takes nothing from another's."""
    crowd = [standing(f"a{number}", left_s=float(number - 10), order=number) for number in range(5)]
    other = standing("b0", team_id="b", left_s=-1.0, weight=3.0)
    found = shares([*crowd, other], slacks([*crowd, other], at(1.0)), 40)
    assert found == {"a0": 10, "a1": 0, "a2": 0, "a3": 0, "a4": 0, "b0": 30}


def test_idle_engines_are_filled_by_priority() -> None:
    """A batch without a deadline fills what is idle, after those that have one."""
    calm = [
        standing("none", left_s=None, idle=0.5),
        standing("low", priority=-1, idle=0.5),
        standing("high", priority=1, idle=0.5, lines_left=3),
    ]
    assert shares(calm, slacks(calm, at(1_000.0)), 20) == {"none": 7, "low": 0, "high": 3}


def test_what_runs_is_added_to_what_is_idle() -> None:
    """A batch's own lines use its targets, too: it must not stop half-way because of itself."""
    each = standing(idle=0.25, running=15)
    assert shares([each], slacks([each], at(1_000.0)), 20) == {"b": 20}
    full = standing(idle=0.0, running=15)
    assert shares([full], slacks([full], at(1_000.0)), 20) == {"b": 15}


def test_sustained_interactive_load_does_not_make_a_batch_late() -> None:
    """With nothing idle for the whole window, a batch that needs four tenths of it at full speed is done in time."""
    at_once, per_line = 10, 5.0
    left, tokens = 3_600.0, 0.4 * 3_600 * at_once * per_line
    now = 0.0
    speed = Speed(lambda: now)
    ran: Counter[int] = Counter()
    while tokens > 0 and left > -180:
        each = standing(left_s=left, tokens_left=int(tokens), lines_left=1_000)
        speed.look({"b": int(tokens)})
        lines = shares([each], slacks([each], speed.ahead), at_once)["b"]
        ran[lines] += 1
        tokens -= lines * per_line
        now, left = now + 1, left - 1
    assert tokens <= 0
    assert left >= -18, "most of the twentieth that is spared is left then"
    # And it was no burden as long as it could wait.
    assert min(ran) < at_once / 2


def test_two_teams_at_one_deadline_are_both_in_time() -> None:
    """Together they need eight tenths of what there is; the time that is spared covers what controlling by slack leaves over."""
    at_once, per_line = 10, 5.0
    aim_s = left_until_due_s(3_600.0, 3_600.0)
    tokens = {"x": 0.4 * 3_600 * at_once * per_line, "y": 0.4 * 3_600 * at_once * per_line}
    now = 0.0
    speed = Speed(lambda: now)
    for second in range(3_600):
        all_of_them = [
            standing(name, team_id=name, left_s=aim_s - second, tokens_left=int(left), lines_left=int(left > 0) * 1_000)
            for name, left in tokens.items()
        ]
        speed.look({name: int(left) for name, left in tokens.items()})
        given_ = shares(all_of_them, slacks(all_of_them, speed.ahead), at_once)
        tokens = {name: max(0.0, left - given_[name] * per_line) for name, left in tokens.items()}
        now += 1
    assert tokens == {"x": 0.0, "y": 0.0}


def test_lines_take_turns_at_own_engines() -> None:
    """One for each engine that has read its prompts, in a round; whatever presses is held for a second at most, and nothing that
    others answer is held.
    """
    now = 100.0
    turns = Turns(lambda: now)
    turns.begin_round()
    assert turns.may_begin(None, 7, 0.0) == 7
    assert turns.look_in_s == math.inf
    assert turns.may_begin(PoolReading(2, 0.0), 5, 0.0) == 2
    assert turns.may_begin(PoolReading(2, 0.0), 5, 0.0) == 0
    assert turns.look_in_s < 0.1
    turns.begin_round()
    assert turns.may_begin(PoolReading(0, 0.3), 5, 0.0) == 0
    assert turns.look_in_s == 0.3
    now += 0.5
    assert turns.may_begin(PoolReading(0, 0.3), 5, 0.0) == 0, "what does not press waits"
    assert turns.may_begin(PoolReading(0, 0.3), 5, 0.5) == 0
    assert turns.may_begin(PoolReading(0, 0.3), 5, 1.0) == 5
    now += 0.7
    assert turns.may_begin(PoolReading(0, 0.3), 5, 0.5) == 5


def test_a_part_of_each_window_is_spared() -> None:
    """A twentieth of it."""
    assert left_until_due_s(86_400.0, 86_400.0) == 0.95 * 86_400
    assert left_until_due_s(100.0, 3_600.0) == 100 - 180


def test_the_speed_is_what_was_answered_in_the_time_there_was_work() -> None:
    """It is unknown at first, and pauses without batches do not count."""
    now = 0.0
    speed = Speed(lambda: now)

    def measured() -> float | None:
        return speed.tokens_per_s

    speed.look({"b": 1_000})
    assert measured() is None
    for left in (900, 800, 700):
        now += 1
        speed.look({"b": left})
    assert measured() == pytest.approx(100)
    now += 1
    speed.look({})
    now += 10_000
    speed.look({"c": 500})
    now += 1
    speed.look({"c": 400})
    assert measured() == pytest.approx(100)
