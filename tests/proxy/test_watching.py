"""Who is cut, for what, and who is left alone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from proxy.context import RequestContext
from proxy.errors import UploadTimeout
from proxy.idempotency.recording import Recording
from proxy.watching import body_in_time, cut_off, cut_the_slow, watch_caller
from tests.proxy.contexts import Sent, a_context

SCOPE: dict[str, Any] = {"headers": []}


async def gone() -> Message:
    return {"type": "http.disconnect"}


async def silent() -> Message:
    await asyncio.Event().wait()
    return {}


async def cut_while(
    act: Callable[[RequestContext], Awaitable[object]], cut: Callable[[RequestContext], None], sent: Sent | None = None
) -> tuple[RequestContext, BaseException | None]:
    """One request that does this while somebody cuts it, and how that ended."""
    made: list[RequestContext] = []

    async def serve() -> None:
        made.append(a_context(sent))
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
    context.recording = Recording.__new__(Recording)


async def test_a_caller_that_hangs_up_ends_its_request() -> None:
    """The watch itself cancels it."""
    context, error = await cut_while(lambda each: watch_caller(each, gone), lambda _each: None)
    assert (context.ended_by, type(error)) == ("caller_gone", asyncio.CancelledError)


@pytest.mark.parametrize("spared", [recorded, lambda each: setattr(each.reply, "done", True)])
async def test_an_answer_that_is_wanted_or_whole_goes_on(spared: Callable[[RequestContext], None]) -> None:
    """With an Idempotency-Key its caller asks again; and who leaves after the last byte has everything."""

    async def act(context: RequestContext) -> None:
        spared(context)
        await watch_caller(context, gone)

    context, error = await cut_while(act, lambda _each: None)
    assert (context.ended_by, error) == (None, None)


async def test_a_slow_upload_is_told_so() -> None:
    """The cancellation becomes an error that its caller can still be told; one in time is left alone."""

    async def act(context: RequestContext) -> None:
        await body_in_time(context, SCOPE, silent, 10.0)

    def cut(context: RequestContext) -> None:
        cut_the_slow([context], 10.9, 1.0, 1.0)
        assert context.ended_by is None
        cut_the_slow([context], 11.1, 1.0, 1.0)

    context, error = await cut_while(act, cut)
    assert (context.ended_by, type(error), context.task.cancelling()) == ("slow_upload", UploadTimeout, 0)
    assert context.reading_since is None


async def test_a_caller_that_leaves_while_it_uploads_is_gone() -> None:
    """There is nobody to tell."""

    async def act(context: RequestContext) -> None:
        await body_in_time(context, SCOPE, gone, 0.0)

    context, error = await cut_while(act, lambda _each: None)
    assert (context.ended_by, type(error)) == ("caller_gone", asyncio.CancelledError)


async def test_a_slow_reader_is_cut_once_and_only_after_its_time() -> None:
    """Its connection is aborted; what is settled meanwhile is not cancelled again."""
    sent = Sent()
    sent.reads.clear()

    def cut(context: RequestContext) -> None:
        since = context.reply.sending_since
        assert since is not None
        cut_the_slow([context], since + 0.9, 1.0, 1.0)
        assert not context.reply.aborted
        cut_the_slow([context], since + 1.1, 1.0, 1.0)
        cut_the_slow([context], since + 2.1, 1.0, 1.0)
        assert context.task.cancelling() == 1

    context, error = await cut_while(lambda each: each.reply.events(b"x"), cut, sent)
    assert (context.ended_by, context.reply.aborted, type(error)) == ("slow_reader", True, asyncio.CancelledError)


async def test_a_slow_reader_with_a_key_loses_its_connection_and_not_its_answer() -> None:
    """It asks again with its Idempotency-Key."""
    sent = Sent()
    sent.reads.clear()

    def cut(context: RequestContext) -> None:
        recorded(context)
        cut_the_slow([context], 1e12, 1.0, 1.0)
        sent.reads.set()

    context, error = await cut_while(lambda each: each.reply.events(b"x"), cut, sent)
    assert (context.ended_by, context.reply.aborted, error) == (None, True, None)


@pytest.mark.parametrize(("done", "ended_by"), [(False, "cut_off"), (True, None)])
async def test_a_process_that_stops_cuts_what_has_not_ended(done: bool, ended_by: str | None) -> None:
    """A reply whose last bytes are on their way needs no more than that."""

    async def act(context: RequestContext) -> None:
        context.reply.done = done
        await asyncio.sleep(0.01)

    context, _ = await cut_while(act, lambda each: cut_off([each]))
    assert context.ended_by == ended_by
