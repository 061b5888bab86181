"""Responses in the background, on SQLite and on PostgreSQL: begun by one at a time, and ended once."""

import asyncio

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.database import make_engine
from proxy.responses.background.store import BackgroundStore, Begun, Standing
from proxy.responses.background.tables import BackgroundEvents, BackgroundResponse
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.tables import StoredResponse
from proxy.shared.database_clock import DatabaseTime

LEASE_US = 10_000_000


class House:
    """A store at a time that the test sets."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.now_us = 1_000_000
        self.engine = engine
        self.responses = ResponseStore(engine)
        self.store = BackgroundStore(engine, DatabaseTime(engine, lambda: self.now_us), self.responses)

    async def add(self, number: int, most: int = 100) -> bool:
        row = BackgroundResponse(
            response_id=f"resp_{number}",
            team_id="team_a",
            key_id="key",
            state="queued",
            streams=True,
            generation=0,
            failures=0,
            events=0,
            held_until_us=0,
            pepper_id="p",
            sealed=b"asked",
            created_us=number,
        )
        return await self.store.add(row, record(f"resp_{number}", b"queued"), most)

    async def begin(self, limit: int = 10) -> list[Begun]:
        return await self.store.begin(limit, LEASE_US)

    async def kept(self, name: str) -> bytes | None:
        found = await self.responses.find("team_a", name, self.now_us)
        return None if found is None else found.sealed

    async def count(self, table: type[BackgroundResponse | BackgroundEvents]) -> int:
        async with self.engine.connect() as connection:
            return int(await connection.scalar(select(func.count()).select_from(table)) or 0)


def record(name: str, sealed: bytes, version: int = 0) -> StoredResponse:
    return StoredResponse(
        team_id="team_a",
        response_id=name,
        pepper_id="p",
        sealed=sealed,
        size=len(sealed),
        version=version,
        created_us=0,
        expires_us=10**15,
    )


def events(begun: Begun, first: int, count: int) -> BackgroundEvents:
    return BackgroundEvents(response_id=begun.response_id, first=first, count=count, pepper_id="p", sealed=b"e")


async def test_each_is_begun_by_one(engine: AsyncEngine) -> None:
    """However many ask at once; the oldest first."""
    house = House(engine)
    for number in range(6):
        await house.add(number)
    assert [each.response_id for each in await house.begin(2)] == ["resp_0", "resp_1"]
    begun = await asyncio.gather(*(house.begin(3) for _ in range(4)))
    names = sorted(each.response_id for some in begun for each in some)
    assert names == [f"resp_{number}" for number in range(2, 6)]
    assert await house.begin() == []


async def test_what_comes_after_the_lease_is_not_written(engine: AsyncEngine) -> None:
    """The next one has a higher generation, and goes on after the events that are there."""
    house = House(engine)
    await house.add(1)
    (first,) = await house.begin()
    assert await house.store.go_on(first, LEASE_US, events(first, 0, 3))
    house.now_us += LEASE_US - 1
    assert await house.begin() == []
    house.now_us += 1
    (second,) = await house.begin()
    assert (second.generation, second.events) == (2, 3)
    assert not await house.store.go_on(first, LEASE_US, events(first, 3, 1))
    assert await house.store.end(first, "completed", record("resp_1", b"first"), None) == "lost"
    assert await house.store.end(second, "completed", record("resp_1", b"second"), events(second, 3, 2)) == "ended"
    assert await house.kept("resp_1") == b"second"
    standing, rows = await house.store.events("team_a", "resp_1", 2, 10)
    assert (standing, [(row.first, row.count) for row in rows]) == (Standing("completed", True), [(3, 2)])
    assert await house.store.end(second, "failed", record("resp_1", b"third"), None) == "lost"


async def test_an_end_is_written_whole_or_not_at_all(engine: AsyncEngine) -> None:
    """Where its conversation was changed since, nothing of it is there: neither the response nor its events."""
    house = House(engine)
    await house.add(1)
    await house.responses.write(record("conv_1", b"before"))
    (begun,) = await house.begin()
    late = record("conv_1", b"mine", version=5)
    last = events(begun, 0, 1)
    assert await house.store.end(begun, "completed", record("resp_1", b"done"), last, late) == "outrun"
    assert (await house.kept("resp_1"), await house.kept("conv_1")) == (b"queued", b"before")
    assert await house.count(BackgroundEvents) == 0
    in_time = record("conv_1", b"mine", version=1)
    assert await house.store.end(begun, "completed", record("resp_1", b"done"), last, in_time) == "ended"
    assert (await house.kept("resp_1"), await house.kept("conv_1")) == (b"done", b"mine")


async def test_one_that_was_cancelled_goes_on_for_nobody(engine: AsyncEngine) -> None:
    """Its team alone can cancel it, once."""
    house = House(engine)
    await house.add(1)
    (begun,) = await house.begin()
    cancelled = record("resp_1", b"cancelled")
    assert not await house.store.cancel("team_b", "resp_1", cancelled)
    assert await house.store.cancel("team_a", "resp_1", cancelled)
    assert not await house.store.cancel("team_a", "resp_1", cancelled)
    assert not await house.store.go_on(begun, LEASE_US, None)
    assert await house.kept("resp_1") == b"cancelled"
    house.now_us += 2 * LEASE_US
    assert await house.begin() == []


async def test_what_is_given_back_waits(engine: AsyncEngine) -> None:
    """As long as it was told to; failures are counted."""
    house = House(engine)
    await house.add(1)
    (begun,) = await house.begin()
    await house.store.give_back(begun, 5, failed=True)
    assert (await house.begin(), await house.count(BackgroundResponse)) == ([], 1)
    house.now_us += 5
    (again,) = await house.begin()
    assert (again.failures, again.generation) == (1, 2)


async def test_what_ended_is_forgotten_with_its_events(engine: AsyncEngine) -> None:
    """By its age, or because its response was deleted."""
    house = House(engine)
    for number in range(3):
        await house.add(number)
    for begun in await house.begin():
        if begun.response_id != "resp_2":
            assert (
                await house.store.end(begun, "completed", record(begun.response_id, b"x"), events(begun, 0, 1))
                == "ended"
            )
    await house.store.forget("team_b", "resp_0")
    await house.store.forget("team_a", "resp_0")
    assert (await house.count(BackgroundResponse), await house.count(BackgroundEvents)) == (2, 1)
    assert await house.store.purge(house.now_us, 10) == 0
    assert await house.store.purge(house.now_us + 1, 10) == 1
    assert (await house.count(BackgroundResponse), await house.count(BackgroundEvents)) == (1, 0)


async def test_no_more_are_queued_than_may_be(database_url: str) -> None:
    """Of many that come at once, over two processes, exactly as many as the team may have; those that ended do not count."""
    engines = [make_engine(database_url) for _ in range(2)]
    houses = [House(each) for each in engines]
    added = await asyncio.gather(*(houses[each % 2].add(each, most=5) for each in range(16)))
    assert (sum(added), await houses[0].count(BackgroundResponse)) == (5, 5)
    (begun, *_) = await houses[0].begin()
    await houses[0].store.cancel("team_a", begun.response_id, record(begun.response_id, b"cancelled"))
    assert await houses[1].add(99, most=5)
    assert not await houses[1].add(100, most=5)
    for engine in engines:
        await engine.dispose()
