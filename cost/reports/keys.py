"""Recent use of each of a team's keys, from the roll-ups."""

from typing import Final

import msgspec
from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.rollups import SPENT_ORIGINS
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
    """Requests of the last 30 days, today included."""
    cost_nanousd: int
    """Cost of the same days, without unpriced attempts."""


async def read_key_use(engine: AsyncEngine, organisation_id: str, team_id: str, now_us: int) -> dict[str, KeyUse]:
    """Return the use of each key of one team that was used within 90 days, by key id."""
    today_us = now_us - now_us % DAY_US
    day, c = rollup_day.c.start_us, rollup_day.c
    lately = day > today_us - SPENT_DAYS * DAY_US
    query = (
        select(
            c.key_id,
            func.max(case((c.attempts > 0, day))),
            func.sum(case((lately, c.requests), else_=0)),
            func.sum(case((lately, c.cost_nanousd), else_=0)),
        )
        .where(
            c.team_id == team_id,
            c.organisation_id == organisation_id,
            day > today_us - USED_DAYS * DAY_US,
            c.origin.in_(sorted(SPENT_ORIGINS)),
        )
        .group_by(c.key_id)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return {
        key_id: KeyUse(key_id=key_id, last_day_us=int(last), requests=int(requests), cost_nanousd=int(cost))
        for key_id, last, requests, cost in rows
        if key_id and last is not None
    }
