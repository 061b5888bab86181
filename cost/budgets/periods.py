"""Periods of a budget, cut by an organisation's calendar (`cost.calendar`): hours, days, weeks, months, years, and two that never end.

`PERIODS` is the one table of them. A new one is a name in `Period` and its row: SQL, errors, pages, commands and
how long a warning is remembered follow.
"""

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from cost.calendar import UTC_CALENDAR, Calendar
from cost.times import DAY_US, HOUR_US

Period = Literal["hour", "day", "week", "month", "year", "lifetime", "prepaid"]

NEVER_US: Final = 253_370_764_800_000_000
"""End of what never renews: the first of January 9999, a whole UTC day."""
_WEEK_DAYS: Final = 7
_MONTH_DAYS: Final = 31
_YEAR_DAYS: Final = 366
_DECEMBER: Final = 12

Bounds = tuple[int, int]
"""First microsecond of a period, and of the next one."""


class PeriodRow(NamedTuple):
    """One kind of period: its words, its longest length, and its bounds."""

    adjective: str
    """Word before `budget`, such as `daily`."""
    every: str
    """Words of a form's choice, such as `each day`."""
    amount_per: str
    """Words behind an amount, such as `a day`."""
    longest_days: int
    """Longest length in days of 24 hours, rounded down; 0 for what never ends."""
    bounds: Callable[[int, Calendar], Bounds]
    """Returns the period that a moment lies in."""

    @property
    def renews(self) -> bool:
        """True if another period follows."""
        return self.bounds is not _endless


def _hour(at_us: int, _calendar: Calendar) -> Bounds:
    # Of UTC everywhere: no clock is set by less than quarters of an hour, and an hour is an hour.
    start = at_us - at_us % HOUR_US
    return start, start + HOUR_US


def _day(at_us: int, calendar: Calendar) -> Bounds:
    day = calendar.day(at_us)
    return calendar.start(day), calendar.start(day + timedelta(days=1))


def _week(at_us: int, calendar: Calendar) -> Bounds:
    day = calendar.day(at_us)
    first, after = calendar.week(day), day + timedelta(days=1)
    # Another first day of the week may hold from a day of this one on.
    while calendar.week(after) <= first:
        after += timedelta(days=1)
    return calendar.start(first), calendar.start(after)


def _month(at_us: int, calendar: Calendar) -> Bounds:
    first = calendar.day(at_us).replace(day=1)
    after = date(first.year + first.month // _DECEMBER, first.month % _DECEMBER + 1, 1)
    return calendar.start(first), calendar.start(after)


def _year(at_us: int, calendar: Calendar) -> Bounds:
    year = calendar.day(at_us).year
    return calendar.start(date(year, 1, 1)), calendar.start(date(year + 1, 1, 1))


def _endless(_at_us: int, _calendar: Calendar) -> Bounds:
    return 0, NEVER_US


PERIODS: Final[Mapping[Period, PeriodRow]] = {
    "hour": PeriodRow("hourly", "each hour", "an hour", 1, _hour),
    "day": PeriodRow("daily", "each day", "a day", 1, _day),
    "week": PeriodRow("weekly", "each week", "a week", _WEEK_DAYS, _week),
    "month": PeriodRow("monthly", "each month", "a month", _MONTH_DAYS, _month),
    "year": PeriodRow("yearly", "each year", "a year", _YEAR_DAYS, _year),
    "lifetime": PeriodRow("lifetime", "once and for all", "in all", 0, _endless),
    "prepaid": PeriodRow("prepaid", "from a balance that is topped up", "paid in", 0, _endless),
}
LONGEST_DAYS: Final = max(each.longest_days for each in PERIODS.values())
"""Days of the longest period that renews."""


@lru_cache(maxsize=64)
def bounds_us(period: Period, at_us: int, calendar: Calendar = UTC_CALENDAR) -> Bounds:
    """Return the first microseconds of the period that a moment lies in and of the one after.

    Cached: all budgets are read at the same moment.
    """
    return PERIODS[period].bounds(at_us, calendar)


def start_us(period: Period, at_us: int, calendar: Calendar = UTC_CALENDAR) -> int:
    """Return the first microsecond of the period that a moment lies in."""
    return bounds_us(period, at_us, calendar)[0]


def end_us(period: Period, at_us: int, calendar: Calendar = UTC_CALENDAR) -> int:
    """Return the first microsecond of the period after the one that a moment lies in; `NEVER_US` where none follows."""
    return bounds_us(period, at_us, calendar)[1]


class Parts(NamedTuple):
    """A time as whole UTC days with the quarters of an hour before and after them, each from and to."""

    head_from: int
    head_to: int
    days_from: int
    days_to: int
    tail_from: int
    tail_to: int


def parts_of(from_us: int, to_us: int) -> Parts:
    """Cut a time where UTC days begin: spending is summed by days, and by quarters of an hour where no whole day is left."""
    first, last = -(-from_us // DAY_US) * DAY_US, to_us - to_us % DAY_US
    return Parts(from_us, min(first, to_us), first, last, max(first, last), to_us)
