"""Whole months held against the ledger, in the background: a page asks, and one of the processes looks.

A month has a row in `ledger_check` beside the hourly one, under a name like `2026-11`. `begun_us` 0 says that it is
asked for; while it is looked at, `begun_us` is moved on from day to day, so that a process that died is noticed.
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

from cost.close.month import Month, month_of, parse_month
from cost.ledger.verify import check
from cost.tables import LedgerCheck
from cost.times import DAY_US, HOUR_US, wall_us

_log: Final = logging.getLogger(__name__)
SETTLED_US: Final = 2 * HOUR_US
"""So long after its end a month is looked at without being asked for: the last day's true-up is posted by then."""
LATEST_US: Final = 7 * DAY_US
"""A month that is over for longer is looked at when somebody asks: a gateway that begins need not read a whole month."""
_GIVEN_UP_US: Final = HOUR_US // 2
_LONGEST_REST_S: Final = 10.0
_MONTHS: Final = "____-__"
_MOST_WAITING: Final = 24

State = Literal["never", "waiting", "running", "done"]


class MonthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a month's check."""

    begun_us: int | None = None
    """None when nobody ever asked for one."""
    done_us: int = 0
    differences: int = 0
    """Of the last one that was finished."""

    @property
    def state(self) -> State:
        """How far it is."""
        if self.begun_us is None:
            return "never"
        if self.begun_us == 0:
            return "waiting"
        return "done" if self.done_us >= self.begun_us else "running"


class MonthChecks:
    """Asks for checks, makes them, and tells what came of them. Beside the hourly watch, it alone writes `ledger_check`."""

    def __init__(
        self,
        engine: AsyncEngine,
        now_us: Callable[[], int] = wall_us,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`rest` waits between days."""
        self._engine = engine
        self._now_us = now_us
        self._rest = rest
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert

    async def known(self, month: Month) -> MonthCheck:
        """What is known of this month's."""
        query = select(col(LedgerCheck.begun_us), col(LedgerCheck.done_us), col(LedgerCheck.differences))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query.where(col(LedgerCheck.name) == month.text))).first()
        return MonthCheck() if row is None else MonthCheck(begun_us=row[0], done_us=row[1], differences=row[2])

    async def ask(self, month: Month) -> bool:
        """Have a month looked at again. False when it waits or runs already, is to come, or too many wait."""
        if self._now_us() < month.start_us or len(await self._asked()) >= _MOST_WAITING:
            return False
        if await self._add(month):
            return True
        done = col(LedgerCheck.done_us) >= col(LedgerCheck.begun_us)
        again = update(LedgerCheck).where(col(LedgerCheck.name) == month.text, col(LedgerCheck.begun_us) > 0, done)
        async with self._engine.begin() as connection:
            return (await connection.execute(again.values(begun_us=0))).rowcount == 1

    async def check(self) -> Month | None:
        """Look at one month that somebody asked for, or that is over since shortly; the month that was looked at."""
        await self._add_last_month()
        for month, begun_us in await self._asked():
            claimed_us = self._now_us()
            if await self._move(month, begun_us, claimed_us):
                return await self._check(month, claimed_us)
        return None

    async def _check(self, month: Month, claimed_us: int) -> Month | None:
        """Day by day, each in a snapshot of its own: a day's roll-ups and entries are written together."""
        differences, day_us = 0, month.start_us
        while day_us < min(month.end_us, self._now_us()):
            begun = time.monotonic()
            found = await check(self._engine, day_us, day_us + DAY_US, now_us=self._now_us())
            differences += found.differences
            day_us += DAY_US
            moved_us = max(claimed_us + 1, self._now_us())
            if not await self._move(month, claimed_us, moved_us):
                # Somebody took it for dead.
                return None
            claimed_us = moved_us
            # Half of the time is the requests'.
            await self._rest(min(_LONGEST_REST_S, time.monotonic() - begun))
        done = update(LedgerCheck).where(col(LedgerCheck.name) == month.text, col(LedgerCheck.begun_us) == claimed_us)
        async with self._engine.begin() as connection:
            await connection.execute(done.values(done_us=max(claimed_us, self._now_us()), differences=differences))
        if differences:
            _log.error("the books of %s do not agree: %d figures differ", month.text, differences)
        return month

    async def _asked(self) -> list[tuple[Month, int]]:
        """The months that wait, or whose check was left by a process that died."""
        begun = col(LedgerCheck.begun_us)
        left = (col(LedgerCheck.done_us) < begun) & (begun < self._now_us() - _GIVEN_UP_US)
        query = select(col(LedgerCheck.name), begun).where(col(LedgerCheck.name).like(_MONTHS), or_(begun == 0, left))
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query.order_by(col(LedgerCheck.name)).limit(_MOST_WAITING))).all()
        return [(parse_month(name), begun_us) for name, begun_us in rows]

    async def _add_last_month(self) -> None:
        now_us = self._now_us()
        month = month_of(now_us - SETTLED_US).previous
        if now_us < month.end_us + LATEST_US and (await self.known(month)).begun_us is None:
            await self._add(month)

    async def _add(self, month: Month) -> bool:
        row = {"name": month.text, "begun_us": 0, "done_us": 0, "differences": 0}
        async with self._engine.begin() as connection:
            added = await connection.execute(self._insert(LedgerCheck).values(row).on_conflict_do_nothing())
            return added.rowcount == 1

    async def _move(self, month: Month, from_us: int, to_us: int) -> bool:
        """Whether it is ours: of several that find it, one changes what all have seen."""
        ours = (col(LedgerCheck.name) == month.text, col(LedgerCheck.begun_us) == from_us)
        async with self._engine.begin() as connection:
            moved = await connection.execute(update(LedgerCheck).where(*ours).values(begun_us=to_us))
            return moved.rowcount == 1
