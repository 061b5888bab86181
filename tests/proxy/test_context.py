"""How a request ended is one value, and the first word counts."""

import asyncio
from typing import get_args

import pytest

from proxy.context import Cut, EndedBy
from proxy.dispatch.outcome import Ending
from tests.proxy.contexts import a_context


async def test_a_request_under_way_has_not_ended() -> None:
    """Nothing is known of its end, and an attempt that is cancelled now was cancelled by the server."""
    context = a_context()
    assert (context.ended_by, context.was_cut_short, context.ending) == (None, False, "shutdown")


@pytest.mark.parametrize("later", ["answered", "failed", "cancelled", *get_args(Cut)])
async def test_the_first_word_counts(later: EndedBy) -> None:
    """Whatever follows is only how the end is told."""
    context = a_context()
    context.end("caller_gone")
    context.end(later)
    assert context.ended_by == "caller_gone"


@pytest.mark.parametrize("first", get_args(Cut))
@pytest.mark.parametrize("second", get_args(Cut))
async def test_of_two_cuts_the_first_is_the_cause(first: Cut, second: Cut) -> None:
    """Both cancel."""

    async def serve() -> str | None:
        context = a_context()
        context.cut(first)
        context.cut(second)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        return context.ended_by

    assert await asyncio.create_task(serve()) == first


async def test_a_failure_that_nobody_reads_is_cut_short() -> None:
    """It failed by then, but it is the cut that ended it: the cancellation is ours, and ends with the request."""

    async def serve() -> tuple[str | None, bool]:
        context = a_context()
        context.end("failed")
        context.cut("slow_reader")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(1)
        return context.ended_by, context.was_cut_short

    assert await asyncio.create_task(serve()) == ("slow_reader", True)


@pytest.mark.parametrize(
    ("ended_by", "ending"),
    [
        ("caller_gone", "caller_gone"),
        ("slow_reader", "slow_reader"),
        ("cut_off", "shutdown"),
        ("cancelled", "shutdown"),
    ],
)
async def test_the_books_have_words_of_their_own(ended_by: EndedBy, ending: Ending) -> None:
    """A process that stops is a shutdown there, whoever ends the task."""
    context = a_context()
    context.end(ended_by)
    assert context.ending == ending
