"""SQLite's driver, with one turn of a connection's thread for each statement.

aiosqlite does everything of a connection on a thread of its own, and SQLAlchemy asks it for a cursor, to run the statement, for its rows,
to close the cursor, and for a rollback when the connection is given back: five turns for a look-up, each of which wakes both threads, and they
then wait for each other's interpreter lock. Here a statement is one turn, what ends no transaction is none, and `run` does many statements in
one.
"""
# ruff: noqa: SLF001  A driver below SQLAlchemy's adapter and above aiosqlite's thread has no other way to either; both are held by tests.

import _sqlite3
import collections
import ctypes
import sqlite3
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import aiosqlite
from sqlalchemy.dialects.sqlite.aiosqlite import (
    AsyncAdapt_aiosqlite_connection,
    AsyncAdapt_aiosqlite_cursor,
    AsyncAdapt_aiosqlite_dbapi,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only


class _Done(NamedTuple):
    """The result of a statement that has run."""

    rows: Sequence[Any]
    description: Any
    rowcount: int
    lastrowid: int | None


_NOTHING: Final = _Done((), None, -1, None)
T = TypeVar("T")

# Of sqlite3.h: SQLITE_OK, SQLITE_CONFIG_MEMSTATUS.
_OK: Final = 0
_COUNT_MEMORY: Final = 9


def _run(connection: sqlite3.Connection, run: Callable[..., Any], *arguments: Any) -> _Done:
    cursor = connection.cursor()
    try:
        run(cursor, *arguments)
        rows = cursor.fetchall() if cursor.description else ()
        return _Done(rows, cursor.description, cursor.rowcount, cursor.lastrowid)
    finally:
        cursor.close()


class _Cursor(AsyncAdapt_aiosqlite_cursor):
    """A cursor that is there only while its statement runs."""

    __slots__ = ("_done", "arraysize")

    _adapt_connection: "_Connection"

    def __init__(self, adapt_connection: "_Connection") -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection
        self._rows = collections.deque()
        self._done = _NOTHING
        self.arraysize = 1

    @property
    def description(self) -> Any:
        return self._done.description

    @property
    def rowcount(self) -> int:
        return self._done.rowcount

    @property
    def lastrowid(self) -> Any:
        return self._done.lastrowid

    async def _async_soft_close(self) -> None:
        """Do nothing: nothing is open."""

    def close(self) -> None:
        self._rows.clear()

    async def _execute_async(self, operation: Any, parameters: Any) -> Any:
        await self._turn(sqlite3.Cursor.execute, operation, () if parameters is None else parameters)

    async def _executemany_async(self, operation: Any, seq_of_parameters: Any) -> Any:
        await self._turn(sqlite3.Cursor.executemany, operation, seq_of_parameters)

    async def _turn(self, *work: Any) -> None:
        self._done = await self._adapt_connection.turn(_run, *work)
        self._rows = collections.deque(self._done.rows)


class _Connection(AsyncAdapt_aiosqlite_connection):
    __slots__ = ("is_unsure",)

    _cursor_cls = _Cursor  # type: ignore[assignment]  # It is given none but connections of this class.

    def __init__(self, dbapi: Any, connection: Any) -> None:
        super().__init__(dbapi, connection)
        self.is_unsure = False
        """True from a statement's beginning until its end was seen: it may have been cancelled, and still begin a transaction."""

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` with the connection in one turn of its thread, and return its result. Raises SQLAlchemy's errors
        for the driver's.

        Within SQLAlchemy's `run_sync` alone.
        """
        try:
            return await_only(self.turn(work))
        except sqlite3.Error as failure:
            raise DBAPIError.instance(None, None, failure, sqlite3.Error) from failure

    async def turn(self, work: Callable[..., T], *arguments: Any) -> T:
        async with self._execute_mutex:
            self.is_unsure = True
            done: T = await self._connection._execute(work, self._connection._conn, *arguments)
            self.is_unsure = False
        return done

    def rollback(self) -> None:
        if self._may_be_in_transaction():
            super().rollback()

    def commit(self) -> None:
        if self._may_be_in_transaction():
            super().commit()

    def _may_be_in_transaction(self) -> bool:
        is_open = self._connection._connection is not None
        return is_open and (self.is_unsure or self._connection.in_transaction)


class SqliteDriver(AsyncAdapt_aiosqlite_dbapi):
    """The module of a driver, as `create_async_engine` takes it."""

    def __init__(self) -> None:
        super().__init__(aiosqlite, sqlite3)

    def connect(self, *arg: Any, **kw: Any) -> _Connection:
        return _Connection(self, super().connect(*arg, **kw)._connection)


def count_no_memory() -> bool:
    """Have SQLite not count its memory, which nobody reads and takes a lock for each piece. To be called before this process opens a
    connection. False where it cannot be asked for.
    """
    if sys.platform != "linux":
        # Elsewhere a function with a variable number of arguments may not be called like any other.
        return False
    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        shut, configure, start = library.sqlite3_shutdown, library.sqlite3_config, library.sqlite3_initialize
    except AttributeError:
        # Python has an SQLite of its own within it.
        return False
    shut()
    done: bool = configure(_COUNT_MEMORY, 0) == _OK
    start()
    return done


def _adapt_at_once() -> None:
    """Spare the driver the search for a way to adapt values that need none, which takes longer than all else it does with one."""
    # Look-ups in C; the last one is None of None.
    number: Callable[[Any], int | None] = {False: 0, True: 1}.get
    nothing: Callable[[Any], None] = {}.get
    sqlite3.register_adapter(bool, number)
    sqlite3.register_adapter(bytes, bytes)
    sqlite3.register_adapter(type(None), nothing)


_adapt_at_once()
