"""Backup and restore: the database as it is at one moment, and the host's journals, in one archive.

The journals are read before the database. What is written to a journal meanwhile may be missing from the archive, and what the drain
moves meanwhile is in the database or in both; so nothing that was written before the backup began is in neither.

A restore brings back the journals' files that the folder here lacks, and leaves those that it has: what the restored database does not
have of them the drain books at the next start (`cost.ledger.journal_places`).
"""

import contextlib
import fcntl
import importlib.metadata
import re
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from api.erasure.past import PastErasure, last_entry, past_erasures
from cost.database_clock import DATABASE_US
from cost.ledger.journal_gaps import Gap, find_gaps
from cost.ledger.journal_places import read_places
from cost.ledger.segments import Waiting, is_alive, journals, segment_path, waiting
from cost.tables import Boot
from cost.times import wall_us
from gateway.archive import (
    FORMAT,
    ArchiveRefused,
    ArchiveWriter,
    Manifest,
    Table,
    read_manifest,
    read_parts,
    scratch_folder,
)
from gateway.database import LOCK_SCHEMA, metadata, upgrade
from gateway.schema import (
    SchemaRefused,
    SchemaState,
    columns_at,
    copy_sqlite,
    database_file,
    newest,
    read_state,
    refusal,
    revisions,
    state_of,
)
from settings.private import private_file, private_folder

_DATABASE: Final = "database.sqlite"
_JOURNALS: Final = "journals/"
_BEGUN_WITHIN_US: Final = 60_000_000
"""A database that takes writes knows a journal within seconds of its first entry."""
_TABLES: Final = "tables/"
_SEGMENT: Final = re.compile(r"journals/boot-([0-9a-z]{1,64})-([0-9]{1,12})\.log")
_AUDIT: Final = "audit_entry"
_FIRST: Final = "SELECT hash FROM audit_entry WHERE number = 1"
_PIECE_BYTES: Final = 4 * 1024 * 1024
_COPY_S: Final = 24 * 3600.0
_SEEN_LATELY_US: Final = 90_000_000
_SEEDED: Final = frozenset({"audit_head"})
"""Tables that a migration has given a row."""


class RestoreRefused(Exception):
    """A restore that would lose something, or cannot be done; says what to do."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a restore."""

    manifest: Manifest
    segments: int
    """Files of journals that were brought back."""
    waiting: int
    """Entries in journals here that the restored database does not have yet."""
    strangers: tuple[str, ...]
    """Of these the journals' ids that were written before the backup and that it does not know: another gateway's."""
    gaps: tuple[Gap, ...]
    is_newest: bool
    """False for a schema that is to be upgraded."""
    replaced: str | None
    """The archive of the database that was there; None where it was empty."""
    erased_since: tuple[PastErasure, ...] = ()
    """Erasures that the database which was there knew of, and this one does not: what they took is back."""


async def back_up(engine: AsyncEngine, journal_dir: Path | None, target: Path) -> Manifest:
    """Write the database and the folder's journals to an archive, while a gateway may serve. Raises ArchiveRefused, SchemaRefused,
    OSError.
    """
    state = await read_state(engine)
    if state.revision is None or state.fit in ("newer", "foreign"):
        said = (
            "the database is empty" if state.fit == "empty" else refusal(state, sqlite=engine.dialect.name == "sqlite")
        )
        raise SchemaRefused(said)
    writer = ArchiveWriter(target)
    try:
        if journal_dir is not None:
            _add_journals(writer, journal_dir)
        is_sqlite = engine.dialect.name == "sqlite"
        found = await (_add_sqlite if is_sqlite else _add_postgresql)(writer, engine, target.parent)
        manifest = Manifest(
            format=FORMAT,
            version=importlib.metadata.version("weighbridge"),
            made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            host=socket.gethostname(),
            kind="sqlite" if is_sqlite else "postgresql",
            revision=found.revision,
            tables=tuple(found.tables),
            journals=journal_dir is not None,
            parts=tuple(writer.parts),
            left_out=found.left_out,
            begins=found.begins,
        )
        writer.finish(manifest)
    except BaseException:
        writer.give_up()
        raise
    return manifest


