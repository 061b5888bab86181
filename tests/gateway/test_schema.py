"""The schema's rule: who may change it, what is kept before, and what everybody else says of one that does not fit."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, TextClause, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from gateway.cli import app
from gateway.database import LOCK_SCHEMA, MIGRATIONS, make_engine, migrate, migrate_with, upgrade
from gateway.expected_errors import expected, mends_itself
from gateway.schema import (
    SchemaRefused,
    downgrade_with_backup,
    losses,
    newest,
    prepare_for_serving,
    read_state,
    require_schema,
    revisions,
    upgrade_with_backup,
)
from tests.postgres import Postgres

invoke = CliRunner().invoke


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = make_engine(empty_database_url)
    yield engine
    await engine.dispose()


async def _at(engine: AsyncEngine, revision: str) -> None:
    await migrate_with(engine, lambda connection: upgrade(connection, revision))


async def _insert_organisation(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO organisation VALUES ('o', 'O', '2026-04-05 12:00:00')"))


def _kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.schema-*.sqlite"))


def test_the_files_are_the_migrations() -> None:
    """The newest revision is Alembic's head, and each file is named by its revision."""
    script = ScriptDirectory(str(MIGRATIONS))
    assert newest() == script.get_current_head()
    assert revisions() == sorted(each.revision for each in script.walk_revisions())


async def test_an_empty_database_is_created_by_whoever_comes(empty: AsyncEngine) -> None:
    """Without asking and without a copy; of several that come at once each finds it."""
    assert (await read_state(empty)).fit == "empty"
    await asyncio.gather(*(require_schema(empty) for _ in range(3)))
    assert (await read_state(empty)).fit == "newest"


async def test_no_command_changes_an_older_schema(empty: AsyncEngine) -> None:
    """It is refused in one sentence that says what to do."""
    await _at(empty, "0025")
    with pytest.raises(
        SchemaRefused, match=r"has the schema 0025, and .* needs .*: run `weighbridge database upgrade`"
    ):
        await require_schema(empty)
    assert (await read_state(empty)).revision == "0025"


async def test_a_newer_schema_is_refused_by_all(empty: AsyncEngine) -> None:
    """By commands, by `serve`, and by an upgrade, which has nothing for it."""
    await require_schema(empty)
    await _newer(empty, "9999")
    said: list[str] = []
    for refused in (
        require_schema(empty),
        prepare_for_serving(empty, may_migrate=True, say=said.append),
        upgrade_with_backup(empty, said.append),
    ):
        with pytest.raises(SchemaRefused, match=r"the schema 9999, of a newer version.*database downgrade 00"):
            await refused
    assert said == []


async def _newer(engine: AsyncEngine, serves_from: str) -> None:
    """The schema of a version to come, which says who may serve with it."""
    async with engine.begin() as connection:
        await connection.execute(
            text("UPDATE alembic_version SET version_num = '9999', serves_from = :oldest"), {"oldest": serves_from}
        )


async def test_a_newer_schema_that_took_nothing_away_is_worked_with(empty: AsyncEngine) -> None:
    """By commands and by `serve`, which says so; an upgrade, as of a rollback's job, finds nothing to do."""
    await require_schema(empty)
    await _newer(empty, newest())
    said: list[str] = []
    await require_schema(empty)
    for may_migrate in (None, False, True):
        await prepare_for_serving(empty, may_migrate=may_migrate, say=said.append)
    assert [each.startswith("the database has the schema 9999, of a newer version; this one") for each in said] == [
        True
    ] * 3
    assert (await upgrade_with_backup(empty, said.append)).serves
    assert (await read_state(empty)).revision == "9999"
    await _newer(empty, "9998")
    with pytest.raises(SchemaRefused, match="of a newer version; this one knows no later one"):
        await require_schema(empty)


async def test_a_process_that_may_not_migrate_changes_nothing(empty: AsyncEngine) -> None:
    """Neither an empty database nor SQLite's file, which it would upgrade otherwise; the sentence names who does."""
    for revision, said in ((None, "the database is empty"), ("0025", "the database has the schema 0025")):
        if revision is not None:
            await _at(empty, revision)
        with pytest.raises(SchemaRefused, match=rf"{said}.*WEIGHBRIDGE_MIGRATE=false.*`weighbridge migrate` does"):
            await prepare_for_serving(empty, may_migrate=False, say=lambda _: None)
        assert (await read_state(empty)).revision == revision
    await upgrade_with_backup(empty, lambda _: None)
    await prepare_for_serving(empty, may_migrate=False, say=lambda _: None)


