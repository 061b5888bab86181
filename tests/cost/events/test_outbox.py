"""The outbox of events, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.outbox import EventOutbox
from cost.ledger.store import LedgerStore
from cost.times import DAY_US
from tests.cost.entries import reserve, settle
from tests.cost.events.told import Telling


@pytest.fixture
def telling(engine: AsyncEngine) -> Telling:
    return Telling(engine)


async def names(telling: Telling, after: int = 0) -> list[tuple[int, str]]:
    found = await telling.outbox.after(after, 100)
    return [(each.sequence, each.entry.request_id) for each in found.events]


async def count(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(text("SELECT count(*) FROM event_outbox")) or 0)


async def test_nothing_is_noted_while_nobody_tells(telling: Telling) -> None:
    """Nor a day after the last process that told was seen."""
    await telling.store.insert([settle("before")])
    await telling.outbox.begin()
    await telling.store.insert([settle("told")])
    telling.clock.pass_s(86_401)
    await telling.store.insert([settle("abandoned")])
    assert await telling.outbox.number() == 1
    assert await names(telling) == [(1, "told")]


async def test_each_new_entry_is_noted_once(telling: Telling) -> None:
    """However often a journal is drained; what reserves is no event, and what is told is what was booked first."""
    await telling.outbox.begin()
    for _ in range(3):
        await telling.store.insert([reserve("a"), settle("a"), settle("a", attempt=2)])
    async with telling.engine.begin() as connection:
        await telling.store.insert_within(connection, [settle("a", cost_nanousd=1), settle("b")])
    assert await telling.outbox.number() == 3
    assert [each[1] for each in await names(telling)] == ["a", "a", "b"]
    assert await telling.outbox.number() == 0


async def test_what_is_rolled_back_is_no_event(telling: Telling) -> None:
    """Noted in the entry's own transaction."""
    await telling.outbox.begin()
    async with telling.engine.connect() as connection:
        await telling.store.insert_within(connection, [settle("a")])
        await connection.rollback()
    assert await telling.outbox.number() == 0


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_what_commits_out_of_order_is_not_passed_by(telling: Telling) -> None:
    """A cursor over ids skips what took a lower one and committed later (kamu-cli 1398, Eventuous 222). Here it comes after."""
    await telling.outbox.begin()
    slow, fast = await telling.engine.connect(), await telling.engine.connect()
    try:
        slow_writing = await slow.begin()
        await telling.store.insert_within(slow, [settle("slow")])
        telling.clock.pass_s(1)
        async with fast.begin():
            await telling.store.insert_within(fast, [settle("fast", at_us=reserve().at_us + DAY_US, team_id="other")])
        assert await telling.outbox.number() == 1
        assert await names(telling) == [(1, "fast")]
        await slow_writing.commit()
        assert await telling.outbox.number() == 1
        assert await names(telling, after=1) == [(2, "slow")]
    finally:
        await slow.close()
        await fast.close()


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
async def test_two_that_number_at_once_give_no_number_twice(telling: Telling) -> None:
    """The second waits for the first, and sees what it did."""
    import asyncio

    await telling.outbox.begin()
    await telling.store.insert([settle(f"r{number:03}") for number in range(200)])
    await asyncio.gather(*(telling.outbox.number() for _ in range(4)))
    await telling.store.insert([settle("later")])
    await asyncio.gather(*(telling.outbox.number() for _ in range(4)))
    found = await telling.outbox.after(0, 1_000)
    assert [each.sequence for each in found.events] == list(range(1, 202))


async def test_entries_of_long_ago_come_when_they_are_written(telling: Telling) -> None:
    """Another host's journal of yesterday is drained today."""
    await telling.outbox.begin()
    await telling.store.insert([settle("today")])
    await telling.outbox.number()
    await telling.store.insert([settle("yesterday", at_us=reserve().at_us - DAY_US)])
    await telling.outbox.number()
    assert await names(telling) == [(1, "today"), (2, "yesterday")]


async def test_what_waits_is_known_without_reading_it(telling: Telling) -> None:
    """The newest number, and since when the oldest one waits."""
    await telling.outbox.begin()
    assert tuple(await telling.outbox.ahead(0)) == (0, None)
    await telling.store.insert([settle("a")])
    began_us = telling.clock.now_us
    telling.clock.pass_s(9)
    await telling.store.insert([settle("b")])
    await telling.outbox.number()
    assert tuple(await telling.outbox.ahead(0)) == (2, began_us)
    assert tuple(await telling.outbox.ahead(1)) == (2, began_us + 9_000_000)
    assert tuple(await telling.outbox.ahead(2)) == (2, None)


async def test_many_are_read_in_pages(telling: Telling) -> None:
    """All of them, in order, and no more than was asked for."""
    await telling.outbox.begin()
    await telling.store.insert([settle(f"r{number:04}") for number in range(700)])
    await telling.outbox.number()
    for most, wanted in ((700, 700), (1_000, 700), (600, 600), (250, 250)):
        found = await telling.outbox.after(0, most)
        assert [each.sequence for each in found.events] == list(range(1, wanted + 1))
        assert (found.last, len(found.events)) == (wanted, wanted)


