"""The database: engine creation for SQLite and PostgreSQL, and migration to the newest schema."""

import asyncio
import contextlib
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, event, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlmodel import SQLModel

import accounts.audit.tables
import accounts.people.tables
import accounts.tables
import api.ask.tables
import api.incidents.tables
import api.litellm.tables
import api.webhooks.tables
import classifier.learning.tables
import classifier.measuring.tables
import cost.tables
import dashboards.alerts.tables
import dashboards.requests.tables
import proxy.admit.idempotency.tables
import proxy.admit.limits.limit_tables
import proxy.batch.tables
import proxy.responses.background.tables
import proxy.responses.stored.tables
import proxy.settle.findings.tables
import proxy.settle.hurt.tables
import proxy.settle.prompt_caches.tables
import proxy.settle.refusals.tables
import proxy.settle.traffic.tables
import proxy.shared.redis.process_tables
import selfhosted.tables
from gateway.database_address import database_kind
from gateway.postgres import make_postgres_engine
from gateway.sqlite_driver import SqliteDriver
from settings.private import private_file, private_folder

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

VERSION_TABLE: Final = "alembic_version"
SERVES_FROM: Final = "serves_from"
"""The version table's column of ours: the earliest schema whose version works with this one, too."""
MIGRATIONS: Final = Path(__file__).parent / "migrations"
metadata: Final = SQLModel.metadata
MODULES_WITH_TABLES: Final = (
    accounts.audit.tables,
    accounts.people.tables,
    accounts.tables,
    api.ask.tables,
    api.incidents.tables,
    api.litellm.tables,
    api.webhooks.tables,
    classifier.learning.tables,
    classifier.measuring.tables,
    cost.tables,
    dashboards.alerts.tables,
    dashboards.requests.tables,
    proxy.admit.idempotency.tables,
    proxy.admit.limits.limit_tables,
    proxy.batch.tables,
    proxy.responses.background.tables,
    proxy.responses.stored.tables,
    proxy.settle.findings.tables,
    proxy.settle.hurt.tables,
    proxy.settle.prompt_caches.tables,
    proxy.settle.refusals.tables,
    proxy.settle.traffic.tables,
    proxy.shared.redis.process_tables,
    selfhosted.tables,
)
"""Importing them fills `metadata`."""

