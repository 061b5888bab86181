"""Calendar months of UTC days, the unit that finance closes."""

import re
from datetime import date
from typing import Final

import msgspec

from cost.times import day_of, start_of

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


class Month(msgspec.Struct, frozen=True, order=True):
    """A calendar month; `number` is 1 for January."""

    year: int
    number: int

    @property
    def start_us(self) -> int:
        """First microsecond of the month, since 1970 in UTC."""
        return start_of(date(self.year, self.number, 1))

    @property
    def end_us(self) -> int:
        """First microsecond after the month."""
        return self.next.start_us

    @property
    def next(self) -> "Month":
        """The following month."""
        return Month(self.year + 1, 1) if self.number == len(_NAMES) else Month(self.year, self.number + 1)

    @property
    def previous(self) -> "Month":
        """The preceding month."""
        return Month(self.year - 1, len(_NAMES)) if self.number == 1 else Month(self.year, self.number - 1)

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
        return day_of(self.end_us - 1)

    def is_over(self, now_us: int) -> bool:
        """Return True from the month's end on."""
        return now_us >= self.end_us


def month_of(at_us: int) -> Month:
    """Return the month that a moment in microseconds since 1970 lies in."""
    day = day_of(at_us)
    return Month(day.year, day.month)


def parse_month(text: str) -> Month:
    """Parse a month such as 2026-11. Raises ValueError."""
    found = _MONTH.fullmatch(text)
    if found is None:
        raise ValueError("a month is written like 2026-11")
    year, number = int(found[1]), int(found[2])
    if not (_FIRST_YEAR < year <= _LAST_YEAR and 1 <= number <= len(_NAMES)):
        raise ValueError("there is no such month")
    return Month(year, number)
