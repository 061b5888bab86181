"""The runner at the moments that a scenario meets by chance."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from accounts.keys import Pepper
from cost.times import wall_us
from proxy.http.in_memory import InMemoryExchange
from proxy.parse.wires.wire import Kept, Wire
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.background.events import count_of
from proxy.responses.background.runner import BackgroundRunner
from proxy.responses.background.store import BackgroundStore, Begun
from proxy.responses.background.tables import BackgroundEvents
from proxy.responses.stored.sealing import Sealing
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.shared.database_clock import DatabaseTime
from tests.processes import until

ALICE = Caller(key_id="k", key_name="k", team_id="team_a", organisation_id="acme")
RECORD: dict[str, Any] = {
    "response": {"id": "resp_1", "status": "queued", "background": True},
    "items": [],
}


class _SlowStore(BackgroundStore):
    """A database whose answer to a write comes after the write."""

    writes: asyncio.Event
    answers: asyncio.Event

    async def go_on(self, begun: Begun, lease_us: int, events: BackgroundEvents | None) -> bool:
        goes_on = await super().go_on(begun, lease_us, events)
        if events is not None:
            self.writes.set()
            await self.answers.wait()
        return goes_on


class _Pipeline:
    """A line whose answer ends while its first events are being written."""

    def __init__(self, store: _SlowStore) -> None:
        self._store = store

    async def run(
        self,
        wire: Wire,
        exchange: InMemoryExchange,
        caller: Caller,
        request_id: str,
        keep: Callable[[Kept], Awaitable[bool]],
    ) -> str:
        """Answers."""
        del wire, caller, request_id
        exchange.start(200, ())
        exchange.write(b'event: response.created\ndata: {"n":0}\n\n')
        await self._store.writes.wait()
        response = {**RECORD["response"], "status": "completed"}
        await keep(Kept("resp_1", msgspec.json.encode({**RECORD, "response": response})))
        told = msgspec.json.encode({"response": response})
        exchange.end(b"event: response.completed\ndata: " + told + b"\n\n")
        asyncio.get_running_loop().call_later(0.05, self._store.answers.set)
        return ""


class _Callers:
    async def caller_of(self, key_id: str) -> Caller | None:
        """Whoever asks."""
        del key_id
        return ALICE

    async def is_blocked(self, key_id: str) -> bool:
        """Nobody is."""
        del key_id
        return False


async def test_an_answer_that_ends_within_a_write_is_written_once(engine: AsyncEngine) -> None:
    """Its last events come behind those that were under way."""
    sealing, responses = Sealing((Pepper(id="p", secret=b"p" * 32),)), ResponseStore(engine)
    kept = StoredResponses(responses, sealing, ResponsesSection)
    store = _SlowStore(engine, DatabaseTime(engine), responses)
    store.writes, store.answers = asyncio.Event(), asyncio.Event()
    now_us = wall_us()
    made = BackgroundResponses(store, kept, sealing, ResponsesSection, lambda: now_us)
    runner = BackgroundRunner(
        background=made,
        responses=kept,
        caller_of=_Callers().caller_of,
        is_blocked=_Callers().is_blocked,
        pipeline=_Pipeline(store),
        section=ResponsesSection,
        now_us=lambda: now_us,
    )
    await made.enqueue(ALICE, Kept("resp_1", msgspec.json.encode(RECORD)), (), b"{}", streams=True)
    await runner.step()

    async def has_ended() -> bool:
        found = await made.response("team_a", "resp_1")
        return bool(found["status"] == "completed")

    await until(has_ended)
    data = b"".join([data async for data in made.follow("team_a", "resp_1")])
    assert (count_of(data), data.count(b"response.created"), data.count(b"event: response.completed")) == (2, 1, 1)


class _Counting(BackgroundStore):
    """Notes when it is asked for what waits."""

    looked_at: list[float]

    async def begin(self, limit: int, lease_us: int) -> list[Begun]:
        self.looked_at.append(asyncio.get_running_loop().time())
        return await super().begin(limit, lease_us)


class _RefusingPipeline:
    async def run(
        self,
        wire: Wire,
        exchange: InMemoryExchange,
        caller: Caller,
        request_id: str,
        keep: Callable[[Kept], Awaitable[bool]],
    ) -> str:
        """Answers with an error."""
        del wire, caller, request_id, keep
        exchange.start(400, ())
        exchange.end(b'{"error":{"message":"no"}}')
        return "bad_request"


def _idle_runner(engine: AsyncEngine) -> tuple[BackgroundRunner, _Counting]:
    """A runner for which nothing waits, and its store."""
    sealing, responses = Sealing((Pepper(id="p", secret=b"p" * 32),)), ResponseStore(engine)
    kept = StoredResponses(responses, sealing, ResponsesSection)
    store = _Counting(engine, DatabaseTime(engine), responses)
    store.looked_at = []
    made = BackgroundResponses(store, kept, sealing, ResponsesSection, wall_us)
    runner = BackgroundRunner(
        background=made,
        responses=kept,
        caller_of=_Callers().caller_of,
        is_blocked=_Callers().is_blocked,
        pipeline=_RefusingPipeline(),
        section=ResponsesSection,
        now_us=wall_us,
    )
    made.news = runner.look
    return runner, store


async def test_where_nothing_waits_it_looks_ever_more_seldom(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an idle gateway leaves its database alone."""
    monkeypatch.setattr("proxy.responses.background.runner._POLL_S", 0.02)
    runner, store = _idle_runner(engine)
    running = asyncio.create_task(runner.run(lambda: False))
    await until(lambda: len(store.looked_at) >= 4)
    running.cancel()
    await asyncio.wait({running})
    for number, (before, after) in enumerate(pairwise(store.looked_at[:4])):
        assert after - before > 0.95 * 0.02 * 2 ** (number + 1)


async def test_whoever_is_blocked_waits(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no end: what was asked for is made once the key works again."""
    monkeypatch.setattr("proxy.responses.background.runner._BLOCKED_WAIT_US", 0)
    runner, _ = _idle_runner(engine)
    blocked, looks = True, 0

    async def is_blocked(_key_id: str) -> bool:
        nonlocal looks
        looks += 1
        return blocked

    monkeypatch.setattr(runner, "_is_blocked", is_blocked)
    made = runner._background
    await made.enqueue(ALICE, Kept("resp_1", msgspec.json.encode(RECORD)), (), b"{}", streams=False)
    running = asyncio.create_task(runner.run(lambda: False))
    await until(lambda: looks >= 3)
    assert (await made.response("team_a", "resp_1"))["status"] != "failed"
    blocked = False

    async def has_ended() -> bool:
        return bool((await made.response("team_a", "resp_1"))["status"] == "failed")

    await until(has_ended)
    running.cancel()
    await asyncio.wait({running})


async def test_what_is_told_begins_at_once(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself the runner would look after longer than the test may take."""
    monkeypatch.setattr("proxy.responses.background.runner._POLL_S", 1_000.0)
    runner, _ = _idle_runner(engine)
    running = asyncio.create_task(runner.run(lambda: False))
    made = runner._background
    await made.enqueue(ALICE, Kept("resp_1", msgspec.json.encode(RECORD)), (), b"{}", streams=False)

    async def has_failed() -> bool:
        return bool((await made.response("team_a", "resp_1"))["status"] == "failed")

    await until(has_failed)
    running.cancel()
    await asyncio.wait({running})