async def test_the_schema_says_from_which_version_on_it_is_served(empty: AsyncEngine) -> None:
    """By what the migrations say, which is true of their tables: all that was there is there, and nothing has to be given that the
    version before does not know.
    """
    names = {each.revision: each for each in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}
    tolerant = {revision for revision, each in names.items() if getattr(each.module, "OLDER_CODE_SERVES", False)}
    assert tolerant
    expected = newest()
    while expected in tolerant:
        expected = str(names[expected].down_revision)
    await require_schema(empty)
    assert (await read_state(empty)).serves_from == expected
    for revision in sorted(tolerant):
        await downgrade_or_stay(empty, str(names[revision].down_revision))
        before = await _tables(empty)
        assert (await read_state(empty)).revision == names[revision].down_revision
        await _at(empty, revision)
        after = await _tables(empty)
        for table, columns in before.items():
            added = after[table].keys() - columns.keys()
            assert {name: after[table][name] for name in columns} == columns, (revision, table)
            assert all(after[table][name].optional for name in added), (revision, table, added)
        await upgrade_with_backup(empty, lambda _: None)


async def downgrade_or_stay(engine: AsyncEngine, revision: str) -> None:
    if revision != newest():
        await downgrade_with_backup(engine, revision, lambda _: None)


class _Column(NamedTuple):
    kind: str
    optional: bool


async def _tables(engine: AsyncEngine) -> dict[str, dict[str, _Column]]:
    """The columns of all tables of ours."""

    def look(connection: Connection) -> dict[str, dict[str, _Column]]:
        found = inspect(connection)
        return {
            table: {
                each["name"]: _Column(str(each["type"]), each["nullable"] or each["default"] is not None)
                for each in found.get_columns(table)
            }
            for table in found.get_table_names()
            if table != "alembic_version"
        }

    async with engine.connect() as connection:
        return await connection.run_sync(look)


def _statement(statement: TextClause) -> Callable[[Connection], None]:
    """A migration of one statement."""

    def run(connection: Connection) -> None:
        connection.execute(statement)

    return run


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_a_migration_has_as_long_as_it_needs(empty_database_url: str) -> None:
    """A statement of it, and the wait for another's, are not cut off where other statements are."""
    engine = make_engine(f"{empty_database_url}{'&' if '?' in empty_database_url else '?'}command_timeout=1")
    slow = text("SELECT pg_sleep(1.2)")
    await migrate_with(engine, _statement(slow))
    with pytest.raises(TimeoutError):
        async with engine.connect() as connection:
            await connection.execute(slow)
    await engine.dispose()


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_a_migration_does_not_queue_before_everybody(empty_database_url: str) -> None:
    """For a table that a long statement uses it waits a while, changes nothing, and may be tried again; for another's migration it waits
    as long as that takes.
    """
    engine = make_engine(f"{empty_database_url}{'&' if '?' in empty_database_url else '?'}lock_timeout=50")
    await require_schema(engine)
    change = text("ALTER TABLE organisation ADD COLUMN later text")
    async with engine.begin() as reader:
        await reader.execute(text("SELECT count(*) FROM organisation"))
        with pytest.raises(DBAPIError) as refused:
            await migrate_with(engine, _statement(change))
        assert mends_itself(refused.value)
        assert "a table of the database is in use by a long statement" in str(expected(refused.value))
    async with engine.begin() as other:
        await other.execute(*LOCK_SCHEMA)
        waiting = asyncio.create_task(migrate_with(engine, _statement(change)))
        # Longer than the limit.
        await other.execute(text("SELECT pg_sleep(0.2)"))
        assert not waiting.done()
    await waiting
    await engine.dispose()


async def test_a_migration_lets_others_by_while_it_waits_for_a_table(postgres: Postgres) -> None:
    """A report reads the ledger for long: who asks for the ledger meanwhile, such as the drain, waits a second at most, and the migration
    is done once the report is.
    """
    engine = make_engine(await postgres.empty_database())
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'")
    try:
        await migrate_with(engine, partial(upgrade, revision="0042"))
        async with engine.connect() as report:
            await report.execute(text("SELECT 1 FROM ledger_entry LIMIT 1"))
            migrating = asyncio.create_task(migrate(engine))
            for _ in range(2):
                async with asyncio.timeout(30), engine.connect() as looking:
                    while not await looking.scalar(waits):  # noqa: ASYNC110 - the server tells nobody
                        await asyncio.sleep(0.02)
                # Behind the migration, which was to wait ten seconds.
                async with asyncio.timeout(8), engine.connect() as other:
                    await other.execute(text("SELECT 1 FROM ledger_entry LIMIT 1"))
                assert not migrating.done()
        await migrating
        assert (await read_state(engine)).fit == "newest"
    finally:
        await engine.dispose()


async def test_tables_without_a_version_are_let_be(empty: AsyncEngine) -> None:
    """Nobody knows what they are."""
    await require_schema(empty)
    async with empty.begin() as connection:
        await connection.execute(text("DROP TABLE alembic_version"))
    with pytest.raises(SchemaRefused, match="its schema is not known"):
        await require_schema(empty)


async def test_others_tables_are_no_schema_of_ours(empty: AsyncEngine) -> None:
    """A database that a colleague uses for something else, too, is empty to us."""
    async with empty.begin() as connection:
        await connection.execute(text("CREATE TABLE theirs (n int)"))
    await require_schema(empty)
    assert (await read_state(empty)).fit == "newest"


