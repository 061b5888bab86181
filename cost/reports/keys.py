"""Recent use of each of a team's keys, from the roll-ups."""

from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.calendar import Days
from cost.calendars import calendar_of
from cost.ledger.rolled_up import Columns, rolled_up
from cost.ledger.rollups import SPENT_ORIGINS
from cost.reports.scope import ReadScope
from cost.reports.usage import scoped
from cost.tables import rollup_day
from cost.times import DAY_US

USED_DAYS: Final = 90
"""Days looked back for a key's last use."""
SPENT_DAYS: Final = 30


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """Recent use of one key."""

    key_id: str
    last_day_us: int
    """Start of the UTC day of its last attempt, in microseconds since 1970."""
    requests: int
    """Requests of the last 30 days of the organisation's calendar, today included."""
    cost_nanousd: int
    """Cost of the same days, without unpriced attempts."""


async def read_key_use(engine: AsyncEngine, organisation_id: str, team_id: str, now_us: int) -> dict[str, KeyUse]:
    """Return the use of each key of one team that was used within 90 days, by key id."""
    calendar = await calendar_of(engine, organisation_id)
    today = calendar.day(now_us)
    span = Days(today - timedelta(days=SPENT_DAYS - 1), today, calendar)
    scope = ReadScope(organisation_id=organisation_id, team_id=team_id)
    c, used_us = rollup_day.c, now_us - now_us % DAY_US - USED_DAYS * DAY_US
    last = select(c.key_id, func.max(case((c.attempts > 0, c.start_us)))).group_by(c.key_id)
    last = last.where(*scoped(dict(c), scope), c.start_us > used_us, c.origin.in_(sorted(SPENT_ORIGINS)))

    def spent(columns: Columns) -> list[ColumnElement[bool]]:
        return [*scoped(columns, scope), columns["origin"].in_(sorted(SPENT_ORIGINS))]

    rows = rolled_up(engine, span.start_us, span.end_us, ["key_id"], spent, sums=("requests", "cost_nanousd")).c
    sums = select(rows.key_id, func.sum(rows.requests), func.sum(rows.cost_nanousd)).group_by(rows.key_id)
    async with engine.connect() as connection:
        days = {key_id: day for key_id, day in await connection.execute(last) if key_id and day is not None}
        found = {key_id: (int(requests), int(cost)) for key_id, requests, cost in await connection.execute(sums)}
    return {
        key_id: KeyUse(key_id=key_id, last_day_us=int(day), requests=requests, cost_nanousd=cost)
        for key_id, day in days.items()
        for requests, cost in [found.get(key_id, (0, 0))]
    }
