"""Forecast of a period's cost from its days so far. Pure, in whole nano-dollars. Teams' months and budgets are forecast here alone."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isqrt
from typing import Final

import msgspec

from cost.times import DAY_US

FEWEST_DAYS: Final = 3
WEEKLY_DAYS: Final = 14
"""Days of history from which weekdays are told apart: two whole weeks."""
LOOKS_BACK_DAYS: Final = 28
_WEEK: Final = 7
_Z80_PERCENT: Final = 128
"""Hundredths of a standard deviation that hold four of five normal values: 1.28."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Expected cost until the period's end. `low` to `high` is an 80 % interval if habits stay."""

    rest_nanousd: int
    low_nanousd: int
    high_nanousd: int
    days_known: int
    by_weekday: bool
    by_day: tuple[tuple[int, int], ...]
    """Each day from today on, with its remaining expected cost."""


def forecast(days: Mapping[int, int], *, now_us: int, end_us: int) -> Forecast | None:
    """Forecast the period's remaining cost from the last 28 whole days.

    Each coming day is expected at the mean of its weekday (of all days with less than two weeks of history), today at
    its remaining part of that, and so the last day where the period ends within it; never below 0. `days` maps each UTC day to its cost; one that is missing between the first and today cost nothing. None with fewer
    than three whole days: a guess would be no better than anybody's.
    """
    today_us = now_us - now_us % DAY_US
    known = _known(days, today_us)
    if known is None:
        return None
    means = _means(known)
    by_day = _coming(means, today_us, now_us, end_us)
    rest = sum(expected for _, expected in by_day)
    swing = _half_width(known, means, days_left=Fraction(max(0, end_us - now_us), DAY_US))
    return Forecast(
        rest_nanousd=rest,
        low_nanousd=max(0, rest - swing),
        high_nanousd=rest + swing,
        days_known=len(known),
        by_weekday=len(means) > 1,
        by_day=by_day,
    )


def coming_days(days: Mapping[int, int], *, now_us: int, end_us: int) -> tuple[tuple[int, int], ...] | None:
    """Return each day from now on with its expected cost, as `forecast` does, without its range, which takes ten times as long."""
    today_us = now_us - now_us % DAY_US
    known = _known(days, today_us)
    return None if known is None else _coming(_means(known), today_us, now_us, end_us)


def _known(days: Mapping[int, int], today_us: int) -> dict[int, int] | None:
    """Return the whole days to learn from; None with too few."""
    first_us = max(min(days, default=today_us), today_us - LOOKS_BACK_DAYS * DAY_US)
    known = {day: days.get(day, 0) for day in range(first_us, today_us, DAY_US)}
    return known if len(known) >= FEWEST_DAYS else None


def _coming(means: Sequence[Fraction], today_us: int, now_us: int, end_us: int) -> tuple[tuple[int, int], ...]:
    whole = [_rounded(mean) for mean in means]
    found = []
    for day in range(today_us, end_us, DAY_US):
        kind = _kind(day, means)
        since, until = max(day, now_us), min(day + DAY_US, end_us)
        part = max(0, until - since)
        found.append((day, whole[kind] if part == DAY_US else _rounded(means[kind] * Fraction(part, DAY_US))))
    return tuple(found)


def _kind(day_us: int, means: Sequence[Fraction]) -> int:
    return day_us // DAY_US % len(means)


def _means(known: Mapping[int, int]) -> Sequence[Fraction]:
    """Return the mean of each weekday, or one of all days where there are too few."""
    kinds: list[list[int]] = [[] for _ in range(_WEEK if len(known) >= WEEKLY_DAYS else 1)]
    for day, spent in known.items():
        kinds[day // DAY_US % len(kinds)].append(spent)
    # A true-up can take more from a day than the rest of it cost; but no day to come pays anybody back.
    return [max(Fraction(0), Fraction(sum(spent), len(spent))) for spent in kinds]


def _half_width(known: Mapping[int, int], means: Sequence[Fraction], *, days_left: Fraction) -> int:
    """Return the half-width of the interval: variance of the days, and of means from few days.

    With n days known and d to come it is 1.28 x sqrt(variance x d x (1 + d / n)).
    """
    off: Sequence[Fraction] = [spent - means[_kind(day, means)] for day, spent in known.items()]
    free = max(1, len(known) - len(means))
    variance = sum(each * each for each in off) / free
    whole = variance * days_left * (1 + days_left / len(known))
    return _Z80_PERCENT * isqrt(int(whole)) // 100


def _rounded(amount: Fraction) -> int:
    return (2 * amount.numerator + amount.denominator) // (2 * amount.denominator)
