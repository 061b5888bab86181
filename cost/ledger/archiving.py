"""A UTC month of the ledger put into files, and back.

Files are written one after another, each read back and noted in the database; then the manifest; and only then entries are deleted, file by
file, by the very keys that the file has when it is read again. Each step is one transaction and leaves a state from which anybody goes on, so
a process may die anywhere. An entry that comes meanwhile is in no file, and stays.

What stays in the ledger: `cost.ledger.archived`. A reserve goes with what closes it. Hours within which an organisation's day begins stay,
too: reports sum these up from entries (`cost.ledger.rolled_up`).
"""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, or_, select, text, tuple_, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from cost.calendars import Calendars, read_calendars
from cost.ledger.archive_files import KIND, MANIFEST, SCHEMA, ArchiveReader, Codec, FileDamaged, Place
from cost.ledger.archived import FileRow, State, files_of_month, month_text, sums_of
from cost.ledger.entries import TERMINAL
from cost.ledger.late_entries import LATE, hold_closings
from cost.ledger.rollups import roll_up
from cost.ledger.rows import ALL, COLUMNS, entry_of
from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from cost.tables import (
    ROLLUP_SUMS,
    ArchivedFile,
    ArchivedMonth,
    ClosedMonth,
    EventOutboxRow,
    EventSinkRow,
    EventStreamRow,
    LedgerEntry,
    rollup_model_day,
)
from cost.times import DAY_US, HOUR_US, day_of, iso, moment, month_of, next_month, start_of, wall_us

MOST_ENTRIES: Final = 10_000
"""Entries of a file, beside their reserves: as many are read, and deleted, at once."""
_LEASE_US: Final = 120_000_000
_REST_S: Final = 0.05
_RESTORED_US: Final = 30 * DAY_US
_KEY_NAMES: Final = ("request_id", "attempt", "entry")
_KEY: Final = tuple(map(COLUMNS.index, _KEY_NAMES))
_AT: Final = COLUMNS.index("at_us")

_at: Final = col(LedgerEntry.at_us)
_kind: Final = col(LedgerEntry.entry)
_ORDER: Final = (_at, col(LedgerEntry.request_id), col(LedgerEntry.attempt), _kind)
_Key = tuple[int, str, int, str]


