"""The database's address, its schema, and processes that start at once."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import TeamSettings
from accounts.store import AccountStore
from gateway.database import TakesNoWrites, WriteCheck, make_engine, metadata, migrate, require_writes, upgrade
from gateway.database_address import UnknownDatabase
from gateway.expected_errors import expected, mends_itself


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, metadata))


async def test_migrations_make_the_schema_of_the_tables(engine: AsyncEngine) -> None:
    """The migrated schema is exactly what the table classes say."""
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []


async def test_the_partial_index_is_partial(engine: AsyncEngine) -> None:
    """Only reserves stand in the index that recovery uses, on either database."""
    async with engine.connect() as connection:
        indexes = await connection.run_sync(lambda sync: inspect(sync).get_indexes("ledger_entry"))
    reserves = next(index for index in indexes if index["name"] == "ix_ledger_entry_reserves")
    conditions = [str(value) for name, value in reserves["dialect_options"].items() if name.endswith("_where")]
    assert len(conditions) == 1
    assert "reserve" in conditions[0]


async def test_several_processes_may_migrate_at_once(empty_database_url: str) -> None:
    """Of several that start together one makes the schema, the others wait, and none fails."""
    engines = [make_engine(empty_database_url) for _ in range(4)]
    try:
        await asyncio.gather(*(migrate(engine) for engine in engines))
        async with engines[0].connect() as connection:
            assert await connection.run_sync(_differences) == []
            rows = await connection.execute(text("SELECT count(*) FROM alembic_version"))
            assert rows.scalar_one() == 1
    finally:
        for engine in engines:
            await engine.dispose()


async def test_migrating_twice_changes_nothing(engine: AsyncEngine) -> None:
    """A second run of the migrations finds nothing to do."""
    await migrate(engine)
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []


async def test_a_team_of_the_first_schema_gets_safe_settings(empty_database_url: str) -> None:
    """Its key keeps working, nothing is escalated or sent twice, and only numbers are kept of it."""
    engine = make_engine(empty_database_url)
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, "0001")
        for statement in (
            "INSERT INTO organisation VALUES ('o', 'O', '2026-04-05 12:00:00')",
            "INSERT INTO team VALUES ('t', 'o', 'T', NULL, '2026-04-05 12:00:00')",
            "INSERT INTO api_key VALUES ('k', 't', 'k', 'digest', 'p', 'last', '2026-04-05 12:00:00', NULL, NULL)",
        ):
            await connection.execute(text(statement))
    await migrate(engine)
    (found,) = await AccountStore(engine).find_keys(["digest"])
    await engine.dispose()
    assert found is not None
    assert found.settings == TeamSettings(quality_floor=None, escalation="off", learning="numbers", shadow_share=0.0)


async def test_sqlite_is_prepared(tmp_path: Path) -> None:
    """Each connection to SQLite has WAL, a busy timeout and foreign keys, and the folder is made."""
    engine = make_engine(f"sqlite:///{tmp_path}/deep/down/x.db")
    async with engine.connect() as connection:
        found = [
            (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        ]
    await engine.dispose()
    assert found == ["wal", 1, 5000, 1]


async def test_sqlite_can_be_made_safe_from_a_loss_of_power(tmp_path: Path) -> None:
    """With `power_safe` each commit is flushed to the disk."""
    engine = make_engine(f"sqlite:///{tmp_path}/x.db", power_safe=True)
    async with engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA synchronous")).scalar_one() == 2
    await engine.dispose()


async def test_sqlite_in_memory_can_be_migrated() -> None:
    """A database that lives in memory gets the schema too."""
    engine = make_engine("sqlite://")
    await migrate(engine)
    async with engine.connect() as connection:
        assert await connection.run_sync(_differences) == []
    await engine.dispose()


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///var/x.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite://", "sqlite+aiosqlite"),
        ("postgres://u@h/d", "postgresql+asyncpg"),
        ("postgresql://u@h/d", "postgresql+asyncpg"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg"),
    ],
)
def test_friendly_addresses_get_the_asynchronous_driver(
    url: str, driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual spellings of an address all work."""
    monkeypatch.chdir(tmp_path)
    assert make_engine(url).url.drivername == driver


def test_an_unknown_database_is_named() -> None:
    """An address of another kind is refused with what is allowed."""
    with pytest.raises(UnknownDatabase, match="must be sqlite:///FILE"):
        make_engine("mysql://u@h/d")


async def test_whether_it_takes_writes_is_asked_once_a_second(engine: AsyncEngine) -> None:
    """However many ask; one that is away is told from one that is there."""
    now = [0.0]
    asked: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *told: asked.append(told[2]), named=False)
    check = WriteCheck(engine, lambda: now[0])
    looks = {"BEGIN IMMEDIATE", "SHOW transaction_read_only"}
    assert await asyncio.gather(*(check.takes_writes() for _ in range(5))) == [True] * 5
    assert sum(each in looks for each in asked) == 1
    now[0] = 1.5
    assert await check.takes_writes()
    assert sum(each in looks for each in asked) == 2
    away = make_engine("postgresql://me:secret@127.0.0.1:1/books")
    assert not await WriteCheck(away).takes_writes()
    await away.dispose()


async def test_a_file_that_may_only_be_read_takes_no_writes(tmp_path: Path) -> None:
    """And one that somebody else is writing takes them."""
    engine = make_engine(f"sqlite:///{tmp_path}/books.sqlite?timeout=0.1")
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE notes (n int)"))
    other = sqlite3.connect(tmp_path / "books.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert await WriteCheck(engine).takes_writes()
    other.close()
    await engine.dispose()
    read_only = make_engine(f"sqlite:///{tmp_path}/books.sqlite")
    event.listen(read_only.sync_engine, "connect", lambda made, _: made.cursor().execute("PRAGMA query_only=ON"))
    assert not await WriteCheck(read_only).takes_writes()
    await read_only.dispose()


async def test_a_file_that_is_gone_from_its_place_takes_no_writes(tmp_path: Path) -> None:
    """Moved, replaced or deleted under a running gateway: what is written is not where the next start looks for it."""
    path = tmp_path / "books.sqlite"
    engine = make_engine(f"sqlite:///{path}")
    now = [0.0]
    check = WriteCheck(engine, lambda: now[0])
    assert await check.takes_writes()
    path.rename(tmp_path / "away.sqlite")
    now[0] += 2
    assert not await check.takes_writes()
    path.touch()
    now[0] += 2
    assert not await check.takes_writes()
    (tmp_path / "away.sqlite").replace(path)
    now[0] += 2
    assert await check.takes_writes()
    await engine.dispose()


async def test_a_start_waits_for_a_database_that_takes_writes(tmp_path: Path) -> None:
    """One that can only be read is waited for, with a sentence."""
    engine = make_engine(f"sqlite:///{tmp_path}/books.sqlite")
    await require_writes(engine)
    event.listen(engine.sync_engine, "connect", lambda made, _: made.cursor().execute("PRAGMA query_only=ON"))
    await engine.dispose()
    with pytest.raises(TakesNoWrites, match="is it a standby") as refused:
        await require_writes(engine)
    assert mends_itself(refused.value)
    assert expected(refused.value) == str(refused.value)
    await engine.dispose()
