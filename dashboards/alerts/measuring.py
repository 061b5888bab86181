"""Measures of alerts: spend from the roll-ups, refusals from their counts, the rest from the newest attempts, at a bounded
cost.
"""

from typing import Any, Final, NamedTuple, assert_never

import msgspec
from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from api.live.chance import is_beyond_chance
from api.live.newest import is_failure
from api.live.recent import quantile
from cost.ledger.entries import TERMINAL
from cost.reports.latency import first_token_us
from cost.tables import LedgerEntry, rollup_hour
from cost.times import HOUR_US, MINUTE_US
from dashboards.alerts.alert import ENOUGH, MILLION, Alert
from dashboards.alerts.budget_warnings import budgets_of, largest_share
from dashboards.alerts.incidents import incidents_of
from proxy.settle.refusals.store import RefusalStore

LOOKED_AT: Final = 2_000
"""Most attempts that one value follows from: of more in the time, the newest."""
_NO_ROOM: Final = 429
_MOST_GROUPS: Final = 1_000
"""Most keys, models and reasons whose refusals are summed: those with the most."""
_HIGH: Final = 0.95


class Measured(NamedTuple):
    """What an alert's measure is now, in its unit."""

    value: int
    is_sure: bool = True
    """False where chance may have put it above the threshold."""

    def passes(self, threshold: int) -> bool:
        """Return whether it is to be told."""
        return self.value >= threshold and self.is_sure


def _counted(value: int | None) -> Measured | None:
    """Return what was counted or summed up, in which there is no chance."""
    return None if value is None else Measured(value)


async def measured(  # noqa: PLR0911 - one of each measure
    engine: AsyncEngine, alert: Alert, now_us: int, operator: str = ""
) -> Measured | None:
    """Return the value now, or None where too little happened to tell one. `operator` is the organisation
    that is told of all incidents.
    """
    measure = alert.measure
    if measure == "incidents":
        every = msgspec.structs.replace(alert, threshold=0)
        found = [each for each in await incidents_of(engine, every, operator, now_us) if each.kept.is_open]
        return _counted(max((each.requests or 0 for each in found), default=None))
    if measure == "budgets":
        return _counted(largest_share(await budgets_of(engine, alert)))
    if measure == "refusals":
        return _counted(await _refusals(engine, alert, now_us))
    async with engine.connect() as connection:
        if measure == "spend":
            return _counted(await _spend(connection, alert, now_us))
        rows = await _newest(connection, alert, now_us - alert.window_s * 1_000_000)
    match measure:
        case "no-room":
            return _counted(len([row for row in rows if row.status == _NO_ROOM]))
        case "errors":
            failed = len([row for row in rows if is_failure(row.entry, row.status)])
            if len(rows) < ENOUGH:
                return None
            beyond = is_beyond_chance(failed, len(rows), alert.threshold / MILLION)
            return Measured(failed * MILLION // len(rows), is_sure=beyond)
        case "latency":
            firsts = sorted(first_us for first_us in map(first_token_us, rows) if first_us is not None)
            high = quantile(firsts, _HIGH) if len(firsts) >= ENOUGH else None
            late = sum(first_us >= alert.threshold for first_us in firsts)
            return None if high is None else Measured(int(high), is_sure=is_beyond_chance(late, len(firsts), 1 - _HIGH))
        case _:
            assert_never(measure)


async def _refusals(engine: AsyncEngine, alert: Alert, now_us: int) -> int:
    """Count requests refused before a model was asked, in the minutes or, of a day, the hours that the time touches."""
    since_us = now_us - alert.window_s * 1_000_000
    since_us -= since_us % (MINUTE_US if alert.window_s * 1_000_000 <= HOUR_US else HOUR_US)
    found = await RefusalStore(engine).read(
        since_us, organisation_id=alert.organisation_id, team_id=alert.team_id or None, most=_MOST_GROUPS
    )
    return sum(each.refusals for each in found)


async def _spend(connection: AsyncConnection, alert: Alert, now_us: int) -> int:
    """Return the nano-dollars of the hours that the time touches, which are booked whole."""
    start_us = now_us - alert.window_s * 1_000_000
    where = [
        rollup_hour.c.start_us >= start_us - start_us % HOUR_US,
        rollup_hour.c.organisation_id == alert.organisation_id,
        rollup_hour.c.origin.in_(("caller", "shadow")),
    ]
    if alert.team_id:
        where.append(rollup_hour.c.team_id == alert.team_id)
    found = await connection.scalar(select(func.sum(rollup_hour.c.cost_nanousd)).where(*where))
    return 0 if found is None else int(found)


async def _newest(connection: AsyncConnection, alert: Alert, since_us: int) -> list[Row[Any]]:
    where = [
        col(LedgerEntry.at_us) >= since_us,
        col(LedgerEntry.organisation_id) == alert.organisation_id,
        col(LedgerEntry.entry).in_(sorted(TERMINAL)),
        col(LedgerEntry.origin) == "caller",
    ]
    if alert.team_id:
        where.append(col(LedgerEntry.team_id) == alert.team_id)
    query = select(
        *(getattr(LedgerEntry, name) for name in ("entry", "status", "stream", "served", "ttft_us", "given_us"))
    ).where(*where)
    return list(await connection.execute(query.order_by(col(LedgerEntry.at_us).desc()).limit(LOOKED_AT)))
