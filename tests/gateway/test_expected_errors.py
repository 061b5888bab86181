"""Errors that people can mend or wait out: each is a sentence, and it is known which of the two."""

import asyncio
import errno
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.database import make_engine
from gateway.expected_errors import expected, mends_itself
from tests.postgres import Postgres


async def _fails(url: str, statement: str = "SELECT 1") -> Exception:
    engine = make_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(statement))
    except Exception as error:  # noqa: BLE001 - which one it is is the question
        return error
    finally:
        await engine.dispose()
    raise AssertionError("it worked")


@pytest.mark.parametrize(
    ("error", "told", "mends"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data"), "/data: Permission denied", False),
        (OSError(errno.EROFS, "Read-only file system", "/data/x"), "/data/x: Read-only file system", False),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/no"), "/no: No such file or directory", False),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "/data/x: No space left on device", True),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
            "right (WEIGHBRIDGE_DATABASE_URL, else DATABASE_URL)?",
            True,
        ),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1)"), "cannot be reached", True),
        (TimeoutError(), "no answer in time", True),
    ],
)
def test_what_the_system_says_is_sorted(error: Exception, told: str, mends: bool) -> None:
    """A folder that may not be written stays so; a full disk and a network that is away may come back."""
    assert told in (expected(error) or "")
    assert mends_itself(error) is mends


def test_what_nobody_expects_stays_an_error_of_ours() -> None:
    """A fault of the program has no sentence, so that its traceback is seen."""
    assert expected(KeyError("x")) is None
    assert not mends_itself(KeyError("x"))


async def test_a_file_that_is_no_database_does_not_become_one(tmp_path: Path) -> None:
    """Nor does one whose folder is not there; the sentence says which."""
    (tmp_path / "x.sqlite").write_text("not a database, but longer than its header would be" * 20)
    error = await _fails(f"sqlite:///{tmp_path}/x.sqlite")
    assert (expected(error), mends_itself(error)) == ("the database's file is no SQLite database", False)


async def test_a_busy_file_is_waited_for(tmp_path: Path) -> None:
    """Another writer ends at some time."""
    url = f"sqlite:///{tmp_path}/x.sqlite?timeout=0.01"
    engine = make_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE t (a INTEGER)"))
    await engine.dispose()
    with sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        error = await _fails(url, "INSERT INTO t VALUES (1)")
        writer.execute("ROLLBACK")
    writer.close()
    assert mends_itself(error)


async def test_a_server_that_lacks_the_database_says_so(postgres: Postgres) -> None:
    """A name that is not there, and an address where nobody listens, are two sentences; only the second is waited out."""
    url = await postgres.database()
    lacking = await _fails(f"{url.rpartition('/')[0]}/nowhere_at_all")
    assert "no database of the name" in (expected(lacking) or "")
    assert not mends_itself(lacking)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    away = await _fails(f"postgresql://u:p@127.0.0.1:{port}/x")
    assert mends_itself(away), away
    assert "cannot be reached" in (expected(away) or "")


async def test_a_user_without_rights_is_told_which(postgres: Postgres) -> None:
    """As managed services give them: no right in the schema or on a table, a role that only reads, a schema that is not there."""
    url = await postgres.empty_database()
    engine = make_engine(url)
    async with engine.begin() as connection:
        for statement in (
            "DROP ROLE IF EXISTS app",
            "CREATE ROLE app LOGIN",
            "DROP ROLE IF EXISTS reader",
            "CREATE ROLE reader LOGIN",
            "ALTER ROLE reader SET default_transaction_read_only = on",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            "CREATE TABLE kept (a INTEGER)",
        ):
            await connection.execute(text(statement))
    await engine.dispose()
    app, reader = (url.replace("postgres@", f"{name}@") for name in ("app", "reader"))
    for address, statement, told in (
        (app, "CREATE TABLE t (a INTEGER)", "permission denied for schema public"),
        (app, "INSERT INTO kept VALUES (4711)", "permission denied for table kept"),
        (reader, "SELECT 1", "takes writes now, or none for this user"),
        (f"{url}?search_path=nowhere", "CREATE TABLE t (a INTEGER)", "no schema of the name in `search_path`"),
    ):
        said = expected(await _fails(address, statement)) or ""
        assert told in said
        assert "4711" not in said
