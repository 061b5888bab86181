"""Whether a count is more than chance makes of it, where it is looked at every few seconds, for good. Pure.

A share of a few attempts is above its threshold now and then although nothing is wrong: of targets that fail one attempt in a hundred,
whose last 20 to 100 attempts are looked at, every one has a twentieth of failures several times a day. So a count is told only where a
share just below the threshold would hardly ever make it. With `SOUND` of the threshold as the true share, at most one day of a hundred has
a look that is told (tests/api/live/test_chance.py); many attempts need no more than the threshold itself.
"""

import math
from functools import lru_cache
from typing import Final

SOUND: Final = 0.6
"""Part of a threshold up to which nothing is wrong: 3 % of failures where 5 % are told."""
MOST_SOUND: Final = 0.3
"""Of a threshold above a half, that half's: an outage is told, whatever the threshold."""
CHANCE: Final = 2e-6
"""Chance of a look of a sound one to be told: a day has thousands of looks, which mostly see the same attempts."""
FEWEST_IN_A_ROW: Final = 3
"""Failures one after the other from which a target may be failing."""
_SOUND_FAILURES: Final = 0.03
_RUNS_A_DAY: Final = 0.01
_WINDOWS_A_DAY: Final = 144


@lru_cache(maxsize=16_384)
def least_count(of: int, share: float) -> int:
    """Return the fewest of so many that are told to be `share` of them or more; above `of` where they are too few to tell."""
    fewest = max(1, math.ceil(share * of - 1e-9))
    sound = min(SOUND * share, MOST_SOUND)
    if sound <= 0:
        return fewest
    tail, count = 0.0, of
    while count >= fewest:
        tail += math.exp(
            math.lgamma(of + 1)
            - math.lgamma(count + 1)
            - math.lgamma(of - count + 1)
            + count * math.log(sound)
            + (of - count) * math.log1p(-sound)
        )
        if tail > CHANCE:
            break
        count -= 1
    return max(fewest, count + 1)


def is_beyond_chance(count: int, of: int, share: float) -> bool:
    """Return whether a count of so many is told to be `share` of them or more."""
    return of > 0 and count >= least_count(of, share)


def longest_run_by_chance(beside: int) -> int:
    """Return the failures in a row that a sound target has in one of a hundred days at most, by its attempts of ten minutes: fewer than
    three of one that hardly anybody asks, fewer than five of a busy one.
    """
    run = FEWEST_IN_A_ROW
    while beside * _WINDOWS_A_DAY * _SOUND_FAILURES**run * (1 - _SOUND_FAILURES) > _RUNS_A_DAY:
        run += 1
    return run - 1
