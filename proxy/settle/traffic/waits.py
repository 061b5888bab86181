"""Counts of waiting times in ranges: they add up over processes and minutes, and tell quantiles."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_LEAST_S: Final = 0.01
_GROWTH: Final = 1.25
BOUNDS_S: Final = tuple(_LEAST_S * _GROWTH**step for step in range(48))
"""The upper bounds of the ranges, in seconds, from 10 ms to six minutes; one more range has longer times."""
RANGES: Final = len(BOUNDS_S) + 1


def range_of(seconds: float) -> int:
    """Return the place of the range that has this time."""
    return bisect_left(BOUNDS_S, seconds)


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """Return the seconds within which `share` of the counted times lie, at most a quarter off; None where nothing was
    counted.
    """
    rest = share * sum(counts)
    for place, count in enumerate(counts):
        if count and rest <= count:
            if place == len(BOUNDS_S):
                return BOUNDS_S[-1]
            low_s = BOUNDS_S[place - 1] if place else 0.0
            return low_s + (BOUNDS_S[place] - low_s) * rest / count
        rest -= count
    return None


def added(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return both counts together; one may be empty."""
    return [a + b for a, b in zip(first or [0] * RANGES, second or [0] * RANGES, strict=True)]
