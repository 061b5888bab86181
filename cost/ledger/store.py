"""The ledger in the database: idempotent batch writes that keep the roll-ups in the same transaction.

While events are told (`cost.events`), the same transaction notes each new entry in their outbox.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, Select, exists, literal
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased
from sqlmodel import col

from cost.errors import EntriesRefused
from cost.ledger import rollups
from cost.ledger.archived import unknowable
from cost.ledger.entries import TERMINAL, Entry
from cost.ledger.late_entries import may_be_late, moved, note_late
from cost.ledger.orphan_reaper import with_lost_hosts
from cost.ledger.rows import ALL, COLUMNS, read, row_of
from cost.tables import LedgerEntry
from cost.times import DAY_US, wall_us

_T = TypeVar("_T")
_NAMES: Final = ", ".join(COLUMNS)
_key: Final = attrgetter("request_id", "attempt", "entry")

# These statements are made of our own column names alone; every value is a bound parameter.
_INSERT_SQLITE: Final = (
    f"INSERT INTO ledger_entry ({_NAMES}) VALUES ({', '.join('?' for _ in COLUMNS)}) ON CONFLICT DO NOTHING"  # noqa: S608
)
# Nobody else writes meanwhile, and a new row's id is above all others': what was just written has the highest.
_NEWEST_SQLITE: Final = "SELECT request_id, attempt, entry FROM ledger_entry ORDER BY rowid DESC LIMIT ?"
_ABANDONED_US: Final = DAY_US
"""Time after which nobody is expected to tell events any more, and no entry is noted for it."""
_TOLD_SQLITE: Final = "SELECT 1 FROM event_stream WHERE seen_us > ?"
_NOTE_SQLITE: Final = (
    "INSERT INTO event_outbox (request_id, attempt, entry, written_us) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_REMOVE_SQLITE: Final = "DELETE FROM ledger_entry WHERE request_id = ? AND attempt = ? AND entry = ?"
_PG_ARRAYS: Final = {int: "bigint[]", bool: "boolean[]", float: "double precision[]", str: "text[]"}


class LedgerStore:
    """The reader and only writer of the ledger and, but for a rebuild, of its roll-ups."""

    def __init__(self, engine: AsyncEngine, now_us: Callable[[], int] = wall_us) -> None:
        self._engine = engine
        self._now_us = now_us
        self._sqlite = engine.dialect.name == "sqlite"

    async def insert(self, entries: Sequence[Entry], *, careful: bool = False) -> int:
        """Write entries with their roll-ups, and return how many were new. An existing one stays as it is.

        `careful` looks first whether attempts were closed for a lost host, and reverses that; it is for entries of
        processes that others may have given up. Raises EntriesRefused when trying again cannot help; any other error
        may pass.
        """
        if not entries:
            return 0
        try:
            return await self._insert(self._ordered(entries), careful=careful)
        except (DataError, IntegrityError, ValueError, OverflowError) as failure:
            raise EntriesRefused(type(failure).__name__) from failure
        except DBAPIError as failure:
            # SQLAlchemy wraps asyncpg's errors without a class of their own; SQLSTATE class 22 is bad data.
            if str(getattr(failure.orig, "sqlstate", None)).startswith("22"):
                raise EntriesRefused(type(failure).__name__) from failure
            raise

    async def _insert(self, entries: list[Entry], *, careful: bool) -> int:
        """Write the ledger, then each roll-up: every writer locks in this order, and in each table by its key."""
        if self._sqlite and not careful and not may_be_late(entries, self._now_us()):
            # Nothing has to be read before.
            async with self._engine.connect() as connection:
                return len(await connection.run_sync(_in_one_turn, partial(_transact_sqlite, entries, self._now_us())))
        async with self._engine.begin() as connection:
            if self._sqlite:
                # Take the write lock at once: of two transactions that have read, only one could go on to write.
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            if careful:
                entries = self._ordered(await with_lost_hosts(connection, entries))
            if not entries:
                return 0
            return await self._insert_ordered(connection, entries)

    async def insert_within(self, connection: AsyncConnection, entries: Sequence[Entry]) -> int:
        """Run `insert` within the transaction of a caller whose own rows must commit or fail with these."""
        return await self._insert_ordered(connection, self._ordered(entries)) if entries else 0

    def _ordered(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return them in the order of their keys, so that two writers of overlapping batches never deadlock.

        SQLite has one writer at a time, and what comes in the order of time goes to the ends of its indexes.
        """
        return list(entries) if self._sqlite else sorted(entries, key=_key)

    async def _insert_ordered(self, connection: AsyncConnection, entries: list[Entry]) -> int:
        now_us = self._now_us()
        kept = await moved(connection, entries, now_us)
        if may_be_late(entries, now_us) and await unknowable(connection, entries):
            raise EntriesRefused("its month is archived, and may have it: restore the month first")
        if self._sqlite:
            new = await connection.run_sync(_in_one_turn, partial(_write_sqlite, kept, self._now_us()))
        else:
            new = await self._write_postgresql(connection, kept)
        await note_late(connection, entries, new)
        return len(new)

    async def _write_postgresql(self, connection: AsyncConnection, entries: list[Entry]) -> list[Entry]:
        values = (*_as_columns([row_of(entry) for entry in entries]), self._now_us())
        result = await connection.exec_driver_sql(_INSERT_POSTGRESQL, values)
        found = result.all()
        new = entries if len(found) == len(entries) else _with_keys(entries, found)
        for table, rows in rollups.upserts(rollups.roll_up(new)):
            await connection.exec_driver_sql(rollups.POSTGRESQL[table], _as_columns(rows))
        return new

    async def remove_within(self, connection: AsyncConnection, keys: Sequence[tuple[Any, ...]]) -> int:
        """Delete entries by their keys, for an archive that has them; returns how many were there. Roll-ups stay."""
        if self._sqlite:
            found: int = await connection.run_sync(_in_one_turn, partial(_remove_sqlite, keys))
            return found
        result = await connection.exec_driver_sql(_REMOVE_POSTGRESQL, _as_columns(keys))
        return result.rowcount

    async def put_back_within(self, connection: AsyncConnection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows of the archive, in the order of `COLUMNS`. Roll-ups have them already, and events were told."""
        if self._sqlite:
            await connection.run_sync(_in_one_turn, partial(_put_back_sqlite, rows))
        else:
            await connection.exec_driver_sql(_PUT_BACK_POSTGRESQL, _as_columns(rows))

    async def open_reserves(self, boot_ids: Sequence[str]) -> list[Entry]:
        """Return the reserves of these processes that no entry closes, oldest first."""
        closing = aliased(LedgerEntry)
        closed = exists().where(
            col(closing.request_id) == col(LedgerEntry.request_id),
            col(closing.attempt) == col(LedgerEntry.attempt),
            col(closing.entry).in_(TERMINAL),
        )
        query = ALL.where(
            col(LedgerEntry.boot_id).in_(boot_ids),
            # Inlined as a literal, so that the planner can use the partial index.
            col(LedgerEntry.entry) == literal("reserve", literal_execute=True),
            ~closed,
        )
        return await self._read(query.order_by(col(LedgerEntry.at_us)))

    async def entries(self, request_id: str) -> list[Entry]:
        """Return all entries of one request, by attempt and time."""
        query = ALL.where(col(LedgerEntry.request_id) == request_id)
        return await self._read(query.order_by(col(LedgerEntry.attempt), col(LedgerEntry.at_us)))

    async def _read(self, query: Select[Any]) -> list[Entry]:
        async with self._engine.connect() as connection:
            return await read(connection, query)


def _in_one_turn(connection: Connection, write: Callable[[sqlite3.Connection], _T]) -> _T:
    """Run all statements in one turn of the connection's thread instead of one turn each: see `gateway.sqlite_driver`."""
    driver: Any = connection.connection.dbapi_connection
    return cast("_T", driver.run(write))


def _remove_sqlite(keys: Sequence[tuple[Any, ...]], connection: sqlite3.Connection) -> int:
    return connection.executemany(_REMOVE_SQLITE, keys).rowcount


def _put_back_sqlite(rows: Sequence[tuple[Any, ...]], connection: sqlite3.Connection) -> None:
    connection.executemany(_INSERT_SQLITE, rows)


def _transact_sqlite(entries: list[Entry], now_us: int, connection: sqlite3.Connection) -> list[Entry]:
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        return _write_sqlite(entries, now_us, connection)


def _write_sqlite(entries: list[Entry], now_us: int, connection: sqlite3.Connection) -> list[Entry]:
    """Write entries, and the roll-ups and events of those that are new, which are returned."""
    count = connection.executemany(_INSERT_SQLITE, map(row_of, entries)).rowcount
    new = entries if count == len(entries) else _with_keys(entries, connection.execute(_NEWEST_SQLITE, (count,)))
    for table, rows in rollups.upserts(rollups.roll_up(new)):
        connection.executemany(rollups.SQLITE[table], rows)
    if connection.execute(_TOLD_SQLITE, (now_us - _ABANDONED_US,)).fetchone():
        told = ((*_key(each), now_us) for each in new if each.entry != "reserve")
        connection.executemany(_NOTE_SQLITE, told)
    return new


def _postgresql_insert() -> str:
    arrays = ", ".join(f"${place}::{_array_type(name)}" for place, name in enumerate(COLUMNS, 1))
    now = f"${len(COLUMNS) + 1}::bigint"
    # One statement, so that events cost the ledger no turn of their own.
    return (
        f"WITH new AS (INSERT INTO ledger_entry ({_NAMES}) SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING "  # noqa: S608
        "RETURNING request_id, attempt, entry), "
        f"told AS (INSERT INTO event_outbox (request_id, attempt, entry, written_us) SELECT new.*, {now} FROM new "
        f"WHERE entry <> 'reserve' AND EXISTS (SELECT 1 FROM event_stream WHERE seen_us > {now} - {_ABANDONED_US}) "
        "ON CONFLICT DO NOTHING) SELECT * FROM new"
    )


def _array_type(column: str) -> str:
    return _PG_ARRAYS[getattr(LedgerEntry, column).type.python_type]


def _as_columns(rows: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
    """Return one array per column: a single statement, whatever the number of rows."""
    return tuple(list(column) for column in zip(*rows, strict=True))


def _with_keys(entries: Sequence[Entry], keys: Iterable[Any]) -> list[Entry]:
    """Return the entries with these keys; of two with the same key the first, as the database keeps it."""
    new = {tuple(key) for key in keys}
    by_key: dict[tuple[str, int, str], Entry] = {}
    for entry in entries:
        by_key.setdefault(_key(entry), entry)
    return [entry for key, entry in by_key.items() if key in new]


_INSERT_POSTGRESQL: Final = _postgresql_insert()
_PUT_BACK_POSTGRESQL: Final = (
    f"INSERT INTO ledger_entry ({_NAMES}) SELECT * FROM unnest("  # noqa: S608
    + ", ".join(f"${place}::{_array_type(name)}" for place, name in enumerate(COLUMNS, 1))
    + ") ON CONFLICT DO NOTHING"
)
_REMOVE_POSTGRESQL: Final = (
    "DELETE FROM ledger_entry USING unnest($1::text[], $2::bigint[], $3::text[]) AS gone (request_id, attempt, entry) "
    "WHERE ledger_entry.request_id = gone.request_id AND ledger_entry.attempt = gone.attempt "
    "AND ledger_entry.entry = gone.entry"
)
