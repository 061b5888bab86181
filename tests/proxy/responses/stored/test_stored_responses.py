"""Keeping of responses, on SQLite and on PostgreSQL: for a time, within a team's size, and never at a request's cost."""

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlmodel import col

from accounts.caller import Caller
from accounts.keys import Pepper
from proxy.errors import BadRequest, ConversationNotFound, ResponseNotFound, ResponsesUnavailable
from proxy.parse.wires.wire import Change, Kept
from proxy.responses.stored.sealing import Sealing
from proxy.responses.stored.store import ResponseStore, Sealed
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.responses.stored.tables import StoredResponse

ALICE = Caller(key_id="k", key_name="k", team_id="team_a", organisation_id="acme")
BOB = msgspec.structs.replace(ALICE, team_id="team_b")
DAY_US = 86_400_000_000


class House:
    """Responses at a time that the test sets."""

    def __init__(self, engine: AsyncEngine, **section: Any) -> None:
        self.now_us = 1_000_000
        self.engine = engine
        self.kept = StoredResponses(
            ResponseStore(engine),
            Sealing((Pepper(id="p", secret=b"p" * 32),)),
            lambda: ResponsesSection(**section),
            lambda: self.now_us,
        )

    async def keep(self, number: int, caller: Caller = ALICE, record: bytes = b"{}") -> bool:
        self.now_us += 1
        return await self.kept.keep(caller, Kept(f"resp_{number}", record))

    async def numbers(self, team_id: str = "team_a") -> list[int]:
        async with self.engine.connect() as connection:
            names = select(col(StoredResponse.response_id)).where(col(StoredResponse.team_id) == team_id)
            return sorted(int(name.removeprefix("resp_")) for name in (await connection.execute(names)).scalars())


async def test_a_response_is_found_by_its_team_alone(engine: AsyncEngine) -> None:
    """The same name in two teams is two responses."""
    house = House(engine)
    assert await house.keep(1, ALICE, b"alice")
    assert await house.keep(1, BOB, b"bob")
    assert await house.kept.find("team_a", "resp_1") == b"alice"
    await house.kept.remove("team_a", "resp_1")
    with pytest.raises(ResponseNotFound):
        await house.kept.find("team_a", "resp_1")
    with pytest.raises(ResponseNotFound):
        await house.kept.remove("team_a", "resp_1")
    assert await house.kept.find("team_b", "resp_1") == b"bob"


async def test_a_response_has_its_time(engine: AsyncEngine) -> None:
    """What expired is not found, and is deleted at the next look."""
    house = House(engine, keep_days=2)
    await house.keep(1)
    house.now_us += DAY_US
    await house.keep(2)
    house.now_us += DAY_US
    with pytest.raises(ResponseNotFound):
        await house.kept.find("team_a", "resp_1")
    await house.kept.purge()
    assert await house.numbers() == [2]


async def test_a_team_has_its_size(engine: AsyncEngine) -> None:
    """Its oldest responses go first, and other teams lose nothing."""
    house = House(engine, max_bytes_per_team=1_024)
    await house.keep(0, BOB)
    sealed = len(Sealing((Pepper(id="p", secret=b"p" * 32),)).seal("team_a", "resp_1", b"{}"))
    fit = 1_024 // sealed
    for number in range(fit + 1):
        assert await house.keep(number)
    kept = await house.numbers()
    assert kept == list(range(fit + 1 - len(kept), fit + 1))
    assert 0 < len(kept) * sealed <= 1_024 * 0.9
    assert await house.numbers("team_b") == [0]


async def test_a_response_and_its_turn_are_kept_together_or_not_at_all(engine: AsyncEngine) -> None:
    """Where the conversation is gone or full, the response is not kept either; changes at once are all there."""
    house = House(engine, max_response_bytes=1_024)
    with pytest.raises(ConversationNotFound):
        await house.kept.change("team_a", Change("conv_1", lambda record: record))
    longer = Change("conv_1", lambda record: record + b"x")
    assert not await house.kept.keep(ALICE, Kept("resp_1", b"{}", turn=longer))
    await house.kept.add("team_a", "conv_1", b"")
    kept = [house.kept.keep(ALICE, Kept(f"resp_{n}", b"{}", turn=longer)) for n in range(2, 6)]
    assert await asyncio.gather(*kept) == [True] * 4
    assert await house.kept.find("team_a", "conv_1") == b"xxxx"
    full = Change("conv_1", lambda record: record + b"x" * 1_024)
    assert not await house.kept.keep(ALICE, Kept("resp_6", b"{}", turn=full))
    with pytest.raises(BadRequest):
        await house.kept.change("team_a", full)
    with pytest.raises(ResponseNotFound):
        await house.kept.find("team_a", "resp_6")
    assert await house.kept.find("team_a", "resp_5") == b"{}"


@pytest.mark.parametrize("section", [{"keep_days": 0}, {"max_response_bytes": 1_024}])
async def test_what_may_not_be_kept_is_not(engine: AsyncEngine, section: dict[str, Any]) -> None:
    """Where nothing is, or the response is too large."""
    house = House(engine, **section)
    assert not await house.keep(1, record=b"x" * 1_025)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(StoredResponse)) == 0


class _Away(ResponseStore):
    """A database that does not answer."""

    async def write(self, added: StoredResponse | None, changed: StoredResponse | None = None) -> bool:
        raise OperationalError("insert", None, OSError())

    async def find(self, team_id: str, response_id: str, now_us: int) -> Sealed | None:
        raise OperationalError("select", None, OSError())

    async def remove(self, team_id: str, response_id: str, now_us: int) -> bool:
        raise OperationalError("delete", None, OSError())


async def test_a_database_that_is_away_costs_no_answer(engine: AsyncEngine) -> None:
    """Keeping says no; reading says when to come again."""
    kept = StoredResponses(_Away(engine), Sealing((Pepper(id="p", secret=b"p" * 32),)), ResponsesSection)
    assert not await kept.keep(ALICE, Kept("resp_1", b"{}"))
    with pytest.raises(ResponsesUnavailable):
        await kept.find("team_a", "resp_1")
    with pytest.raises(ResponsesUnavailable):
        await kept.remove("team_a", "resp_1")
