"""The process that tells events is killed: what was not acknowledged comes again, and nothing is missing."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.events.outbox import EventOutbox
from cost.ledger.store import LedgerStore
from tests.api.webhooks.receiver import receiving
from tests.cost.entries import settle

_ROOT = Path(__file__).parents[3]
_EVENTS = 40


@pytest.mark.long
async def test_killed_between_acknowledgement_and_place_loses_nothing(engine: AsyncEngine, database_url: str) -> None:
    """`kill -9` three times while a batch is on its way: ids come again under the numbers that they had, and each number has come."""
    told: list[tuple[str, int]] = []
    outbox, store = EventOutbox(engine), LedgerStore(engine)
    await outbox.begin()
    await outbox.place("lake")
    await store.insert([settle(f"r{number:02}") for number in range(_EVENTS)])
    async with receiving() as receiver:
        for round_ in range(4):
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.gateway.events.telling_child",
                database_url,
                receiver.url,
                f"child{round_}",
                cwd=_ROOT,
            )
            taken = 0
            done = asyncio.Event()

            async def take() -> None:
                nonlocal taken
                taken += 1
                if round_ < 3 and taken == 2:
                    child.kill()
                    await child.wait()
                    done.set()
                if round_ == 3 and {each["id"] for each in _events(receiver.received)} >= wanted:
                    done.set()

            wanted = {f"r{number:02}/1/settle" for number in range(_EVENTS)}
            receiver.taken = take
            async with asyncio.timeout(90):
                await done.wait()
                if round_ < 3:
                    assert await child.wait() == -signal.SIGKILL
                else:
                    child.terminate()
                    await child.wait()
            # Its lease would be waited for.
            await outbox.release(f"child{round_}")
        told = [(each["id"], int(each["sequence"])) for each in _events(receiver.received)]
    assert {name for name, _ in told} == wanted
    assert len(told) > _EVENTS
    assert len(set(told)) == _EVENTS
    assert sorted(number for _, number in set(told)) == list(range(1, _EVENTS + 1))


def _events(received: list[object]) -> list[dict[str, str]]:
    return [event for each in received for event in json.loads(each.body)]  # type: ignore[attr-defined]
