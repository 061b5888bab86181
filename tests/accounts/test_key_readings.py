"""The day on which a key that asks no model was last used, on SQLite and on PostgreSQL."""

from collections.abc import Iterator

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.key_readings import KeyReadings
from accounts.keys import Pepper
from accounts.store import AccountStore

PEPPER = Pepper(id="p1", secret=b"a" * 32)
DAY_US = 86_400_000_000
NOON_US = 20_000 * DAY_US + DAY_US // 2


@pytest.fixture
def updates(engine: AsyncEngine) -> Iterator[list[str]]:
    """Statements that write to keys."""
    found: list[str] = []

    def look(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith("UPDATE api_key"):
            found.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", look)
    yield found
    event.remove(engine.sync_engine, "before_cursor_execute", look)


async def test_a_key_is_written_once_a_day(engine: AsyncEngine, updates: list[str]) -> None:
    """However often it asks, and by how many processes; an older day never replaces a newer one."""
    accounts = AccountStore(engine)
    await accounts.create_team("team_a")
    one, other = [await accounts.create_key("team_a", name, PEPPER) for name in ("one", "other")]
    now_us = NOON_US
    mine, theirs = (KeyReadings(engine, lambda: now_us) for _ in range(2))
    for _ in range(1_000):
        mine.note(one.key_id)
    await mine.save()
    await mine.save()
    assert len(updates) == 1
    assert await _days(accounts) == {one.key_id: 20_000 * DAY_US, other.key_id: None}
    now_us += DAY_US
    mine.note(one.key_id)
    await mine.save()
    now_us -= DAY_US
    theirs.note(one.key_id)
    await theirs.save()
    assert await _days(accounts) == {one.key_id: 20_001 * DAY_US, other.key_id: None}


async def test_a_clock_that_was_ahead_is_put_back(engine: AsyncEngine) -> None:
    """Keys first seen after that were written as used on a day to come, for as long as the process ran."""
    accounts = AccountStore(engine)
    await accounts.create_team("team_a")
    one, other = [await accounts.create_key("team_a", name, PEPPER) for name in ("one", "other")]
    now_us = NOON_US + 365 * DAY_US
    readings = KeyReadings(engine, lambda: now_us)
    readings.note(one.key_id)
    await readings.save()
    now_us = NOON_US
    readings.note(other.key_id)
    await readings.save()
    assert (await _days(accounts))[other.key_id] == 20_000 * DAY_US


async def test_what_the_database_did_not_take_is_written_the_next_time(engine: AsyncEngine) -> None:
    """A database that is away costs no key its day."""
    accounts = AccountStore(engine)
    await accounts.create_team("team_a")
    made = await accounts.create_key("team_a", "one", PEPPER)
    readings = KeyReadings(engine, lambda: NOON_US)
    readings.note(made.key_id)

    def refuse(*_: object) -> None:
        raise OperationalError("UPDATE", {}, OSError("away"))

    event.listen(engine.sync_engine, "before_cursor_execute", refuse)
    with pytest.raises(OperationalError):
        await readings.save()
    event.remove(engine.sync_engine, "before_cursor_execute", refuse)
    await readings.save()
    assert await _days(accounts) == {made.key_id: 20_000 * DAY_US}


async def _days(accounts: AccountStore) -> dict[str, int | None]:
    return {each.key_id: each.read_day_us for each in await accounts.list_keys()}
