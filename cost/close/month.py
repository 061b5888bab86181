"""Calendar months of an organisation's days, the unit that finance closes."""

import re
from datetime import date, timedelta
from typing import Final

import msgspec

from cost.calendar import UTC_CALENDAR, Calendar, Days
from cost.times import start_of

_MONTH: Final = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_NAMES: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9997


class Month(msgspec.Struct, frozen=True):
    """A calendar month; `number` is 1 for January."""

    year: int
    number: int
    calendar: Calendar = UTC_CALENDAR
    """By which it is cut."""

    @property
    def mark_us(self) -> int:
        """Its name in tables, whatever zone cuts it: the first microsecond of the same month in UTC."""
        return start_of(self.first_day)

    @property
    def first_day(self) -> date:
        """First day of the month."""
        return date(self.year, self.number, 1)

    @property
    def days(self) -> Days:
        """Its days."""
        return Days(self.first_day, self.last_day, self.calendar)

    @property
    def start_us(self) -> int:
        """First microsecond of the month, since 1970 in UTC."""
        return self.calendar.start(self.first_day)

    @property
    def end_us(self) -> int:
        """First microsecond after the month."""
        return self.next.start_us

    @property
    def next(self) -> "Month":
        """The following month."""
        year, number = (self.year + 1, 1) if self.number == len(_NAMES) else (self.year, self.number + 1)
        return Month(year, number, self.calendar)

    @property
    def previous(self) -> "Month":
        """The preceding month."""
        year, number = (self.year - 1, len(_NAMES)) if self.number == 1 else (self.year, self.number - 1)
        return Month(year, number, self.calendar)

    @property
    def text(self) -> str:
        """ISO form, such as 2026-11."""
        return f"{self.year:04}-{self.number:02}"

    @property
    def title(self) -> str:
        """English form, such as November 2026."""
        return f"{_NAMES[self.number - 1]} {self.year}"

    @property
    def last_day(self) -> date:
        """Last day of the month."""
        return self.next.first_day - timedelta(days=1)

    def is_over(self, now_us: int) -> bool:
        """Return True from the month's end on."""
        return now_us >= self.end_us


def month_of(at_us: int, calendar: Calendar = UTC_CALENDAR) -> Month:
    """Return the month that a moment in microseconds since 1970 lies in."""
    day = calendar.day(at_us)
    return Month(day.year, day.month, calendar)


def parse_month(text: str, calendar: Calendar = UTC_CALENDAR) -> Month:
    """Parse a month such as 2026-11. Raises ValueError."""
    found = _MONTH.fullmatch(text)
    if found is None:
        raise ValueError("a month is written like 2026-11")
    year, number = int(found[1]), int(found[2])
    if not (_FIRST_YEAR < year <= _LAST_YEAR and 1 <= number <= len(_NAMES)):
        raise ValueError("there is no such month")
    return Month(year, number, calendar)
