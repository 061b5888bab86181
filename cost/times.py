"""Days and moments in UTC, and the microseconds since 1970 that tables hold; without a float in between."""

from datetime import UTC, date, datetime, timedelta
from typing import Final

_EPOCH: Final = date(1970, 1, 1)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US: Final = 86_400_000_000


def start_of(day: date) -> int:
    """The microsecond at which a day begins."""
    return (day - _EPOCH).days * _DAY_US


def day_of(at_us: int) -> date:
    """The day that a microsecond lies in."""
    return _EPOCH + timedelta(days=at_us // _DAY_US)


def moment(at_us: int) -> datetime:
    """A microsecond as a moment."""
    return _BEGINNING + timedelta(microseconds=at_us)


def iso(at_us: int) -> str:
    """A moment as people and programs read it, in whole seconds (RFC 3339)."""
    return f"{moment(at_us):%Y-%m-%dT%H:%M:%SZ}"
