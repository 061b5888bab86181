"""Backups: taken under load, restored elsewhere, the same to the row; and restores that would lose something are refused."""

import asyncio
import contextlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog
from accounts.tables import ApiKey, Organisation, Team
from cost.ledger.drain import Drain
from cost.ledger.journal import Journal
from cost.ledger.journal_places import JournalPlaces
from cost.ledger.ledger import Ledger
from cost.ledger.orphan_reaper import OrphanReaper
from cost.ledger.segments import encode_line, journals, segment_path
from cost.ledger.store import LedgerStore
from cost.ledger.verify import check
from gateway.archive import (
    FORMAT,
    ArchiveRefused,
    ArchiveWriter,
    Manifest,
    read_manifest,
    read_parts,
    scratch_folder,
)
from gateway.backup import Restored, RestoreRefused, back_up, restore
from gateway.cli import app
from gateway.database import make_engine, metadata, migrate_with, upgrade
from gateway.database_copy import CopyRefused, copy_database
from gateway.schema import SchemaRefused, read_state, require_schema, upgrade_with_backup
from tests.cost.entries import reserve, settle
from tests.postgres import Backend, Postgres
from tests.processes import ROOT
from tests.sqlite import newest_sqlite

NEVER_S = 3600.0
PROVIDERS = "{models: [{model_id: m, provider: a, max_context_tokens: 8000, deployments: [{kind: scripted}]}]}"
END_US = 2 * reserve().at_us
invoke = CliRunner().invoke


