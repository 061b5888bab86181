"""The calendar of an organisation: its time zone and first day of the week, by which budgets and reports are cut. Pure.

Local midnights are found by the zone's own rules, so a day has 23, 24 or 25 hours, and a month ends where it ends there.
A calendar that took another's place knows that one: days before its first one are cut as they were, so the days of all
times lie side by side, and no moment is in two of them.
"""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from cost.times import DAY_US, QUARTER_US, moment, start_of

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)
_WEEK_DAYS: Final = 7
_ONE_DAY: Final = timedelta(days=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_BEGINNING: Final = moment(0)
_MOST_DAY: Final = date.max - timedelta(days=366)


class UnknownTimeZone(Exception):
    """No such time zone; the message says how they are called."""


class Calendar(msgspec.Struct, frozen=True):
    """A time zone by its IANA name, such as `Europe/Berlin`, and the day that a week begins on."""

    time_zone: str = "UTC"
    week_start: Weekday = "monday"
    from_us: int = 0
    """The moment from which it holds."""
    before: "Calendar | None" = None
    """The calendar that held until then."""

    def at(self, at_us: int) -> "Calendar":
        """Return the calendar that holds at a moment, as it would be without those of other times."""
        if self.before is not None and at_us < self.from_us:
            return self.before.at(at_us)
        return Calendar(self.time_zone, self.week_start)

    @property
    def first(self) -> date:
        """The first day that begins by it."""
        day = _day(self.time_zone, self.from_us)
        return day if _start(self.time_zone, day) >= self.from_us else day + _ONE_DAY

    def day(self, at_us: int) -> date:
        """Return the local day of a moment."""
        if self.before is not None and at_us < self.from_us:
            # The last day before a zone further west is longer.
            return min(self.before.day(at_us), self.first - _ONE_DAY)
        return _day(self.time_zone, at_us)

    def local(self, at_us: int) -> datetime:
        """Return what clocks show at a moment."""
        return moment(at_us).astimezone(_zone(self.at(at_us).time_zone))

    def start(self, day: date) -> int:
        """Return the first microsecond of a local day, also where the clock skips its midnight."""
        if self.before is not None and day < self.first:
            return min(self.before.start(day), self.from_us)
        return _start(self.time_zone, day)

    def days(self, first: date, last: date) -> tuple[int, int]:
        """Return the first microseconds of a day and of the one after another."""
        return self.start(first), self.start(last + _ONE_DAY)

    def week(self, day: date) -> date:
        """Return the first day of the week of a day."""
        if self.before is not None and day < self.first:
            return self.before.week(day)
        return day - timedelta(days=(day.weekday() - WEEKDAYS.index(self.week_start)) % _WEEK_DAYS)

    def offsets(self, from_us: int, to_us: int) -> tuple[tuple[int, int], ...]:
        """Return what is to be added to a moment to have its local day in UTC, each with the moment from which it holds.

        It is how far the clock there is ahead of UTC; empty where that is nothing all the time, as in UTC.
        """
        found: list[tuple[int, int]] = []
        for at_us, offset_us in _offsets(self, from_us, to_us):
            if not found or found[-1][1] != offset_us:
                found.append((at_us, offset_us))
        return tuple(found) if any(offset_us for _, offset_us in found) else ()


UTC_CALENDAR: Final = Calendar()


class Days(msgspec.Struct, frozen=True):
    """Whole days of a calendar, from the first to the last, which is included."""

    first: date
    last: date
    calendar: Calendar = UTC_CALENDAR

    @property
    def start_us(self) -> int:
        """First microsecond of the first day."""
        return self.calendar.start(self.first)

    @property
    def end_us(self) -> int:
        """First microsecond of the day after the last."""
        return self.calendar.start(self.last + _ONE_DAY)

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """By which the days are cut (`Calendar.offsets`)."""
        return self.calendar.offsets(self.start_us, self.end_us)

    @property
    def marks(self) -> range:
        """Each day as rows have it, and charts: as the first microsecond of the UTC day of the same date."""
        return range(start_of(self.first), start_of(self.last) + DAY_US, DAY_US)

    @property
    def time_zone(self) -> str:
        """The zone in which the last day ends."""
        return self.calendar.at(self.end_us - 1).time_zone

    def __len__(self) -> int:
        """Return how many they are."""
        return (self.last - self.first).days + 1


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


def _offsets(calendar: Calendar, from_us: int, to_us: int) -> Iterator[tuple[int, int]]:
    before = calendar.before
    if before is not None and from_us < calendar.from_us:
        until_us, day = min(to_us, calendar.from_us), calendar.first
        late_us = min(before.start(day), until_us)
        if from_us < late_us:
            yield from _offsets(before, from_us, late_us)
        # The clock of before is beyond its last day already.
        while (late_us := before.start(day)) < until_us:
            next_us, beyond = before.start(day + _ONE_DAY), (day - calendar.first).days + 1
            if from_us < next_us:
                for at_us, offset_us in _offsets(before, max(from_us, late_us), min(next_us, until_us)):
                    yield at_us, offset_us - beyond * DAY_US
            day += _ONE_DAY
        from_us = until_us
    if from_us < to_us or before is None:
        yield from _clock_changes(calendar.time_zone, from_us, to_us)


def _clock_changes(time_zone: str, from_us: int, to_us: int) -> Iterator[tuple[int, int]]:
    known = _offset_us(time_zone, from_us)
    yield from_us, known
    for day_us in range(from_us, to_us, DAY_US):
        low, high = day_us, min(day_us + DAY_US, to_us)
        if _offset_us(time_zone, high) == known:
            continue
        while high - low > QUARTER_US:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset_us(time_zone, middle) == known else (low, middle)
        # Clocks are set at quarters of an hour.
        high -= high % QUARTER_US
        known = _offset_us(time_zone, high)
        yield high, known


def _offset_us(time_zone: str, at_us: int) -> int:
    ahead = moment(at_us).astimezone(_zone(time_zone)).utcoffset()
    return 0 if ahead is None else ahead // _MICROSECOND


def _day(time_zone: str, at_us: int) -> date:
    return moment(at_us).astimezone(_zone(time_zone)).date()


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=4096)
def _start(time_zone: str, day: date) -> int:
    # A midnight that the clock skips is taken at the offset before, which is the very moment of the jump; one that comes twice is the first.
    day = min(day, _MOST_DAY)
    midnight = datetime(day.year, day.month, day.day, tzinfo=_zone(time_zone))
    return (midnight - _BEGINNING) // _MICROSECOND
