"""The common periods that pages offer, and which of them is shown."""

import datetime as dt

import pytest

from cost.calendar import UTC_CALENDAR
from dashboards.web.period import period_of, presets


def at(day: str) -> int:
    """The microsecond of a day's noon."""
    return UTC_CALENDAR.start(dt.date.fromisoformat(day)) + 12 * 3_600 * 1_000_000


@pytest.mark.parametrize(
    ("query", "today", "here"),
    [
        ({}, "2026-11-30", ["30 days"]),
        ({"month": "2026-11"}, "2026-11-30", ["This month"]),
        ({"from": "2026-11-01", "to": "2026-11-30"}, "2026-11-30", ["30 days"]),
        ({"month": "2026-11"}, "2026-11-29", ["This month"]),
        ({}, "2026-11-29", ["30 days"]),
        ({"month": "2026-02"}, "2026-02-07", ["This month"]),
        ({"from": "2026-02-01", "to": "2026-02-07"}, "2026-02-07", ["7 days"]),
        ({"from": "2026-10-01", "to": "2026-10-31"}, "2026-11-30", ["Last month"]),
        ({"from": "2026-10-02", "to": "2026-10-31"}, "2026-11-30", []),
    ],
)
def test_one_period_is_shown_at_most(query: dict[str, str], today: str, here: list[str]) -> None:
    """The last 30 days of a 30th are this month, too; what the address asked for is the one that is marked."""
    now_us = at(today)
    assert [label for label, _, shown in presets(query, now_us, period_of(query, now_us)) if shown] == here
