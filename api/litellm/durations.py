"""LiteLLM's times of budgets, `30d` or `1mo`, as periods of ours.

LiteLLM resets a budget of a day at midnight, of 7 days on Monday and of 30 days on the first of the month, which is what ours do.
"""

import re
from decimal import Decimal
from typing import Final, NamedTuple

from cost.budgets.periods import Period

_WORDS: Final = {"hourly": "1h", "daily": "24h", "weekly": "7d", "monthly": "30d", "yearly": "365d"}
_SHAPE: Final = re.compile(r"(\d{1,9})\s*(mo|[smhdwy])[a-z]*", re.IGNORECASE)
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "mo": 2_592_000, "y": 31_536_000}
_PERIODS: Final[tuple[tuple[Period, int], ...]] = (
    ("year", 31_536_000),
    ("month", 2_592_000),
    ("week", 604_800),
    ("day", 86_400),
    ("hour", 3_600),
)
"""Our periods with their usual seconds, longest first."""
_SAME: Final = {31_104_000: 31_536_000, 31_622_400: 31_536_000, 2_678_400: 2_592_000, 2_419_200: 2_592_000}
"""Twelve months and 366 days are a year, 31 and 28 days a month."""


class Renewal(NamedTuple):
    """Our period for a time of LiteLLM's, and the share of the limit that it has."""

    period: Period
    share: Decimal = Decimal(1)

    @property
    def is_same(self) -> bool:
        """True if it renews as LiteLLM's does."""
        return self.share == 1


FOR_GOOD: Final = Renewal("lifetime")


def renewal_of(duration: str | None) -> Renewal | None:
    """Return our period for `duration`; None for text that is no time. A budget without a time never renews.

    A time that none of ours has gets the longest one within it, and that part of the limit.
    """
    if not duration or not duration.strip():
        return FOR_GOOD
    seconds = seconds_of(duration)
    if not seconds:
        return None
    seconds = _SAME.get(seconds, seconds)
    for period, length in _PERIODS:
        if length <= seconds:
            return Renewal(period, Decimal(length) / seconds)
    return Renewal("hour", Decimal(3_600) / seconds)


def seconds_of(duration: str) -> int | None:
    """Return the seconds of a time such as `30d`; None for text that is none."""
    text = duration.strip().lower()
    found = _SHAPE.fullmatch(_WORDS.get(text, text))
    return None if found is None else int(found[1]) * _UNITS_S[found[2].lower()]
