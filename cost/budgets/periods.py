"""Periods of a budget: UTC days, weeks that begin on Monday, and calendar months.

`PERIODS` is the one table of them. A new one is a name in `Period` and its branch in `_row`: SQL, errors, pages, commands and
how long a warning is remembered follow.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple, assert_never, get_args

from cost.times import DAY_US, day_of, start_of

Period = Literal["day", "week", "month"]

_WEEK_DAYS: Final = 7
_MONTH_DAYS: Final = 31
_MONDAY_SHIFT: Final = 3
"""Days that shift the epoch, a Thursday, to a Monday."""


class PeriodRow(NamedTuple):
    """One kind of period: its words, its longest length, and its start."""

    adjective: str
    """Word before `budget`, such as `daily`."""
    every: str
    """Words of a form's choice, such as `each day`."""
    amount_per: str
    """Words behind an amount, such as `a day`."""
    longest_days: int
    start: Callable[[int], int]
    """First microsecond of the period that a moment lies in."""


def _row(period: Period) -> PeriodRow:
    match period:
        case "day":
            return PeriodRow("daily", "each day", "a day", 1, _day)
        case "week":
            return PeriodRow("weekly", "each week, from Monday", "a week", _WEEK_DAYS, _monday)
        case "month":
            return PeriodRow("monthly", "each month", "a month", _MONTH_DAYS, _first_of_month)
        case _:
            assert_never(period)


def _day(at_us: int) -> int:
    return at_us - at_us % DAY_US


def _monday(at_us: int) -> int:
    day = at_us // DAY_US
    return (day - (day + _MONDAY_SHIFT) % _WEEK_DAYS) * DAY_US


def _first_of_month(at_us: int) -> int:
    return start_of(day_of(at_us).replace(day=1))


PERIODS: Final[Mapping[Period, PeriodRow]] = {period: _row(period) for period in get_args(Period)}
LONGEST_DAYS: Final = max(each.longest_days for each in PERIODS.values())
"""Days of the longest period."""


@lru_cache(maxsize=16)
def start_us(period: Period, at_us: int) -> int:
    """Return the first microsecond of the period that a moment lies in.

    Cached: all budgets are read at the same moment.
    """
    return PERIODS[period].start(at_us)


@lru_cache(maxsize=16)
def end_us(period: Period, at_us: int) -> int:
    """Return the first microsecond of the period after the one that a moment lies in."""
    row = PERIODS[period]
    # As many days as the longest has lead from any start into the next one, and never past it.
    return row.start(row.start(at_us) + row.longest_days * DAY_US)
