"""Days and moments in UTC, and the microseconds since 1970 that tables hold; without a float in between."""

import time
from datetime import UTC, date, datetime, timedelta
from typing import Final

_EPOCH: Final = date(1970, 1, 1)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US


def wall_us() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000


def start_of(day: date) -> int:
    """The microsecond at which a day begins."""
    return (day - _EPOCH).days * DAY_US


def day_of(at_us: int) -> date:
    """The day that a microsecond lies in."""
    return _EPOCH + timedelta(days=at_us // DAY_US)


def moment(at_us: int) -> datetime:
    """A microsecond as a moment."""
    return _BEGINNING + timedelta(microseconds=at_us)


def iso(at_us: int) -> str:
    """A moment as people and programs read it, in whole seconds (RFC 3339)."""
    return f"{moment(at_us):%Y-%m-%dT%H:%M:%SZ}"
