"""The state machine of a replica, on a simulated clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.config import LaunchConfig, PoolConfig, ScaleConfig
from selfhosted.watch.health import (
    Health,
    Limits,
    answered,
    limits_of,
    missed,
    request_began,
    request_failed,
    request_left,
    request_succeeded,
    unknown,
)

LIMITS = Limits(misses=3, max_suspicion_s=8.0, starting_s=600.0)


def ready(now: float = 0.0) -> Health:
    return answered(unknown(now), sent_at=now, now=now, asleep=False)


def fine(health: Health, now: float) -> Health:
    return answered(health, sent_at=now, now=now, asleep=False)


def fail(health: Health, now: float, began_at: float | None = None) -> Health:
    return request_failed(health, now=now, began_at=began_at, limits=LIMITS)


def miss(health: Health, now: float) -> Health:
    return missed(health, "no answer", now=now, limits=LIMITS)


def test_a_new_replica_is_starting_until_it_answers() -> None:
    """However often it does not."""
    health = unknown(0.0)
    for second in range(1, 60):
        health = miss(health, float(second))
        assert (health.state, health.since) == ("starting", 0.0)
    assert fine(health, 60.0) == Health(state="ready", since=60.0, why="")


def test_an_address_where_nobody_ever_was_is_down_in_the_end() -> None:
    """It would otherwise count as up for ever."""
    assert miss(unknown(0.0), 599.0).state == "starting"
    assert miss(unknown(0.0), 600.0).state == "down"


def test_a_missed_probe_is_a_suspicion_and_several_are_the_end() -> None:
    """And one good probe brings it back."""
    health = ready()
    states = []
    for second in (1.0, 2.0, 3.0, 4.0):
        health = miss(health, second)
        states.append(health.state)
    assert states == ["suspect", "suspect", "down", "down"]
    assert health.since == 3.0
    assert fine(health, 5.0).state == "ready"


def test_a_good_probe_starts_the_count_of_missed_ones_anew() -> None:
    """Two misses, one answer, two misses: not down."""
    health = miss(miss(ready(), 1.0), 2.0)
    assert miss(miss(fine(health, 3.0), 4.0), 5.0).state == "suspect"


def test_a_failed_request_makes_it_suspect_until_a_probe_that_was_sent_after() -> None:
    """A probe that was under way says nothing of what came after it was sent."""
    health = fail(ready(), 10.0)
    assert health.state == "suspect"
    late = answered(health, sent_at=9.9, now=10.1, asleep=False)
    assert late.state == "suspect"
    assert answered(late, sent_at=10.2, now=10.3, asleep=False).state == "ready"


def test_suspicion_grows_while_probes_are_fine() -> None:
    """At once, 1 s, 2 s, 4 s, 8 s, and no longer than the limit."""
    health, now, waits = ready(), 0.0, []
    for _ in range(7):
        health = request_began(health, now=now, limits=LIMITS)
        health = fail(health, now, now)
        failed_at = now
        while health.state != "ready":
            now += 0.25
            health = fine(health, now)
        waits.append(now - failed_at)
    assert waits == [0.25, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_many_requests_that_fail_together_are_one_suspicion() -> None:
    """The replica died once."""
    health = ready()
    for _ in range(50):
        health = fail(health, 5.0, 1.0)
    assert health.suspicions == 1
    assert fine(health, 5.1).state == "ready"


def test_what_fails_late_is_old_news() -> None:
    """A request that began before the replica was cleared asks for a probe, and makes no suspicion longer."""
    health = fine(fail(ready(), 5.0, 1.0), 6.0)
    late = fail(health, 7.0, 2.0)
    assert (late.state, late.suspicions) == ("suspect", 1)
    assert fine(late, 7.1).state == "ready"


def test_after_repeated_failures_one_request_goes_there_on_trial() -> None:
    """Nobody else goes there until it is known how that one fared."""
    health = fine(fail(fine(fail(ready(), 1.0), 1.1), 1.2), 3.0)
    assert (health.state, health.suspicions) == ("ready", 2)
    trial = request_began(health, now=3.1, limits=LIMITS)
    assert trial.state == "suspect"
    assert fine(trial, 4.0).state == "suspect"
    assert request_succeeded(trial, now=4.5).state == "ready"
    assert fail(trial, 4.5).suspicions == 3


def test_a_trial_without_an_outcome_ends() -> None:
    """The caller may have hung up."""
    health = fine(fail(fine(fail(ready(), 1.0), 1.1), 1.2), 3.0)
    trial = request_began(health, now=3.0, limits=LIMITS)
    assert fine(trial, 10.9).state == "suspect"
    again = fine(trial, 11.0)
    assert (again.state, again.trial_until) == ("ready", None)


def test_a_trial_that_says_nothing_ends_at_once() -> None:
    """Its caller hung up; the next request is on trial. Who had been there before it does not end it."""
    health = fine(fail(fine(fail(ready(), 1.0), 1.1), 1.2), 3.0)
    trial = request_began(health, now=3.1, limits=LIMITS)
    assert request_left(trial, began_at=2.9) is trial
    assert fine(request_left(trial, began_at=3.1), 3.5).state == "ready"
    assert request_left(ready(), began_at=1.0) == ready()


def test_a_success_clears_everything_and_costs_nothing_otherwise() -> None:
    """In the common case the value itself is kept."""
    health = ready()
    assert request_succeeded(health, now=9.0) is health
    assert request_began(health, now=9.0, limits=LIMITS) is health
    once = fine(fail(health, 1.0), 1.1)
    assert request_succeeded(once, now=2.0).suspicions == 0


def test_a_success_does_not_raise_what_does_not_answer_probes() -> None:
    """A stream may go on for a while where the door is shut."""
    health = fine(fail(fine(fail(ready(), 1.0), 1.1), 1.2), 3.0)
    trial = miss(request_began(health, now=3.1, limits=LIMITS), 4.0)
    assert request_succeeded(trial, now=4.5).state == "suspect"


def test_who_sleeps_is_not_ready() -> None:
    """Until a probe after it was woken."""
    asleep = answered(ready(), sent_at=1.0, now=1.0, asleep=True)
    assert (asleep.state, asleep.why) == ("suspect", "it is asleep")
    assert fine(asleep, 2.0).state == "ready"


def test_a_failure_where_nothing_was_expected_changes_nothing() -> None:
    """Down is down."""
    down = miss(miss(miss(ready(), 1.0), 2.0), 3.0)
    assert fail(down, 4.0) is down
    assert fail(unknown(0.0), 4.0).state == "starting"


def test_the_limits_come_from_the_configuration() -> None:
    """A cold start has its time, twice."""
    pool = PoolConfig(name="p", targets=("t",))
    assert limits_of(pool) == Limits(misses=3, max_suspicion_s=30.0, starting_s=600.0)
    slow = PoolConfig(name="p", targets=("t",), scale=ScaleConfig(cold_start_s=900))
    assert limits_of(slow).starting_s == 1_800.0
    launched = PoolConfig(name="p", targets=("t",), launch=LaunchConfig(command=("x",), ready_s=1_200))
    assert limits_of(launched).starting_s == 1_200.0


EVENTS = st.lists(st.sampled_from(["fine", "asleep", "miss", "fail", "began", "ok"]), max_size=40)


@pytest.mark.parametrize("wait_s", [0.1, 1.0, 10.0])
@given(EVENTS)
def test_whatever_happened_it_comes_back(wait_s: float, events: list[str]) -> None:
    """After any history good probes alone make it ready, within the longest suspicion and one trial."""
    health, now = unknown(0.0), 0.0
    for event in events:
        now += wait_s
        before = health
        if event in ("fine", "asleep"):
            health = answered(health, sent_at=now, now=now, asleep=event == "asleep")
        elif event == "miss":
            health = miss(health, now)
        elif event == "fail":
            health = fail(health, now, now)
        elif event == "began":
            health = request_began(health, now=now, limits=LIMITS)
        else:
            health = request_succeeded(health, now=now)
        assert (health.since == now) == (health.state != before.state)
    health = fine(health, now + LIMITS.max_suspicion_s)
    assert health.state == "ready"
