"""The outbox of events in the database: which entries are to be told, their numbers, and how far each sink was told.

An entry is noted in its own transaction (`cost.ledger.store`), without a number. One process at a time, which holds the lease, numbers what
it can see. Transactions may commit in any order: what commits later is seen later and gets a later number, so no cursor over numbers can
pass an entry by. Times and keys of entries, which come late from journals, play no part in it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, and_, delete, func, literal, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from cost.events.event import Event
from cost.ledger.archived import refuse_archived
from cost.ledger.rows import ALL, entry_of
from cost.tables import EventOutboxRow, EventSinkRow, EventStreamRow, LedgerEntry
from cost.times import MINUTE_US, wall_us

_NAME: Final = "entries"
_FAR_LEASES: Final = 3
"""A lease that ends later than so many of its lengths was written by a wrong clock."""
_SEEN_US: Final = 5 * MINUTE_US
_NUMBERED_AT_ONCE: Final = 5_000
_READ_AT_ONCE: Final = 250
_DELETED_AT_ONCE: Final = 5_000

_UNNUMBERED: Final = select(literal(1)).where(col(EventOutboxRow.sequence).is_(None)).limit(1)
_NUMBER: Final = text(
    "UPDATE event_outbox SET sequence = found.given FROM ("
    "SELECT request_id, attempt, entry, :last + row_number() OVER (ORDER BY written_us, request_id, attempt, entry) AS given "
    "FROM (SELECT request_id, attempt, entry, written_us FROM event_outbox WHERE sequence IS NULL "
    "ORDER BY written_us, request_id, attempt, entry LIMIT :most) AS waiting) AS found "
    "WHERE event_outbox.request_id = found.request_id AND event_outbox.attempt = found.attempt "
    "AND event_outbox.entry = found.entry"
)


class Waiting(NamedTuple):
    """What a sink is to be told next."""

    events: tuple[Event, ...]
    last: int
    """Number of the last one that was looked at; the cursor's where there was none. Numbers up to there without an event are lost: they waited
    too long, or the ledger has the entry no more.
    """


class Ahead(NamedTuple):
    """What waits after a place."""

    last: int
    """The newest number; the place's where nothing waits."""
    oldest_us: int | None
    """When the first one that waits was written."""


class SinkPlace(NamedTuple):
    """How far a sink was told."""

    name: str
    sequence: int
    moved_us: int
    waiting: int


