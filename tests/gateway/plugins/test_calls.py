"""Calls of a plug-in: bounded in every way that a plug-in may hang, and taken out for lateness alone."""

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from gateway.plugins.alarm import TooLong, bounded
from gateway.plugins.calls import MOST_LATE, OUT_S, Calls, NoAnswer
from tests.gateway.plugins.told import Told

_SHORT_S = 0.02
_LONG_S = 30.0


class Clock:
    """It stands but for a moment each time that it is looked at."""

    now = 1_000.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


def calls(deadline_s: float = _SHORT_S) -> tuple[Calls, Told, Clock]:
    told, clock = Told(), Clock()
    return Calls("house", deadline_s, told, clock), told, clock


async def hangs() -> str:
    await asyncio.sleep(_LONG_S)
    return "too late"


async def holds_the_loop() -> str:
    """As an exporter that flushes with a blocking client does (LiteLLM 1519)."""
    time.sleep(_LONG_S)  # noqa: ASYNC251
    return "too late"


async def never_gives_back() -> str:
    while True:
        pass


async def does_not_listen() -> str:
    """Goes on although it is cancelled, as whoever catches everything does (LiteLLM 31779)."""
    for _ in range(20):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "too late"


async def in_time() -> str:
    await asyncio.sleep(0)
    return "answer"


async def times_out_itself() -> str:
    """A database's time-out is no lateness of the plug-in (N.E.K.O 2046)."""
    raise TimeoutError("the database")


@pytest.mark.parametrize("late", [hangs, holds_the_loop, never_gives_back, does_not_listen])
async def test_whoever_hangs_is_waited_for_until_the_deadline_and_no_longer(late: Callable[[], Awaitable[str]]) -> None:
    """Whether it sleeps, blocks, runs in circles or ignores its cancellation."""
    asked, told, _ = calls()
    before = time.monotonic()
    with pytest.raises(NoAnswer, match="did not answer within") as none:
        await asked.ask(late)
    assert time.monotonic() - before < 5
    assert none.value.result == "late"
    assert told.calls == {"late": 1}


async def test_three_late_calls_in_a_row_take_a_plugin_out_and_one_in_time_brings_it_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While it is out it costs nobody a deadline; every minute one call tries it."""
    asked, told, clock = calls()
    for _ in range(MOST_LATE):
        assert told.out == {"house": False}
        with pytest.raises(NoAnswer):
            await asked.ask(hangs)
    assert asked.is_out
    assert told.out == {"house": True}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    with pytest.raises(NoAnswer, match="taken out"):
        await asked.ask(in_time)
    clock.now += OUT_S
    with pytest.raises(NoAnswer, match="did not answer"):
        await asked.ask(hangs)
    with pytest.raises(NoAnswer, match="taken out"):
        await asked.ask(in_time)
    clock.now += OUT_S
    assert await asked.ask(in_time) == "answer"
    assert told.out == {"house": False}
    assert told.calls == {"late": 4, "out": 2, "ok": 1}
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


async def test_late_now_and_then_is_not_taken_out() -> None:
    """A process lives for months: what counts is lateness in a row."""
    asked, _, _ = calls()
    for _ in range(2 * MOST_LATE):
        with pytest.raises(NoAnswer):
            await asked.ask(hangs)
        assert await asked.ask(in_time) == "answer"
    assert not asked.is_out


async def test_a_stall_that_many_wait_for_is_late_once() -> None:
    """With a hundred requests a second a moment's stall would else take it out."""
    asked, told, clock = calls()
    for round_of_calls in range(MOST_LATE):
        assert told.out == {"house": False}
        answers = await asyncio.gather(*(asked.ask(hangs) for _ in range(20)), return_exceptions=True)
        assert {each.result for each in answers if isinstance(each, NoAnswer)} == {"late"}, round_of_calls
        clock.now += 1
    assert told.out == {"house": True}


async def test_what_a_plugin_raises_is_a_failure_and_no_lateness(caplog: pytest.LogCaptureFixture) -> None:
    """Its words are in no log, as they may be a caller's; and they are told once a minute."""
    asked, told, _ = calls(_LONG_S)

    async def says_too_much() -> None:
        raise ValueError("my card is 4111 1111 1111 1111")

    for _ in range(2 * MOST_LATE):
        with pytest.raises(NoAnswer, match="the plug-in house failed"):
            await asked.ask(times_out_itself)
        with pytest.raises(NoAnswer) as none:
            await asked.ask(says_too_much)
        assert "4111 1111" not in str(none.value)
    assert not asked.is_out
    assert told.calls == {"failed": 4 * MOST_LATE}
    assert len(caplog.records) == 1
    assert "4111 1111" not in caplog.text


def test_a_plain_function_is_interrupted() -> None:
    """An endless loop, a sleep, and one that catches what interrupts it."""
    asked, told, _ = calls()

    def catches() -> None:
        for _ in range(200):
            with contextlib.suppress(Exception):
                time.sleep(0.2)

    for late in (lambda: time.sleep(_LONG_S), catches):
        before = time.monotonic()
        with pytest.raises(NoAnswer):
            asked.ask_now(late)
        assert time.monotonic() - before < 5
    assert told.calls == {"late": 2}
    assert asked.ask_now(lambda: "answer") == "answer"


async def test_a_caller_that_hangs_up_ends_its_call() -> None:
    """And the plug-in is not blamed."""
    asked, told, _ = calls(_LONG_S)
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(_LONG_S)
        finally:
            ended.set()

    task = asyncio.create_task(asked.ask(waits))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), 5)
    assert told.calls == {}


def test_the_timer_of_others_goes_on() -> None:
    """Who else uses the signal finds it as it was."""
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: rung.append(number))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(TooLong):
            bounded(lambda: time.sleep(_LONG_S), 0.01)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.2
        time.sleep(0.5)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def test_outside_the_main_thread_a_call_is_made_all_the_same() -> None:
    """Signals reach the main thread alone."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(bounded(lambda: "answer", 0.01)))
    thread.start()
    thread.join()
    assert found == ["answer"]
