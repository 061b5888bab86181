"""A sender is killed with a message on its way."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.api.webhooks.receiver import a_bench, receiving

_ROOT = Path(__file__).parents[3]


@pytest.mark.long
async def test_a_sender_killed_after_sending_delivers_again(engine: AsyncEngine, database_url: str) -> None:
    """`kill -9` between the receiver's taking it and our marking it: it comes again, with the same id and body."""
    async with receiving() as receiver, a_bench(engine, receiver.url, time.time_ns() // 1_000) as bench:
        await bench.put()
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.api.webhooks.sending_child", database_url, receiver.url, cwd=_ROOT
        )

        async def kill() -> None:
            child.kill()
            await child.wait()

        receiver.taken = kill
        assert await asyncio.wait_for(child.wait(), 60) == -signal.SIGKILL
        receiver.taken = None
        assert len(receiver.received) == 1
        (row,) = await bench.rows()
        assert (row.tries, row.delivered_us) == (1, None)
        # The dead one's lease counts from when it took the message, which was later than this clock stands.
        bench.now_us = time.time_ns() // 1_000
        assert await bench.sender().send_due("ops") == 0
        bench.advance(61)
        assert await bench.sender().send_due("ops") == 1
        (row,) = await bench.rows()
    assert receiver.ids == ["budget/b_1/2026-11/80"] * 2
    assert receiver.received[0].body == receiver.received[1].body
    assert (row.tries, row.last_status) == (2, 204)
    assert row.delivered_us is not None
