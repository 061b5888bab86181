"""Forecast of a period's cost from its days so far. Pure, in whole nano-dollars. Teams' months and budgets are forecast here alone."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Final, NamedTuple

import msgspec

from cost.times import DAY_US

FEWEST_DAYS: Final = 3
WEEKLY_DAYS: Final = 14
"""Days of history from which weekdays are told apart: two whole weeks."""
LOOKS_BACK_DAYS: Final = 28
WEEK: Final = 7
_Z80_PERCENT: Final = 128
"""Hundredths of a standard deviation that hold four of five normal values: 1.28."""
Mean = tuple[int, int]
"""A sum, never below 0, and the number of days that it is of."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Expected cost until the period's end. `low` to `high` is an 80 % interval if habits stay."""

    rest_nanousd: int
    low_nanousd: int
    high_nanousd: int
    days_known: int
    by_weekday: bool
    by_day: tuple[tuple[int, int], ...]
    """Each day from today on, with its remaining expected cost."""


class Habits(NamedTuple):
    """What the whole days before today tell of those to come."""

    first_us: int
    """The first of them; today where there are none."""
    sums: Sequence[int]
    """Their sums by weekday, the first that of the weekday of 1970-01-01."""

    def means(self, today_us: int) -> Sequence[Mean] | None:
        """Return the mean of each weekday, or one of all days where there are too few; None where there are fewer still."""
        known = (today_us - self.first_us) // DAY_US
        if known < FEWEST_DAYS:
            return None
        # A true-up can take more from a day than the rest of it cost; but no day to come pays anybody back.
        if known < WEEKLY_DAYS:
            return [(max(0, sum(self.sums)), known)]
        counts = _days_by_kind(self.first_us // DAY_US, today_us // DAY_US, WEEK)
        return [(max(0, spent), count) for spent, count in zip(self.sums, counts, strict=True)]


def habits_of(days: Mapping[int, int], today_us: int) -> Habits:
    """Return the habits that the last 28 days show. `days` maps each UTC day to its cost; one that is missing between the first
    and today cost nothing.
    """
    first_us = max(min(days, default=today_us), today_us - LOOKS_BACK_DAYS * DAY_US)
    sums = [0] * WEEK
    for day_us in range(first_us, today_us, DAY_US):
        sums[day_us // DAY_US % WEEK] += days.get(day_us, 0)
    return Habits(first_us, sums)


def forecast(days: Mapping[int, int], *, now_us: int, end_us: int) -> Forecast | None:
    """Forecast the period's remaining cost from the last 28 whole days.

    Each coming day is expected at the mean of its weekday (of all days with less than two weeks of history), today at
    its remaining part of that, and so the last day where the period ends within it; never below 0. None with fewer
    than three whole days: a guess would be no better than anybody's.
    """
    today_us = now_us - now_us % DAY_US
    habits = habits_of(days, today_us)
    means = habits.means(today_us)
    if means is None:
        return None
    known = {day: days.get(day, 0) for day in range(habits.first_us, today_us, DAY_US)}
    rest = rest_of(means, now_us=now_us, end_us=end_us)
    swing = _half_width(known, means, days_left=Fraction(max(0, end_us - now_us), DAY_US))
    return Forecast(
        rest_nanousd=rest,
        low_nanousd=max(0, rest - swing),
        high_nanousd=rest + swing,
        days_known=len(known),
        by_weekday=len(means) > 1,
        by_day=tuple(coming_days(means, now_us=now_us, end_us=end_us)),
    )


def coming_days(means: Sequence[Mean], *, now_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """Yield each day from today on with its remaining expected cost."""
    for day_us in range(now_us - now_us % DAY_US, end_us, DAY_US):
        yield day_us, _of_day(means, day_us, now_us, end_us)


def rest_of(means: Sequence[Mean], *, now_us: int, end_us: int) -> int:
    """Return the sum of the coming days without asking for each: a list tells it of thousands of budgets."""
    today_us, last_us = now_us - now_us % DAY_US, end_us - end_us % DAY_US
    if today_us >= end_us:
        return 0
    counts = _days_by_kind(today_us // DAY_US + 1, last_us // DAY_US, len(means))
    whole = sum(_rounded(*mean) * count for mean, count in zip(means, counts, strict=True))
    # The last one, where the period ends within it and that is not today.
    ends = _of_day(means, last_us, now_us, end_us) if today_us < last_us < end_us else 0
    return _of_day(means, today_us, now_us, end_us) + whole + ends


@lru_cache(maxsize=64)
def _days_by_kind(first: int, end: int, kinds: int) -> tuple[int, ...]:
    """Return how many days are of each kind, of those from the number `first` up to `end`."""
    return tuple(len(range(first + (kind - first) % kinds, end, kinds)) for kind in range(kinds))


def _of_day(means: Sequence[Mean], day_us: int, now_us: int, end_us: int) -> int:
    total, count = means[_kind(day_us, means)]
    part = max(0, min(day_us + DAY_US, end_us) - max(day_us, now_us))
    return _rounded(total * part, count * DAY_US)


def _kind(day_us: int, means: Sequence[Mean]) -> int:
    return day_us // DAY_US % len(means)


def _half_width(known: Mapping[int, int], means: Sequence[Mean], *, days_left: Fraction) -> int:
    """Return the half-width of the interval: variance of the days, and of means from few days.

    With n days known and d to come it is 1.28 x sqrt(variance x d x (1 + d / n)).
    """
    off: Sequence[Fraction] = [spent - Fraction(*means[_kind(day, means)]) for day, spent in known.items()]
    free = max(1, len(known) - len(means))
    variance = sum(each * each for each in off) / free
    whole = variance * days_left * (1 + days_left / len(known))
    return _Z80_PERCENT * isqrt(int(whole)) // 100


def _rounded(total: int, count: int) -> int:
    """Return the quotient to the nearest whole number."""
    return (2 * total + count) // (2 * count)
