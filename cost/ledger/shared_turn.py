"""Work that of all processes on one database one does, now and then: whose turn it is, and what came of it."""

from typing import Final

import msgspec
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from cost.tables import LedgerCheck
from cost.times import HOUR_US

_GIVEN_UP_US: Final = HOUR_US // 2


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Shared state of the work: last begun, last finished (microseconds since 1970, 0 before), what it found wrong."""

    begun_us: int = 0
    done_us: int = 0
    differences: int = 0


def due(known: Checked, now_us: int, every_us: int = HOUR_US) -> bool:
    """Return True `every_us` after the last beginning, or half an hour after one that never finished.

    The distance counts in both directions, so that a turn begun by a clock far ahead does not block the others for long.
    """
    unfinished = known.done_us < known.begun_us
    return abs(now_us - known.begun_us) >= (_GIVEN_UP_US if unfinished else every_us)


class SharedTurn:
    """The state of one such work, under its name in `ledger_check`."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        self._engine = engine
        self._name = name

    async def known(self) -> Checked:
        """Return the shared state."""
        query = select(col(LedgerCheck.begun_us), col(LedgerCheck.done_us), col(LedgerCheck.differences))
        async with self._engine.connect() as connection:
            row = (await connection.execute(query.where(col(LedgerCheck.name) == self._name))).first()
        return Checked() if row is None else Checked(begun_us=row[0], done_us=row[1], differences=row[2])

    async def take(self, known: Checked, now_us: int) -> bool:
        """Claim the turn by compare-and-swap; True if this process won."""
        table = LedgerCheck.__table__  # type: ignore[attr-defined]  # SQLModel makes it, and tells nobody.
        try:
            async with self._engine.begin() as connection:
                if not known.begun_us:
                    await connection.execute(
                        table.insert().values(name=self._name, begun_us=now_us, done_us=0, differences=0)
                    )
                    return True
                ours = update(LedgerCheck).values(begun_us=now_us)
                seen = (col(LedgerCheck.name) == self._name, col(LedgerCheck.begun_us) == known.begun_us)
                return (await connection.execute(ours.where(*seen))).rowcount == 1
        except IntegrityError:
            return False

    async def finish(self, now_us: int, differences: int) -> None:
        """Tell what came of it."""
        done = update(LedgerCheck).where(col(LedgerCheck.name) == self._name)
        async with self._engine.begin() as connection:
            await connection.execute(done.values(done_us=now_us, differences=differences))
