"""What follows for a replica from probes and requests, on a simulated clock, and that all who know the same agree."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.config import LaunchConfig, PoolConfig, ScaleConfig
from selfhosted.health.verdict import (
    NO_DOUBT,
    Doubt,
    Health,
    Limits,
    Probe,
    limits_of,
    merged,
    observed,
    rejudged,
    request_began,
    request_failed,
    request_left,
    request_succeeded,
    unheard,
    unknown,
)

LIMITS = Limits(misses=3, max_suspicion_s=8.0, starting_s=600.0)


def ready(now: float = 0.0) -> Health:
    return fine(unknown(now), now)


def fine(health: Health, now: float, sent_at: float | None = None, *, asleep: bool = False) -> Health:
    """The health after a probe that was answered well; one that was sent now, if nothing else is said."""
    at = now if sent_at is None else sent_at
    probe = Probe(sent_at=at, first_at=0.0, answered_at=at, asleep=asleep)
    return observed(health, probe, NO_DOUBT, now=now, limits=LIMITS)


def miss(health: Health, now: float) -> Health:
    before = health.probe
    probe = Probe(
        sent_at=now,
        first_at=0.0,
        misses=1 + (before.misses if before is not None else 0),
        why="no answer",
        answered_at=float("-inf") if before is None else before.answered_at,
    )
    return observed(health, probe, NO_DOUBT, now=now, limits=LIMITS)


def fail(health: Health, now: float, began_at: float | None = None) -> Health:
    return request_failed(health, now=now, began_at=began_at, limits=LIMITS)


def began(health: Health, now: float) -> Health:
    return request_began(health, now=now, limits=LIMITS)


def succeed(health: Health, now: float, began_at: float = 0.0) -> Health:
    return request_succeeded(health, now=now, began_at=began_at, limits=LIMITS)


def left(health: Health, now: float, began_at: float) -> Health:
    return request_left(health, now=now, began_at=began_at, limits=LIMITS)


def suspected_twice() -> Health:
    """Ready at 3.0, and the next request is a trial."""
    return fine(fail(fine(fail(ready(), 1.0), 1.1), 1.2), 3.0)


def test_a_new_replica_is_starting_until_it_answers() -> None:
    """However often it does not."""
    health = unknown(0.0)
    for second in range(1, 60):
        health = miss(health, float(second))
        assert (health.state, health.since) == ("starting", 0.0)
    health = fine(health, 60.0)
    assert (health.state, health.since, health.why) == ("ready", 60.0, "")


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
    late = fine(health, 10.1, sent_at=9.9)
    assert late.state == "suspect"
    assert fine(late, 10.3, sent_at=10.2).state == "ready"


def test_suspicion_grows_while_probes_are_fine() -> None:
    """At once, 1 s, 2 s, 4 s, 8 s, and no longer than the limit."""
    health, now, waits = ready(), 0.0, []
    for _ in range(7):
        health = fail(began(health, now), now, now)
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
    health = suspected_twice()
    assert (health.state, health.suspicions) == ("ready", 2)
    trial = began(health, 3.1)
    assert trial.state == "suspect"
    assert fine(trial, 4.0).state == "suspect"
    assert succeed(trial, 4.5, 3.1).state == "ready"
    assert fail(trial, 4.5).suspicions == 3


def test_a_trial_without_an_outcome_ends() -> None:
    """The caller may have hung up."""
    trial = began(suspected_twice(), 3.0)
    assert fine(trial, 10.9).state == "suspect"
    again = fine(trial, 11.0)
    assert again.state == "ready"
    assert began(again, 11.1).state == "suspect"


def test_a_trial_that_says_nothing_ends_at_once() -> None:
    """Its caller hung up; the next request is on trial. Who had been there before it does not end it."""
    trial = began(suspected_twice(), 3.1)
    assert left(trial, 3.2, 2.9) is trial
    assert left(trial, 3.2, 3.1).state == "ready"
    assert left(ready(), 9.0, 1.0) == ready()


def test_a_success_clears_everything_and_costs_nothing_otherwise() -> None:
    """In the common case the value itself is kept."""
    health = ready()
    assert succeed(health, 9.0) is health
    assert began(health, 9.0) is health
    once = fine(fail(health, 1.0), 1.1)
    assert succeed(once, 2.0).suspicions == 0


def test_a_success_does_not_raise_what_does_not_answer_probes() -> None:
    """A stream may go on for a while where the door is shut."""
    trial = miss(began(suspected_twice(), 3.1), 4.0)
    assert succeed(trial, 4.5, 3.1).state == "suspect"


def test_a_request_that_began_after_the_failure_is_as_good_as_a_probe() -> None:
    """One that began before says nothing of what came after."""
    health = fail(ready(), 5.0)
    assert succeed(health, 6.0, 4.9).state == "suspect"
    assert succeed(health, 6.0, 5.1).state == "ready"


def test_who_sleeps_is_not_ready() -> None:
    """Until a probe after it was woken."""
    asleep = fine(ready(), 1.0, asleep=True)
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


def test_without_probes_a_suspect_gets_a_trial() -> None:
    """One request, which proves it, or makes the suspicion longer; and a probe, once there is one, decides."""
    suspect = fail(ready(), 5.0)
    trusted = unheard(suspect, now=8.0, limits=LIMITS)
    assert trusted.state == "ready"
    trial = began(trusted, 8.1)
    assert trial.state == "suspect"
    assert unheard(trial, now=8.2, limits=LIMITS).state == "suspect"
    proved = succeed(trial, 8.5, 8.1)
    assert (proved.state, began(proved, 8.6).state) == ("ready", "ready")
    failed = fail(trial, 8.5)
    waits = [now for now in (8.6, 8.7, 9.4, 9.5) if unheard(failed, now=now, limits=LIMITS).state == "ready"]
    assert (failed.suspicions, waits) == (2, [9.5])
    again = fail(began(unheard(failed, now=9.5, limits=LIMITS), 9.6), 9.7)
    assert (again.suspicions, unheard(again, now=11.6, limits=LIMITS).state) == (3, "suspect")
    assert unheard(again, now=11.7, limits=LIMITS).state == "ready"
    assert fine(again, 11.7).state == "ready"
    assert miss(trusted, 11.7).state == "suspect"


def test_without_probes_one_missed_probe_is_forgotten_by_a_request() -> None:
    """The last that was told was that it did not answer, once."""
    trusted = unheard(miss(ready(), 5.0), now=8.0, limits=LIMITS)
    proved = succeed(began(trusted, 8.1), 8.5, 8.1)
    assert (proved.state, rejudged(proved, now=20.0, limits=LIMITS).state) == ("ready", "ready")


@pytest.mark.parametrize(
    "health", [miss(miss(miss(ready(), 1.0), 2.0), 3.0), unknown(0.0), fine(ready(), 1.0, asleep=True)]
)
def test_without_probes_who_is_down_starting_or_asleep_stays_so(health: Health) -> None:
    """Nothing says that it is better."""
    assert unheard(health, now=99.0, limits=LIMITS).state == health.state


def test_who_begins_to_probe_anew_makes_nobody_ready_or_starting() -> None:
    """Its first misses go on from what was known, and its first answer counts at once."""

    def first(misses: int) -> Probe:
        return Probe(sent_at=50.0 + misses, first_at=50.0, misses=misses, why="no answer")

    down = miss(miss(miss(ready(), 1.0), 2.0), 3.0)
    assert observed(down, first(1), NO_DOUBT, now=51.0, limits=LIMITS).state == "down"
    states = []
    health = ready()
    for misses in (1, 2, 3):
        health = observed(health, first(misses), NO_DOUBT, now=50.0 + misses, limits=LIMITS)
        states.append(health.state)
    assert states == ["suspect", "suspect", "down"]
    assert fine(down, 51.0).state == "ready"


def test_an_answer_that_was_not_heard_of_ends_the_misses_before_it() -> None:
    """A process may hear of the newest probe alone."""
    probe = Probe(sent_at=9.0, first_at=0.0, misses=1, why="no answer", answered_at=8.0)
    assert (
        observed(miss(miss(miss(ready(), 1.0), 2.0), 3.0), probe, NO_DOUBT, now=9.0, limits=LIMITS).state == "suspect"
    )


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
            health = fine(health, now, asleep=event == "asleep")
        elif event == "miss":
            health = miss(health, now)
        elif event == "fail":
            health = fail(health, now, now)
        elif event == "began":
            health = began(health, now)
        else:
            health = succeed(health, now, now - wait_s / 2)
        assert (health.since == now) == (health.state != before.state)
    health = fine(health, now + LIMITS.max_suspicion_s)
    assert health.state == "ready"


DOUBTS = st.builds(
    Doubt,
    at=st.sampled_from([1.0, 2.0, 3.0]),
    suspicions=st.integers(0, 3),
    doubted_at=st.sampled_from([1.0, 2.0]),
    proved_at=st.sampled_from([0.5, 1.5]),
    suspect_until=st.sampled_from([1.0, 5.0]),
    trial_until=st.sampled_from([None, 4.0]),
)


@given(DOUBTS, DOUBTS, DOUBTS)
def test_doubts_come_to_the_same_in_any_order(one: Doubt, two: Doubt, three: Doubt) -> None:
    """And it does not matter how often each is told."""
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, two) == merged(two, one)
    assert merged(one, one) == one
    assert merged(merged(one, two), one) == merged(one, two)


class Telling:
    """Two processes and who probes for them; messages between them wait until they are handed over."""

    def __init__(self) -> None:
        self.now = 0.0
        self.probe = Probe(sent_at=0.0, first_at=0.0, answered_at=0.0)
        self.shared = ready()
        self.own = [ready(), ready()]
        self.last_failed = [float("-inf")] * 2

    def sees(self, who: int, event: str) -> None:
        health = self.own[who]
        if event == "fail":
            if health.state in ("ready", "suspect"):
                self.last_failed[who] = self.now
            self.own[who] = fail(health, self.now, self.now)
        elif event == "began":
            self.own[who] = began(health, self.now)
        else:
            self.own[who] = succeed(health, self.now, self.now)

    def probes(self, event: str) -> None:
        misses = self.probe.misses + 1 if event == "miss" else 0
        answered_at = self.probe.answered_at if misses else self.now
        self.probe = msgspec.structs.replace(
            self.probe, sent_at=self.now, misses=misses, why="no answer" if misses else "", answered_at=answered_at
        )
        self.shared = observed(self.shared, self.probe, NO_DOUBT, now=self.now, limits=LIMITS)

    def hand_up(self, who: int) -> None:
        self.shared = observed(self.shared, None, self.own[who].doubt, now=self.now, limits=LIMITS)

    def hand_down(self, who: int) -> None:
        self.own[who] = observed(self.own[who], self.shared.probe, self.shared.doubt, now=self.now, limits=LIMITS)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fail", "began", "ok", "miss", "fine", "up", "down"]), st.integers(0, 1), st.floats(0.01, 2.0)
    ),
    max_size=60,
)


@given(STEPS)
def test_processes_that_are_told_the_same_agree(steps: list[tuple[str, int, float]]) -> None:
    """Whatever each saw, and whenever messages came: once all have been handed over, all have one verdict. And what a
    process saw fail is never overruled by a probe that was sent before.
    """
    told = Telling()
    for what, who, seconds in steps:
        told.now += seconds
        if what in ("fail", "began", "ok"):
            told.sees(who, what)
        elif what in ("miss", "fine"):
            told.probes(what)
        elif what == "up":
            told.hand_up(who)
        else:
            told.hand_down(who)
        for health, failed_at in zip(told.own, told.last_failed, strict=True):
            proved = health.probe is not None and health.probe.sent_at > failed_at
            assert health.state != "ready" or proved or health.doubt.proved_at > failed_at or failed_at < 0
    told.now += 0.01
    for who in (0, 1):
        told.hand_up(who)
    for who in (0, 1):
        told.hand_down(who)
    assert told.own[0].state == told.own[1].state == told.shared.state
    assert told.own[0].doubt == told.own[1].doubt == told.shared.doubt
