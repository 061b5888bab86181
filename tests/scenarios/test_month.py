"""An administrator's month by commands alone: an earlier version's data are upgraded, backed up under load, restored elsewhere and moved to
PostgreSQL. The key of the first day works all along.
"""

import asyncio
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.processes import ROOT, oracle, until
from tests.versions import Place, earlier

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("commit", "module", "schema"), [("8dd4e96", "proxy.cli", "0006"), ("854c813", "gateway.cli", "0025")]
)
async def test_a_month(tmp_path: Path, postgres: Postgres, commit: str, module: str, schema: str) -> None:
    """No answer is unbooked, no key is lost, and what is refused says what to do."""
    tree = earlier(commit, tmp_path / "earlier")
    with oracle(tmp_path) as upstream:
        first = Place(tmp_path / "first", upstream)
        first.runs(tree, module)
        made = await first.run("teams", "create", "team_a")
        if "ModuleNotFoundError" in made.stderr or "ImportError" in made.stderr:
            pytest.skip(f"{commit} does not run with these packages")
        key = (await first.done("keys", "create", "team_a", "--config", "gateway.yaml")).splitlines()[-1]
        async with first.serving():
            assert await first.ask(5, key) == [200] * 5

        first.runs(ROOT, "gateway.cli")
        refused = await first.run("keys", "list")
        assert (refused.returncode, f"has the schema {schema}" in refused.stderr) == (1, True)
        async with first.serving():
            assert list((first.folder / "var").glob(f"weighbridge.schema-{schema}.*.sqlite"))
            assert await first.ask(5, key) == [200] * 5
            second = (await first.done("keys", "create", "team_a")).splitlines()[-1]
            load = asyncio.create_task(first.ask(60, second))
            await first.done("backup", str(tmp_path / "b.tar.gz"))
            assert await load == [200] * 60
            # What is in the journal yet is booked meanwhile.
            await until(lambda: first.has_booked(70))

        elsewhere = Place(tmp_path / "elsewhere", upstream)
        (elsewhere.folder / "var").mkdir()
        (elsewhere.folder / "var" / "pepper").write_bytes((first.folder / "var" / "pepper").read_bytes())
        assert "restored: " in await elsewhere.done("restore", str(tmp_path / "b.tar.gz"))
        async with elsewhere.serving():
            assert await elsewhere.ask(1, key) == await elsewhere.ask(1, second) == [200]
        await elsewhere.done("ledger", "verify")

        url = await postgres.empty_database()
        await first.done("database", "copy", "--to", url)
        moved = Place(tmp_path / "moved", upstream, url)
        (moved.folder / "var").mkdir()
        (moved.folder / "var" / "pepper").write_bytes((first.folder / "var" / "pepper").read_bytes())
        async with moved.serving():
            assert await moved.ask(2, key) == [200] * 2
            assert (await moved.done("keys", "list", "--json")).count('"revoked_at": null') == 2
            await until(lambda: moved.has_booked(72))
