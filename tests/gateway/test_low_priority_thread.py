"""Spare time: a thread of the lowest priority, and the judgement whether it comes to anything."""

import asyncio
import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.ledger.store import LedgerStore
from gateway import low_priority_thread as spare_time
from gateway.database import make_engine
from gateway.low_priority_thread import AGAIN_S, GRACE_S, LowPriorityThread
from tests.cost.entries import reserve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def _engine(folder: Path) -> Callable[[], AsyncEngine]:
    return lambda: make_engine(f"sqlite:///{folder}/books.sqlite")


async def test_only_its_own_threads_are_of_low_priority(tmp_path: Path) -> None:
    """The one that it lives in, and those of its connections, which SQLite's driver starts from there."""
    before, threads = _niceness(), set(os.listdir("/proc/self/task"))  # noqa: PTH208  Names are all that is asked.
    spare = LowPriorityThread(_engine(tmp_path))
    assert await spare.start()
    assert await spare.compute(_niceness) == spare_time.NICENESS

    async def ask() -> int:
        async with spare.engine.connect() as connection:
            return int((await connection.execute(text("SELECT 7"))).scalar_one())

    assert await spare.run(ask) == 7
    started = set(os.listdir("/proc/self/task")) - threads  # noqa: PTH208
    assert len(started) >= 2
    assert {os.getpriority(os.PRIO_PROCESS, int(each)) for each in started} == {spare_time.NICENESS}
    assert _niceness() == before
    await spare.aclose()
    assert not spare.has_time


async def test_entries_are_written_by_its_own_connections(database_url: str, engine: AsyncEngine) -> None:
    """While those of the process write, too: a connection belongs to the loop that it was made in."""
    spare = LowPriorityThread(lambda: make_engine(database_url))
    assert await spare.start()
    spared, own = LedgerStore(spare.engine), LedgerStore(engine)
    batches = [[reserve(f"req_{place}_{number}") for number in range(20)] for place in range(6)]
    writing = [
        spare.run(partial(spared.insert, batch)) if place % 2 else own.insert(batch)
        for place, batch in enumerate(batches)
    ]
    assert await asyncio.gather(*writing) == [20] * 6
    assert await spare.run(partial(spared.insert, batches[0])) == 0
    await spare.aclose()


async def test_what_fails_there_fails_here(tmp_path: Path) -> None:
    """As if it had been awaited where it was asked for; and what is cancelled here ends there."""
    spare = LowPriorityThread(_engine(tmp_path))
    assert await spare.start()
    with pytest.raises(ZeroDivisionError):
        await spare.compute(lambda: 1 // 0)
    ended = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await spare.run(never)
    assert await asyncio.to_thread(ended.wait, 5.0)
    await spare.aclose()


async def test_a_thread_that_gets_no_processor_is_left_alone_for_a_while(tmp_path: Path) -> None:
    """Judged by time that passed without processor time, over a few pieces of work; then it is tried again."""
    now = 100.0
    spare = LowPriorityThread(_engine(tmp_path), clock=lambda: now)
    assert await spare.start()
    judged = [spare.has_time]
    for _ in range(3):
        await spare.compute(lambda: time.sleep(GRACE_S / 2))
    judged.append(spare.has_time)
    now += AGAIN_S
    await spare.compute(lambda: None)
    judged.append(spare.has_time)
    assert judged == [True, False, True]
    await spare.aclose()


async def test_where_priorities_cannot_be_lowered_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and everything is done as without it."""

    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refuse)
    spare = LowPriorityThread(_engine(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert not await spare.start()
    assert [record.message for record in caplog.records] == [
        "the drain runs at the priority of the control plane: Operation not permitted"
    ]
    assert not spare.has_time
    await spare.aclose()


async def test_elsewhere_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac a priority is the whole process's."""
    monkeypatch.setattr(sys, "platform", "darwin")
    spare = LowPriorityThread(_engine(tmp_path))
    assert not await spare.start()
    assert not spare.has_time
    await spare.aclose()


async def test_a_thread_that_cannot_start_says_why() -> None:
    def fail() -> AsyncEngine:
        raise ValueError("no such database")

    with pytest.raises(ValueError, match="no such database"):
        await LowPriorityThread(fail).start()