class ArchiveImpossible(Exception):
    """A month cannot be archived or restored now; says why."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    month: str
    rows: int
    files: int
    bytes: int
    where: str


class _Lost(ArchiveImpossible):
    """Another process has taken the month over."""


class Archiving:
    """Archive and restore, for one process. `place` is where new files go, and where those of the month are."""

    def __init__(
        self,
        engine: AsyncEngine,
        place: Place,
        codec: Codec,
        *,
        version: str = "",
        now_us: Callable[[], int] = wall_us,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        most: int = MOST_ENTRIES,
    ) -> None:
        """`version` is the product's, for the manifest; `rest` awaits a pause between deletions."""
        self._engine = engine
        self._place = place
        self._codec = codec
        self._version = version
        self._now_us = now_us
        self._rest = rest
        self._most = most
        self._holder = secrets.token_hex(8)
        self._store = LedgerStore(engine)

    async def archive(self, month_us: int) -> Done:
        """Put a month into files, or go on where a run ended. Raises ArchiveImpossible, FileDamaged, PlaceUnreachable."""
        state, run = await self._begin(month_us)
        async with self._working(month_us):
            if state == "restoring":
                raise ArchiveImpossible(f"{month_text(month_us)} is being restored: finish that first")
            if state == "writing":
                await self._refuse(month_us)
                await self._write(month_us, run)
                await self._write_manifest(month_us, run)
                await self._set(month_us, "removing")
            if state != "archived":
                await self._remove(month_us, run)
                await self._set(month_us, "archived")
        async with self._engine.connect() as connection:
            files = await files_of_month(connection, month_us)
        return self._done(month_us, run, files)

    async def restore(self, month_us: int) -> Done:
        """Put a month's entries back into the ledger, or go on where a run ended; the files stay where they are."""
        state, run = await self._begin(month_us, made=False)
        async with self._engine.connect() as connection:
            files = await files_of_month(connection, month_us)
        async with self._working(month_us):
            if state != "writing":
                await self._set(month_us, "restoring")
                reader = ArchiveReader(self._place, run, self._codec)
                for file in files:
                    if file.is_gone:
                        await self._put_back(month_us, file, await asyncio.to_thread(reader.rows, file))
            async with self._turn(month_us) as connection:
                await connection.execute(delete(ArchivedFile).where(col(ArchivedFile.month_us) == month_us))
                # The month stays known, so that it does not go again at once by itself.
                restored = update(ArchivedMonth).where(col(ArchivedMonth.month_us) == month_us)
                await connection.execute(restored.values(state="restored", changed_us=self._now_us()))
        return self._done(month_us, run, files)

    def _done(self, month_us: int, run: str, files: Sequence[FileRow]) -> Done:
        return Done(
            month=month_text(month_us),
            rows=sum(each.rows for each in files),
            files=len(files),
            bytes=sum(each.bytes for each in files),
            where=f"{self._place.text}/{run}",
        )

    # Who does it.

    async def _begin(self, month_us: int, *, made: bool = True) -> tuple[State, str]:
        now_us = self._now_us()
        run = f"month={month_text(month_us)}/run={moment(now_us):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        row = {"month_us": month_us, "place": self._place.text, "run": run, "state": "writing", "changed_us": now_us}
        row |= {"holder": self._holder, "held_until_us": now_us + _LEASE_US}
        month = col(ArchivedMonth.month_us) == month_us
        async with self._engine.connect() as connection:
            found = (await connection.execute(_MONTH.where(month))).first()
        if not made and (found is None or found.state == "restored"):
            raise ArchiveImpossible(f"{month_text(month_us)} is not archived")
        if found is None:
            try:
                async with self._engine.begin() as connection:
                    await connection.execute(insert(ArchivedMonth).values(row))
            except IntegrityError:
                raise _Lost(_held(month_us, _LEASE_US)) from None
            return "writing", run
        begins = made and found.state == "restored"
        if made and not begins and found.place != self._place.text:
            raise ArchiveImpossible(f"{month_text(month_us)} is in {found.place}: give that with --to")
        free = or_(col(ArchivedMonth.held_until_us) < now_us, col(ArchivedMonth.held_until_us) > now_us + 2 * _LEASE_US)
        taken = update(ArchivedMonth).where(month, free)
        async with self._engine.begin() as connection:
            ours = {"holder": self._holder, "held_until_us": now_us + _LEASE_US}
            done = await connection.execute(taken.values(row if begins else ours))
        if done.rowcount != 1:
            raise _Lost(_held(month_us, found.held_until_us - now_us))
        return ("writing", run) if begins else (found.state, found.run)

    @asynccontextmanager
    async def _working(self, month_us: int) -> AsyncIterator[None]:
        """Keep the month while its books are checked, which may take longer than the lease, and give it back in the end."""
        prolonging = asyncio.create_task(self._prolong(month_us))
        try:
            yield
        finally:
            prolonging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await prolonging
            await self._release(month_us)

    async def _prolong(self, month_us: int) -> None:
        while True:
            await asyncio.sleep(_LEASE_US / 4_000_000)
            # Whoever works finds out by itself that the month was lost, or the database.
            with contextlib.suppress(_Lost, DBAPIError):
                async with self._turn(month_us):
                    pass

    @asynccontextmanager
    async def _turn(self, month_us: int) -> AsyncIterator[AsyncConnection]:
        """Open a transaction in which this process still has the month, and prolong its lease."""
        ours = (col(ArchivedMonth.month_us) == month_us, col(ArchivedMonth.holder) == self._holder)
        prolonged = update(ArchivedMonth).where(*ours).values(held_until_us=self._now_us() + _LEASE_US)
        async with self._engine.begin() as connection:
            if connection.dialect.name == "sqlite":
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            if (await connection.execute(prolonged)).rowcount != 1:
                raise _Lost(_held(month_us, _LEASE_US))
            yield connection

    async def _set(self, month_us: int, state: State) -> None:
        month = col(ArchivedMonth.month_us) == month_us
        async with self._turn(month_us) as connection:
            await connection.execute(update(ArchivedMonth).where(month).values(state=state, changed_us=self._now_us()))

    async def _release(self, month_us: int) -> None:
        ours = and_(col(ArchivedMonth.month_us) == month_us, col(ArchivedMonth.holder) == self._holder)
        async with self._engine.begin() as connection:
            await connection.execute(update(ArchivedMonth).where(ours).values(held_until_us=0))

    # What may be archived.

    async def _refuse(self, month_us: int) -> None:
        """Raise ArchiveImpossible with all reasons why not."""
        end_us, now_us = next_month(month_us), self._now_us()
        if now_us < end_us + DAY_US:
            raise ArchiveImpossible(f"{month_text(month_us)} is not over for a day yet")
        async with self._engine.connect() as connection:
            reasons = [
                *await _unsigned(connection, month_us, end_us),
                *await _untold(connection, month_us, end_us, now_us),
            ]
        if reasons:
            # The books are summed up for months that may go alone: it is asked again every few hours.
            raise ArchiveImpossible(f"{month_text(month_us)} cannot be archived: {'; '.join(reasons)}")
        found = await check(self._engine, month_us, end_us, now_us=now_us)
        if found.open_reserves:
            reasons.append(f"attempts of it are open, which may still be booked: {found.open_reserves}")
        if found.differences:
            reasons.append(
                f"its books do not agree, figures: {found.differences}; `weighbridge ledger verify` lists them"
            )
        if reasons:
            raise ArchiveImpossible(f"{month_text(month_us)} cannot be archived: {'; '.join(reasons)}")

    # Writing.

    async def _write(self, month_us: int, run: str) -> None:
        async with self._engine.connect() as connection:
            files = await files_of_month(connection, month_us)
            spans = list(_spans(month_us, next_month(month_us), await read_calendars(connection)))
        number, last = len(files), msgspec.json.decode(files[-1].last_key, type=_Key) if files else None
        for start_us, end_us in spans:
            if last is not None and last[0] >= end_us:
                continue
            async for rows, key in self._chunks(start_us, end_us, last):
                number += 1
                await self._write_file(month_us, run, number, rows, key)

    async def _chunks(
        self, start_us: int, end_us: int, last: _Key | None
    ) -> AsyncIterator[tuple[list[tuple[Any, ...]], _Key]]:
        """Yield what a file has: entries of a span within one day, and their reserves, wherever these stand."""
        while True:
            async with self._engine.connect() as connection:
                ends = ALL.where(_at >= (start_us if last is None else max(start_us, last[0])), _at < end_us, *_ENDS)
                if last is not None:
                    ends = ends.where(tuple_(*_ORDER) > tuple_(*last))
                found = [tuple(row) for row in await connection.execute(ends.order_by(*_ORDER).limit(self._most))]
                if not found:
                    return
                first, last = _key_of(found[0]), _key_of(found[-1])
                reserves = [tuple(row) for row in await connection.execute(_reserves_of(first, last))]
            yield found + reserves, last
            if len(found) < self._most:
                return

    async def _write_file(self, month_us: int, run: str, number: int, rows: list[tuple[Any, ...]], last: _Key) -> None:
        day = day_of(last[0])
        # Named by who writes it: a process that slept while another went on must not write over what entries were deleted for.
        name = f"date={day}/part-{number:05}-{self._holder}.parquet"
        data, sums = await asyncio.to_thread(self._made, rows)
        await asyncio.to_thread(self._put, f"{run}/{name}", data)
        file = {
            "month_us": month_us,
            "number": number,
            "name": name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "rows": len(rows),
            "day_us": start_of(day),
            "last_key": msgspec.json.encode(last).decode(),
            "sums": msgspec.json.encode(sums).decode(),
            "is_gone": False,
        }
        async with self._turn(month_us) as connection:
            await connection.execute(insert(ArchivedFile).values(file))

    def _made(self, rows: list[tuple[Any, ...]]) -> tuple[bytes, dict[str, int]]:
        found = roll_up(entry_of(row) for row in rows if row[KIND] != "reserve").days.values()
        totals = [sum(each) for each in zip(*found, strict=True)]
        return self._codec.encode(rows), dict(zip(ROLLUP_SUMS, totals, strict=True))

    def _put(self, name: str, data: bytes) -> None:
        """Write, and read back. Raises FileDamaged and PlaceUnreachable."""
        self._place.put(name, data)
        if self._place.get(name, len(data)) != data:
            raise FileDamaged(f"{name} in {self._place.text} is not what was written to it")

    async def _write_manifest(self, month_us: int, run: str) -> None:
        async with self._engine.connect() as connection:
            files = await files_of_month(connection, month_us)
        data = msgspec.json.format(msgspec.json.encode(self._manifest(month_us, files)), indent=1)
        name = f"{run}/{MANIFEST}"
        await asyncio.to_thread(self._put, name, data)

    def _manifest(self, month_us: int, files: Sequence[FileRow]) -> dict[str, Any]:
        told = [
            {
                "name": each.name,
                "sha256": each.sha256,
                "bytes": each.bytes,
                "rows": each.rows,
                "day": str(day_of(each.day_us)),
                "last": msgspec.json.decode(each.last_key),
                "sums": {name: amount for name, amount in sums_of([each]).items() if amount},
            }
            for each in files
        ]
        return {
            "month": month_text(month_us),
            "schema": SCHEMA,
            "columns": list(COLUMNS),
            "version": self._version,
            "written": iso(self._now_us()),
            "money": "integers of nano-dollars (10^-9 USD)",
            "rows": sum(each.rows for each in files),
            "sums": sums_of(files),
            "files": told,
        }

    # Deleting, and putting back.

    async def _remove(self, month_us: int, run: str) -> None:
        async with self._engine.connect() as connection:
            files = await files_of_month(connection, month_us)
        reader = ArchiveReader(self._place, run, self._codec)
        await asyncio.to_thread(reader.check_manifest, month_text(month_us), files)
        for file in files:
            if file.is_gone:
                continue
            # In the order of keys, as all who write lock them.
            keys = sorted(await asyncio.to_thread(reader.rows, file, _KEY_NAMES))
            async with self._turn(month_us) as connection:
                if self._engine.dialect.name == "postgresql":
                    # A rebuild that has begun reads to its end; one that begins sees what is gone.
                    await connection.execute(text("LOCK TABLE rollup_hour IN ROW EXCLUSIVE MODE"))
                await hold_closings(connection, alone=True)
                if (found := await self._store.remove_within(connection, keys)) != len(keys):
                    raise ArchiveImpossible(
                        f"{file.name} has {len(keys):,} entries, of which the ledger has {found:,}: nothing of it was deleted"
                    )
                await connection.execute(_marked(file, is_gone=True))
            await self._rest(_REST_S)

    async def _put_back(self, month_us: int, file: FileRow, rows: list[tuple[Any, ...]]) -> None:
        rows.sort(key=lambda row: tuple(row[place] for place in _KEY))
        async with self._turn(month_us) as connection:
            await self._store.put_back_within(connection, rows)
            await connection.execute(_marked(file, is_gone=False))
        await self._rest(_REST_S)