_ASK_EVERY_S: Final = 1.0
_ANSWER_S: Final = 1.0
_BUSY_TIMEOUT_S: Final = 5.0
_WAL_TRIES: Final = 50
_WAL_PAUSE_S: Final = 0.01
_MIGRATION_TIMEOUT_S: Final = 60
_TABLE_PATIENCE: Final = ("1s",) * 30 + ("10s",)
"""How long a migration waits for a table that a long statement uses, try for try, unless the address has a `lock_timeout`. While it waits,
everybody who comes after it waits, too; a try that was in vain changed nothing.
"""
_BETWEEN_TRIES_S: Final = 1.0
_IN_USE: Final = "55P03"
# Any number will do, as long as every version of this program uses the same one.
_MIGRATION_LOCK: Final = 7_236_451_920
LOCK_SCHEMA: Final = (text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
"""Statement and values that keep others from changing PostgreSQL's schema until the transaction's end."""


def make_engine(url: str, *, power_safe: bool = False) -> AsyncEngine:
    """Create an engine for `sqlite:///file`, `sqlite://` (in memory) or `postgresql://user@host/name` (`gateway.database_address`).

    With `power_safe` SQLite flushes each commit to the disk; it belongs with `journal_sync: power`. Raises
    UnknownDatabase.
    """
    if database_kind(url) == "postgresql":
        return make_postgres_engine(url)
    return _sqlite_engine(make_url(f"sqlite+aiosqlite://{url.partition('://')[2]}"), power_safe=power_safe)


async def migrate(engine: AsyncEngine) -> None:
    """Migrate the schema to the newest version. When that may be done is `gateway.schema`'s to say."""
    await migrate_with(engine, upgrade)


async def migrate_with(engine: AsyncEngine, change: Callable[[Connection], None]) -> None:
    """Change the schema, all or nothing. Of several processes that start at once, one does it and the others wait."""
    if engine.dialect.name == "sqlite":
        await _migrate_sqlite(engine, change)
    else:
        for longest in _TABLE_PATIENCE:
            if await _migrate_postgresql(engine, change, longest, is_last=longest == _TABLE_PATIENCE[-1]):
                return
            await asyncio.sleep(_BETWEEN_TRIES_S)


async def _migrate_postgresql(
    engine: AsyncEngine, change: Callable[[Connection], None], longest: str, *, is_last: bool
) -> bool:
    """Try once; return False where a table was in use, unless the try is the last one, or the address says how long to wait."""
    is_ours = True
    try:
        async with engine.begin() as connection, _without_time_limit(connection):
            patience = (await connection.execute(text("SELECT current_setting('lock_timeout')"))).scalar_one()
            is_ours = patience == "0"
            await connection.execute(text("SET LOCAL lock_timeout = 0"))
            await connection.execute(*LOCK_SCHEMA)
            patience = longest if is_ours else patience
            await connection.execute(text("SELECT set_config('lock_timeout', :longest, true)"), {"longest": patience})
            await connection.run_sync(change)
    except DBAPIError as failure:
        if is_last or not is_ours or getattr(failure.orig, "sqlstate", None) != _IN_USE:
            raise
        return False
    return True


def upgrade(connection: Connection, revision: str = "head", *, down: bool = False) -> None:
    """Run the migrations up to a revision, or `down` to it, on a connection whose transaction the caller owns."""
    # Workers find the schema in place, so they need not load it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    # Alembic reads a % as the beginning of a reference.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    (command.downgrade if down else command.upgrade)(config, revision)
    _note_who_may_serve(connection, ScriptDirectory.from_config(config))


@contextlib.asynccontextmanager
async def _without_time_limit(connection: AsyncConnection) -> AsyncIterator[None]:
    """Let the connection's statements take as long as they need: a large ledger's, and those that wait for another's migration."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    limited = driver._config  # noqa: SLF001 - asyncpg has no other way to change it
    driver._config = limited._replace(command_timeout=None)  # noqa: SLF001
    try:
        yield
    finally:
        driver._config = limited  # noqa: SLF001


def _note_who_may_serve(connection: Connection, scripts: "ScriptDirectory") -> None:
    """Write beside the schema's revision from which on versions work with it, for those that do not know it yet.

    A migration with `OLDER_CODE_SERVES` leaves everything in place for the version before it.
    """
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - ours
    if revision is None:
        return
    oldest = scripts.get_revision(revision)
    while getattr(oldest.module, "OLDER_CODE_SERVES", False):
        oldest = scripts.get_revision(str(oldest.down_revision))
    if SERVES_FROM not in {each["name"] for each in inspect(connection).get_columns(VERSION_TABLE)}:
        connection.execute(text(f"ALTER TABLE {VERSION_TABLE} ADD COLUMN {SERVES_FROM} VARCHAR(32)"))
    connection.execute(text(f"UPDATE {VERSION_TABLE} SET {SERVES_FROM} = :oldest"), {"oldest": oldest.revision})  # noqa: S608


def _sqlite_engine(address: URL, *, power_safe: bool) -> AsyncEngine:
    options: dict[str, Any] = {}
    if address.database and address.database != ":memory:":
        # The connection that was used last still knows most pages.
        options["pool_use_lifo"] = True
        private_folder(Path(address.database).parent)
        # Its journal and its shared memory get the rights of the database's own file.
        private_file(Path(address.database))
    # How long a statement waits for another writer; `?timeout=` in the address has the last word.
    waiting = {} if "timeout" in address.query else {"timeout": _BUSY_TIMEOUT_S}
    engine = create_async_engine(address, connect_args=waiting, module=SqliteDriver(), **options)
    # With WAL, readers do not wait for the writer. NORMAL loses nothing when the process is killed;
    # at a loss of power it may lose the last commits.
    pragmas = (f"synchronous={'FULL' if power_safe else 'NORMAL'}", "foreign_keys=ON")

    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        _write_ahead(cursor)
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    event.listen(engine.sync_engine, "connect", prepare)
    return engine


def _write_ahead(cursor: Any) -> None:
    """Switch SQLite to WAL, with retries: while others open a new file at once, SQLite refuses the change without
    waiting.
    """
    for _ in range(_WAL_TRIES):
        with contextlib.suppress(sqlite3.OperationalError):
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        time.sleep(_WAL_PAUSE_S)
    cursor.execute("PRAGMA journal_mode=WAL")


async def _migrate_sqlite(engine: AsyncEngine, change: Callable[[Connection], None]) -> None:
    async with engine.connect() as plain:
        # The driver begins no transaction before DDL by itself, so the transaction is ours from the start.
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        await connection.exec_driver_sql(f"PRAGMA busy_timeout={_MIGRATION_TIMEOUT_S * 1000}")
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            await connection.run_sync(change)
        except BaseException:
            await connection.exec_driver_sql("ROLLBACK")
            raise
        await connection.exec_driver_sql("COMMIT")
        await connection.exec_driver_sql(f"PRAGMA busy_timeout={int(_BUSY_TIMEOUT_S * 1000)}")


class TakesNoWrites(Exception):
    """A database that can only be read, such as a standby."""


async def require_writes(engine: AsyncEngine) -> None:
    """Raise TakesNoWrites for a database that can only be read."""
    if not await WriteCheck(engine).takes_writes():
        raise TakesNoWrites(
            "the database takes no writes: is it a standby, or read-only for its user? (several hosts: docs/databases.md)"
        )


class WriteCheck:
    """A check that the database can be written, made once a second at most."""

    def __init__(self, engine: AsyncEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._known_until = -math.inf
        self._takes_writes = False
        self._asking = asyncio.Lock()
        self._file: tuple[int, int] | None = None

    async def takes_writes(self) -> bool:
        """Return True when it said within a second that it takes writes."""
        async with self._asking:
            if self._clock() >= self._known_until:
                self._takes_writes = await self._ask()
                self._known_until = self._clock() + _ASK_EVERY_S
        return self._takes_writes

    async def _ask(self) -> bool:
        is_sqlite = self._engine.dialect.name == "sqlite"
        ask = _ask_sqlite if is_sqlite else _ask_postgres
        try:
            async with asyncio.timeout(_ANSWER_S), self._engine.connect() as connection:
                return await ask(connection) and not (is_sqlite and self._is_elsewhere())
        except (SQLAlchemyError, OSError, TimeoutError):
            return False

    def _is_elsewhere(self) -> bool:
        """Return True where SQLite's file was moved, deleted or replaced since the first look: what is open goes to the old one."""
        path = self._engine.url.database or ":memory:"
        if path.startswith((":memory:", "file:")):
            return False
        status = Path(path).stat()
        found = (status.st_dev, status.st_ino)
        self._file = self._file or found
        return found != self._file


async def _ask_postgres(connection: AsyncConnection) -> bool:
    # "on" at a standby, and where an operator made the database or the role read-only.
    if (await connection.execute(text("SHOW transaction_read_only"))).scalar_one() == "off":
        return True
    # Its server was a primary when the pool connected: the next connection looks for the present one.
    await connection.invalidate()
    return False


async def _ask_sqlite(connection: AsyncConnection) -> bool:
    """Return False for a file that may only be read; a file that somebody else is writing can be written."""
    try:
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", None)
        return code is not None and code & _PRIMARY_CODE == sqlite3.SQLITE_BUSY
    await connection.rollback()
    return True


_PRIMARY_CODE: Final = 0xFF
"""SQLite's extended codes have the primary one in their lowest byte."""