class EventOutbox:
    """The outbox, for the process that tells events and for those that look at it."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] | None = None) -> None:
        """`now_us` replaces the clocks in tests."""
        self._engine = engine
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._now_us = now_us or wall_us
        self._is_shared = now_us is None and not self._is_sqlite

    async def begin(self) -> None:
        """Have entries noted from now on. It comes before the first entry that must not be missed is written."""
        row = self._insert(EventStreamRow).values(
            name=_NAME, sequence=0, holder="", held_until_us=0, seen_us=self._now_us()
        )
        seen = row.on_conflict_do_update(index_elements=["name"], set_={"seen_us": self._now_us()})
        async with self._engine.begin() as connection:
            await connection.execute(seen)

    async def is_told(self) -> bool:
        """Return True where some process has told events within the last minutes."""
        seen = select(col(EventStreamRow.seen_us)).where(col(EventStreamRow.name) == _NAME)
        async with self._engine.connect() as connection:
            return int(await connection.scalar(seen) or 0) > self._now_us() - _SEEN_US

    async def hold(self, holder: str, lease_us: int) -> bool:
        """Take or prolong the lease. Returns False when another process has it."""
        now: ColumnElement[Any] = DATABASE_US if self._is_shared else literal(self._now_us(), BigInteger)
        until = now + literal(lease_us, BigInteger)
        free = or_(
            col(EventStreamRow.holder) == holder,
            col(EventStreamRow.held_until_us) < now,
            col(EventStreamRow.held_until_us) > now + literal(_FAR_LEASES * lease_us, BigInteger),
        )
        taken = update(EventStreamRow).where(col(EventStreamRow.name) == _NAME, free)
        async with self._engine.begin() as connection:
            done = await connection.execute(taken.values(holder=holder, held_until_us=until, seen_us=self._now_us()))
        return done.rowcount == 1

    async def release(self, holder: str) -> None:
        """Give the lease back, so that another process need not wait until it runs out."""
        ours = and_(col(EventStreamRow.name) == _NAME, col(EventStreamRow.holder) == holder)
        async with self._engine.begin() as connection:
            await connection.execute(update(EventStreamRow).where(ours).values(held_until_us=0))

    async def number(self) -> int:
        """Give a bounded portion of the entries that can be seen and have no number theirs; return how many these were."""
        async with self._engine.connect() as connection:
            if await connection.scalar(_UNNUMBERED) is None:
                return 0
        last = select(col(EventStreamRow.sequence)).where(col(EventStreamRow.name) == _NAME)
        async with self._engine.begin() as connection:
            await self._lock(connection)
            # Whoever else thinks it holds the lease waits here, and sees what was numbered.
            given = int(await connection.scalar(last.with_for_update()) or 0)
            done = await connection.execute(_NUMBER, {"last": given, "most": _NUMBERED_AT_ONCE})
            ours = update(EventStreamRow).where(col(EventStreamRow.name) == _NAME)
            await connection.execute(ours.values(sequence=given + done.rowcount))
        return done.rowcount

    async def place(self, sink: str) -> int:
        """Return the number of the last event that the sink acknowledged; a new one begins with what comes from now on."""
        asked = select(col(EventSinkRow.sequence)).where(col(EventSinkRow.name) == sink)
        last = select(literal(sink), col(EventStreamRow.sequence), literal(self._now_us(), BigInteger)).where(
            col(EventStreamRow.name) == _NAME
        )
        new = self._insert(EventSinkRow).from_select(["name", "sequence", "moved_us"], last)
        async with self._engine.connect() as connection:
            found = await connection.scalar(asked)
        if found is None:
            async with self._engine.begin() as connection:
                await connection.execute(new.on_conflict_do_nothing())
                found = await connection.scalar(asked)
        return int(found or 0)

    async def ahead(self, sequence: int) -> Ahead:
        """Return what waits after a number, by two looks into an index."""
        number = col(EventOutboxRow.sequence)
        first = select(number, col(EventOutboxRow.written_us)).where(number > sequence)
        async with self._engine.connect() as connection:
            oldest = (await connection.execute(first.order_by(number).limit(1))).first()
            if oldest is None:
                return Ahead(sequence, None)
            last: int | None = await connection.scalar(select(func.max(number)))
        return Ahead(last or sequence, oldest[1])

    async def after(self, sequence: int, most: int) -> Waiting:
        """Return the next events after a number."""
        of_entry = and_(
            *(
                getattr(LedgerEntry, name) == getattr(EventOutboxRow, name)
                for name in ("request_id", "attempt", "entry")
            )
        )
        number = col(EventOutboxRow.sequence)
        query = (
            select(number, *ALL.selected_columns)
            .select_from(EventOutboxRow)
            .outerjoin(LedgerEntry, of_entry)
            .order_by(number)
        )
        events: list[Event] = []
        last, read, rows = sequence, 0, _READ_AT_ONCE
        async with self._engine.connect() as connection:
            # In pages, so that others have the loop in between.
            while read < most and rows == _READ_AT_ONCE:
                page = query.where(number > last).limit(min(_READ_AT_ONCE, most - read))
                found = (await connection.execute(page)).all()
                events += (Event(row[0], entry_of(row[1:])) for row in found if row[1] is not None)
                rows = len(found)
                read += rows
                last = found[-1][0] if found else last
        return Waiting(tuple(events), last)

    async def move(self, sink: str, before: int, upto: int) -> bool:
        """Write that a sink has everything up to a number; False where it is no longer told from `before`."""
        ours = update(EventSinkRow).where(col(EventSinkRow.name) == sink, col(EventSinkRow.sequence) == before)
        async with self._engine.begin() as connection:
            done = await connection.execute(ours.values(sequence=upto, moved_us=self._now_us()))
        return done.rowcount == 1

    async def forget(self, sinks: Sequence[str], keep_us: int) -> int:
        """Delete a portion of what all these sinks have, and of what waits for longer than is kept; returns how many."""
        told = select(func.min(col(EventSinkRow.sequence))).where(col(EventSinkRow.name).in_(sinks))
        number = col(EventOutboxRow.sequence)
        async with self._engine.connect() as connection:
            upto = int(await connection.scalar(told) or 0)
            oldest, newest = (await connection.execute(select(func.min(number), func.max(number)))).one()
            if oldest is None or newest is None:
                return 0
            end = min(int(newest) + 1, int(oldest) + _DELETED_AT_ONCE)
            waits = (number > upto, number < end, col(EventOutboxRow.written_us) >= self._now_us() - keep_us)
            first_kept = await connection.scalar(select(func.min(number)).where(*waits))
        # Only what stands at the beginning goes, so what is dropped is a gap and not holes.
        old = number < (end if first_kept is None else int(first_kept))
        async with self._engine.begin() as connection:
            return max(0, (await connection.execute(delete(EventOutboxRow).where(old))).rowcount)

    async def replay(self, start_us: int, end_us: int) -> int:
        """Have entries of a time told once more, under new numbers and their own ids; returns how many. What still waits is not told
        twice. Raises ArchivedTime.
        """
        names = ("request_id", "attempt", "entry")
        found = select(*(getattr(LedgerEntry, name) for name in names), literal(self._now_us(), BigInteger)).where(
            col(LedgerEntry.at_us) >= start_us, col(LedgerEntry.at_us) < end_us, col(LedgerEntry.entry) != "reserve"
        )
        row = self._insert(EventOutboxRow).from_select([*names, "written_us"], found)
        async with self._engine.begin() as connection:
            await refuse_archived(connection, start_us, end_us, "these days cannot be told again")
            return max(0, (await connection.execute(row.on_conflict_do_nothing())).rowcount)

    async def places(self) -> tuple[SinkPlace, ...]:
        """Return how far each sink was told."""
        waiting = (
            select(func.count())
            .select_from(EventOutboxRow)
            .where(
                or_(col(EventOutboxRow.sequence) > col(EventSinkRow.sequence), col(EventOutboxRow.sequence).is_(None))
            )
            .correlate(EventSinkRow)
            .scalar_subquery()
        )
        query = select(
            col(EventSinkRow.name), col(EventSinkRow.sequence), col(EventSinkRow.moved_us), waiting
        ).order_by(col(EventSinkRow.name))
        async with self._engine.connect() as connection:
            return tuple(SinkPlace(*row) for row in await connection.execute(query))

    def _insert(self, table: type[Any]) -> Any:
        return (sqlite_insert if self._is_sqlite else postgresql_insert)(table)

    async def _lock(self, connection: AsyncConnection) -> None:
        if self._is_sqlite:
            # Of two transactions that have read, only one could go on to write.
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
