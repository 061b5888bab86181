"""The rate at which work ends, and the wait that follows from it."""

import math

import pytest

from proxy.admit.queues.fair_queue import Backlog, CompetingTeam, WorkAhead
from proxy.admit.queues.waiting import LONGEST_S, DrainRate, predicted_wait_s


def test_before_anything_was_measured_the_guess_is_careful() -> None:
    """A token stays as long as a whole answer's promise."""
    assert DrainRate(0).per_s(1_000) == 100


def test_without_a_rush_the_rate_follows_from_how_long_work_stays() -> None:
    """Little's law: what stays two seconds makes room for half of the capacity a second."""
    rate = DrainRate(0)
    for second in range(1, 50):
        rate.advance(second, busy=False)
        rate.ended(500, 2.0, busy=False)
    assert rate.per_s(10_000) == pytest.approx(5_000, rel=0.02)


def test_in_a_rush_what_ends_is_measured() -> None:
    """Also when work stays as long as ever by its own account."""
    rate = DrainRate(0)
    for second in range(1, 60):
        rate.advance(second, busy=True)
        rate.ended(300, 2.0, busy=True)
    assert rate.per_s(1_000) == pytest.approx(300, rel=0.2)


def test_an_engine_that_stops_is_noticed() -> None:
    """Nothing ends while work waits: the rate falls, and is never nothing."""
    rate = DrainRate(0)
    for second in range(1, 60):
        rate.advance(second, busy=True)
        rate.ended(500, 2.0, busy=True)
    before = rate.per_s(1_000)
    rate.advance(80, busy=True)
    assert 0 < rate.per_s(1_000) < before / 2
    assert DrainRate(0).per_s(0) > 0


def test_a_long_pause_brings_the_guess_back() -> None:
    """What was measured hours ago says little."""
    rate = DrainRate(0)
    rate.ended(1_000, 1.0, busy=False)
    assert rate.per_s(1_000) > 900
    rate.advance(3_600, busy=False)
    assert rate.per_s(1_000) == pytest.approx(100)


def _wait_s(own: float, short: float, *rivals: CompetingTeam, rate: float = 100.0) -> float:
    return predicted_wait_s(Backlog(short, WorkAhead(own, list(rivals)), None), rate, 60)


def test_a_wait_is_what_goes_first_by_the_rate() -> None:
    """Own work, what must end for the request itself, and the rivals' waiting work as far as fairness lets it pass."""
    assert _wait_s(0, -500) == 0
    assert _wait_s(300, 100) == 4
    assert _wait_s(300, 0, CompetingTeam(1_000, 0, 200), CompetingTeam(100, 0, 200)) == 6


def test_what_rivals_go_on_to_send_goes_first_too() -> None:
    """Until they had as much as may go before: then all of the rate is ours again."""
    assert _wait_s(300, 0, CompetingTeam(0, 50, math.inf)) == 6
    # It sends for 2 s, after which 100 of the 300 are done; the other 200 take 2 s.
    assert _wait_s(300, 0, CompetingTeam(0, 50, 100)) == 4
    assert _wait_s(300, 0, CompetingTeam(0, 200, 100)) == 4


def test_what_never_ends_is_cut_off() -> None:
    """Rivals that send more than goes through leave nothing, until the request has grown old."""
    flood = CompetingTeam(0, 200, math.inf)
    assert _wait_s(300, 0, flood) == LONGEST_S
    assert _wait_s(0, -1, flood) == 0
    backlog = Backlog(0, WorkAhead(300, [flood]), WorkAhead(100, []))
    assert predicted_wait_s(backlog, 100, 60) == 61
