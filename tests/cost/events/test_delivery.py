"""Delivery to one sink: at least once, in order, with gaps that can be seen."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.delivery import IDLE_S, LONGEST_BACKOFF_S
from cost.events.event import Event
from cost.events.sink import Batch, SinkFailed, SinkLimits, batches
from tests.cost.entries import settle
from tests.cost.events.told import KeptSink, Telling, raising


@pytest.fixture
def backend() -> str:
    return "sqlite"


@pytest.fixture
async def telling(engine: AsyncEngine) -> Telling:
    telling = Telling(engine)
    await telling.outbox.begin()
    await telling.outbox.place("lake")
    return telling


async def write(telling: Telling, *names: str) -> None:
    await telling.store.insert([settle(each) for each in names])
    await telling.outbox.number()


async def test_events_come_in_order_and_once(telling: Telling) -> None:
    """In batches of a sink's size; then there is nothing to do."""
    sink, wanted = KeptSink(), [f"r{number:02}" for number in range(25)]
    await write(telling, *wanted)
    delivery = telling.delivery(sink)
    assert await delivery.step() == 0
    assert await delivery.step() == IDLE_S
    assert [len(each) for each in sink.batches] == [10, 10, 5]
    assert sink.ids == wanted
    assert sink.sequences == list(range(1, 26))
    assert (telling.counted("sent"), telling.lag()) == (25, 0)


async def test_what_is_written_while_a_batch_is_under_way_comes_next(telling: Telling) -> None:
    """LiteLLM's queue was cleared after a flush, with what had come meanwhile (litellm 38904)."""
    sink = KeptSink()
    delivery = telling.delivery(sink)
    await write(telling, "first")
    meanwhile: list[asyncio.Task[None]] = []
    sink.failing = lambda: meanwhile.append(asyncio.ensure_future(write(telling, f"during{len(meanwhile)}")))
    await delivery.step()
    await asyncio.gather(*meanwhile)
    sink.failing = lambda: None
    await delivery.step()
    assert sink.ids == ["first", "during0"]


async def test_a_failure_is_no_success(telling: Telling) -> None:
    """The place stays, the pause doubles up to a bound, and the lag grows (litellm 38904 took a swallowed error for success)."""
    sink = KeptSink()
    delivery = telling.delivery(sink)
    await write(telling, "a")
    telling.clock.pass_s(30)
    with raising(sink, SinkFailed("status 503")):
        assert [await delivery.step() for _ in range(4)] == [1, 2, 4, 8]
        assert (await telling.outbox.place("lake"), telling.lag()) == (0, 30)
        assert [await delivery.step() for _ in range(40)][-1] == LONGEST_BACKOFF_S
    assert await delivery.step() == 0
    assert sink.ids == ["a"]
    with raising(sink, SinkFailed("status 503")):
        await write(telling, "b")
        assert await delivery.step() == 1


class SlowSink(KeptSink):
    """It needs longer than it is given for more than four events."""

    async def send(self, batch: Batch) -> None:
        if len(batch.events) > 4:
            raise TimeoutError
        await super().send(batch)


async def test_a_sink_that_is_slow_gets_less_at_once(telling: Telling) -> None:
    """The same ten again and again would never arrive, and come to it each time."""
    sink = SlowSink()
    delivery = telling.delivery(sink)
    await write(telling, *(wanted := [f"r{number:02}" for number in range(25)]))
    assert [await delivery.step() for _ in range(3)] == [1, 2, 0]
    assert sink.ids == wanted
    assert {len(each) for each in sink.batches} == {1, 2}
    fast = KeptSink()
    delivery._sink = fast
    for _ in range(2):
        await write(telling, *(f"{len(fast.batches)}-{number:02}" for number in range(25)))
        assert await delivery.step() == 0
    assert max(map(len, fast.batches)) == 10


async def test_a_sink_may_ask_for_patience(telling: Telling) -> None:
    """Retry-After counts where it is longer, and for an hour at most."""
    sink = KeptSink()
    delivery = telling.delivery(sink)
    await write(telling, "a")
    for asked, waits in ((120.0, 120.0), (0.0, 2.0), (1e9, 3_600.0)):
        with raising(sink, SinkFailed("status 429", asked)):
            assert await delivery.step() == waits


