"""The page of upgrades: its commands do what it says, between this version and one to come, and logs go on when their file is emptied."""

import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from gateway.schema import newest
from tests.documents.page import Shell, blocks, shell
from tests.postgres import Backend, Postgres, postgres_binaries
from tests.processes import ROOT, make_site, oracle, serving, until
from tests.running_gateway import model
from tests.versions import LATER, Place, later

PAGE: Final = ROOT / "docs" / "upgrade.md"
BACKUP, UPGRADE, BACK, RESTORE, DUMP, RESTORE_DUMP = (
    block.text for block in blocks(PAGE, {"SCHEMA": newest()}) if block.language == "sh"
)
_COMMAND: Final = """#!/bin/sh
export PYTHONPATH="$(cat {folder}/tree)"
exec {python} -c "import sys; from gateway.cli import app; sys.argv[0] = 'weighbridge'; app()" "$@"
"""


class _Operator:
    """A place with a gateway, and a shell in it whose `weighbridge` is of the version that is installed now."""

    def __init__(self, place: Place, reader: Shell) -> None:
        self.place = place
        self.run = reader.run

    def install(self, tree: Path) -> None:
        """Install a version."""
        self.place.runs(tree, "gateway.cli")
        (self.place.folder / "tree").write_text(str(tree))


@asynccontextmanager
async def operator(folder: Path, url: str | None) -> AsyncIterator[tuple[_Operator, str]]:
    """Somebody who has a team with a key."""
    programs = folder / "programs"
    programs.mkdir()
    with oracle(folder) as upstream:
        place = Place(folder / "place", upstream, url, migrates=False if url else None)
        command = programs / "weighbridge"
        command.write_text(_COMMAND.format(folder=place.folder, python=sys.executable))
        command.chmod(0o755)
        variables = {"WEIGHBRIDGE_CONFIG": str(place.folder / "gateway.yaml")}
        variables |= {} if url is None else {"WEIGHBRIDGE_DATABASE_URL": url}
        found = postgres_binaries()
        path = ":".join([str(programs), *([str(found)] if found else [])])
        async with shell(place.folder, first=path, **variables) as reader:
            here = _Operator(place, reader)
            here.install(ROOT)
            if url:
                await place.done("migrate")
            await place.done("teams", "create", "team_a")
            yield here, (await place.done("keys", "create", "team_a")).splitlines()[-1]


@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("kind", "older_code_serves"), [("postgresql", True), ("sqlite", False)])
async def test_upgraded_and_back(
    tmp_path: Path, kind: Backend, older_code_serves: bool, request: pytest.FixtureRequest
) -> None:
    """Backed up while it serves, upgraded, and back: at once where the schema lets it, else after what the page says."""
    url = await request.getfixturevalue("postgres").empty_database() if kind == "postgresql" else None
    tree = later(tmp_path / "later", older_code_serves=older_code_serves)
    async with operator(tmp_path, url) as (here, key):
        async with here.place.serving():
            assert await here.place.ask(3, key) == [200] * 3
            await here.run(BACKUP)
        here.install(tree)
        assert f"schema {LATER}, as this version needs it" in await here.run(UPGRADE)
        async with here.place.serving():
            assert await here.place.ask(2, key) == [200] * 2
        here.install(ROOT)
        if not older_code_serves:
            refused = await here.place.run("serve")
            assert refused.returncode != 0
            assert f"schema {LATER}, of a newer version" in refused.stderr
            here.install(tree)
            # The list ends with 1: nothing was done yet.
            assert "later_fact" in await here.run(BACK.replace("\n", " || [ $? = 1 ]\n", 1))
            here.install(ROOT)
        async with here.place.serving():
            assert await here.place.ask(1, key) == [200]
            await until(lambda: here.place.has_booked(6))
        # And the backup, by the version whose schema the database has: what came later is in the journals, or told to be missing.
        if older_code_serves:
            refused = await here.place.run(*RESTORE.splitlines()[0].split()[1:])
            assert (refused.returncode, "nothing was restored" in refused.stderr) == (1, True)
            here.install(tree)
        told = await here.run(RESTORE.replace("ledger verify", "ledger verify || [ $? = 1 ]"))
        assert "the books agree" in told or "missing" in told
        async with here.place.serving():
            assert await here.place.ask(1, key) == [200]


@pytest.mark.long
@pytest.mark.timeout(1_200)
async def test_restored_by_postgresqls_own_means(tmp_path: Path, postgres: Postgres) -> None:
    """A dump, put back over what came later: keys work, and the books agree about what is in them."""
    found = postgres_binaries()
    if found is None or not (found / "pg_dump").exists():
        pytest.skip("pg_dump is not installed here")
    async with operator(tmp_path, await postgres.empty_database()) as (here, key):
        async with here.place.serving():
            assert await here.place.ask(4, key) == [200] * 4
            await until(lambda: here.place.has_booked(4))
        await here.run(DUMP)
        await here.place.done("teams", "create", "team_late")
        assert "the books agree: 4 entries" in await here.run(RESTORE_DUMP)
        assert "team_late" not in await here.place.done("teams", "list")
        async with here.place.serving():
            assert await here.place.ask(1, key) == [200]
            await until(lambda: here.place.has_booked(5))


async def test_logs_go_on_when_their_file_is_emptied_and_stay_with_one_that_is_moved(tmp_path: Path) -> None:
    """As the page says of `copytruncate`: new lines stand at the beginning, without a hole; a moved file is written on."""
    (rules,) = (block.text for block in blocks(PAGE, {}) if block.language == "logrotate")
    assert "copytruncate" in rules
    with oracle(tmp_path) as upstream:
        site = await make_site(tmp_path, [model("only", [upstream.deployment("ok")])])
        async with serving(site) as server:
            log = server.log_path
            shutil.copyfile(log, tmp_path / "gateway.log.1")
            with log.open("r+b") as emptied:
                emptied.truncate()
            server.signal(signal.SIGHUP)
            await until(lambda: b"\n" in log.read_bytes())
            assert log.read_bytes().startswith(b"{")
            moved = log.rename(tmp_path / "moved.log")
            size = moved.stat().st_size
            server.signal(signal.SIGHUP)
            await until(lambda: moved.stat().st_size > size)
            assert not log.exists()