async def test_a_new_sink_begins_with_what_comes_then(telling: Telling) -> None:
    """And goes on from there, whichever process asks."""
    await telling.outbox.begin()
    await telling.store.insert([settle("before")])
    await telling.outbox.number()
    assert await telling.outbox.place("late") == 1
    await telling.store.insert([settle("after")])
    await telling.outbox.number()
    assert await EventOutbox(telling.engine).place("late") == 1


async def test_a_place_is_moved_by_one(telling: Telling) -> None:
    """Of two processes that tell one sink, the second is told so."""
    await telling.outbox.begin()
    await telling.outbox.place("lake")
    assert await telling.outbox.move("lake", 0, 5)
    assert not await telling.outbox.move("lake", 0, 3)
    assert await telling.outbox.place("lake") == 5


async def test_one_process_holds_the_lease(telling: Telling) -> None:
    """Another takes it once it ran out, or was given back, and from a clock that was far ahead."""
    await telling.outbox.begin()
    lease = 20_000_000
    assert await telling.outbox.hold("a", lease)
    assert not await telling.outbox.hold("b", lease)
    telling.clock.pass_s(15)
    assert await telling.outbox.hold("a", lease)
    telling.clock.pass_s(15)
    assert not await telling.outbox.hold("b", lease)
    telling.clock.pass_s(6)
    assert await telling.outbox.hold("b", lease)
    await telling.outbox.release("a")
    assert not await telling.outbox.hold("a", lease)
    await telling.outbox.release("b")
    assert await telling.outbox.hold("a", lease)
    telling.clock.pass_s(-3_600)
    assert await telling.outbox.hold("b", lease)


async def test_what_all_have_is_forgotten_and_what_one_lacks_is_kept(telling: Telling) -> None:
    """Until it has waited for longer than is kept: then it is a gap in the numbers, and told as lost."""
    await telling.outbox.begin()
    for sink in ("slow", "quick"):
        await telling.outbox.place(sink)
    await telling.store.insert([settle(f"old{number}") for number in range(4)])
    await telling.outbox.number()
    telling.clock.pass_s(3_600)
    await telling.outbox.begin()
    await telling.store.insert([settle("new")])
    await telling.outbox.number()
    await telling.outbox.move("quick", 0, 5)
    await telling.outbox.move("slow", 0, 2)
    assert await telling.outbox.forget(["slow", "quick"], DAY_US) == 2
    assert await count(telling.engine) == 3
    assert await telling.outbox.forget(["slow", "quick"], 60_000_000) == 2
    found = await telling.outbox.after(2, 10)
    assert ([each.sequence for each in found.events], found.last) == ([5], 5)
    await telling.outbox.move("slow", 2, 5)
    assert await telling.outbox.forget(["slow", "quick"], DAY_US) == 1
    assert await telling.outbox.forget(["slow", "quick"], DAY_US) == 0


async def test_an_entry_that_is_archived_is_told_as_lost(telling: Telling) -> None:
    """It is no event any more, and holds nothing up."""
    await telling.outbox.begin()
    await telling.store.insert([settle("gone"), settle("here")])
    await telling.outbox.number()
    async with telling.engine.begin() as connection:
        await connection.execute(text("DELETE FROM ledger_entry WHERE request_id = 'gone'"))
    found = await telling.outbox.after(0, 10)
    assert ([each.entry.request_id for each in found.events], found.last) == (["here"], 2)


async def test_days_are_told_again_under_their_own_ids(telling: Telling) -> None:
    """New numbers, old ids; what still waits is not told twice, for a batch may have no id twice (CloudEvents spec 1169)."""
    await telling.store.insert([reserve("old"), settle("old"), settle("older", at_us=reserve().at_us - DAY_US)])
    await telling.outbox.begin()
    day = reserve().at_us - reserve().at_us % DAY_US
    assert await telling.outbox.replay(day, day + DAY_US) == 1
    assert await telling.outbox.replay(day, day + DAY_US) == 0
    await telling.outbox.number()
    assert await names(telling) == [(1, "old")]


async def test_places_are_told(telling: Telling) -> None:
    """With what waits for each sink, numbered or not."""
    await telling.outbox.begin()
    await telling.outbox.place("lake")
    await telling.store.insert([settle("a"), settle("b")])
    await telling.outbox.number()
    await telling.outbox.move("lake", 0, 1)
    await telling.store.insert([settle("c")])
    (found,) = await telling.outbox.places()
    assert (found.name, found.sequence, found.waiting) == ("lake", 1, 2)


async def test_a_ledger_without_events_writes_as_before(engine: AsyncEngine) -> None:
    """No row of them anywhere."""
    await LedgerStore(engine).insert([reserve("a"), settle("a")])
    assert await count(engine) == 0
