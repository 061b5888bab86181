"""Followers of responses in the background: bounded, and each given back."""

import contextlib
from typing import Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from accounts.keys import Pepper
from proxy.errors import Overloaded
from proxy.parse.wires.wire import Kept
from proxy.responses.background.background_responses import BackgroundResponses
from proxy.responses.background.store import BackgroundStore
from proxy.responses.stored.sealing import Sealing
from proxy.responses.stored.store import ResponseStore
from proxy.responses.stored.stored_responses import StoredResponses
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.shared.database_clock import DatabaseTime

ALICE: Final = Caller(key_id="k", key_name="k", team_id="team_a", organisation_id="acme")


def house(engine: AsyncEngine) -> BackgroundResponses:
    sealing, store = Sealing((Pepper(id="p", secret=b"p" * 32),)), ResponseStore(engine)
    kept = StoredResponses(store, sealing, ResponsesSection)
    background = BackgroundStore(engine, DatabaseTime(engine), store)
    return BackgroundResponses(background, kept, sealing, ResponsesSection, lambda: 1_000_000, max_followers=3)


async def test_followers_are_bounded(engine: AsyncEngine) -> None:
    """The next one is refused before anything is answered; when one leaves there is room."""
    made = house(engine)
    record = b'{"response": {"id": "resp_1", "status": "queued", "background": true}, "items": []}'
    await made.enqueue(ALICE, Kept("resp_1", record), (), b"{}", streams=True)
    (begun,) = await made.store.begin(1, 1_000_000)
    assert await made.store.go_on(begun, 1_000_000, made.events_of(begun, 0, 1, b"event: a\ndata: {}\n\n"))
    async with contextlib.AsyncExitStack() as stack:
        following = [made.follow("team_a", "resp_1") for _ in range(3)]
        for each in following:
            stack.push_async_callback(each.aclose)  # type: ignore[attr-defined]
            assert await anext(each) == b"event: a\ndata: {}\n\n"
        with pytest.raises(Overloaded):
            made.follow("team_a", "resp_1")
    again = made.follow("team_a", "resp_1", 0)
    await made.cancel("team_a", "resp_1")
    assert [data async for data in again] == []


async def test_what_was_asked_is_sealed(engine: AsyncEngine) -> None:
    """Headers that say how it is answered are kept, and nothing of who asked."""
    made = house(engine)
    record = b'{"response": {"id": "resp_1", "status": "queued", "background": true}, "items": []}'
    headers = ((b"x-tier", b"batch"), (b"authorization", b"Bearer wb-secret"), (b"x-api-key", b"wb-secret"))
    await made.enqueue(ALICE, Kept("resp_1", record), headers, b'{"input": "words"}', streams=False)
    (begun,) = await made.store.begin(1, 1_000_000)
    work = await made.work_of(begun)
    assert (work.headers, bytes(work.body)) == ([("x-tier", "batch")], b'{"input": "words"}')
    assert b"words" not in begun.sealed
