"""Evidence that may be looked at again and again."""

import math
import random
from itertools import product

import msgspec
import pytest

from benchmarks.rollouts import first_alarm
from selfhosted.rollouts.evidence import ALARM, FEWEST_TIMES, ODDS, Evidence, Side, log_bet
from selfhosted.rollouts.versions import Rule

RULE = Rule()


@pytest.mark.parametrize("odds", ODDS)
@pytest.mark.parametrize(("hits", "candidate", "stable"), [(1, 1, 9), (4, 3, 7), (9, 5, 5), (10, 6, 6), (3, 40, 700)])
def test_a_bet_is_fair(odds: float, hits: int, candidate: int, stable: int) -> None:
    """Its mean over all ways in which alike versions can share the hits is 1, or a little less where it is not exact."""
    ways = math.comb(candidate + stable, hits)
    mean = sum(
        math.comb(candidate, drawn)
        * math.comb(stable, hits - drawn)
        / ways
        * math.exp(log_bet(odds, drawn, hits, candidate, stable))
        for drawn in range(min(hits, candidate) + 1)
        if hits - drawn <= stable
    )
    assert mean == pytest.approx(1.0) if candidate + stable <= 500 else 0.9 < mean <= 1.0


def test_where_one_side_served_nothing_nothing_is_bet() -> None:
    """A candidate without a stable version beside it is not known to be worse; and what everybody does tells nothing."""
    evidence = Evidence()
    evidence.add(Side(), Side(attempts=50, failed=50), RULE)
    evidence.add(Side(attempts=50, failed=50), Side(), RULE)
    evidence.add(Side(attempts=50, failed=50), Side(attempts=50, failed=50), RULE)
    assert evidence.whole(RULE) == 1.0


def test_an_outage_of_both_is_no_evidence() -> None:
    """An hour in which all fail, with a larger share for the candidate than before, tells nothing of it."""
    evidence = Evidence()
    evidence.add(Side(attempts=900), Side(attempts=100), RULE)
    evidence.add(Side(attempts=500, failed=450), Side(attempts=500, failed=450), RULE)
    assert evidence.whole(RULE) < 1.0


def test_what_nobody_watches_does_not_count() -> None:
    """A rule without errors is not moved by them."""
    evidence = Evidence()
    evidence.add(Side(attempts=500), Side(attempts=100, failed=60), RULE)
    assert evidence.whole(RULE) > ALARM
    assert evidence.alarming(RULE) == ["failures"]
    assert evidence.alarming(msgspec.structs.replace(RULE, errors=False)) == []
    nothing = Rule(errors=False, quality=False, ttft_worse=None, tpot_worse=None)
    assert (evidence.whole(nothing), evidence.alarming(nothing)) == (1.0, [])


def test_times_wait_until_there_are_enough_and_goes_on_from_what_was_kept() -> None:
    """In any portions, and over a process's end: the same evidence as in one process."""
    draws = random.Random(1)
    whole = Evidence()
    for _ in range(FEWEST_TIMES):
        sides = [Side(attempts=2, ttft_s=tuple(scale * draws.random() for _ in range(2))) for scale in (1.0, 4.0)]
        whole.add(sides[0], sides[1], RULE)
    draws = random.Random(1)
    kept = Evidence()
    for _ in range(FEWEST_TIMES):
        sides = [Side(attempts=2, ttft_s=tuple(scale * draws.random() for _ in range(2))) for scale in (1.0, 4.0)]
        kept.add(sides[0], sides[1], RULE)
        kept = msgspec.json.decode(msgspec.json.encode(kept), type=Evidence)
    assert kept == whole
    assert whole.of("ttft_s") > ALARM
    assert whole.of("failures") == 1.0


@pytest.mark.parametrize(("share", "rate"), list(product((0.05, 0.5), (0.001, 0.03))))
def test_a_sound_version_stays(share: float, rate: float) -> None:
    """However often one looks: here every ten seconds for two hours. `make bench-rollouts` looks for a day."""
    assert not any(first_alarm(random.Random(trial), share, (rate, rate), looks=720) for trial in range(5))


def test_a_bad_version_goes() -> None:
    """Twenty of a hundred errors at a twentieth of the traffic, and tokens that take three times as long."""
    for trial in range(10):
        assert (first_alarm(random.Random(trial), 0.05, (0.001, 0.2), looks=60) or 60) < 60
        assert (first_alarm(random.Random(trial), 0.05, (0.0, 0.0), looks=20, slower=3.0) or 20) < 20
