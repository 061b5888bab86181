"""Who is cut, for what, and who is left alone."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proxy.admit.idempotency.recording import Recording
from proxy.context import RequestContext
from proxy.http.exchange import CallerGone, Gone
from tests.proxy.contexts import a_context
from tests.proxy.exchanges import HeardExchange


async def cut_while(
    act: Callable[[RequestContext], Awaitable[object]],
    cut: Callable[[RequestContext], None],
    exchange: HeardExchange | None = None,
) -> tuple[RequestContext, BaseException | None]:
    """One request that does this while somebody cuts it, and how that ended."""
    made: list[RequestContext] = []

    async def serve() -> None:
        made.append(a_context(exchange))
        await act(made[0])

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    cut(made[0])
    await asyncio.wait({task})
    if task.cancelled():
        return made[0], asyncio.CancelledError()
    return made[0], task.exception()


def recorded(context: RequestContext) -> None:
    """It has an Idempotency-Key. The claim is never asked for here."""
    context.reply.recording = Recording.__new__(Recording)


@pytest.mark.parametrize(("why", "ended_by"), [("hung_up", "caller_gone"), ("slow_reader", "slow_reader")])
async def test_a_caller_that_is_gone_ends_its_request(why: Gone, ended_by: str) -> None:
    exchange = HeardExchange()

    async def act(context: RequestContext) -> None:
        context.watch_caller(exchange)
        await asyncio.sleep(1)

    context, error = await cut_while(act, lambda _each: exchange.hang_up(why), exchange)
    assert (context.ended_by, type(error)) == (ended_by, asyncio.CancelledError)


async def test_a_caller_that_left_before_is_not_served() -> None:
    """Nothing is cancelled for it: its request simply goes no further."""
    exchange = HeardExchange()
    exchange.hang_up()
    with pytest.raises(CallerGone):
        a_context(exchange).watch_caller(exchange)


@pytest.mark.parametrize("spared", [recorded, lambda each: setattr(each.reply, "done", True)])
async def test_an_answer_that_is_wanted_or_whole_goes_on(spared: Callable[[RequestContext], None]) -> None:
    """With an Idempotency-Key its caller asks again; and who leaves after the last byte has everything."""
    exchange = HeardExchange()

    async def act(context: RequestContext) -> None:
        spared(context)
        context.watch_caller(exchange)
        await asyncio.sleep(0.01)

    context, error = await cut_while(act, lambda _each: exchange.hang_up(), exchange)
    assert (context.ended_by, error) == (None, None)


async def test_events_wait_for_their_reader() -> None:
    """A caller that takes nothing holds up its own stream, and nothing is written meanwhile."""
    exchange = HeardExchange()

    async def act(context: RequestContext) -> None:
        context.reply.begin_events()
        exchange.reads.clear()
        await context.reply.events(b"1")
        await context.reply.events(b"2")

    def read(_context: RequestContext) -> None:
        assert [each.get("body") for each in exchange.messages] == [None, b"1"]
        exchange.reads.set()

    assert (await cut_while(act, read, exchange))[1] is None
    assert exchange.messages[-1]["body"] == b"2"


@pytest.mark.parametrize(("done", "ended_by"), [(False, "cut_off"), (True, None)])
async def test_a_process_that_stops_cuts_what_has_not_ended(done: bool, ended_by: str | None) -> None:
    """A reply whose last bytes are on their way needs no more than that."""

    async def act(context: RequestContext) -> None:
        context.reply.done = done
        await asyncio.sleep(0.01)

    context, _ = await cut_while(act, lambda each: each.cut("cut_off") if not each.reply.done else None)
    assert context.ended_by == ended_by
