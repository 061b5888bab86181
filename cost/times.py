"""Conversions between UTC days or moments and microseconds since 1970, without floats."""

import time
from datetime import UTC, date, datetime, timedelta
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


def moment(at_us: int) -> datetime:
    """Return microseconds since 1970 as an aware UTC datetime, exactly."""
    return _BEGINNING + timedelta(microseconds=at_us)


def in_us(at: datetime) -> int:
    """Return an aware datetime in microseconds since 1970, exactly."""
    return (at - _BEGINNING) // timedelta(microseconds=1)


def iso(at_us: int) -> str:
    """Return microseconds since 1970 as RFC 3339 text in whole seconds, ending in `Z`."""
    return f"{moment(at_us):%Y-%m-%dT%H:%M:%SZ}"