def _add_journals(writer: ArchiveWriter, folder: Path) -> None:
    for boot_id, numbers in journals(folder).items():
        for number in numbers:
            path = segment_path(folder, boot_id, number)
            with contextlib.suppress(FileNotFoundError):
                # One that is gone meanwhile is in the database. Half a line is one that is being written.
                data = path.read_bytes()
                writer.add(_JOURNALS + path.name, data[: data.rfind(b"\n") + 1])


class _Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What was archived of a database."""

    tables: list[Table]
    revision: str
    left_out: tuple[str, ...] = ()
    begins: str = ""


async def _add_sqlite(writer: ArchiveWriter, engine: AsyncEngine, folder: Path) -> _Archived:
    path = database_file(engine.url.database or "")
    if path is None:
        raise ArchiveRefused("a database in memory cannot be backed up")
    with scratch_folder(folder, "backup") as scratch:
        copy = scratch / _DATABASE
        try:
            copy_sqlite(path, copy)
            found = _read_file(copy)
        except sqlite3.Error as failure:
            raise ArchiveRefused(f"{path} cannot be copied to {folder}: {failure}") from failure
        writer.add_file(_DATABASE, copy)
    return found


def _read_file(path: Path) -> _Archived:
    """Return what a SQLite file holds. Raises sqlite3.Error for one that is damaged, or is no database of ours."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        (sound,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        ]
        tables = []
        for name in names:
            columns = tuple(row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})"))
            (rows,) = connection.execute(f"SELECT count(*) FROM {_quoted(name)}").fetchone()  # noqa: S608 - its own
            tables.append(Table(name=name, columns=columns, rows=rows))
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        first = connection.execute(_FIRST).fetchone() if _AUDIT in names else None
        return _Archived(tables=tables, revision=revision, begins="" if first is None else first[0])


async def _add_postgresql(writer: ArchiveWriter, engine: AsyncEngine, _folder: Path) -> _Archived:
    tables, left_out = [], []
    async with _snapshot(engine) as connection:
        state = await connection.run_sync(state_of)
        if state.revision is None:
            raise SchemaRefused("the database is empty")
        columns = await connection.run_sync(_columns, _ours(state.revision))
        known = columns_at(state.revision)
        driver: Any = (await connection.get_raw_connection()).driver_connection
        for table, there in columns.items():
            # A column that somebody added has no place where this is restored.
            names = tuple(name for name in there if name in known[table])
            left_out += [f"{table}.{name}" for name in there if name not in known[table]]
            part = _PartOfRows(writer, table)
            query = f"SELECT {', '.join(map(_quoted, names))} FROM {_quoted(table)}"  # noqa: S608 - the database's own names
            told = await driver.copy_from_query(query, output=part.write, timeout=_COPY_S)
            part.close()
            tables.append(Table(name=table, columns=names, rows=int(told.rpartition(" ")[2])))
        begins = await _begins(connection)
    return _Archived(tables=tables, revision=state.revision, left_out=tuple(left_out), begins=begins)


async def _begins(connection: AsyncConnection) -> str:
    """Return the hash of the audit log's first entry, which no other gateway's database has; empty where there is none."""
    there = await connection.run_sync(lambda sync: inspect(sync).has_table(_AUDIT))
    return str(await connection.scalar(text(_FIRST)) or "") if there else ""


class _PartOfRows:
    """The rows of a table, in parts that fit into memory."""

    def __init__(self, writer: ArchiveWriter, table: str) -> None:
        self._writer = writer
        self._table = table
        self._number = 0
        self._data = bytearray()

    async def write(self, data: bytes) -> None:
        self._data += data
        if len(self._data) >= _PIECE_BYTES:
            self.close()

    def close(self) -> None:
        if self._data:
            self._writer.add(f"{_TABLES}{self._table}/{self._number:06}", bytes(self._data))
            self._number += 1
            self._data.clear()


