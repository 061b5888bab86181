"""Conversions between UTC days or moments and microseconds since 1970, without floats."""

import time
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = date(1970, 1, 1)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE_US: Final = 60_000_000
QUARTER_US: Final = 15 * MINUTE_US
"""A quarter of an hour: every time zone's days begin at one."""
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US


def wall_us() -> int:
    """Return the wall clock in microseconds since 1970."""
    return time.time_ns() // 1_000


def start_of(day: date) -> int:
    """Return the first microsecond of a UTC day."""
    return (day - _EPOCH).days * DAY_US


def day_of(at_us: int) -> date:
    """Return the UTC day that a microsecond lies in."""
    return _EPOCH + timedelta(days=at_us // DAY_US)


@lru_cache(maxsize=64)
def month_of(day_us: int) -> int:
    """Return the first microsecond of the UTC month that a day is in."""
    return start_of(day_of(day_us).replace(day=1))


def next_month(month_us: int) -> int:
    """Return the first microsecond of the month after."""
    return month_of(month_us + 31 * DAY_US)


def moment(at_us: int) -> datetime:
    """Return microseconds since 1970 as an aware UTC datetime, exactly."""
    return _BEGINNING + timedelta(microseconds=at_us)


def in_us(at: datetime) -> int:
    """Return an aware datetime in microseconds since 1970, exactly."""
    return (at - _BEGINNING) // timedelta(microseconds=1)


def first_and_last(start_us: int, end_us: int) -> tuple[str, str]:
    """Return a time as first and last day where it is of whole UTC days, else as its first and last second, as requests are searched."""
    first, last = iso(start_us), iso(end_us - 1)
    return (first, last) if start_us % DAY_US or end_us % DAY_US else (first[:10], last[:10])


def iso(at_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 text in whole seconds, ending in `Z`."""
    return f"{moment(at_us):%Y-%m-%dT%H:%M:%SZ}"