_MONTH: Final = select(
    col(ArchivedMonth.place), col(ArchivedMonth.run), col(ArchivedMonth.state), col(ArchivedMonth.held_until_us)
)


def _held(month_us: int, rest_us: int) -> str:
    return (
        f"another process works at {month_text(month_us)}; if it was killed, this can be done in "
        f"{max(1, -(-rest_us // 1_000_000))} s"
    )


def _marked(file: FileRow, *, is_gone: bool) -> Any:
    one = (col(ArchivedFile.month_us) == file.month_us, col(ArchivedFile.number) == file.number)
    return update(ArchivedFile).where(*one).values(is_gone=is_gone)


def _key_of(row: Sequence[Any]) -> _Key:
    return (row[_AT], row[_KEY[0]], row[_KEY[1]], row[_KEY[2]])


_ENDING: Final = ("cache", *sorted(TERMINAL - {"expire"}))
_other: Final = aliased(LedgerEntry)
_EXPIRED: Final = exists().where(
    col(_other.request_id) == col(LedgerEntry.request_id),
    col(_other.attempt) == col(LedgerEntry.attempt),
    col(_other.entry) == "expire",
)
_ENDS: Final[tuple[ColumnElement[bool], ...]] = (
    _kind.in_(_ENDING),
    col(LedgerEntry.flags).not_like(f'%"{LATE}"%'),
    ~_EXPIRED,
)
"""What is archived, beside the reserves that it closes."""


