"""An upgrade without a stop: the schema changes first, by `weighbridge migrate`, and the version before goes on with it, under load."""

import asyncio
from pathlib import Path

import pytest

from gateway.database import make_engine
from gateway.schema import newest, read_state
from tests.postgres import Postgres
from tests.processes import ROOT, oracle, until
from tests.versions import LATER, Place, earlier, later

pytestmark = pytest.mark.long
_LAST = ("4c3ca9ef", "0042")
"""The commit before the first schemas that say who may serve with them, and its schema."""


async def test_the_last_version_serves_while_the_schema_changes_under_it(tmp_path: Path, postgres: Postgres) -> None:
    """Not a call fails, before, during and after; all are booked, by the books of the new version, which then takes over."""
    commit, schema = _LAST
    tree = earlier(commit, tmp_path / "earlier")
    with oracle(tmp_path) as upstream:
        url = await postgres.empty_database()
        place = Place(tmp_path / "place", upstream, url, migrates=False)
        place.runs(tree, "gateway.cli")
        await place.done("teams", "create", "team_a")
        key = (await place.done("keys", "create", "team_a", "--config", "gateway.yaml")).splitlines()[-1]
        async with place.serving():
            load = asyncio.create_task(place.ask(80, key))
            place.runs(ROOT, "gateway.cli")
            behind = await place.run("migrate", "--check")
            assert (behind.returncode, f"the schema {schema}" in behind.stdout) == (1, True)
            await place.done("migrate")
            engine = make_engine(url)
            assert (await read_state(engine)).serves_from == schema
            await engine.dispose()
            assert await load == [200] * 80
            assert await place.ask(20, key) == [200] * 20
            await until(lambda: place.has_booked(100))
        async with place.serving():
            assert await place.ask(5, key) == [200] * 5
            await until(lambda: place.has_booked(105))


async def test_this_version_starts_on_the_next_ones_schema(tmp_path: Path, postgres: Postgres) -> None:
    """As after a rollback, and as a pod that starts in the middle of a rollout: it serves, books, and says so; keys can be made. On a
    schema that takes something away it does not start.
    """
    with oracle(tmp_path) as upstream:
        place = Place(tmp_path / "place", upstream, await postgres.empty_database(), migrates=False)
        await place.done("migrate")
        await place.done("teams", "create", "team_a")
        key = (await place.done("keys", "create", "team_a")).splitlines()[-1]
        tree = later(tmp_path / "later", older_code_serves=True)
        place.runs(tree, "gateway.cli")
        await place.done("migrate")
        async with place.serving():
            assert await place.ask(5, key) == [200] * 5
        place.runs(ROOT, "gateway.cli")
        assert "nothing to do" in await place.done("migrate")
        async with place.serving():
            assert f"the database has the schema {LATER}, of a newer version; this one" in place.log
            second = (await place.done("keys", "create", "team_a")).splitlines()[-1]
            asked = await asyncio.gather(*(place.ask(20, each) for each in (key, second, key)))
            assert asked == [[200] * 20] * 3
            await until(lambda: place.has_booked(65))
        place.runs(tree, "gateway.cli")
        assert "the books agree: 65 entries" in await place.done("ledger", "verify")
        await place.done("database", "downgrade", newest(), "--yes")
        place.runs(later(tmp_path / "breaking", older_code_serves=False), "gateway.cli")
        await place.done("migrate")
        place.runs(ROOT, "gateway.cli")
        for command in (["serve"], ["migrate"], ["keys", "list"]):
            refused = await place.run(*command)
            assert refused.returncode in (1, 2)
            assert f"has the schema {LATER}, of a newer version; this one knows no later one" in refused.stderr
