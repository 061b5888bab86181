"""Periods of a budget: UTC days, weeks that begin on Monday, and calendar months."""

from datetime import datetime
from functools import lru_cache
from typing import Final, Literal, assert_never

from cost.times import DAY_US, moment

Period = Literal["day", "week", "month"]

_WEEK_DAYS: Final = 7
_MONDAY_SHIFT: Final = 3
"""Days that shift the epoch, a Thursday, to a Monday."""


@lru_cache(maxsize=16)
def start_us(period: Period, at_us: int) -> int:
    """Return the first microsecond of the period that a moment lies in.

    Cached: all budgets are read at the same moment.
    """
    day = at_us // DAY_US
    match period:
        case "day":
            return day * DAY_US
        case "week":
            return (day - (day + _MONDAY_SHIFT) % _WEEK_DAYS) * DAY_US
        case "month":
            return _us(moment(at_us).replace(day=1, hour=0, minute=0, second=0, microsecond=0))
        case _:
            assert_never(period)


@lru_cache(maxsize=16)
def end_us(period: Period, at_us: int) -> int:
    """Return the first microsecond of the period after the one that a moment lies in."""
    start = start_us(period, at_us)
    match period:
        case "day":
            return start + DAY_US
        case "week":
            return start + _WEEK_DAYS * DAY_US
        case "month":
            # The 32nd day after any first lies in the next month.
            return start_us("month", start + 32 * DAY_US)
        case _:
            assert_never(period)


def _us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000