def _reserves_of(first: _Key, last: _Key) -> Any:
    """Return the query for the reserves of the attempts that end from one key to another."""
    end = aliased(LedgerEntry)
    order = (col(end.at_us), col(end.request_id), col(end.attempt), col(end.entry))
    expired = exists().where(
        col(_other.request_id) == col(end.request_id),
        col(_other.attempt) == col(end.attempt),
        col(_other.entry) == "expire",
    )
    ends = (
        col(end.at_us) >= first[0],
        col(end.at_us) <= last[0],
        tuple_(*order) >= tuple_(*first),
        tuple_(*order) <= tuple_(*last),
        col(end.entry).in_(sorted(TERMINAL - {"expire"})),
        col(end.flags).not_like(f'%"{LATE}"%'),
        ~expired,
    )
    same = and_(
        col(LedgerEntry.request_id) == col(end.request_id),
        col(LedgerEntry.attempt) == col(end.attempt),
        _kind == "reserve",
    )
    return ALL.select_from(end).join(LedgerEntry, same).where(*ends).order_by(*order)


def _spans(start_us: int, end_us: int, calendars: Calendars) -> Iterator[tuple[int, int]]:
    """Yield the spans that are archived, each within a UTC day: all but the hours that some day begins within."""
    cut = {
        at_us - at_us % HOUR_US
        for calendar in calendars.others()
        for at_us in (
            *(calendar.start(day_of(day_us)) for day_us in range(start_us - DAY_US, end_us + 2 * DAY_US, DAY_US)),
            *(since_us for since_us, _ in calendar.offsets(start_us, end_us)),
        )
        if at_us % HOUR_US
    }
    for day_us in range(start_us, end_us, DAY_US):
        begun_us = day_us
        for hour_us in sorted(each for each in cut if day_us <= each < day_us + DAY_US):
            if begun_us < hour_us:
                yield begun_us, hour_us
            begun_us = hour_us + HOUR_US
        if begun_us < day_us + DAY_US:
            yield begun_us, day_us + DAY_US