@pytest.fixture
async def elsewhere(backend: Backend, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    """An empty database of the same kind on another machine."""
    if backend == "sqlite":
        url = f"sqlite:///{tmp_path}/elsewhere/books.sqlite"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        url = await server.empty_database()
    engine = make_engine(url)
    yield engine
    await engine.dispose()


async def _rows(engine: AsyncEngine) -> dict[str, list[str]]:
    """Every row of every table."""
    async with engine.connect() as connection:
        found = {}
        for table in metadata.sorted_tables:
            rows = await connection.execute(text(f"SELECT * FROM {table.name}"))  # noqa: S608 - ours
            found[table.name] = sorted(repr(dict(row)) for row in rows.mappings())
        return found


def _drain(folder: Path, engine: AsyncEngine, interval_s: float = NEVER_S) -> Drain:
    store = LedgerStore(engine)
    return Drain(
        folder,
        store,
        interval_s=interval_s,
        batch=20,
        presence=OrphanReaper(engine, store, host="here"),
        places=JournalPlaces(engine),
    )


class _Load:
    """A gateway's books under load: what it wrote before a moment is known."""

    def __init__(self, folder: Path, engine: AsyncEngine) -> None:
        self.ledger = Ledger(Journal(folder, segment_bytes=20_000), look_every_s=0.01)
        self.drain = _drain(folder, engine, 0.005)
        self.written = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.ledger.start()
        await self.drain.start()
        self._task = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.ledger.aclose()
        await self.drain.aclose()

    async def _write(self) -> None:
        while True:
            name, boot_id = f"req_{self.written}", self.ledger.boot_id
            await self.ledger.reserve(reserve(name, boot_id=boot_id))
            self.ledger.settle(settle(name, boot_id=boot_id, input_nanousd=600_000, output_nanousd=400_000))
            # In the file, as is what an upstream is called for.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.written += 1
            await asyncio.sleep(0.0005)

    async def until(self, count: int) -> None:
        while self.written < count:  # noqa: ASYNC110 - as a poll of another process
            await asyncio.sleep(0.005)


async def test_a_backup_under_load_has_all_that_was_written_before(
    engine: AsyncEngine, elsewhere: AsyncEngine, tmp_path: Path
) -> None:
    """What is in the archive's database and its journals together is every request that was booked before it began."""
    source, target = tmp_path / "journal", tmp_path / "elsewhere" / "journal"
    async with _Load(source, engine) as load:
        await load.until(300)
        before = load.written
        manifest = await back_up(engine, source, tmp_path / "b.tar.gz")
        await load.until(before + 20)
    assert any(part.name.startswith("journals/") for part in manifest.parts)
    done = await restore(elsewhere, target, tmp_path / "b.tar.gz", replace=False, say=_nothing)
    assert done.manifest == manifest
    assert (done.is_newest, done.gaps) == (True, ())
    drain = _drain(target, elsewhere)
    await drain.start()
    async with elsewhere.connect() as connection:
        rows = await connection.execute(text("SELECT request_id FROM ledger_entry WHERE entry = 'settle'"))
        settled = set(rows.scalars())
    assert {f"req_{number}" for number in range(before)} <= settled
    assert (await check(elsewhere, 0, END_US, now_us=END_US)).differences == 0
    assert journals(target) == {}
    await drain.aclose()


async def test_a_restored_database_is_the_same_to_the_row(
    engine: AsyncEngine, elsewhere: AsyncEngine, tmp_path: Path
) -> None:
    """Every table, every row, every kind of value."""
    async with _Load(tmp_path / "journal", engine) as load:
        await load.until(50)
    await _fill(engine)
    rows = await _rows(engine)
    assert len(rows["ledger_entry"]) >= 100
    manifest = await back_up(engine, tmp_path / "journal", tmp_path / "b.tar.gz")
    assert {table.name: table.rows for table in manifest.tables if table.rows}.items() >= {
        "ledger_entry": len(rows["ledger_entry"]),
        "organisation": 1,
    }.items()
    await restore(elsewhere, None, tmp_path / "b.tar.gz", replace=False, say=_nothing)
    assert await _rows(elsewhere) == rows


async def _fill(engine: AsyncEngine) -> None:
    """Values that a careless format would change."""
    odd, at = "tab\t newline\n \\N \\. ünï ' \" €", datetime(2026, 4, 5, 12, 30, tzinfo=UTC)
    rows = (
        Organisation(organisation_id="o", name=odd, created_at=at),
        Team(team_id="t", organisation_id="o", name="", created_at=at),
        ApiKey(
            key_id="k", team_id="t", name=odd, digest="d", pepper_id="p", last4="last", created_at=at, models=["a", odd]
        ),
    )
    async with engine.begin() as connection:
        for row in rows:
            await connection.execute(metadata.tables[row.__tablename__].insert(), [row.model_dump()])


def _nothing(_: str) -> None:
    pass


async def test_a_place_that_is_not_empty_is_refused_and_kept(engine: AsyncEngine, tmp_path: Path) -> None:
    """With `replace` it is archived first, so the replacement can be taken back."""
    await LedgerStore(engine).insert([reserve("old"), settle("old")])
    await back_up(engine, None, tmp_path / "old.tar.gz")
    await LedgerStore(engine).insert([reserve("new"), settle("new")])
    rows = await _rows(engine)
    with pytest.raises(RestoreRefused, match="is not empty, so nothing was restored"):
        await restore(engine, None, tmp_path / "old.tar.gz", replace=False, say=_nothing)
    assert await _rows(engine) == rows
    said: list[str] = []
    await restore(engine, None, tmp_path / "old.tar.gz", replace=True, say=said.append)
    assert len((await _rows(engine))["ledger_entry"]) == 2
    (kept,) = tmp_path.glob("replaced-*.tar.gz")  # noqa: ASYNC240
    assert said == [f"the database as it was is kept in {kept}"]
    kept = kept.rename(tmp_path / "kept.tar.gz")
    await restore(engine, None, kept, replace=True, say=_nothing)
    assert await _rows(engine) == rows


async def test_a_restore_drops_nothing_that_a_journal_has(engine: AsyncEngine, tmp_path: Path) -> None:
    """The rows between the backup and the end come back from the journals; those of deleted files are told as missing."""
    folder = tmp_path / "journal"
    journal = Journal(folder)
    ledger = Ledger(journal, look_every_s=NEVER_S)
    await ledger.start()
    drain = _drain(folder, engine)
    await drain.start()
    for number in range(40):
        name = f"req_{number}"
        await ledger.reserve(reserve(name, boot_id=ledger.boot_id))
        ledger.settle(settle(name, boot_id=ledger.boot_id, input_nanousd=600_000, output_nanousd=400_000))
        if number == 20:
            assert await drain.drain_now()
            await back_up(engine, folder, tmp_path / "b.tar.gz")
            with pytest.raises(RestoreRefused, match="a gateway is running with the journals"):
                await restore(engine, folder, tmp_path / "b.tar.gz", replace=True, say=_nothing)
    assert await drain.drain_now()
    assert drain._loop is not None
    drain._loop.cancel()
    drain._let_go()
    await ledger.aclose()
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE boot SET seen_us = 1"))
    done = await restore(engine, folder, tmp_path / "b.tar.gz", replace=True, say=_nothing)
    assert isinstance(done, Restored)
    assert (done.waiting, done.gaps, done.segments) == (38, (), 0)
    second = _drain(folder, engine)
    await second.start()
    assert len((await _rows(engine))["ledger_entry"]) == 80
    assert (await check(engine, 0, END_US, now_us=END_US)).differences == 0
    await second.aclose()


async def test_a_gateway_of_another_host_is_not_pulled_from_under(engine: AsyncEngine, tmp_path: Path) -> None:
    """Whoever was seen lately may still write."""
    await back_up(engine, None, tmp_path / "b.tar.gz")
    await OrphanReaper(engine, LedgerStore(engine), host="there").show(["x"])
    with pytest.raises(RestoreRefused, match="a gateway on there has used this database"):
        await restore(engine, None, tmp_path / "b.tar.gz", replace=True, say=_nothing)


async def test_a_clock_that_went_back_keeps_nobody_out(engine: AsyncEngine, tmp_path: Path) -> None:
    """A gateway that was seen days ahead of now is none that serves."""
    await back_up(engine, None, tmp_path / "b.tar.gz")
    await OrphanReaper(engine, LedgerStore(engine), host="there").show(["x"])
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE boot SET seen_us = seen_us + 300000000000"))
    await restore(engine, None, tmp_path / "b.tar.gz", replace=True, say=_nothing)


async def test_a_damaged_archive_changes_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    """Cut short, changed in one byte, or something else altogether: it is read to its end before anything is done."""
    await LedgerStore(engine).insert([reserve(f"r{number}") for number in range(50)])
    await back_up(engine, None, tmp_path / "b.tar.gz")
    rows, whole = await _rows(engine), (tmp_path / "b.tar.gz").read_bytes()
    middle = len(whole) // 2
    for number, content in enumerate(
        (
            whole[:middle],
            whole[: middle + middle // 2],
            whole[: len(whole) - 4],
            whole[:middle] + bytes((whole[middle] ^ 1,)) + whole[middle + 1 :],
            b"no archive",
            b"",
        )
    ):
        path = tmp_path / f"bad{number}"
        path.write_bytes(content)
        with pytest.raises(ArchiveRefused):
            await restore(engine, None, path, replace=True, say=_nothing)
    assert await _rows(engine) == rows


def test_a_changed_part_is_named(tmp_path: Path) -> None:
    """Also where the archive as such is sound."""
    newest_sqlite(tmp_path / "a.sqlite")
    asyncio.run(_back_up(f"sqlite:///{tmp_path}/a.sqlite", tmp_path / "b.tar.gz"))
    manifest = read_manifest(tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as tar:
        for name, data in (("database.sqlite", b"x"), ("manifest.json", msgspec.json.encode(manifest))):
            head = tarfile.TarInfo(name)
            head.size = len(data)
            tar.addfile(head, io.BytesIO(data))
    with pytest.raises(ArchiveRefused, match=r"is damaged: `database\.sqlite` is not as it was written"):
        read_manifest(tmp_path / "c.tar.gz")


async def _back_up(url: str, target: Path) -> None:
    engine = make_engine(url)
    await back_up(engine, None, target)
    await engine.dispose()


async def test_a_backup_is_not_overwritten(engine: AsyncEngine, tmp_path: Path) -> None:
    """And one that fails leaves nothing."""
    await back_up(engine, None, tmp_path / "b.tar.gz")
    with pytest.raises(ArchiveRefused, match="is there already; give another name"):
        await back_up(engine, None, tmp_path / "b.tar.gz")
    with pytest.raises(OSError, match="No such file"):
        await back_up(engine, None, tmp_path / "nowhere" / "b.tar.gz")
    assert [path.name for path in tmp_path.glob("*.part")] == []  # noqa: ASYNC240


async def test_a_backup_of_an_older_schema_is_restored_as_it_was(
    empty_database_url: str, elsewhere: AsyncEngine, tmp_path: Path
) -> None:
    """It is upgraded by whoever may; one of a newer version is refused."""
    old = make_engine(empty_database_url)
    with pytest.raises(SchemaRefused, match="the database is empty"):
        await back_up(old, None, tmp_path / "e.tar.gz")
    await migrate_with(old, lambda connection: upgrade(connection, "0006"))
    await back_up(old, None, tmp_path / "b.tar.gz")
    await old.dispose()
    done = await restore(elsewhere, None, tmp_path / "b.tar.gz", replace=False, say=_nothing)
    assert not done.is_newest
    assert (await read_state(elsewhere)).revision == "0006"
    await upgrade_with_backup(elsewhere, _nothing)
    assert (await read_state(elsewhere)).fit == "newest"


async def test_a_backup_of_the_other_kind_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    """With the way that there is."""
    newest_sqlite(tmp_path / "a.sqlite")
    await _back_up(f"sqlite:///{tmp_path}/a.sqlite", tmp_path / "b.tar.gz")
    engine = make_engine(await postgres.empty_database())
    with pytest.raises(RestoreRefused, match=r"is of SQLite, and the database is PostgreSQL: .*database copy"):
        await restore(engine, None, tmp_path / "b.tar.gz", replace=False, say=_nothing)
    await engine.dispose()


async def test_sqlite_moves_to_postgresql_and_back(postgres: Postgres, tmp_path: Path) -> None:
    """Every table with as many rows, and the books agree; a target that has something is refused."""
    source = make_engine(newest_sqlite(tmp_path / "a.sqlite"))
    async with _Load(tmp_path / "journal", source) as load:
        await load.until(30)
    await _fill(source)
    target, back = make_engine(await postgres.empty_database()), make_engine(f"sqlite:///{tmp_path}/back.sqlite")
    told: dict[str, int] = {}
    total = await copy_database(source, target, told.__setitem__)
    rows = await _rows(source)
    assert told == {name: len(found) for name, found in rows.items()}
    assert total == sum(told.values())
    assert (await check(target, 0, END_US, now_us=END_US)).differences == 0
    with pytest.raises(CopyRefused, match="the database to copy to is not empty"):
        await copy_database(source, target, told.__setitem__)
    await copy_database(target, back, told.__setitem__)
    assert await _rows(back) == rows
    for engine in (source, target, back):
        await engine.dispose()


async def test_a_row_that_postgresql_does_not_take_is_named(postgres: Postgres, tmp_path: Path) -> None:
    """SQLite keeps what no column of PostgreSQL's has room for; then nothing is copied."""
    source = make_engine(newest_sqlite(tmp_path / "a.sqlite"))
    await _fill(source)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute("UPDATE team SET name = ?", ("a\0b",))
    target = make_engine(await postgres.empty_database())
    with pytest.raises(CopyRefused, match="a row of `team` is not taken by the other database"):
        await copy_database(source, target, lambda *_: None)
    assert (await _rows(target))["organisation"] == []
    await source.dispose()
    await target.dispose()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "c.yaml").write_text(f"cost: {{journal_dir: {tmp_path}/journal}}\nproviders: {PROVIDERS}\n")
    monkeypatch.setenv("WEIGHBRIDGE_CONFIG", str(tmp_path / "c.yaml"))
    monkeypatch.setenv("WEIGHBRIDGE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", newest_sqlite(tmp_path / "a.sqlite"))
    return tmp_path


def test_the_commands_say_what_was_done(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup, a restore to another place, and refusals in one line."""
    (host / "journal").mkdir()

    segment_path(host / "journal", "dead", 0).write_bytes(encode_line(reserve()))
    done = invoke(app, ["backup", str(host / "b.tar.gz")])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{host}/b.tar.gz: 2 rows of ")
    again = invoke(app, ["backup", str(host / "b.tar.gz")])
    assert (again.exit_code, again.stderr) == (1, f"weighbridge: {host}/b.tar.gz is there already; give another name\n")
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{host}/other.sqlite")
    segment_path(host / "journal", "dead", 0).unlink()
    restored = invoke(app, ["restore", str(host / "b.tar.gz")])
    assert restored.exit_code == 0
    assert restored.stdout.endswith("; 1 file of journals\n")
    assert "1 line of journals here" in restored.stderr
    assert segment_path(host / "journal", "dead", 0).exists()
    assert invoke(app, ["restore", str(host / "nothing")]).exit_code == 1
    copied = invoke(app, ["database", "copy", "--to", f"sqlite:///{host}/third.sqlite", "--json"])
    assert copied.exit_code == 0, copied.stderr
    # The restore's entry in the audit log is one.
    assert json.loads(copied.stdout)["rows"] == 2
    missing = invoke(app, ["database", "copy", "--from", f"sqlite:///{host}/nowhere.sqlite", "--to", "sqlite:///x"])
    assert (missing.exit_code, missing.stderr) == (2, f"weighbridge: {host}/nowhere.sqlite: there is no such file\n")


async def test_a_column_that_somebody_added_does_not_spoil_a_backup(postgres: Postgres, tmp_path: Path) -> None:
    """What is ours is restored, and the manifest tells what was left out."""
    source, target = make_engine(await postgres.database()), make_engine(await postgres.empty_database())
    await _fill(source)
    rows = await _rows(source)
    async with source.begin() as connection:
        await connection.execute(text("ALTER TABLE team ADD COLUMN legacy jsonb DEFAULT '{}'"))
    manifest = await back_up(source, None, tmp_path / "b.tar.gz")
    assert manifest.left_out == ("team.legacy",)
    await restore(target, None, tmp_path / "b.tar.gz", replace=False, say=_nothing)
    assert await _rows(target) == rows
    await source.dispose()
    await target.dispose()


@pytest.mark.parametrize(
    ("revision", "said"), [("ca81bd47c050", "is another program's"), ("9999", "of a newer version")]
)
async def test_nothing_is_restored_over_what_is_not_ours(
    empty_database_url: str, tmp_path: Path, revision: str, said: str
) -> None:
    """Another program's database, and a newer version's, stay as they are, whatever is asked."""
    engine = make_engine(empty_database_url)
    await require_schema(engine)
    await back_up(engine, None, tmp_path / "b.tar.gz")
    async with engine.begin() as connection:
        named = text("UPDATE alembic_version SET version_num = :revision, serves_from = :revision")
        await connection.execute(named, {"revision": revision})
    with pytest.raises(SchemaRefused, match=said):
        await restore(engine, None, tmp_path / "b.tar.gz", replace=True, say=_nothing)
    with pytest.raises(SchemaRefused, match=said):
        await require_schema(engine)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == revision
    await engine.dispose()


def test_two_backups_to_one_name_do_not_mix(tmp_path: Path) -> None:
    """The second is refused while the first writes, whatever a killed one left is written over, and the first is whole."""
    (tmp_path / "b.tar.gz.part").write_bytes(b"of a killed one" * 1_000)
    first = ArchiveWriter(tmp_path / "b.tar.gz")
    with pytest.raises(ArchiveRefused, match="another backup is being written"):
        ArchiveWriter(tmp_path / "b.tar.gz")
    first.add("a", b"whole")
    manifest = Manifest(
        format=FORMAT,
        version="1",
        made_at="",
        host="",
        kind="sqlite",
        revision="0001",
        tables=(),
        journals=False,
        parts=tuple(first.parts),
    )
    first.finish(manifest)
    assert read_manifest(tmp_path / "b.tar.gz") == manifest
    assert [each.name for each in tmp_path.iterdir()] == ["b.tar.gz"]


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    """Copies of whole databases would fill the disk; those of living processes stay."""
    killed = tmp_path / ".weighbridge-backup-killed"
    killed.mkdir()
    (killed / "database.sqlite").write_bytes(b"large")
    with scratch_folder(tmp_path, "backup") as living:
        assert not killed.exists()
        with scratch_folder(tmp_path, "backup") as other:
            assert living.is_dir()
            assert living != other
    assert list(tmp_path.iterdir()) == []


async def test_journals_of_one_gateway_are_not_booked_into_anothers_database(
    engine: AsyncEngine, elsewhere: AsyncEngine, tmp_path: Path
) -> None:
    """A backup of another gateway is refused while there are journals here; once they are away, it is restored."""
    folder = tmp_path / "journal"
    folder.mkdir()
    await require_schema(elsewhere)
    for each in (engine, elsewhere):
        actor = Actor(kind="gateway", actor_id="test", name="test", organisation_id="default")
        await AuditLog(each).note(actor, "team.created", "team", "t", after={"at": str(each.url)})
    await back_up(elsewhere, None, tmp_path / "others.tar.gz")
    segment_path(folder, "dead", 0).write_bytes(encode_line(reserve()))
    rows = await _rows(engine)
    with pytest.raises(RestoreRefused, match=r"is of another gateway's database.*Move them away"):
        await restore(engine, folder, tmp_path / "others.tar.gz", replace=True, say=_nothing)
    assert await _rows(engine) == rows
    assert not list(tmp_path.glob("replaced-*"))  # noqa: ASYNC240
    segment_path(folder, "dead", 0).unlink()
    await restore(engine, folder, tmp_path / "others.tar.gz", replace=True, say=_nothing)
    assert await _rows(engine) == await _rows(elsewhere)


@pytest.mark.parametrize("deed", ["fewer tables", "another table", "another schema", "a part more"])
async def test_a_manifest_that_was_changed_changes_nothing(engine: AsyncEngine, tmp_path: Path, deed: str) -> None:
    """Its sums are right, as somebody who changes one can see to; what it says is not what the schema has."""
    await LedgerStore(engine).insert([reserve("a"), settle("a")])
    folder = tmp_path / "journal"
    folder.mkdir()
    segment_path(folder, "dead", 0).write_bytes(encode_line(reserve()))
    await back_up(engine, folder, tmp_path / "b.tar.gz")
    segment_path(folder, "dead", 0).unlink()
    manifest, parts = read_manifest(tmp_path / "b.tar.gz"), []
    for name, data in read_parts(tmp_path / "b.tar.gz", ""):
        if name != "manifest.json":
            parts.append((name, data.read()))
    first = manifest.tables[0]
    changed: dict[str, Any]
    if deed == "fewer tables":
        changed = {"tables": manifest.tables[1:]}
    elif deed == "another table":
        changed = {"tables": (*manifest.tables, msgspec.structs.replace(first, name="pg_class"))}
    elif deed == "another schema":
        changed = {"revision": "0001"}
    else:
        changed, parts = {}, [*parts, ("tables/pg_class/000000", b"1\n")]
    writer = ArchiveWriter(tmp_path / "changed.tar.gz")
    for name, content in parts:
        writer.add(name, content)
    writer.finish(msgspec.structs.replace(manifest, **changed, parts=tuple(writer.parts)))
    rows = await _rows(engine)
    if (deed, manifest.kind) == ("a part more", "sqlite"):
        await restore(engine, folder, tmp_path / "changed.tar.gz", replace=True, say=_nothing)
    else:
        with pytest.raises(ArchiveRefused):
            await restore(engine, folder, tmp_path / "changed.tar.gz", replace=True, say=_nothing)
        assert journals(folder) == {}
    assert await _rows(engine) == rows


def test_a_full_disk_leaves_everything_as_it_was(host: Path) -> None:
    """Of a backup and of a restore: a sentence that names the place, and no file that nobody asked for."""
    newest_sqlite(host / "w.sqlite")
    with contextlib.closing(sqlite3.connect(host / "w.sqlite")) as connection, connection:
        connection.execute("UPDATE audit_head SET hash = ?", ("x" * 300_000,))
    asyncio.run(_back_up(f"sqlite:///{host}/w.sqlite", host / "b.tar.gz"))
    before = sorted(each.name for each in host.iterdir())
    # No mount is needed: the system lets the command write no file of more than 100 kB.
    for arguments, said in (
        (["backup", f"{host}/c.tar.gz"], f"cannot be copied to {host}"),
        (["restore", f"{host}/b.tar.gz"], f"{host} takes no copy of the backup's database"),
    ):
        done = subprocess.run(
            ["/bin/sh", "-c", 'ulimit -f 200; exec "$0" -m weighbridge "$@"', sys.executable, *arguments],
            env={**os.environ, "DATABASE_URL": f"sqlite:///{host}/w.sqlite"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert sorted(each.name for each in host.iterdir()) == before


@pytest.mark.parametrize(("entered_us", "is_told"), [(0, True), (90_000_000, False)])
async def test_journals_of_another_gateway_are_told_where_the_database_was_empty(
    engine: AsyncEngine, elsewhere: AsyncEngine, tmp_path: Path, entered_us: int, is_told: bool
) -> None:
    """Those older than the backup whose processes it does not know; a process that began after it is its own gateway's."""
    folder = tmp_path / "journal"
    folder.mkdir()
    manifest = await back_up(engine, None, tmp_path / "b.tar.gz")
    made_us = int(datetime.fromisoformat(manifest.made_at).timestamp()) * 1_000_000
    entry = reserve(at_us=made_us + entered_us if entered_us else reserve().at_us)
    segment_path(folder, "theirs", 0).write_bytes(encode_line(entry))
    done = await restore(elsewhere, folder, tmp_path / "b.tar.gz", replace=False, say=_nothing)
    assert isinstance(done, Restored)
    assert (done.waiting, done.strangers) == (1, ("theirs",) if is_told else ())


def test_the_command_says_what_to_do_with_anothers_journals(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the gateway starts, in a sentence that names the files."""
    (host / "journal").mkdir()
    assert invoke(app, ["backup", str(host / "b.tar.gz")]).exit_code == 0
    segment_path(host / "journal", "theirs", 0).write_bytes(encode_line(reserve()))
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{host}/other.sqlite")
    done = invoke(app, ["restore", str(host / "b.tar.gz")])
    assert done.exit_code == 0, done.output
    assert "1 journal in" in done.stderr
    assert "move the files away before the gateway starts" in done.stderr
    assert "(boot-theirs-*)" in done.stderr
