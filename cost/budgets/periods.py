"""Periods of a budget: UTC days, weeks that begin on Monday, and calendar months."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal, assert_never

Period = Literal["day", "week", "month"]

DAY_US: Final = 86_400_000_000
_WEEK_DAYS: Final = 7
_MONDAY_SHIFT: Final = 3
"""The epoch was a Thursday."""


def start_us(period: Period, at_us: int) -> int:
    """The first microsecond of the period that a moment lies in."""
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


def end_us(period: Period, at_us: int) -> int:
    """The first microsecond of the period after it."""
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


def moment(at_us: int) -> datetime:
    """A number of microseconds as a moment in UTC, without a float in between."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)


def iso(at_us: int) -> str:
    """A moment as people and programs read it; periods begin and end at whole seconds."""
    return f"{moment(at_us):%Y-%m-%dT%H:%M:%SZ}"


def _us(at: datetime) -> int:
    return int(at.timestamp()) * 1_000_000
