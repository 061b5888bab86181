"""Months of UTC days, which is what finance closes."""

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
        """Its first microsecond."""
        return start_of(date(self.year, self.number, 1))

    @property
    def end_us(self) -> int:
        """The first microsecond after it."""
        return self.next.start_us

    @property
    def next(self) -> "Month":
        """The one after it."""
        return Month(self.year + 1, 1) if self.number == len(_NAMES) else Month(self.year, self.number + 1)

    @property
    def previous(self) -> "Month":
        """The one before it."""
        return Month(self.year - 1, len(_NAMES)) if self.number == 1 else Month(self.year, self.number - 1)

    @property
    def text(self) -> str:
        """As programs write it: 2026-11."""
        return f"{self.year:04}-{self.number:02}"

    @property
    def title(self) -> str:
        """As people write it: November 2026."""
        return f"{_NAMES[self.number - 1]} {self.year}"

    @property
    def last_day(self) -> date:
        """Its last day."""
        return day_of(self.end_us - 1)

    def is_over(self, now_us: int) -> bool:
        """Whether nothing can happen in it any more."""
        return now_us >= self.end_us


def month_of(at_us: int) -> Month:
    """The month that a moment lies in."""
    day = day_of(at_us)
    return Month(day.year, day.month)


def parse_month(text: str) -> Month:
    """A month such as 2026-11. Raises ValueError."""
    found = _MONTH.fullmatch(text)
    if found is None:
        raise ValueError("a month is written like 2026-11")
    year, number = int(found[1]), int(found[2])
    if not (_FIRST_YEAR < year <= _LAST_YEAR and 1 <= number <= len(_NAMES)):
        raise ValueError("there is no such month")
    return Month(year, number)
