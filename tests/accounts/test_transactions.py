"""Stores within somebody else's transaction."""

from pathlib import Path

import pytest
from sqlalchemy import text

from accounts.errors import TeamExists
from accounts.store import AccountStore
from accounts.transactions import within
from gateway.database import make_engine
from tests.sqlite import newest_sqlite


async def test_all_or_nothing(tmp_path: Path) -> None:
    """What two stores' calls wrote goes when the transaction does."""
    engine = make_engine(newest_sqlite(tmp_path / "w.sqlite"))

    async def make_two() -> None:
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE audit_head SET number = number"))
            store = AccountStore(within(connection))
            await store.create_team("one")
            assert (await store.get_team("one")).team_id == "one"
            await store.create_team("two")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await make_two()
    assert await AccountStore(engine).list_teams() == []
    await engine.dispose()


async def test_a_failed_part_is_undone_alone(tmp_path: Path) -> None:
    """A store that looks after a failure why it was finds the transaction usable, and the rest is kept."""
    engine = make_engine(newest_sqlite(tmp_path / "w.sqlite"))
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE audit_head SET number = number"))
        store = AccountStore(within(connection))
        await store.create_team("one")
        with pytest.raises(TeamExists):
            await store.create_team("one")
        await store.create_team("two")
    assert [team.team_id for team in await AccountStore(engine).list_teams()] == ["one", "two"]
    await engine.dispose()
