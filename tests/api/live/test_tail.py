"""The live tail: one poller for all viewers, bounded in every direction, and resumed where it broke off."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from api.live.newest import newest
from api.live.tail import KEPT, DecisionTail, TooManyViewers, Viewer, event_id
from cost.ledger.store import LedgerStore
from gateway.database import make_engine
from tests.api.live.ledger import BASE_US, ended
from tests.api.live.turns import Turns


async def book(engine: AsyncEngine, *numbers: int, **fields: object) -> None:
    await LedgerStore(engine).insert([ended(number, BASE_US + number, **fields) for number in numbers])


async def test_the_newest_ends_alone_are_read(engine: AsyncEngine) -> None:
    """Reserves and postings are no decisions; the newest come first, and no more than asked for."""
    await book(engine, 1, 2, 3)
    store = LedgerStore(engine)
    await store.insert([ended(4, BASE_US + 4, entry="reserve"), ended(5, BASE_US + 5, entry="adjust")])
    assert [each.request_id for each in await newest(engine, 2)] == ["req_000003", "req_000002"]
    assert [each.request_id for each in await newest(engine, 9, until_us=BASE_US + 2)] == ["req_000001"]
    assert [each.request_id for each in await newest(engine, 9, since_us=BASE_US + 3)] == ["req_000003"]


async def test_two_viewers_cost_one_look(engine: AsyncEngine) -> None:
    """Both get every decision once, oldest first; the ledger is asked once for both, and by nobody once they are gone."""
    await book(engine, 1, 2)
    turns = Turns()
    tail = DecisionTail(engine, sleep=turns)
    async with tail.watching() as one, tail.watching() as other:
        before = tail.looks
        assert [each.request_id for each in (await one.take(5)).decisions] == ["req_000001", "req_000002"]
        assert len((await other.take(5)).decisions) == 2
        # The older one is booked late.
        await book(engine, 4)
        await book(engine, 3)
        turns.next()
        assert [each.request_id for each in (await one.take(5)).decisions] == ["req_000003", "req_000004"]
        assert len((await other.take(5)).decisions) == 2
        assert tail.looks == before + 1
        assert (await one.take(0)).decisions == ()
    assert tail.viewers == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "decision-tail"]


async def test_it_goes_on_where_it_broke_off(engine: AsyncEngine) -> None:
    """With the id of the last decision seen, what came after it comes, here or at another process."""
    await book(engine, 1, 2, 3)
    here, elsewhere = DecisionTail(engine, sleep=Turns()), DecisionTail(engine, sleep=Turns())
    async with here.watching() as viewer:
        last = event_id((await viewer.take(5)).decisions[1])
    for tail in (here, elsewhere):
        async with tail.watching(last) as viewer:
            assert [each.request_id for each in (await viewer.take(5)).decisions] == ["req_000003"]
    for strange in ("", "x", "9" * 40, "\x00"):
        async with here.watching(strange) as viewer:
            assert len((await viewer.take(5)).decisions) == 3


async def test_viewers_are_bounded(engine: AsyncEngine) -> None:
    """One more than may watch is refused, and a place that was left is free."""
    tail = DecisionTail(engine, most_viewers=1, sleep=Turns())
    async with tail.watching():
        with pytest.raises(TooManyViewers):
            async with tail.watching():
                pass
    async with tail.watching():
        assert tail.viewers == 1


async def test_more_than_a_look_reads_is_told(engine: AsyncEngine) -> None:
    """A page that is full of new decisions means that some are not shown; the first look says nothing of it."""
    await book(engine, 1, 2, 3)
    turns = Turns()
    tail = DecisionTail(engine, page=2, sleep=turns)
    async with tail.watching() as viewer:
        first = await viewer.take(5)
        assert not first.more
        await book(engine, 4, 5, 6)
        turns.next()
        then = await viewer.take(5)
        assert then.more
        assert [each.request_id for each in then.decisions] == ["req_000005", "req_000006"]


async def test_a_viewer_that_takes_nothing_is_bounded(engine: AsyncEngine) -> None:
    """Only the newest wait for it, and it is told how many did not."""
    await book(engine, 1)
    decision = (await newest(engine, 1))[0]
    viewer = Viewer([])
    viewer.put([decision] * KEPT, more=False)
    viewer.put([decision] * 3, more=False)
    taken = await viewer.take(5)
    assert (len(taken.decisions), taken.missed) == (KEPT, 3)


async def test_a_database_that_is_away_ends_nothing() -> None:
    """The tail says that it cannot read, and goes on by itself."""
    engine = make_engine("postgresql://nobody@127.0.0.1:1/none")
    tail = DecisionTail(engine, sleep=Turns())
    async with tail.watching() as viewer:
        assert not tail.reachable
        assert (await viewer.take(0)).decisions == ()
    await engine.dispose()