async def _unsigned(connection: AsyncConnection, start_us: int, end_us: int) -> list[str]:
    """Return who has not signed the months off that the time is in, by their own calendars."""
    organisation = rollup_model_day.c.organisation_id
    day = rollup_model_day.c.start_us
    asked = select(organisation).where(day >= start_us, day < end_us, organisation != "").distinct()
    organisations = sorted(await connection.scalars(asked))
    calendars = await read_calendars(connection)
    marks = select(col(ClosedMonth.organisation_id), col(ClosedMonth.start_us))
    signed = {
        tuple(row) for row in await connection.execute(marks.where(col(ClosedMonth.start_us) >= start_us - 40 * DAY_US))
    }
    reasons = []
    for each in organisations:
        calendar = calendars.of(each)
        own = sorted({start_of(calendar.day(at_us).replace(day=1)) for at_us in (start_us, end_us - 1)})
        if missing := [month_text(mark_us) for mark_us in own if (each, mark_us) not in signed]:
            reasons.append(f"`{each}` has not signed off {' and '.join(missing)}")
    return reasons


async def _untold(connection: AsyncConnection, start_us: int, end_us: int, now_us: int) -> list[str]:
    """Say where events about entries of a time wait for a sink."""
    told = select(func.min(col(EventSinkRow.sequence))).scalar_subquery()
    sequence = col(EventOutboxRow.sequence)
    same = and_(
        *(getattr(LedgerEntry, name) == getattr(EventOutboxRow, name) for name in ("request_id", "attempt", "entry"))
    )
    waiting = (
        select(func.count())
        .select_from(EventOutboxRow)
        .join(LedgerEntry, same)
        .where(_at >= start_us, _at < end_us, or_(sequence.is_(None), sequence > func.coalesce(told, 0)))
    )
    seen_us = await connection.scalar(select(func.max(col(EventStreamRow.seen_us))))
    if seen_us is None or seen_us < now_us - DAY_US:
        return []
    count = await connection.scalar(waiting)
    return [f"events about it wait for a sink: {count}"] if count else []