@pytest.mark.parametrize("failure", [RuntimeError("a bug of the sink"), OSError(), TimeoutError()])
async def test_whatever_a_sink_raises_ends_nothing(telling: Telling, failure: Exception) -> None:
    """Its loop goes on, and nothing is lost."""
    sink = KeptSink()
    await write(telling, "a")
    delivery = telling.delivery(sink)
    with raising(sink, failure):
        assert await delivery.step() == 1
    await delivery.step()
    assert sink.ids == ["a"]


async def test_a_sink_that_hangs_is_left(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time, and what it had is sent again."""
    sink = KeptSink()
    await write(telling, "a")
    delivery = telling.delivery(sink)
    delivery._timeout_s = 0.01

    class Hanging(KeptSink):
        async def send(self, batch: object) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(delivery, "_sink", Hanging())
    assert await delivery.step() == 1
    assert await telling.outbox.place("lake") == 0


async def test_one_refused_event_holds_nothing_up(telling: Telling) -> None:
    """A batch that is refused is halved until the refused one is alone; it is set aside and counted."""
    sink = KeptSink()
    sink.refuses = {"r3"}
    await write(telling, *(f"r{number}" for number in range(8)))
    await telling.delivery(sink).step()
    assert sorted(sink.ids) == [f"r{number}" for number in range(8) if number != 3]
    assert (telling.counted("sent"), telling.counted("refused")) == (7, 1)
    assert await telling.outbox.place("lake") == 8


async def test_refused_ones_at_the_beginning_hold_nothing_up(telling: Telling) -> None:
    """Lago refuses what it has already (lago-api 3049): after a crash that is the whole beginning of what is sent again."""
    sink, wanted = KeptSink(), [f"r{number}" for number in range(8)]
    sink.refuses = {*wanted[:6]}
    await write(telling, *wanted)
    await telling.delivery(sink).step()
    assert set(sink.ids) == {*wanted[6:]}
    assert telling.counted("refused") == 6


async def test_a_sink_that_refuses_everything_is_at_fault_itself(telling: Telling) -> None:
    """Nothing is set aside, and it is not asked for each event."""
    sink, wanted = KeptSink(), [f"r{number:03}" for number in range(200)]
    sink.refuses = {*wanted}
    await write(telling, *wanted)
    delivery = telling.delivery(sink, events=200)
    assert await delivery.step() == 1
    assert (await telling.outbox.place("lake"), telling.counted("refused")) == (0, 0)
    assert sink.tries < 20
    sink.refuses = set()
    await delivery.step()
    assert sink.ids == wanted


async def test_the_only_event_may_be_the_one_that_is_refused(telling: Telling) -> None:
    """It waits for others, by which the sink is known to be well."""
    sink = KeptSink()
    sink.refuses = {"bad"}
    await write(telling, "bad")
    delivery = telling.delivery(sink)
    assert await delivery.step() == 1
    assert telling.counted("refused") == 0
    await write(telling, "good")
    assert await delivery.step() == 0
    assert (sink.ids, telling.counted("refused")) == (["good"], 1)


async def test_a_failure_in_the_middle_skips_nothing(telling: Telling) -> None:
    """A cursor that is set by the batch that failed must not pass those that were not tried (Morelitea/initiative 1183)."""
    sink, wanted = KeptSink(), [f"r{number:02}" for number in range(30)]
    await write(telling, *wanted)
    delivery = telling.delivery(sink)

    def fail_second() -> None:
        if sink.tries == 2:
            raise SinkFailed("status 500")

    sink.failing = fail_second
    await delivery.step()
    assert await telling.outbox.place("lake") == 10
    await delivery.step()
    assert sink.ids == wanted


async def test_killed_between_acknowledgement_and_place_sends_again(telling: Telling) -> None:
    """Duplicates, with the same ids and numbers; no gap."""
    sink = KeptSink()
    await write(telling, "a", "b")

    def die() -> None:
        raise asyncio.CancelledError

    sink.taken = die
    with pytest.raises(asyncio.CancelledError):
        await telling.delivery(sink).step()
    sink.taken = lambda: None
    await telling.delivery(sink).step()
    assert sink.ids == ["a", "b", "a", "b"]
    assert sink.sequences == [1, 2, 1, 2]


async def test_two_that_tell_one_sink_send_twice_and_skip_nothing(telling: Telling) -> None:
    """The one that comes second finds the place moved, and reads it anew."""
    sink = KeptSink()
    first, second = telling.delivery(sink), telling.delivery(sink)
    await write(telling, "a")
    await asyncio.gather(first.step(), second.step())
    await write(telling, "b")
    await asyncio.gather(first.step(), second.step())
    await first.step()
    assert [each for place, each in enumerate(sink.ids) if each not in sink.ids[:place]] == ["a", "b"]
    assert await telling.outbox.place("lake") == 2


async def test_lost_events_are_counted_and_passed(telling: Telling) -> None:
    """The numbers show the gap."""
    sink = KeptSink()
    await write(telling, "a", "b")
    telling.clock.pass_s(100)
    await write(telling, "c")
    await telling.outbox.forget(["lake"], 50_000_000)
    await telling.delivery(sink).step()
    assert (sink.ids, sink.sequences, telling.counted("dropped")) == (["c"], [3], 2)


async def test_lost_events_are_counted_once_however_often_it_is_tried(telling: Telling) -> None:
    """A sink that stays away for days after some were dropped is tried every five minutes."""
    sink = KeptSink()
    await write(telling, "a", "b")
    telling.clock.pass_s(100)
    await write(telling, "c")
    await telling.outbox.forget(["lake"], 50_000_000)
    delivery = telling.delivery(sink)
    with raising(sink, SinkFailed("status 503")):
        for _ in range(5):
            await delivery.step()
    await delivery.step()
    await delivery.step()
    assert (sink.sequences, telling.counted("dropped")) == ([3], 2)


async def test_the_lag_grows_between_tries(telling: Telling) -> None:
    """A pause is five minutes, or an hour where the sink asks for it: the alert must not wait for its end."""
    sink = KeptSink()
    await write(telling, "a")
    delivery = telling.delivery(sink)
    with raising(sink, SinkFailed("status 503")):
        await delivery.step()
    assert telling.lag() == 0
    telling.clock.pass_s(3_600)
    delivery.show()
    assert telling.lag() == 3_600
    await delivery.step()
    telling.clock.pass_s(60)
    delivery.show()
    assert telling.lag() == 0


async def test_a_file_waits_for_more_events(telling: Telling) -> None:
    """Until there are enough, or the oldest has waited."""
    sink = KeptSink()
    delivery = telling.delivery(sink, gather_s=300.0, events=3)
    await write(telling, "a")
    assert await delivery.step() == IDLE_S
    telling.clock.pass_s(299)
    await write(telling, "b")
    assert await delivery.step() == IDLE_S
    telling.clock.pass_s(1)
    await delivery.step()
    assert sink.batches == [["a", "b"]]
    await write(telling, "c", "d", "e")
    await delivery.step()
    assert sink.batches[1:] == [["c", "d", "e"]]


def test_batches_are_bounded_by_number_and_size() -> None:
    """Receivers refuse what is too large (PostHog 7068, openmeter 2734); an event that is too large alone goes alone."""
    events = [Event(number, settle(f"r{number}")) for number in range(6)]
    encoded = [b"x" * size for size in (40, 40, 40, 500, 40, 40)]
    made = batches(events, encoded, SinkLimits(10, 100))
    assert [[each.sequence for each in batch.events] for batch in made] == [[0, 1], [2], [3], [4, 5]]
    assert [len(each.events) for each in batches(events, encoded, SinkLimits(4, 10_000))] == [4, 2]
    assert batches([], [], SinkLimits(4, 10_000)) == []


async def test_a_rest_shows_no_lag(telling: Telling) -> None:
    """Where another process tells the sink, this one's last figure would stand for ever."""
    sink = KeptSink()
    await write(telling, "a")
    telling.clock.pass_s(50)
    delivery = telling.delivery(sink)
    with raising(sink, SinkFailed("status 500")):
        await delivery.step()
    assert telling.lag() == 50
    delivery.rest()
    assert telling.lag() == 0
