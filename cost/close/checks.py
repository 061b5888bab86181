"""Background check of whole months against the ledger: a page asks for it, and one of the processes runs it.

A month has a row in `ledger_check` beside the hourly one, under a name like `2026-11`. `begun_us` 0 means that it is
asked for; while it runs, `begun_us` moves on from day to day, so that a process that died is noticed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.calendars import calendars_of
from cost.close.month import Month, month_of, parse_month
from cost.ledger.verify import check
from cost.tables import LedgerCheck
from cost.times import DAY_US, HOUR_US, wall_us

_log: Final = logging.getLogger(__name__)
SETTLED_US: Final = 2 * HOUR_US
"""Delay after a month's end before it is checked unasked: the last day's true-up is posted by then."""
LATEST_US: Final = 7 * DAY_US
"""Age from which a month is only checked when asked, so that a new gateway need not read an old month."""
_GIVEN_UP_US: Final = HOUR_US // 2
_LONGEST_REST_S: Final = 10.0
_MONTHS: Final = "____-__"
_MOST_WAITING: Final = 24

State = Literal["never", "waiting", "running", "done"]


class MonthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """State and result of a month's check."""

    begun_us: int | None = None
    """Microseconds since 1970 of the last claim; 0 while asked for, None when nobody ever asked."""
    done_us: int = 0
    differences: int = 0
    """Differences found by the last finished check."""

    @property
    def state(self) -> State:
        """State of the check, from `begun_us` and `done_us`."""
        if self.begun_us is None:
            return "never"
        if self.begun_us == 0:
            return "waiting"
        return "done" if self.done_us >= self.begun_us else "running"


class MonthChecks:
    """The requests, runs and results of checks of months. It and `cost.ledger.shared_turn` are the only writers of
    `ledger_check`.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        now_us: Callable[[], int] = wall_us,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Set it up; `rest` awaits a pause in seconds between days."""
        self._engine = engine
        self._now_us = now_us
        self._rest = rest
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def known(self, month: Month) -> MonthCheck:
        """Return the state of a month's check."""
        query = select(col(LedgerCheck.begun_us), col(LedgerCheck.done_us), col(LedgerCheck.differences))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query.where(col(LedgerCheck.name) == month.text))).first()
        return MonthCheck() if row is None else MonthCheck(begun_us=row[0], done_us=row[1], differences=row[2])

    async def ask(self, month: Month) -> bool:
        """Ask for a new check. False if one waits or runs, the month is in the future, or too many wait."""
        if self._now_us() < month.start_us or len(await self._waiting_months()) >= _MOST_WAITING:
            return False
        if await self._enqueue(month):
            return True
        done = col(LedgerCheck.done_us) >= col(LedgerCheck.begun_us)
        again = update(LedgerCheck).where(col(LedgerCheck.name) == month.text, col(LedgerCheck.begun_us) > 0, done)
        async with self._engine.begin() as connection:
            return (await connection.execute(again.values(begun_us=0))).rowcount == 1

    async def check(self) -> Month | None:
        """Run one check that was asked for, or that of a month that ended lately; return the month, or None."""
        await self._enqueue_last_month()
        for month, begun_us in await self._waiting_months():
            claimed_us = self._now_us()
            if await self._claim(month, begun_us, claimed_us):
                return await self._run_check(month, claimed_us)
        return None

    async def _run_check(self, month: Month, claimed_us: int) -> Month | None:
        """Check day by day, each in its own snapshot: a day's roll-ups and entries are written together.

        Returns None when another process took the check over.
        """
        differences, (day_us, end_us) = 0, await self._span(month)
        while day_us < min(end_us, self._now_us()):
            begun = time.monotonic()
            found = await check(self._engine, day_us, day_us + DAY_US, now_us=self._now_us())
            differences += found.differences
            day_us += DAY_US
            moved_us = max(claimed_us + 1, self._now_us())
            if not await self._claim(month, claimed_us, moved_us):
                # Another process took this one for dead, and the check over.
                return None
            claimed_us = moved_us
            # Rest as long as the day took, so that requests have half of the database's time.
            await self._rest(min(_LONGEST_REST_S, time.monotonic() - begun))
        done = update(LedgerCheck).where(col(LedgerCheck.name) == month.text, col(LedgerCheck.begun_us) == claimed_us)
        async with self._engine.begin() as connection:
            await connection.execute(done.values(done_us=max(claimed_us, self._now_us()), differences=differences))
        if differences:
            _log.error("the books of %s do not agree: %d figures differ", month.text, differences)
        return month

    async def _waiting_months(self) -> list[tuple[Month, int]]:
        """Return months to check with their `begun_us`: asked for, or abandoned by a process that died."""
        begun = col(LedgerCheck.begun_us)
        left = (col(LedgerCheck.done_us) < begun) & (begun < self._now_us() - _GIVEN_UP_US)
        query = select(col(LedgerCheck.name), begun).where(col(LedgerCheck.name).like(_MONTHS), or_(begun == 0, left))
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query.order_by(col(LedgerCheck.name)).limit(_MOST_WAITING))).all()
        return [(parse_month(name), begun_us) for name, begun_us in rows]

    async def _enqueue_last_month(self) -> None:
        now_us = self._now_us()
        month = month_of(now_us - SETTLED_US).previous
        _, end_us = await self._span(month)
        if end_us + SETTLED_US <= now_us < month.end_us + LATEST_US and (await self.known(month)).begun_us is None:
            await self._enqueue(month)

    async def _span(self, month: Month) -> tuple[int, int]:
        """Return the time of the whole UTC days that any organisation has in its month."""
        calendars = (await calendars_of(self._engine)).others()
        months = [month, *(Month(month.year, month.number, each) for each in calendars)]
        start_us, end_us = min(each.start_us for each in months), max(each.end_us for each in months)
        return start_us - start_us % DAY_US, -(-end_us // DAY_US) * DAY_US

    async def _enqueue(self, month: Month) -> bool:
        row = {"name": month.text, "begun_us": 0, "done_us": 0, "differences": 0}
        async with self._engine.begin() as connection:
            added = await connection.execute(self._insert(LedgerCheck).values(row).on_conflict_do_nothing())
            return added.rowcount == 1

    async def _claim(self, month: Month, from_us: int, to_us: int) -> bool:
        """Move `begun_us` by compare-and-swap; True if this process won, so that one of several runs the check."""
        ours = (col(LedgerCheck.name) == month.text, col(LedgerCheck.begun_us) == from_us)
        async with self._engine.begin() as connection:
            moved = await connection.execute(update(LedgerCheck).where(*ours).values(begun_us=to_us))
            return moved.rowcount == 1
