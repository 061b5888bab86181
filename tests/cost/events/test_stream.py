"""The stream: of several processes one tells, and another takes over."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.delivery import Timing
from cost.events.sink import Batch, SinkFailed
from cost.events.stream import LEASE_S, EventStream
from cost.times import DAY_US
from tests.cost.entries import settle
from tests.cost.events.told import KeptSink, Telling, raising


@pytest.fixture
def backend() -> str:
    return "sqlite"


@pytest.fixture
async def telling(engine: AsyncEngine) -> Telling:
    telling = Telling(engine)
    await telling.outbox.begin()
    return telling


_ENDED: set[str] = set()


def stream(telling: Telling, holder: str, **sinks: KeptSink) -> EventStream:
    _ENDED.discard(holder)

    async def nap(_seconds: float) -> None:
        if holder in _ENDED:
            # Between two queries, not in the middle of one, whose connection nobody would close.
            raise asyncio.CancelledError
        await asyncio.sleep(0.02)

    timing = Timing(telling.clock, nap, lambda: 0.0)
    telling.nap = nap
    deliveries = [telling.delivery(sink, name) for name, sink in sinks.items()]
    return EventStream(telling.outbox, deliveries, holder, timing, keep_us=DAY_US)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def end(holder: str, task: asyncio.Task[None]) -> None:
    _ENDED.add(holder)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_one_tells_and_the_next_goes_on(telling: Telling) -> None:
    """What was written before the first begins, too; the second begins where the first ended."""
    first, second = KeptSink(), KeptSink()
    await telling.store.insert([settle("before")])
    one = asyncio.create_task(stream(telling, "one", lake=first).run())
    await until(lambda: "before" in first.ids)
    other = asyncio.create_task(stream(telling, "other", lake=second).run())
    await telling.store.insert([settle("during")])
    async with asyncio.timeout(60):
        while await telling.outbox.place("lake") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await end("one", one)
    await telling.store.insert([settle("after")])
    await until(lambda: "after" in second.ids)
    await end("other", other)
    # A database that is busy may not take a place, and then the same comes twice.
    assert ({*first.ids}, {*second.ids}) == ({"before", "during"}, {"after"})
    assert {*second.sequences} == {3}


async def test_a_holder_that_died_is_followed(telling: Telling) -> None:
    """Once its lease has run out."""
    assert await telling.outbox.hold("dead", int(LEASE_S * 1_000_000))
    sink = KeptSink()
    task = asyncio.create_task(stream(telling, "next", lake=sink).run())
    await telling.store.insert([settle("a")])
    await asyncio.sleep(0.05)
    assert sink.ids == []
    telling.clock.pass_s(LEASE_S + 1)
    await until(lambda: "a" in sink.ids)
    await end("next", task)


async def test_a_dead_sink_delays_no_other(telling: Telling) -> None:
    """Each has a place of its own, and what the dead one lacks waits for it."""
    dead, well = KeptSink(), KeptSink()
    with raising(dead, SinkFailed("status 500")):
        task = asyncio.create_task(stream(telling, "one", dead=dead, well=well).run())
        await telling.store.insert([settle("a")])
        await until(lambda: "a" in well.ids)
    await until(lambda: "a" in dead.ids)
    await end("one", task)


async def test_an_outbox_that_is_away_ends_nothing(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease, the numbers and the places are tried again."""
    sink, well, tries = KeptSink(), telling.outbox.number, []

    async def away() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError
        return await well()

    monkeypatch.setattr(telling.outbox, "number", away)
    task = asyncio.create_task(stream(telling, "one", lake=sink).run())
    await telling.store.insert([settle("a")])
    await until(lambda: "a" in sink.ids)
    await end("one", task)


async def test_the_lag_is_told_while_a_sink_hangs(telling: Telling) -> None:
    """A batch may take five minutes."""

    class Hanging(KeptSink):
        async def send(self, batch: Batch) -> None:
            self.tries += 1
            await asyncio.Event().wait()

    sink = Hanging()
    running = asyncio.create_task(stream(telling, "one", lake=sink).run())
    await until(lambda: telling.lag() is not None)
    await telling.store.insert([settle("a")])
    await until(lambda: sink.tries == 1)
    telling.clock.pass_s(4)
    await until(lambda: telling.lag() == 4)
    await end("one", running)
    assert telling.lag() == 0
