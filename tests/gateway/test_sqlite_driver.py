"""SQLite's driver: a statement is one turn of the connection's thread, and behaves as it did in five."""

import asyncio
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any, Final

import aiosqlite
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from cost.times import start_of
from gateway.database import make_engine
from tests.cost.entries import reserve
from tests.sqlite import newest_sqlite

_MID_MONTH_US: Final = start_of(date(2026, 11, 15))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    made = make_engine(f"sqlite:///{tmp_path}/some.sqlite")
    async with made.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE pair (id INTEGER PRIMARY KEY, name TEXT UNIQUE, data BLOB)")
    yield made
    await made.dispose()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was asked of connections' threads."""
    asked: Counter[str] = Counter()
    original: Any = aiosqlite.Connection._execute

    async def counted(self: aiosqlite.Connection, fn: Any, *arguments: Any, **more: Any) -> Any:
        asked[getattr(fn, "__name__", repr(fn))] += 1
        return await original(self, fn, *arguments, **more)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    return asked


async def test_a_look_up_is_one_turn(engine: AsyncEngine, turns: Counter[str]) -> None:
    """Nothing has to be rolled back after it."""
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT 7"))).scalar_one() == 7
    assert turns.total() == 1


async def test_a_transaction_is_a_turn_for_each_statement_and_one_for_its_end(
    engine: AsyncEngine, turns: Counter[str]
) -> None:
    async with engine.begin() as connection:
        made = await connection.exec_driver_sql("INSERT INTO pair (name) VALUES (?)", ("one",))
        assert (made.rowcount, made.lastrowid) == (1, 1)
        many = await connection.exec_driver_sql("INSERT INTO pair (name) VALUES (?)", [("two",), ("three",)])
        assert many.rowcount == 2
        back = await connection.exec_driver_sql("UPDATE pair SET data = ? WHERE id > 1 RETURNING id, name", (b"x",))
        assert sorted(back.all()) == [(2, "two"), (3, "three")]
    assert turns.total() == 4
    async with engine.connect() as connection:
        rows = await connection.execute(text("SELECT id, name, data FROM pair ORDER BY id"))
        assert rows.keys() == ["id", "name", "data"]
        assert rows.all() == [(1, "one", None), (2, "two", b"x"), (3, "three", b"x")]


async def test_many_statements_are_one_turn(engine: AsyncEngine, turns: Counter[str]) -> None:
    def write(connection: sqlite3.Connection) -> int:
        connection.executemany("INSERT INTO pair (name) VALUES (?)", [("one",), ("two",)])
        count: int = connection.execute("SELECT count(*) FROM pair").fetchone()[0]
        return count

    def run(connection: Connection) -> int:
        driver: Any = connection.connection.dbapi_connection
        found: int = driver.run(write)
        return found

    async with engine.begin() as connection:
        assert await connection.run_sync(run) == 2
    assert turns.total() == 2
    with pytest.raises(IntegrityError):
        async with engine.begin() as connection:
            await connection.run_sync(run)


async def test_new_entries_and_their_sums_are_one_turn(tmp_path: Path, turns: Counter[str]) -> None:
    """Begun and committed within it, so that nobody waits for a thread that is not let run in between."""
    engine = make_engine(newest_sqlite(tmp_path / "ledger.sqlite"))
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 7"))
    turns.clear()
    # On a month's last day somebody's next one has begun, and it is looked whether theirs is signed.
    assert await LedgerStore(engine, lambda: _MID_MONTH_US).insert([reserve(at_us=_MID_MONTH_US)]) == 1
    assert turns.total() == 1
    await engine.dispose()


async def test_what_fails_is_rolled_back(engine: AsyncEngine) -> None:
    with pytest.raises(IntegrityError):
        async with engine.begin() as connection:
            await connection.exec_driver_sql("INSERT INTO pair (name) VALUES (?)", [("one",), ("two",), ("one",)])
    async with engine.begin() as connection:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        assert (await connection.execute(text("SELECT count(*) FROM pair"))).scalar_one() == 0


async def test_what_was_cancelled_leaves_no_transaction(engine: AsyncEngine, tmp_path: Path) -> None:
    """A statement that waits for a lock may still get it when nobody waits any more: that connection is not used again."""
    other = sqlite3.connect(tmp_path / "some.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    # The connection's thread waits for the lock, and its end for the thread.
    asyncio.get_running_loop().call_later(0.3, other.execute, "COMMIT")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), engine.connect() as connection:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
    for _ in range(3):
        async with engine.begin() as connection:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
            await connection.exec_driver_sql("INSERT INTO pair (name) VALUES (NULL)")
    other.close()
    async with engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM pair"))).scalar_one() == 3


async def test_values_that_need_no_conversion_arrive_as_they_are(engine: AsyncEngine) -> None:
    """They have converters all the same, which are found sooner than that there is none."""
    async with engine.connect() as connection:
        row = (await connection.exec_driver_sql("SELECT ?, ?, ?, ?", (True, None, b"\x00x", False))).one()
        kinds = (await connection.exec_driver_sql("SELECT typeof(?), typeof(?), typeof(?)", (True, None, b""))).one()
    assert tuple(row) == (1, None, b"\x00x", 0)
    assert tuple(kinds) == ("integer", "null", "blob")


_COUNTED = """
import _sqlite3, ctypes, sqlite3, sys
from gateway.sqlite_driver import count_no_memory
asked = count_no_memory()
connection = sqlite3.connect(":memory:")
connection.execute("CREATE TABLE word (text TEXT)")
connection.executemany("INSERT INTO word VALUES (?)", [("one",), ("two",)])
used = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used() if asked else 0
print(used, *connection.execute("SELECT count(*) FROM word").fetchone())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is not asked for elsewhere")
def test_memory_is_not_counted_where_that_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNTED], capture_output=True, text=True, check=True)
    assert done.stdout == "0 2\n"
