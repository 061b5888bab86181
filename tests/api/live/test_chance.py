"""What is looked at again and again, and calls nothing ill that is well: days of sound targets and alerts, drawn at random."""

import random
from collections.abc import Sequence
from itertools import accumulate

import pytest

from api.live.chance import SOUND, is_beyond_chance, least_count, longest_run_by_chance
from api.live.recent import ENOUGH_OF_YESTERDAY, FAILING, reached

DAYS = 100
WINDOWS = 144


def day(share: float, a_window: int, rng: random.Random) -> list[bool]:
    """Attempts of a day, of which so many come in ten minutes; True for one that fails."""
    return [rng.random() < share for _ in range(WINDOWS * a_window)]


def most_in_a_window(failed: Sequence[bool], a_window: int) -> int:
    """The most that failed of so many attempts one after the other, wherever one looks."""
    sums = [0, *accumulate(failed)]
    return max(sums[end] - sums[end - a_window] for end in range(a_window, len(sums)))


@pytest.mark.parametrize("a_window", [20, 100, 300])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.03])
def test_a_sound_target_is_not_called_failing(share: float, a_window: int) -> None:
    """Of a hundred days at most one, looked at after each attempt: neither for its last ten minutes nor for a run."""
    rng, ill, by_share_alone = random.Random(f"{share}/{a_window}"), 0, 0
    for _ in range(DAYS):
        failed = day(share, a_window, rng)
        most = most_in_a_window(failed, a_window)
        run = longest_run = 0
        for each in failed:
            run = run + 1 if each else 0
            longest_run = max(longest_run, run)
        ill += is_beyond_chance(most, a_window, FAILING) or longest_run > longest_run_by_chance(a_window)
        by_share_alone += most >= FAILING * a_window
    assert ill <= 2  # One is expected at most; three would be a chance of 1 in 12.
    if a_window <= 100 and share >= 0.01:
        # So it was when the share alone decided.
        assert by_share_alone >= DAYS / 2


@pytest.mark.parametrize("threshold", [0.01, 0.02, 0.1, 0.5])
def test_a_sound_alert_is_not_told(threshold: float) -> None:
    """With three fifths of its threshold, where there are 40 attempts in its minutes."""
    rng = random.Random(f"alert/{threshold}")
    most = [most_in_a_window(day(SOUND * threshold, 40, rng), 40) for _ in range(DAYS)]
    assert sum(is_beyond_chance(each, 40, threshold) for each in most) <= 2


def test_sound_times_are_not_called_slow() -> None:
    """Where one in thirty is above the limit for p95, and where the median is as yesterday's, with a spread of three times."""
    rng, slow, slower = random.Random("times"), 0, 0
    for _ in range(20):
        for _ in range(WINDOWS):
            times = sorted(rng.lognormvariate(0, 1) for _ in range(40))
            usual = sorted(rng.lognormvariate(0, 1) for _ in range(ENOUGH_OF_YESTERDAY))[50]
            slow += (reached(times, 0.05) or 0) >= 6.25  # 3.3 % are longer.
            slower += (reached(times, 0.5) or 0) >= 2 * usual
    assert slow == 0
    assert slower <= 1


@pytest.mark.parametrize(("of", "fewest"), [(20, 7), (100, 14), (1_000, 59), (2_000, 100)])
def test_what_is_ill_is_told(of: int, fewest: int) -> None:
    """From a third of few attempts on, and from the threshold itself on of many; an outage always."""
    assert least_count(of, FAILING) == fewest
    assert is_beyond_chance(of, of, FAILING)
    assert not is_beyond_chance(0, 0, FAILING)
    assert is_beyond_chance(of, of, 1.0)


def test_a_run_is_told_the_sooner_the_less_is_asked() -> None:
    """Three failures of one that hardly anybody asks, five of a busy one."""
    assert [longest_run_by_chance(each) + 1 for each in (0, 2, 3, 88, 89, 2_000)] == [3, 3, 4, 4, 5, 5]
