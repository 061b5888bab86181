"""Forecast of a period's cost from its days so far. Pure, in whole nano-dollars."""

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

    def reaches_us(self, room_nanousd: int) -> int | None:
        """Return the first microsecond of the day on which so much more will be spent; None if not within the period."""
        spent = 0
        for day_us, expected in self.by_day:
            spent += expected
            if spent >= room_nanousd:
                return day_us
        return None


def forecast(days: Mapping[int, int], *, now_us: int, end_us: int) -> Forecast | None:
    """Forecast the period's remaining cost from the last 28 whole days.

    Each coming day is expected at the mean of its weekday (of all days with less than two weeks of history), today at
    its remaining part of that; never below 0. `days` maps each UTC day to its cost; one that is missing between the first and today cost nothing. None with fewer
    than three whole days: a guess would be no better than anybody's.
    """
    today_us = now_us - now_us % DAY_US
    first_us = max(min(days, default=today_us), today_us - LOOKS_BACK_DAYS * DAY_US)
    known = {day: days.get(day, 0) for day in range(first_us, today_us, DAY_US)}
    if len(known) < FEWEST_DAYS:
        return None
    weekly = len(known) >= WEEKLY_DAYS
    means = _means(known, weekly=weekly)
    left = Fraction(today_us + DAY_US - now_us, DAY_US)
    by_day = [(day, _rounded(means[_weekday(day, weekly=weekly)])) for day in range(today_us, end_us, DAY_US)]
    if by_day:
        by_day[0] = (today_us, _rounded(means[_weekday(today_us, weekly=weekly)] * left))
    rest = sum(expected for _, expected in by_day)
    swing = _half_width(known, means, days_left=max(Fraction(0), len(by_day) - 1 + left), weekly=weekly)
    return Forecast(
        rest_nanousd=rest,
        low_nanousd=max(0, rest - swing),
        high_nanousd=rest + swing,
        days_known=len(known),
        by_weekday=weekly,
        by_day=tuple(by_day),
    )


def _weekday(day_us: int, *, weekly: bool) -> int:
    return day_us // DAY_US % _WEEK if weekly else 0


def _means(known: Mapping[int, int], *, weekly: bool) -> dict[int, Fraction]:
    kinds: dict[int, list[int]] = {}
    for day, spent in known.items():
        kinds.setdefault(_weekday(day, weekly=weekly), []).append(spent)
    # A true-up can take more from a day than the rest of it cost; but no day to come pays anybody back.
    return {kind: max(Fraction(0), Fraction(sum(spent), len(spent))) for kind, spent in kinds.items()}


def _half_width(known: Mapping[int, int], means: Mapping[int, Fraction], *, days_left: Fraction, weekly: bool) -> int:
    """Return the half-width of the interval: variance of the days, and of means from few days.

    With n days known and d to come it is 1.28 x sqrt(variance x d x (1 + d / n)).
    """
    off: Sequence[Fraction] = [spent - means[_weekday(day, weekly=weekly)] for day, spent in known.items()]
    free = max(1, len(known) - len(means))
    variance = sum(each * each for each in off) / free
    whole = variance * days_left * (1 + days_left / len(known))
    return _Z80_PERCENT * isqrt(int(whole)) // 100


def _rounded(amount: Fraction) -> int:
    return (2 * amount.numerator + amount.denominator) // (2 * amount.denominator)
