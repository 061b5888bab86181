"""Hourly verification of the roll-ups; of all processes on one database one runs it."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.ledger.verify import Verification, check
from cost.tables import LedgerCheck
from cost.times import DAY_US, HOUR_US

_log: Final = logging.getLogger(__name__)
_NAME: Final = "roll-ups"
_GIVEN_UP_US: Final = HOUR_US // 2
_DAYS_BEFORE: Final = 1


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Shared state of the check: last begun, last finished (microseconds since 1970, 0 before), differences found."""

    begun_us: int = 0
    done_us: int = 0
    differences: int = 0


def due(known: Checked, now_us: int) -> bool:
    """Return True an hour after the last check, or half an hour after one that was begun and never finished.

    The distance counts in both directions, so that a check begun by a clock far ahead does not block the others for long.
    """
    unfinished = known.done_us < known.begun_us
    return abs(now_us - known.begun_us) >= (_GIVEN_UP_US if unfinished else HOUR_US)


class LedgerWatch:
    """The check, run when it is due. `tell` is called with the shared state after each look."""

    def __init__(
        self, engine: AsyncEngine, tell: Callable[[Checked], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._clock = clock

    async def check_due(self) -> None:
        """Check yesterday and today if that is due and no other process does it; then tell the state."""
        known = await self._read_state()
        if due(known, now_us := self._now_us()) and await self._claim(known, now_us):
            today_us = now_us - now_us % DAY_US
            found = await check(self._engine, today_us - _DAYS_BEFORE * DAY_US, now_us + 1, now_us=now_us)
            await self._finish(found)
            known = await self._read_state()
        if known.done_us:
            self._tell(known)

    async def _read_state(self) -> Checked:
        query = select(col(LedgerCheck.begun_us), col(LedgerCheck.done_us), col(LedgerCheck.differences))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query.where(col(LedgerCheck.name) == _NAME))).first()
        return Checked() if row is None else Checked(begun_us=row[0], done_us=row[1], differences=row[2])

    async def _claim(self, known: Checked, now_us: int) -> bool:
        """Claim the check by compare-and-swap; True if this process won."""
        table = LedgerCheck.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
        try:
            async with self._engine.begin() as connection:
                if not known.begun_us:
                    await connection.execute(
                        table.insert().values(name=_NAME, begun_us=now_us, done_us=0, differences=0)
                    )
                    return True
                ours = update(LedgerCheck).values(begun_us=now_us)
                seen = (col(LedgerCheck.name) == _NAME, col(LedgerCheck.begun_us) == known.begun_us)
                return (await connection.execute(ours.where(*seen))).rowcount == 1
        except IntegrityError:
            return False

    async def _finish(self, found: Verification) -> None:
        done = update(LedgerCheck).where(col(LedgerCheck.name) == _NAME)
        async with self._engine.begin() as connection:
            await connection.execute(done.values(done_us=self._now_us(), differences=found.differences))
        if found.told:
            first = found.told[0]
            _log.error(
                "the books do not agree: %d figures differ, the first is %s of %s: %d instead of %d; "
                "`weighbridge ledger verify` lists them",
                found.differences,
                first.column,
                first.table,
                first.found,
                first.expected,
            )
        if found.open_reserves:
            _log.warning("%d reserves are open for longer than an hour", found.open_reserves)

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)
