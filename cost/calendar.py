"""The calendar of an organisation: its time zone and first day of the week, by which budgets and reports are cut. Pure.

Local midnights are found by the zone's own rules, so a day has 23, 24 or 25 hours, and a month ends where it ends there.
"""

from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from cost.times import DAY_US, QUARTER_US, moment

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)
_WEEK_DAYS: Final = 7
_MICROSECOND: Final = timedelta(microseconds=1)
_BEGINNING: Final = moment(0)
_MOST_DAY: Final = date.max - timedelta(days=366)


class UnknownTimeZone(Exception):
    """No such time zone; the message says how they are called."""


class Calendar(msgspec.Struct, frozen=True):
    """A time zone by its IANA name, such as `Europe/Berlin`, and the day that a week begins on."""

    time_zone: str = "UTC"
    week_start: Weekday = "monday"

    def day(self, at_us: int) -> date:
        """Return the local day of a moment."""
        return moment(at_us).astimezone(_zone(self.time_zone)).date()

    def start(self, day: date) -> int:
        """Return the first microsecond of a local day, also where the clock skips its midnight."""
        return _start(self.time_zone, day)

    def week(self, day: date) -> date:
        """Return the first day of the week of a day."""
        return day - timedelta(days=(day.weekday() - WEEKDAYS.index(self.week_start)) % _WEEK_DAYS)

    def offset_us(self, at_us: int) -> int:
        """Return how far the local clock is ahead of UTC at a moment."""
        ahead = moment(at_us).astimezone(_zone(self.time_zone)).utcoffset()
        return 0 if ahead is None else ahead // _MICROSECOND

    def offsets(self, from_us: int, to_us: int) -> tuple[tuple[int, int], ...]:
        """Return the local clock's offsets within a time, each with the moment from which it holds."""
        found = [(from_us, self.offset_us(from_us))]
        for day_us in range(from_us, to_us, DAY_US):
            low, high = day_us, min(day_us + DAY_US, to_us)
            if self.offset_us(high) == found[-1][1]:
                continue
            while high - low > QUARTER_US:
                middle = (low + high) // 2
                low, high = (middle, high) if self.offset_us(middle) == found[-1][1] else (low, middle)
            # Clocks are set at quarters of an hour.
            high -= high % QUARTER_US
            found.append((high, self.offset_us(high)))
        return tuple(found)


UTC_CALENDAR: Final = Calendar()


def check_time_zone(name: str) -> str:
    """Return the name of a time zone. Raises UnknownTimeZone."""
    if name not in _names():
        raise UnknownTimeZone(
            f"there is no time zone {name[:64]!r}; zones have IANA names such as Europe/Berlin, America/New_York or UTC"
        )
    return name


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(available_timezones())


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=4096)
def _start(time_zone: str, day: date) -> int:
    # A midnight that the clock skips is taken at the offset before, which is the very moment of the jump; one that comes twice is the first.
    day = min(day, _MOST_DAY)
    midnight = datetime(day.year, day.month, day.day, tzinfo=_zone(time_zone))
    return (midnight - _BEGINNING) // _MICROSECOND
