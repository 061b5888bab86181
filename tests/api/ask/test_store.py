"""The setting and the counts, on both databases: each organisation's own, and each person's own hour."""

import asyncio

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.access import Principal
from api.ask.store import AskSetting, count_question, read_setting, remove_setting, write_setting
from api.ask.tables import AskCount
from cost.times import HOUR_US

NOW_US = 500_000 * HOUR_US + 7


def person(name: str, organisation_id: str = "default") -> Principal:
    return Principal(kind="person", principal_id=name, name=name, organisation_id=organisation_id)


async def test_a_setting_is_its_organisations_own(engine: AsyncEngine) -> None:
    """Set twice it is the later one; taken away it is gone, and nobody else's."""
    mine = AskSetting(organisation_id="default", team_id="ask", key_id="key_1", questions_an_hour=5)
    theirs = AskSetting(organisation_id="fjord", team_id="ask-fjord", key_id="key_2", questions_an_hour=6)
    for setting in (theirs, theirs, mine):
        await write_setting(engine, setting, NOW_US)
    assert await read_setting(engine, "default") == mine
    await remove_setting(engine, "default")
    await remove_setting(engine, "default")
    assert await read_setting(engine, "default") is None
    assert await read_setting(engine, "fjord") == theirs


async def test_questions_are_counted_by_person_and_hour(engine: AsyncEngine) -> None:
    """Also of several at once; earlier hours go."""
    counted = await asyncio.gather(*(count_question(engine, person("ann"), NOW_US) for _ in range(5)))
    assert sorted(counted) == [1, 2, 3, 4, 5]
    assert await count_question(engine, person("bob"), NOW_US) == 1
    assert await count_question(engine, person("ann", "fjord"), NOW_US) == 1
    assert await count_question(engine, person("ann"), NOW_US + HOUR_US) == 1
    async with engine.connect() as connection:
        rows = await connection.scalar(select(func.count()).select_from(AskCount))
    assert rows == 2
