"""The schema's rule: who may change it, and what everybody else says of one that does not fit.

An empty database is created without asking. Beyond that `serve` upgrades SQLite after a backup beside the file, and PostgreSQL only where
it is told to; `weighbridge migrate` and `weighbridge database` upgrade, the latter downgrades, too; every other command refuses a schema
that it does not work with, in one sentence. A newer schema whose migrations took nothing away (`OLDER_CODE_SERVES`) it works with.
"""

import contextlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import MIGRATIONS, SERVES_FROM, VERSION_TABLE, metadata, migrate_with, upgrade
from settings.private import private_file

_REVISION: Final = re.compile(r"\d{4}")
_MIGRATION: Final = re.compile(r"v(\d{4})_\w+\.py")

Fit = Literal["empty", "newest", "older", "newer", "foreign"]


class SchemaRefused(Exception):
    """A schema that this version does not work with, or that may not be changed now; says what to do."""


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """The database's schema beside this version's."""

    fit: Fit
    revision: str | None
    """The database's, or another program's (`foreign`); None where it has none."""
    newest: str
    serves_from: str | None = None
    """The earliest schema whose version works with this one, too, by the version that made it."""

    @property
    def serves(self) -> bool:
        """Return True where this version works with the schema as it is."""
        return self.fit == "newest" or (
            self.fit == "newer" and self.serves_from is not None and self.serves_from <= self.newest
        )


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """What a downgrade loses."""

    table: str
    columns: tuple[str, ...]
    """None of them where the whole table goes."""
    rows: int


def revisions() -> list[str]:
    """Return all revisions of this version, oldest first; the files are named by them."""
    found = (_MIGRATION.fullmatch(name) for name in os.listdir(MIGRATIONS / "versions"))  # noqa: PTH208 - names are enough
    return sorted(match[1] for match in found if match is not None)


def newest() -> str:
    """Return the revision that this version works with."""
    return revisions()[-1]


async def read_state(engine: AsyncEngine) -> SchemaState:
    """Return which schema the database has."""
    async with engine.connect() as connection:
        return await connection.run_sync(state_of)


def state_of(connection: Connection) -> SchemaState:
    """Return which schema the database has."""
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in tables:
        ours = tables & metadata.tables.keys()
        return SchemaState(fit="foreign" if ours else "empty", revision=None, newest=newest())
    found = connection.execute(text(f"SELECT * FROM {VERSION_TABLE}")).mappings().first()  # noqa: S608 - ours
    revision = None if found is None else str(found["version_num"])
    if found is None or revision is None:
        return SchemaState(fit="empty", revision=None, newest=newest())
    known = revisions()
    if _REVISION.fullmatch(revision) is None:
        return SchemaState(fit="foreign", revision=revision, newest=known[-1])
    fit: Fit = "newest" if revision == known[-1] else "older" if revision in known else "newer"
    return SchemaState(fit=fit, revision=revision, newest=known[-1], serves_from=found.get(SERVES_FROM))


async def require_schema(engine: AsyncEngine) -> None:
    """Create an empty database's schema, and let one that this version works with be. Raises SchemaRefused for any other."""
    state = await read_state(engine)
    if state.fit == "empty":
        await migrate_with(engine, _create_if_empty)
    elif not state.serves:
        raise SchemaRefused(refusal(state, sqlite=engine.dialect.name == "sqlite"))


def refusal(state: SchemaState, *, sqlite: bool) -> str:
    """Return the sentence that says why this version does not work with the schema, and what to do."""
    if state.fit == "older":
        by_itself = ", or start the gateway, which does so by itself," if sqlite else ""
        return (
            f"the database has the schema {state.revision}, and this version needs {state.newest}: run `weighbridge database "
            f"upgrade`{by_itself} once no process of the older version runs"
        )
    if state.fit == "newer":
        return (
            f"the database has the schema {state.revision}, of a newer version; this one knows no later one than {state.newest}: "
            f"install the newer version, or with it run `weighbridge database downgrade {state.newest}`"
        )
    if state.revision is not None:
        return (
            f"the database is another program's: its `{VERSION_TABLE}` says {state.revision[:32]!r}. Give the gateway a database of "
            "its own, or a schema that stands alone in `search_path` (docs/databases.md)"
        )
    return (
        f"the database has tables of ours and no `{VERSION_TABLE}`, so its schema is not known: restore it from a backup, "
        "or give an address of an empty database"
    )


async def prepare_for_serving(engine: AsyncEngine, *, may_migrate: bool | None, say: Callable[[str], None]) -> None:
    """Bring the schema to this version's, where `serve` may: an empty one, SQLite's after a backup, and PostgreSQL's with
    `may_migrate`. Where that is False it changes none, for `weighbridge migrate` does. Raises SchemaRefused.
    """
    state = await read_state(engine)
    if state.serves:
        if state.fit == "newer":
            say(
                f"the database has the schema {state.revision}, of a newer version; this one ({state.newest}) works with it, too"
            )
    elif may_migrate is False:
        raise SchemaRefused(_left_to_others(state))
    elif state.fit == "older" and (may_migrate or engine.dialect.name == "sqlite"):
        await upgrade_with_backup(engine, say)
    elif state.fit == "older":
        raise SchemaRefused(
            f"{refusal(state, sqlite=False)}; `weighbridge serve --migrate` or WEIGHBRIDGE_MIGRATE=true does so at each start"
        )
    else:
        await require_schema(engine)


def _left_to_others(state: SchemaState) -> str:
    said = "the database is empty" if state.fit == "empty" else refusal(state, sqlite=False)
    if state.fit not in ("empty", "older"):
        return said
    return f"{said}; this process may not change it (WEIGHBRIDGE_MIGRATE=false): `weighbridge migrate` does, with this version"


