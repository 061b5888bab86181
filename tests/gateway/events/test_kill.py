"""The process that tells events is killed: what was not acknowledged comes again, and nothing is missing."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.outbox import EventOutbox
from cost.ledger.store import LedgerStore
from tests.api.webhooks.receiver import Receiver, receiving
from tests.cost.entries import settle

_ROOT = Path(__file__).parents[3]
_EVENTS = 40


@pytest.mark.long
async def test_killed_between_acknowledgement_and_place_loses_nothing(engine: AsyncEngine, database_url: str) -> None:
    """`kill -9` three times while a batch is on its way: ids come again under the numbers that they had, and each number has come."""
    wanted = {f"r{number:02}/1/settle" for number in range(_EVENTS)}
    outbox, store = EventOutbox(engine), LedgerStore(engine)
    await outbox.begin()
    await outbox.place("lake")
    await store.insert([settle(f"r{number:02}") for number in range(_EVENTS)])
    async with receiving() as receiver:
        for number in range(3):
            before = len(receiver.received)
            enough = partial(_came, receiver, before + 2)
            await _tell(outbox, receiver, database_url, f"child{number}", enough)
        await _tell(outbox, receiver, database_url, "last", lambda: {name for name, _ in _told(receiver)} >= wanted)
        told = _told(receiver)
    assert {name for name, _ in told} == wanted
    assert len(told) > _EVENTS
    assert len(set(told)) == _EVENTS
    assert sorted(number for _, number in set(told)) == list(range(1, _EVENTS + 1))


async def _tell(
    outbox: EventOutbox, receiver: Receiver, database_url: str, holder: str, is_enough: Callable[[], bool]
) -> None:
    """Have a process tell events until it is enough; then it is killed before it gets its answer."""
    module = "tests.gateway.events.telling_child"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, database_url, receiver.url, holder, cwd=_ROOT
    )

    async def take() -> None:
        if is_enough():
            child.kill()
            await child.wait()

    receiver.taken = take
    async with asyncio.timeout(90):
        assert await child.wait() == -signal.SIGKILL
    # Its lease would be waited for.
    await outbox.release(holder)


def _came(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) >= count


def _told(receiver: Receiver) -> list[tuple[str, int]]:
    events = [event for each in receiver.received for event in json.loads(each.body)]
    return [(each["id"], int(each["sequence"])) for each in events]