async def months_due(engine: AsyncEngine, keep_months: int, now_us: int) -> list[int]:
    """Return the UTC months before the last `keep_months` whole ones that have entries which are not in files, the oldest first.

    A month that somebody restored has a month's rest.
    """
    end_us = month_of(now_us)
    for _ in range(keep_months):
        end_us = month_of(end_us - 1)
    states = select(col(ArchivedMonth.month_us), col(ArchivedMonth.state), col(ArchivedMonth.changed_us))
    found = []
    async with engine.connect() as connection:
        first_us = await connection.scalar(select(func.min(_at)))
        known = {row[0]: (row[1], row[2]) for row in await connection.execute(states)}
        month_us = min([*known, *([] if first_us is None else [month_of(first_us)])], default=end_us)
        while month_us < end_us:
            state, changed_us = known.get(month_us, ("", 0))
            is_begun = state in {"writing", "removing"}
            may_begin = not state or (state == "restored" and changed_us < now_us - _RESTORED_US)
            within = (_at >= month_us, _at < next_month(month_us), _kind.in_(_ENDING))
            if is_begun or (may_begin and (await connection.execute(select(_at).where(*within).limit(1))).first()):
                found.append(month_us)
            month_us = next_month(month_us)
    return found


async def clear_away(engine: AsyncEngine) -> None:
    """Have PostgreSQL use again what was deleted, without holding anybody up.

    By itself it would only do so once a fifth of the table is dead, and a month of a year is less. Raises DBAPIError.
    """
    if engine.dialect.name != "postgresql":
        return
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SET vacuum_cost_delay = '2ms'"))
        try:
            await connection.execute(text("VACUUM (ANALYZE) ledger_entry"))
        finally:
            await connection.execute(text("RESET vacuum_cost_delay"))


async def archived_list(engine: AsyncEngine) -> list[dict[str, Any]]:
    """Return the months in files with their state, place and figures."""
    month = col(ArchivedFile.month_us)
    sums = select(month, func.count(), func.sum(col(ArchivedFile.rows)), func.sum(col(ArchivedFile.bytes))).group_by(
        month
    )
    months = select(
        col(ArchivedMonth.month_us), col(ArchivedMonth.state), col(ArchivedMonth.place), col(ArchivedMonth.run)
    )
    async with engine.connect() as connection:
        figures = {row[0]: row[1:] for row in await connection.execute(sums)}
        known = months.where(col(ArchivedMonth.state) != "restored")
        found = (await connection.execute(known.order_by(col(ArchivedMonth.month_us)))).all()
    return [
        {
            "month": month_text(row.month_us),
            "state": row.state,
            "where": f"{row.place}/{row.run}",
            "files": int(figures.get(row.month_us, (0, 0, 0))[0]),
            "rows": int(figures.get(row.month_us, (0, 0, 0))[1] or 0),
            "bytes": int(figures.get(row.month_us, (0, 0, 0))[2] or 0),
        }
        for row in found
    ]