@contextlib.asynccontextmanager
async def _snapshot(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        yield connection
        await connection.rollback()


def _ours(revision: str) -> list[str]:
    """Return the tables of a revision, in an order in which they can be filled."""
    there = columns_at(revision).keys()
    order = [str(table.name) for table in metadata.sorted_tables if table.name in there]
    return [*order, *sorted(there - metadata.tables.keys() - {"alembic_version"})]


def _columns(connection: Connection, tables: list[str]) -> dict[str, tuple[str, ...]]:
    look = inspect(connection)
    return {table: tuple(str(each["name"]) for each in look.get_columns(table)) for table in tables}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def restore(
    engine: AsyncEngine, journal_dir: Path | None, source: Path, *, replace: bool, say: Callable[[str], None]
) -> Restored:
    """Put an archive's database in the place of an empty one, or with `replace` of one that is archived before, and bring back the
    journals' files that are not here. Raises RestoreRefused, ArchiveRefused, SchemaRefused, SQLAlchemyError, OSError.
    """
    manifest = read_manifest(source)
    _check(manifest, engine, journal_dir)
    state = await read_state(engine)
    if state.fit in ("newer", "foreign"):
        raise SchemaRefused(f"{refusal(state, sqlite=engine.dialect.name == 'sqlite')}; nothing was restored")
    await check_nobody_serves(engine, state, journal_dir)
    kept = None
    erased: list[PastErasure] = []
    if not await is_empty(engine, state):
        if not replace:
            raise RestoreRefused(
                "the database is not empty, so nothing was restored: give the address of an empty one, or with --replace "
                "have this one archived and replaced"
            )
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
        kept = source.with_name(f"replaced-{at}.tar.gz")
        await _check_one_gateway(manifest, engine, journal_dir)
        erased = await _erasures(engine, manifest)
        try:
            await back_up(engine, journal_dir, kept)
        except OSError as failure:
            raise RestoreRefused(
                f"the present database cannot be archived in {kept.parent} ({failure.strerror}), so nothing was restored: copy the backup to "
                "a folder with room for both"
            ) from failure
        say(f"the database as it was is kept in {kept}")
    with _journals_back(source, journal_dir) as segments:
        if engine.dialect.name == "sqlite":
            await _restore_sqlite(engine, source, manifest)
        else:
            await _restore_postgresql(engine, source, manifest, replaces=kept is not None)
    is_newest = manifest.revision == newest()
    last = await last_entry(engine) if erased else 0
    places = await read_places(engine) if is_newest else None
    gaps = [] if journal_dir is None or not is_newest else await find_gaps(engine, journal_dir, socket.gethostname())
    left = [] if journal_dir is None else [each for each in waiting(journal_dir, places or {}) if each.entries]
    return Restored(
        manifest=manifest,
        segments=segments,
        waiting=sum(each.entries for each in left),
        strangers=() if places is None else tuple(_strangers(left, places.keys(), manifest)),
        gaps=tuple(gaps),
        is_newest=is_newest,
        replaced=None if kept is None else str(kept),
        erased_since=tuple(each for each in erased if each.number > last),
    )


async def _erasures(engine: AsyncEngine, manifest: Manifest) -> list[PastErasure]:
    """Return the erasures that the present database knows of; none where it is another gateway's, as far as that can be told."""
    async with engine.connect() as connection:
        begins = await _begins(connection)
    return [] if "" in (manifest.begins, begins) or manifest.begins != begins else await past_erasures(engine)


def _check(manifest: Manifest, engine: AsyncEngine, journal_dir: Path | None) -> None:
    kind = engine.dialect.name
    if manifest.kind != kind:
        raise RestoreRefused(
            f"this backup is of {_NAMES[manifest.kind]}, and the database is {_NAMES[kind]}: restore it to one of its own kind, and then "
            "use `weighbridge database copy`"
        )
    if manifest.revision not in revisions():
        raise RestoreRefused(
            f"this backup has the schema {manifest.revision}, of a newer version ({manifest.version}): install that one; the "
            f"latest that this one knows is {newest()}"
        )
    _check_tables(manifest)
    if journal_dir is None and any(part.name.startswith(_JOURNALS) for part in manifest.parts):
        raise RestoreRefused(
            "this backup has journals, and without a configuration their folder is not known: give --config, or set WEIGHBRIDGE_CONFIG"
        )


def _check_tables(manifest: Manifest) -> None:
    """Raise ArchiveRefused for a manifest that somebody wrote: it names other tables than its schema has, or has parts of others."""
    if manifest.kind == "sqlite":
        return
    known = columns_at(manifest.revision)
    columns = {each.name: set(each.columns) for each in manifest.tables}
    strange = {part.name.split("/")[1] for part in manifest.parts if part.name.startswith(_TABLES)} - columns.keys()
    strange |= {name for name, there in columns.items() if not there <= known.get(name, set())}
    strange |= set(_ours(manifest.revision)) - columns.keys()
    if strange:
        raise ArchiveRefused(
            f"the manifest was changed: `{min(strange)[:64]}` is not as the schema {manifest.revision} has it"
        )


async def _check_one_gateway(manifest: Manifest, engine: AsyncEngine, journal_dir: Path | None) -> None:
    """Raise RestoreRefused where entries of one gateway's journals would be booked into another's database."""
    async with engine.connect() as connection:
        begins = await _begins(connection)
    if journal_dir is None or "" in (manifest.begins, begins) or manifest.begins == begins:
        return
    if any(each.entries for each in waiting(journal_dir, {})):
        raise RestoreRefused(
            f"this backup is of another gateway's database, made on {manifest.host[:200]}, and the journals in {journal_dir} are of the present "
            "one: the next start would book them into the other's books, so nothing was restored. Move them away if that backup is meant"
        )


def _strangers(left: Sequence[Waiting], known: Collection[str], manifest: Manifest) -> Iterator[str]:
    """Yield the ids of journals that the backup would know, had its gateway written them."""
    made_us = int(datetime.fromisoformat(manifest.made_at).timestamp()) * 1_000_000
    for each in left:
        if each.boot_id not in known and (each.oldest_at_us or made_us) < made_us - _BEGUN_WITHIN_US:
            yield each.boot_id


_NAMES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def _check_nobody_writes(folder: Path) -> None:
    """Raise RestoreRefused while a gateway of this host lives."""
    alive = [boot_id for boot_id in journals(folder) if is_alive(folder, boot_id)]
    if alive or _is_drained_now(folder):
        raise RestoreRefused(f"a gateway is running with the journals in {folder}: stop it first")


def _is_drained_now(folder: Path) -> bool:
    try:
        with (folder / "drain.lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


async def check_nobody_serves(engine: AsyncEngine, state: SchemaState, journal_dir: Path | None) -> None:
    """Raise RestoreRefused while a gateway of this host lives, or where one of any host was seen within a minute and a half.

    This host's are told by their locks, where the folder of their journals is known.
    """
    if journal_dir is not None:
        _check_nobody_writes(journal_dir)
    if state.fit not in ("newest", "older"):
        return
    async with engine.connect() as connection:
        now_us = wall_us()
        if engine.dialect.name == "postgresql":
            now_us = int(await connection.scalar(select(DATABASE_US)) or 0)
        # Where the clock went back, those seen in what is the future now are of before: whoever serves was seen since.
        lately = col(Boot.seen_us).between(now_us - _SEEN_LATELY_US, now_us + _SEEN_LATELY_US)
        query = select(col(Boot.host)).where(lately)
        if journal_dir is not None:
            query = query.where(col(Boot.host) != socket.gethostname()[:200])
        host = await connection.scalar(query.limit(1))
    if host is not None:
        raise RestoreRefused(
            f"a gateway on {host} has used this database within the last minute and a half: stop it, and if it was killed, wait so long"
        )


async def is_empty(engine: AsyncEngine, state: SchemaState) -> bool:
    """Return True for a database without a schema of ours, or without a row in it."""
    if state.fit == "empty":
        return True
    if state.fit == "foreign":
        return False
    async with engine.connect() as connection:
        there = await connection.run_sync(lambda sync: set(inspect(sync).get_table_names()))
        for table in sorted((there & metadata.tables.keys()) - _SEEDED):
            if (await connection.execute(text(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"))).first() is not None:  # noqa: S608 - ours
                return False
    return True


@contextlib.contextmanager
def _journals_back(source: Path, folder: Path | None) -> Iterator[int]:
    """Write the archive's segments that are not here, or are longer than those here, which are parts of them; yield how many. Where the
    rest fails, those that were not here go again: the database that stays may be another's. Raises OSError.
    """
    new: list[Path] = []
    try:
        yield 0 if folder is None else _restore_journals(source, folder, new)
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise


def _restore_journals(source: Path, folder: Path, new: list[Path]) -> int:
    written = 0
    for name, data in read_parts(source, _JOURNALS):
        private_folder(folder)
        match = _SEGMENT.fullmatch(name)
        if match is None:
            raise ArchiveRefused(f"`{name}` is no journal's name")
        path = segment_path(folder, match[1], int(match[2]))
        content = data.read()
        is_here = path.exists()
        if is_here and path.stat().st_size >= len(content):
            continue
        unfinished = path.with_suffix(".restored")
        unfinished.unlink(missing_ok=True)
        try:
            private_file(unfinished)
            unfinished.write_bytes(content)
            unfinished.rename(path)
        except OSError as failure:
            unfinished.unlink(missing_ok=True)
            raise RestoreRefused(
                f"{folder} takes no journal ({failure.strerror}), so nothing was restored"
            ) from failure
        if not is_here:
            new.append(path)
        written += 1
    return written


async def _restore_sqlite(engine: AsyncEngine, source: Path, manifest: Manifest) -> None:
    path = database_file(engine.url.database or "")
    if path is None:
        raise RestoreRefused("a database in memory cannot be restored")
    await engine.dispose()
    with scratch_folder(path.parent, "restore") as scratch:
        copy = scratch / _DATABASE
        private_file(copy)
        try:
            for _, data in read_parts(source, _DATABASE):
                with copy.open("wb") as file:
                    shutil.copyfileobj(data, file)
        except OSError as failure:
            raise RestoreRefused(
                f"{path.parent} takes no copy of the backup's database ({failure.strerror}), so nothing was restored: it needs room for it "
                "once more"
            ) from failure
        try:
            found = _read_file(copy)
            if (tuple(found.tables), found.revision) != (manifest.tables, manifest.revision):
                raise ArchiveRefused(
                    f"{source} does not hold the database that its manifest says; nothing was restored"
                )
            # All or nothing: for SQLite this is one transaction, whatever the file was before.
            with (
                contextlib.closing(sqlite3.connect(copy)) as reading,
                contextlib.closing(sqlite3.connect(path)) as writing,
            ):
                reading.backup(writing)
        except sqlite3.Error as failure:
            raise RestoreRefused(f"{path} cannot be written, and is as it was: {failure}") from failure


async def _restore_postgresql(engine: AsyncEngine, source: Path, manifest: Manifest, *, replaces: bool) -> None:
    async with engine.begin() as connection:
        await connection.execute(*LOCK_SCHEMA)
        before = await connection.run_sync(state_of)
        if not replaces and not await is_empty(engine, before):
            raise RestoreRefused("somebody filled the database meanwhile, so nothing was restored")
        await connection.run_sync(_make_empty, before, manifest.revision)
        driver: Any = (await connection.get_raw_connection()).driver_connection
        rows: dict[str, int] = dict.fromkeys((table.name for table in manifest.tables), 0)
        columns = {table.name: list(table.columns) for table in manifest.tables}
        for name, data in read_parts(source, _TABLES):
            table = name.split("/")[1]
            told = await driver.copy_to_table(table, columns=columns[table], source=_Pieces(data), timeout=_COPY_S)
            rows[table] += int(told.rpartition(" ")[2])
        if wrong := [table.name for table in manifest.tables if rows[table.name] != table.rows]:
            raise ArchiveRefused(
                f"{source} does not hold the rows of `{wrong[0]}` that its manifest says; nothing was changed"
            )


def _make_empty(connection: Connection, before: SchemaState, revision: str) -> None:
    """Leave the tables of a revision, without a row."""
    there = set(inspect(connection).get_table_names())
    ours = there & {*metadata.tables, "alembic_version", *(_ours(before.revision) if before.revision else ())}
    if ours:
        connection.execute(text(f"DROP TABLE {', '.join(map(_quoted, sorted(ours)))}"))
    upgrade(connection, revision)
    connection.execute(text(f"TRUNCATE {', '.join(map(_quoted, _ours(revision)))}"))


class _Pieces:
    """A part of the archive, as the driver reads it."""

    def __init__(self, data: IO[bytes]) -> None:
        self._data = data

    def __aiter__(self) -> "_Pieces":
        return self

    async def __anext__(self) -> bytes:
        piece = self._data.read(_PIECE_BYTES)
        if not piece:
            raise StopAsyncIteration
        return piece
