"""Retention of what end users spent: rows that no running period of a budget reaches any more are deleted, a portion at a time.

The roll-ups have a row of each end user for each day, quarter of an hour and month, and people go. The ledger keeps all of it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from sqlalchemy import Table, delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.budgets.periods import PERIODS
from cost.ledger.rollups import end_user_month, spend_day, spend_quarter
from cost.scopes import ANY
from cost.tables import BudgetRow, rollup_day
from cost.times import DAY_US, month_of, wall_us

_PORTION: Final = 500
_READ_AT_ONCE: Final = 20_000
_REST_S: Final = 0.05
"""Between two portions, so that bookings and requests go first."""
_ENDLESS: Final = tuple(name for name, row in PERIODS.items() if not row.renews)


class EndUserRetention:
    """The deletion of old rows of end users; each process may run it, on any number of hosts."""

    def __init__(
        self,
        engine: AsyncEngine,
        keep_days: Callable[[], int],
        now_us: Callable[[], int] = wall_us,
        *,
        portion: int = _PORTION,
        rest_s: float = _REST_S,
    ) -> None:
        """`keep_days` are those of the configuration in effect."""
        self._engine = engine
        self._keep_days = keep_days
        self._now_us = now_us
        self._portion = portion
        self._rest_s = rest_s
        self._done_us: dict[str, int] = {}
        """Until when each table was gone through, so that a round does not begin with its first day again."""

    async def forget(self) -> int:
        """Delete what is older than is kept; return the number of rows. Raises what the database raises."""
        until_us = self._now_us() - self._keep_days() * DAY_US
        until_us -= until_us % DAY_US
        gone = await self._forget_days(spend_day, spend_day.c.day_us, until_us)
        # No endless period has a quarter of an hour at its edge: whole days are all that it is made of.
        gone += await self._forget_days(spend_quarter, spend_quarter.c.start_us, until_us)
        return gone + await self._forget_months(month_of(until_us))

    async def _forget_days(self, table: Table, start: Any, until_us: int) -> int:
        gone, day_us = 0, self._done_us.get(table.name, 0)
        while (day_us := await self._next_day(start, day_us, until_us)) < until_us:
            gone += await self._forget_day(table, (start >= day_us, start < day_us + DAY_US))
            day_us += DAY_US
            self._done_us[table.name] = day_us
        return gone

    async def _forget_day(self, table: Table, of_day: Sequence[Any]) -> int:
        within = (table.c.scope == "end_user", *of_day)
        ids = select(table.c.scope_id).distinct().where(*within).order_by(table.c.scope_id).limit(_READ_AT_ONCE)
        gone, after = 0, ""
        while True:
            async with self._engine.connect() as connection:
                found = (await connection.scalars(ids.where(table.c.scope_id > after))).all()
            for first in range(0, len(found), self._portion):
                gone += await self._forget_portion(table, within, found[first : first + self._portion])
                await asyncio.sleep(self._rest_s)
            if len(found) < _READ_AT_ONCE:
                return gone
            after = found[-1]

    async def _next_day(self, start: Any, from_us: int, until_us: int) -> int:
        """Return the next day of the table that has any row, or `until_us`."""
        async with self._engine.connect() as connection:
            found = await connection.scalar(select(func.min(start)).where(start >= from_us, start < until_us))
        return until_us if found is None else int(found) - int(found) % DAY_US

    async def _forget_portion(self, table: Table, within: Sequence[Any], ids: Sequence[str]) -> int:
        """Delete the rows of these ids, but days that an endless budget counts; return how many."""
        async with self._engine.begin() as connection:
            await _lock(connection)
            old = await _not_counted(connection, ids) if table is spend_day else ids
            deleted = await connection.execute(delete(table).where(*within, table.c.scope_id.in_(old)))
        return deleted.rowcount

    async def _forget_months(self, until_us: int) -> int:
        gone = 0
        async with self._engine.connect() as connection:
            team_ids = await _teams(connection)
        for team_id in team_ids:
            within = (end_user_month.c.team_id == team_id, end_user_month.c.month_us < until_us)
            more = self._portion
            while more == self._portion:
                async with self._engine.begin() as connection:
                    more = await _forget_some_months(connection, within, self._portion)
                gone += more
                await asyncio.sleep(self._rest_s)
        return gone


async def _forget_some_months(connection: AsyncConnection, within: Sequence[Any], most: int) -> int:
    places = select(end_user_month.c.month_us, end_user_month.c.end_user).where(*within).limit(most)
    by_month: dict[int, list[str]] = {}
    for month_us, name in await connection.execute(places):
        by_month.setdefault(month_us, []).append(name)
    for month_us, names in by_month.items():
        of_month = (end_user_month.c.month_us == month_us, end_user_month.c.end_user.in_(names))
        await connection.execute(delete(end_user_month).where(*within, *of_month))
    return sum(map(len, by_month.values()))


async def _lock(connection: AsyncConnection) -> None:
    """Keep budgets as they are until the portion is deleted: what a new prepaid one has counted must not go unnoticed.

    Requests, which lock rows of the table, go on meanwhile.
    """
    if connection.dialect.name == "sqlite":
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        await connection.execute(text("LOCK TABLE budget IN SHARE MODE"))


async def _not_counted(connection: AsyncConnection, ids: Sequence[str]) -> list[str]:
    """Return the ids whose spending no budget counts from the beginning."""
    endless = (col(BudgetRow.scope) == "end_user", col(BudgetRow.period).in_(_ENDLESS))
    counted = set(await connection.scalars(select(col(BudgetRow.scope_id)).where(*endless)))
    if not counted:
        return list(ids)
    owners = {each: await _owner(connection, each) for each in {each.partition("/")[0] for each in ids}}
    return [each for each in ids if not _is_counted(each, counted, owners)]


async def _teams(connection: AsyncConnection) -> list[str]:
    """Return the teams that have end users, one look at the index each."""
    found: list[str] = []
    first = select(func.min(end_user_month.c.team_id))
    team_id = await connection.scalar(first)
    while team_id is not None:
        found.append(team_id)
        team_id = await connection.scalar(first.where(end_user_month.c.team_id > team_id))
    return found


async def _owner(connection: AsyncConnection, team_id: str) -> str:
    """Return the organisation of a team, by what is booked of it."""
    owner = select(rollup_day.c.organisation_id).where(rollup_day.c.team_id == team_id).limit(1)
    return await connection.scalar(owner) or ""


def _is_counted(scope_id: str, counted: AbstractSet[str], owners: Mapping[str, str]) -> bool:
    team_id = scope_id.partition("/")[0]
    return bool(counted & {scope_id, f"{team_id}/{ANY}", f"{ANY}/{owners.get(team_id, '')}"})
