"""`weighbridge migrate`: once for all that will serve, waited for, and never "done" when it was not."""

import asyncio
import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine, migrate_with, upgrade
from gateway.schema import newest, read_state
from tests.processes import ROOT

_LIMIT_S: Final = 120


async def _run(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command as a job runs it: without a configuration, and with nothing but the database's address."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ |= {"PYTHONPATH": str(ROOT), "WEIGHBRIDGE_DATABASE_URL": url}
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "weighbridge", "migrate", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


async def _at(url: str, revision: str) -> None:
    engine = make_engine(url)
    await migrate_with(engine, lambda connection: upgrade(connection, revision))
    await engine.dispose()


async def test_two_jobs_at_once_are_one_migration(empty_database_url: str) -> None:
    """From nothing and from an older schema; the check before and after tells the difference, and changes nothing."""
    for older, has in ((None, "no schema"), ("0025", "the schema 0025")):
        if older is not None:
            engine = make_engine(empty_database_url)
            await migrate_with(engine, lambda connection: upgrade(connection, "0025", down=True))
            await engine.dispose()
        behind = await _run(empty_database_url, "--check")
        assert (behind.returncode, behind.stdout) == (
            1,
            f"to do: the database has {has}, and this version needs {newest()}\n",
        )
        jobs = await asyncio.gather(*(_run(empty_database_url) for _ in range(2)))
        assert [each.returncode for each in jobs] == [0, 0], [each.stderr for each in jobs]
        idle = f"nothing to do: the database has schema {newest()}\n"
        assert [each.stdout for each in jobs].count(idle) == 1
        fits = await _run(empty_database_url, "--check")
        assert (fits.returncode, fits.stdout, fits.stderr) == (0, idle, "")


async def test_a_killed_migration_is_begun_anew(empty_database_url: str) -> None:
    """Killed amid its transaction it leaves the schema that was there, and the next one does it all."""
    await _at(empty_database_url, "0025")
    engine = make_engine(empty_database_url)
    job = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weighbridge", "migrate"),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "WEIGHBRIDGE_DATABASE_URL": empty_database_url},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(_LIMIT_S):
        while not await _is_changing(engine):
            assert job.returncode is None
    job.kill()
    await job.wait()
    assert (await read_state(engine)).revision == "0025"
    again = await _run(empty_database_url)
    assert again.returncode == 0, again.stderr
    assert (await read_state(engine)).fit == "newest"
    await engine.dispose()


async def _is_changing(engine: AsyncEngine) -> bool:
    """Whether somebody else's transaction writes."""
    if engine.dialect.name == "postgresql":
        async with engine.connect() as connection:
            writing = (
                "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND datname = current_database()"
            )
            return bool(await connection.scalar(text(writing)))
    with contextlib.closing(sqlite3.connect(engine.url.database or "", timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
    await asyncio.sleep(0.005)
    return False


async def test_a_database_that_stays_away_fails_the_job() -> None:
    """In a sentence, after the bound, with a status that no scheduler takes for done; the check's is not the one for "behind"."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for arguments in (["--wait-s", "0"], ["--check", "--wait-s", "0"]):
        failed = await _run(f"postgresql://u@127.0.0.1:{port}/db", *arguments)
        assert failed.returncode == 2
        assert "the database cannot be reached" in failed.stderr
        assert "Traceback" not in failed.stderr


async def test_what_is_not_ours_fails_the_job(empty_database_url: str) -> None:
    """Another program's database, and a newer version's that took something away; neither is touched. A newer one that did not is done."""
    await _at(empty_database_url, "head")
    engine = make_engine(empty_database_url)
    for revision, oldest, status in (("deadbeef", None, 2), ("9999", "9999", 2), ("9999", newest(), 0)):
        async with engine.begin() as connection:
            await connection.execute(
                text("UPDATE alembic_version SET version_num = :revision, serves_from = :oldest"),
                {"revision": revision, "oldest": oldest},
            )
        for arguments in ([], ["--check"]):
            assert (await _run(empty_database_url, *arguments)).returncode == status
        assert (await read_state(engine)).revision == revision
    await engine.dispose()


async def test_a_file_of_the_older_schema_is_kept(tmp_path: Path) -> None:
    """SQLite's is copied before, as by `serve`."""
    url = f"sqlite:///{tmp_path}/books.sqlite"
    await _at(url, "0025")
    assert (await _run(url)).returncode == 0
    assert [each.partition(".2")[0] for each in os.listdir(tmp_path) if ".schema-" in each] == ["books.schema-0025"]  # noqa: PTH208 - names are enough
