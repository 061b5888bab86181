"""OpenAI's own client and responses in the background: polled, followed, resumed, cancelled, begun anew after a death."""

from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text

from tests.processes import until
from tests.running_gateway import Running, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_responses_client import TOOL, client, house

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})


async def ended(caller: openai.AsyncOpenAI, response_id: str) -> Any:
    """The response, once it has ended."""
    await until(lambda: is_now(caller, response_id, *ENDED))
    return await caller.responses.retrieve(response_id)


async def is_now(caller: openai.AsyncOpenAI, response_id: str, *states: str) -> bool:
    return (await caller.responses.retrieve(response_id)).status in states


async def settled(gateway: Running, count: int) -> bool:
    return len(await gateway.rows("entry = 'settle'")) == count


async def stolen(gateway: Running, response_id: str) -> None:
    """Whoever makes it has lost it, as if that process had been frozen until the end of its lease."""
    async with gateway.engine.begin() as connection:
        await connection.execute(
            text(
                "UPDATE background_response SET held_until_us = 0, generation = generation + 1 WHERE response_id = :name"
            ),
            {"name": response_id},
        )


async def test_a_response_is_polled_until_it_is_there(tmp_path: Path, upstream: Upstream) -> None:
    """It is queued at once, has its end, its books and its place in a conversation, and later turns go on from it."""
    async with running_gateway(tmp_path, house(upstream, "tools")) as gateway, client(gateway) as caller:
        made = await caller.conversations.create()
        queued = await caller.responses.create(
            model="auto", input="hi", background=True, conversation=made.id, tools=[TOOL]
        )
        assert (queued.status, queued.background, queued.output) == ("queued", True, [])
        whole = await ended(caller, queued.id)
        assert (whole.status, whole.background, whole.output[0].name) == ("completed", True, "weigh")
        assert whole.usage.total_tokens > 0
        items = await caller.conversations.items.list(made.id, order="asc")
        assert [item.type for item in items.data] == ["message", "function_call"]
        (row,) = await gateway.rows("entry = 'settle'")
        assert row["team_id"] == "team_a"
        on = await caller.responses.create(model="auto", input="on", previous_response_id=queued.id)
        inputs = await caller.responses.input_items.list(on.id, order="asc")
        assert [item.type for item in inputs.data] == ["message", "function_call", "message"]
        assert (await caller.responses.cancel(queued.id)).status == "completed"


async def test_a_stream_is_resumed_after_a_number(tmp_path: Path, upstream: Upstream) -> None:
    """Its caller goes away in the middle; what it reads later, from any number on, is the rest of the same stream."""
    script = "tokens-12+every-40ms"
    async with running_gateway(tmp_path, house(upstream, script)) as gateway, client(gateway) as caller:
        stream = await caller.responses.create(model="auto", input="hi", background=True, stream=True)
        first: list[Any] = []
        async for event in stream:
            first.append(event)
            if len(first) == 6:
                break
        await stream.close()
        named = first[0].response.id
        rest = [
            event
            async for event in await caller.responses.retrieve(
                named, stream=True, starting_after=first[-1].sequence_number
            )
        ]
        events = first + rest
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        whole = await caller.responses.retrieve(named)
        assert said == whole.output_text == "".join(f" w{n}" for n in range(12))
        again = [event async for event in await caller.responses.retrieve(named, stream=True)]
        assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
        over = await caller.responses.retrieve(named, stream=True, starting_after=events[-1].sequence_number)
        assert [event async for event in over] == []


async def test_one_is_cancelled(tmp_path: Path, upstream: Upstream) -> None:
    """The upstream's call ends, the books have what it cost until then, and its stream ends."""
    script = "tokens-2000+every-50ms"
    async with running_gateway(tmp_path, house(upstream, script)) as gateway, client(gateway) as caller:
        stream = await caller.responses.create(model="auto", input="hi", background=True, stream=True)
        events = aiter(stream)
        first: Any = await anext(events)
        assert (await caller.responses.cancel(first.response.id)).status == "cancelled"
        rest = [event.type async for event in stream]
        assert not {"response.completed", "response.failed"} & set(rest)
        await until(lambda: bool(upstream.over()))
        assert (await caller.responses.retrieve(first.response.id)).status == "cancelled"
        assert (await caller.responses.cancel(first.response.id)).status == "cancelled"
        await until(lambda: settled(gateway, 1))
        (row,) = await gateway.rows("entry = 'settle'")
        assert "caller_gone" in row["flags"]


