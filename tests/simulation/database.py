"""SQLite without its threads: a connection's statements run in the loop, some time later, and fail as the seed says."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Final

import aiosqlite.core
import msgspec

from tests.simulation.machine import NODE, Injected, Machine

_BUSY_FOR_S: Final = 5.0
_AGAIN_S: Final = 0.005


class Temper(msgspec.Struct, kw_only=True):
    """How the database behaves."""

    turn_s: float = 0.0005
    fails: float = 0.0
    """Share of turns that fail before anything is done."""
    forgets: float = 0.0
    """Share of turns that are done and whose answer is lost."""
    stalls: float = 0.0
    """Share of turns that take seconds."""


class Database:
    """The driver's threads, replaced for one seed."""

    def __init__(self, machine: Machine) -> None:
        self._chance = machine.chance("database")
        self.temper = Temper()
        driver: Any = aiosqlite.core
        driver.SimpleQueue, driver.Thread = lambda: _Turns(self), _NoThread

    def takes_s(self) -> float:
        if self._chance.random() < self.temper.stalls:
            return self._chance.uniform(0.5, 8.0)
        return self._chance.expovariate(1 / self.temper.turn_s)

    def run(self, work: Callable[[], Any], *, harmless: bool) -> Any:
        """Do a turn, or fail before or after it."""
        drawn = self._chance.random()
        if not harmless and drawn < self.temper.fails:
            raise _io_error()
        result = work()
        if not harmless and self.temper.fails <= drawn < self.temper.fails + self.temper.forgets:
            raise _io_error()
        return result


class _IllDatabase(sqlite3.OperationalError, Injected):
    """A database that does not do, or does not tell that it did."""


def _io_error() -> sqlite3.OperationalError:
    return _IllDatabase("disk I/O error")


def _closes(work: Callable[[], Any]) -> bool:
    """Return True for the end of a connection, at which a file can be as ill as it likes."""
    return getattr(getattr(work, "func", work), "__name__", "") in {"close", "close_and_stop"}


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY


def _told(future: Any, result: Any, *, failed: bool) -> None:
    if future is None or future.done():
        return
    if failed:
        future.set_exception(result)
    else:
        future.set_result(result)


class _NoThread:
    daemon = True

    def __init__(self, **_named: Any) -> None:
        """Take what a thread takes."""

    def start(self) -> None:
        """Do nothing: the loop does its work."""


class _Turns:
    """The queue of one connection, whose work is done one after another."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._work: list[tuple[Any, Callable[[], Any]]] = []
        self._busy_until: float | None = None
        self._connection: sqlite3.Connection | None = None
        node = NODE.get()
        if node is not None:
            node.databases.append(self)

    def put_nowait(self, item: tuple[Any, Callable[[], Any]]) -> None:
        self._work.append(item)
        if len(self._work) == 1:
            self._next()

    def kill(self) -> None:
        """Roll back what its process had begun."""
        if self._connection is not None:
            self._connection.close()

    def _next(self) -> None:
        asyncio.get_running_loop().call_later(self._database.takes_s(), self._turn)

    def _turn(self) -> None:
        future, work = self._work[0]
        try:
            result = self._database.run(work, harmless=self._connection is None or _closes(work))
        except sqlite3.OperationalError as error:
            if _is_busy(error) and self._waits():
                return
            _told(future, error, failed=True)
        except BaseException as error:  # noqa: BLE001 - as the driver's thread does
            _told(future, error, failed=True)
        else:
            if isinstance(result, sqlite3.Connection):
                self._connection = result
            _told(future, result, failed=False)
        self._busy_until = None
        self._work.pop(0)
        if self._work:
            self._next()

    def _waits(self) -> bool:
        """Try again later, while another connection writes, which goes on only while this one lets the loop go on."""
        loop = asyncio.get_running_loop()
        self._busy_until = self._busy_until or loop.time() + _BUSY_FOR_S
        if loop.time() >= self._busy_until:
            return False
        loop.call_later(_AGAIN_S, self._turn)
        return True