async def test_serving_upgrades_sqlite_after_a_copy(tmp_path: Path) -> None:
    """The copy stands beside the file, named by the old schema, with the old rows; that is said, and done once."""
    engine = make_engine(f"sqlite:///{tmp_path}/books.sqlite")
    await _at(engine, "0006")
    await _insert_organisation(engine)
    said: list[str] = []
    await asyncio.gather(*(prepare_for_serving(engine, may_migrate=None, say=said.append) for _ in range(3)))
    assert (await read_state(engine)).fit == "newest"
    await engine.dispose()
    (kept,) = _kept(tmp_path)
    assert kept.name.startswith("books.schema-0006.20")
    assert kept.stat().st_mode & 0o077 == 0
    assert said[0] == f"the database as it was is kept in {kept}"
    assert said[1].startswith("the database's schema was upgraded from 0006 to ")
    with sqlite3.connect(kept) as copy:
        assert copy.execute("SELECT version_num FROM alembic_version").fetchall() == [("0006",)]
        assert copy.execute("SELECT count(*) FROM organisation").fetchall() == [(1,)]


async def test_no_copy_no_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk nothing is changed, and nothing half is left."""
    engine = make_engine(f"sqlite:///{tmp_path}/books.sqlite")
    await _at(engine, "0006")

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("gateway.schema._flush", full)
    with pytest.raises(SchemaRefused, match=r"cannot be copied .* so nothing was changed: make room there"):
        await prepare_for_serving(engine, may_migrate=None, say=lambda _: None)
    assert (await read_state(engine)).revision == "0006"
    await engine.dispose()
    assert _kept(tmp_path) == []


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_serving_upgrades_postgresql_where_it_is_told_to(empty: AsyncEngine) -> None:
    """By default it refuses, and says how."""
    await _at(empty, "0025")
    with pytest.raises(SchemaRefused, match=r"run `weighbridge database upgrade`.*--migrate"):
        await prepare_for_serving(empty, may_migrate=None, say=lambda _: None)
    assert (await read_state(empty)).revision == "0025"
    await prepare_for_serving(empty, may_migrate=True, say=lambda _: None)
    assert (await read_state(empty)).fit == "newest"


async def test_every_schema_can_be_left_backwards(empty: AsyncEngine) -> None:
    """One after the other as far as there is a way, and up again to the same."""
    await require_schema(empty)
    for revision in reversed(revisions()[:-1]):
        if revision < "0006":
            with pytest.raises(SchemaRefused, match="cannot go back further than to 0006"):
                await downgrade_with_backup(empty, revision, lambda _: None)
            continue
        await downgrade_with_backup(empty, revision, lambda _: None)
        assert (await read_state(empty)).revision == revision
    await upgrade_with_backup(empty, lambda _: None)
    assert (await read_state(empty)).fit == "newest"


async def test_what_a_downgrade_loses_is_told_before(empty: AsyncEngine) -> None:
    """Tables and columns that have rows; what is empty is no loss."""
    await require_schema(empty)
    await _insert_organisation(empty)
    async with empty.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO journal_place (boot_id, segment, position, lines, total, moved_us) VALUES ('b', 0, 1, 1, 1, 1)"
            )
        )
    assert [(each.table, each.columns, each.rows) for each in await losses(empty, "0029")] == [("journal_place", (), 1)]
    with pytest.raises(SchemaRefused, match=r"there is no schema `1\.2`"):
        await losses(empty, "1.2")
    with pytest.raises(SchemaRefused, match="which is not later than"):
        await losses(empty, newest())


def test_commands_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an older schema through an upgrade and a downgrade, in the words of the command line and without a traceback."""
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/books.sqlite")

    async def make() -> None:
        engine = make_engine(f"sqlite:///{tmp_path}/books.sqlite")
        await _at(engine, "0025")
        await engine.dispose()

    asyncio.run(make())
    for command in (["keys", "list"], ["report", "daily"], ["ledger", "verify"]):
        refused = invoke(app, command)
        assert refused.exit_code in (1, 2)
        assert "run `weighbridge database upgrade`" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert _kept(tmp_path) == []
    assert invoke(app, ["database", "status"]).exit_code == 1
    done = invoke(app, ["database", "upgrade"])
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)
    assert len(_kept(tmp_path)) == 1
    assert invoke(app, ["database", "status"]).stdout == f"sqlite: schema {newest()}, as this version needs it\n"
    assert invoke(app, ["database", "upgrade"]).stdout == f"nothing to do: the database has schema {newest()}\n"
    assert invoke(app, ["keys", "list"]).exit_code == 0
    asked = invoke(app, ["database", "downgrade", "0025"])
    assert asked.exit_code == 2
    assert "nothing was changed; with --yes" in asked.stderr
    back = invoke(app, ["database", "downgrade", "0025", "--yes"])
    assert (back.exit_code, back.stdout.splitlines()[-1]) == (0, "the database has schema 0025 now")
    assert len(_kept(tmp_path)) == 2