async def test_one_that_is_deleted_stops(tmp_path: Path, upstream: Upstream) -> None:
    """Nothing is left of it."""
    script = "tokens-2000+every-50ms"
    async with running_gateway(tmp_path, house(upstream, script)) as gateway, client(gateway) as caller:
        queued = await caller.responses.create(model="auto", input="hi", background=True)
        await until(lambda: is_now(caller, queued.id, "in_progress"))
        await caller.responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError):
            await caller.responses.retrieve(queued.id)
        await until(lambda: bool(upstream.over()))
        async with gateway.engine.connect() as connection:
            assert await connection.scalar(text("SELECT count(*) FROM background_response")) == 0
            assert await connection.scalar(text("SELECT count(*) FROM stored_response")) == 0


@pytest.mark.parametrize("streams", [True, False])
async def test_what_cannot_be_answered_has_failed(tmp_path: Path, upstream: Upstream, streams: bool) -> None:
    """With the words of the error; a stream ends with the event for it."""
    async with running_gateway(tmp_path, house(upstream, "error-400")) as gateway, client(gateway) as caller:
        asked: Any = {"model": "auto", "input": "hi", "background": True}
        if streams:
            *_, last = [event async for event in await caller.responses.create(**asked, stream=True)]
            assert last.type == "response.failed"
            named = last.response.id
        else:
            named = (await caller.responses.create(**asked)).id
        failed = await ended(caller, named)
        assert failed.status == "failed"
        assert failed.error.code == "server_error"
        assert failed.error.message


async def test_it_is_begun_anew_when_whoever_made_it_is_gone(tmp_path: Path, upstream: Upstream) -> None:
    """Its lease ends; the next one's answer is the response, and whoever follows it reads all of that. Both are booked."""
    script = "tokens-40+every-40ms"
    async with running_gateway(tmp_path, house(upstream, script)) as gateway, client(gateway) as caller:
        stream = await caller.responses.create(model="auto", input="hi", background=True, stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if len(events) == 6:
                await stolen(gateway, events[0].response.id)
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))
        begins = [index for index, event in enumerate(events) if event.type == "response.created"]
        assert len(begins) == 2
        words = "".join(f" w{n}" for n in range(40))
        assert "".join(e.delta for e in events[begins[1] :] if e.type == "response.output_text.delta") == words
        assert (events[-1].type, events[-1].response.output_text) == ("response.completed", words)
        assert (await caller.responses.retrieve(events[0].response.id)).output_text == words
        await until(lambda: settled(gateway, 2))


async def test_what_is_refused(tmp_path: Path, upstream: Upstream) -> None:
    """Before anything is queued: what is not to be kept, what is wrong, and more than a team may have."""
    sections = {"responses": {"max_background_per_team": 1}}
    script = "tokens-2000+every-50ms"
    async with running_gateway(tmp_path, house(upstream, script), **sections) as gateway, client(gateway) as caller:
        with pytest.raises(openai.BadRequestError):
            await caller.responses.create(model="auto", input="hi", background=True, store=False)
        with pytest.raises(openai.BadRequestError):
            await caller.responses.create(model="auto", input="hi", background=True, tools=[{"type": "web_search"}])
        queued = await caller.responses.create(model="auto", input="hi", background=True)
        with pytest.raises(openai.RateLimitError) as full:
            await caller.responses.create(model="auto", input="hi", background=True)
        assert full.value.code == "background_full"
        with pytest.raises(openai.BadRequestError):
            await caller.responses.retrieve(queued.id, stream=True)
        await caller.responses.cancel(queued.id)
    (tmp_path / "off").mkdir()
    sections = {"responses": {"background_at_once": 0}}
    async with running_gateway(tmp_path / "off", house(upstream), **sections) as gateway, client(gateway) as caller:
        with pytest.raises(openai.BadRequestError):
            await caller.responses.create(model="auto", input="hi", background=True)
