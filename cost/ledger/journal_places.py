"""Journal places in the database: how far this database has each journal, as it says itself.

The file beside a journal says how far *some* database had it. A database that was restored from a backup, or is a standby that had
not everything when it was promoted, is behind that. So the drain begins where the database's own row is, which comes and goes with
the rows that it is about.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import delete, exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.ledger.entries import Entry
from cost.ledger.segments import Drained
from cost.tables import Boot, JournalPlace, LedgerEntry
from cost.times import DAY_US

_KEPT_US: Final = 400 * DAY_US
"""A journal that came no further for so long is of a host that is gone."""
_PLACE: Final = tuple(
    col(column) for column in (JournalPlace.segment, JournalPlace.position, JournalPlace.lines, JournalPlace.total)
)


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """A journal that the database has begun and not ended, with its host and when its process was last seen."""

    boot_id: str
    host: str
    seen_us: int


class JournalPlaces:
    """The places of one host's journals; implements `cost.ledger.drain.Places`."""

    def __init__(self, engine: AsyncEngine, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine
        self._clock = clock

    async def begin(self, boot_id: str, told: Drained | None) -> Drained:
        """Return the place from which the database lacks the journal. `told` is what its file says."""
        async with self._engine.connect() as connection:
            place = await _read(connection, boot_id)
        return msgspec.structs.replace(place or Drained(), refused=told.refused if told is not None else ())

    async def move(self, boot_id: str, before: Drained, upto: Drained, last: Entry | None) -> bool:
        """Write that the database has the journal up to a place; False where it has it to another one than `before`, or lacks
        `last`, the newest of the entries between them. Servers copy commits in their order, so one that has it has all of them.
        """
        values = {
            "segment": upto.segment,
            "position": upto.offset,
            "lines": upto.lines,
            "total": upto.total,
            "moved_us": int(self._clock() * 1_000_000),
        }
        there = (
            col(JournalPlace.boot_id) == boot_id,
            col(JournalPlace.segment) == before.segment,
            col(JournalPlace.position) == before.offset,
        )
        async with self._engine.begin() as connection:
            if last is not None and not await _has(connection, last):
                return False
            moved = await connection.execute(update(JournalPlace).where(*there).values(**values))
            if moved.rowcount:
                return True
            if before.place != (0, 0) or await _read(connection, boot_id) is not None:
                return False
            await connection.execute(insert(JournalPlace).values(boot_id=boot_id, **values))
        return True

    async def forget(self, boot_id: str) -> None:
        """Forget a journal that the database has to its end, and those of hosts that are gone for a year."""
        old_us = int(self._clock() * 1_000_000) - _KEPT_US
        async with self._engine.begin() as connection:
            await connection.execute(
                delete(JournalPlace).where(
                    (col(JournalPlace.boot_id) == boot_id) | (col(JournalPlace.moved_us) < old_us)
                )
            )


async def read_places(engine: AsyncEngine) -> dict[str, Drained]:
    """Return the place of each journal that the database has begun."""
    query = select(col(JournalPlace.boot_id), *_PLACE)
    async with engine.connect() as connection:
        return {row[0]: _drained(row[1:]) for row in await connection.execute(query)}


async def read_absent(engine: AsyncEngine, here: set[str], host: str, before_us: int) -> list[Absent]:
    """Return the journals of this host that the database waits for and that are not `here`. Their processes were not seen since
    `before_us`.
    """
    query = (
        select(col(Boot.boot_id), col(Boot.host), col(Boot.seen_us))
        .join(JournalPlace, col(JournalPlace.boot_id) == col(Boot.boot_id))
        .where(col(Boot.host) == host[:200], col(Boot.seen_us) < before_us)
        .order_by(col(Boot.seen_us))
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(query)).all()
    return [Absent(boot_id=boot, host=of, seen_us=int(seen_us)) for boot, of, seen_us in rows if boot not in here]


async def _has(connection: AsyncConnection, entry: Entry) -> bool:
    key = (
        col(LedgerEntry.request_id) == entry.request_id,
        col(LedgerEntry.attempt) == entry.attempt,
        col(LedgerEntry.entry) == entry.entry,
    )
    return bool(await connection.scalar(select(exists().where(*key))))


async def _read(connection: AsyncConnection, boot_id: str) -> Drained | None:
    row = (await connection.execute(select(*_PLACE).where(col(JournalPlace.boot_id) == boot_id))).one_or_none()
    return None if row is None else _drained(row)


def _drained(row: Sequence[Any]) -> Drained:
    segment, position, lines, total = map(int, row)
    return Drained(segment, position, lines, total=total)