async def upgrade_with_backup(engine: AsyncEngine, say: Callable[[str], None]) -> SchemaState:
    """Upgrade to this version's schema; SQLite's file is copied before. Return the state before. Raises SchemaRefused."""
    before: list[SchemaState] = []

    def run(connection: Connection) -> None:
        # Seen with the lock held: of several that start at once, one does it.
        state = state_of(connection)
        before.append(state)
        if state.fit == "newer" and state.serves:
            return
        if state.fit in ("newer", "foreign"):
            raise SchemaRefused(refusal(state, sqlite=connection.dialect.name == "sqlite"))
        if state.fit == "older":
            _back_up_file(connection, state, say)
        upgrade(connection)

    await migrate_with(engine, run)
    if before[0].fit == "older":
        say(f"the database's schema was upgraded from {before[0].revision} to {before[0].newest}")
    return before[0]


async def downgrade_with_backup(engine: AsyncEngine, revision: str, say: Callable[[str], None]) -> None:
    """Take the schema back to an earlier one; SQLite's file is copied before. Raises SchemaRefused."""

    def run(connection: Connection) -> None:
        state = state_of(connection)
        _check_downgrade(state, revision)
        _back_up_file(connection, state, say)
        upgrade(connection, revision, down=True)

    await migrate_with(engine, run)


async def losses(engine: AsyncEngine, revision: str) -> list[Loss]:
    """Return what a downgrade to this revision loses: tables and columns that have rows. Raises SchemaRefused."""
    async with engine.connect() as connection:
        return await connection.run_sync(_losses, revision)


def _losses(connection: Connection, revision: str) -> list[Loss]:
    _check_downgrade(state_of(connection), revision)
    earlier = columns_at(revision)
    found = []
    look = inspect(connection)
    for table in sorted(set(look.get_table_names()) & metadata.tables.keys()):
        gone = tuple(each["name"] for each in look.get_columns(table) if each["name"] not in earlier.get(table, ()))
        # The names are the database's own.
        rows = int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()) if gone else 0  # noqa: S608
        if rows:
            found.append(Loss(table=table, columns=gone if table in earlier else (), rows=rows))
    return found


def columns_at(revision: str) -> dict[str, set[str]]:
    """Return the columns of each table in the schema of a revision."""
    from sqlalchemy import create_engine  # noqa: PLC0415 - a downgrade alone asks

    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            upgrade(connection, revision)
            look = inspect(connection)
            return {name: {each["name"] for each in look.get_columns(name)} for name in look.get_table_names()}
    finally:
        engine.dispose()


def _check_downgrade(state: SchemaState, revision: str) -> None:
    known = revisions()
    if revision not in known:
        raise SchemaRefused(
            f"there is no schema `{revision[:32]}`; those of this version are {known[0]} to {known[-1]}"
        )
    if state.fit not in ("newest", "older"):
        said = "the database is empty" if state.fit == "empty" else refusal(state, sqlite=False)
        raise SchemaRefused(said)
    if state.revision is not None and revision >= state.revision:
        raise SchemaRefused(f"the database has the schema {state.revision}, which is not later than {revision}")
    if revision < (first := earliest_downgrade()):
        raise SchemaRefused(
            f"the schema cannot go back further than to {first}: for {revision} restore a backup of that time"
        )


def earliest_downgrade() -> str:
    """Return the earliest schema to which a downgrade leads: the last migration that cannot be taken back made it."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - a downgrade alone asks

    scripts = ScriptDirectory(str(MIGRATIONS)).walk_revisions()
    return next((each.revision for each in scripts if not hasattr(each.module, "downgrade")), revisions()[0])


def _create_if_empty(connection: Connection) -> None:
    state = state_of(connection)
    if state.fit == "empty":
        upgrade(connection)
    elif not state.serves:
        raise SchemaRefused(refusal(state, sqlite=connection.dialect.name == "sqlite"))


def _back_up_file(connection: Connection, state: SchemaState, say: Callable[[str], None]) -> None:
    """Copy SQLite's file beside itself; nobody writes meanwhile, for this connection holds the lock."""
    path = database_file(str(connection.engine.url.database or "")) if connection.dialect.name == "sqlite" else None
    if path is None:
        return
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    stem = f"{path.stem}.schema-{state.revision}.{at}"
    # Of several within a second each is kept.
    names = (f"{stem}{more}{path.suffix}" for more in ("", "-2", "-3", "-4", "-5"))
    kept = next((each for each in map(path.with_name, names) if not each.exists()), path.with_name(stem + path.suffix))
    try:
        copy_sqlite(path, kept)
    except (sqlite3.Error, OSError) as failure:
        raise SchemaRefused(
            f"the database cannot be copied to {kept} before its schema is changed ({failure}), so nothing was changed: make "
            f"room there ({shutil.disk_usage(path.parent).free // 1_000_000:,} MB are free)"
        ) from failure
    say(f"the database as it was is kept in {kept}")


def database_file(database: str) -> Path | None:
    """Return the file of a SQLite database; None for one in memory."""
    return None if database in ("", ":memory:") else Path(database)


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a SQLite database, as it is at one moment, whoever writes to it. Raises sqlite3.Error and OSError; then there is no copy."""
    target.touch(exist_ok=False)
    try:
        private_file(target)
        with (
            contextlib.closing(sqlite3.connect(source)) as reading,
            contextlib.closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing)
            # A file that stands alone: it needs no other beside it.
            writing.execute("PRAGMA journal_mode=DELETE")
        _flush(target)
    except BaseException:
        for name in (target, target.with_name(target.name + "-wal"), target.with_name(target.name + "-shm")):
            name.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
