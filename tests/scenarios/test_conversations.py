"""OpenAI's own client and its conversations, which the gateway keeps, whatever target answers the next turn."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.running_gateway import PEPPER, gateway_at, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_responses_client import client, house


def said(items: list[Any]) -> list[str]:
    """The texts of messages."""
    return [part.text for item in items for part in item.content]


async def test_responses_add_to_their_conversation(tmp_path: Path, upstream: Upstream) -> None:
    """Streamed or whole, in any process: the next turn has all that was said, and the conversation lists it."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        made = await caller.conversations.create(
            metadata={"topic": "scales"}, items=[{"type": "message", "role": "user", "content": "zero"}]
        )
        assert (made.object, made.metadata) == ("conversation", {"topic": "scales"})
        first = await caller.responses.create(model="auto", input="one", conversation=made.id)
        assert first.conversation is not None
        assert first.conversation.id == made.id
        environment = Environment(data_dir=tmp_path, pepper=pydantic.SecretStr(PEPPER))
        async with (
            gateway_at(gateway.config_path, environment, gateway.engine, gateway.key) as another,
            client(another) as other,
            other.responses.stream(model="auto", input="two", conversation={"id": made.id}) as stream,
        ):
            second = await stream.get_final_response()
        listed = [item async for item in caller.conversations.items.list(made.id, order="asc")]
        assert said(listed) == ["zero", "one", " w0 w1 w2", "two", " w0 w1 w2"]
        (answer,) = [item for item in second.output if item.type == "message"]
        assert listed[-1].id == answer.id
        # What was asked is the whole conversation.
        inputs = await caller.responses.input_items.list(second.id, order="asc")
        assert said(inputs.data) == ["zero", "one", " w0 w1 w2", "two"]


async def test_a_conversation_is_kept_even_of_responses_that_are_not(tmp_path: Path, upstream: Upstream) -> None:
    """`store: false` is about the response."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        made = await caller.conversations.create()
        response = await caller.responses.create(model="auto", input="one", conversation=made.id, store=False)
        with pytest.raises(openai.NotFoundError):
            await caller.responses.retrieve(response.id)
        listed = await caller.conversations.items.list(made.id, order="asc")
        assert said(listed.data) == ["one", " w0 w1 w2"]
        # Its items are referred to by their ids.
        reference: Any = [{"type": "item_reference", "id": listed.data[0].id}]
        again = await caller.responses.create(model="auto", input=reference, conversation=made.id)
        inputs = await caller.responses.input_items.list(again.id, order="asc")
        assert said(inputs.data) == ["one", " w0 w1 w2", "one"]


async def test_turns_at_once_are_all_kept(tmp_path: Path, upstream: Upstream) -> None:
    """Whoever writes second reads anew; each turn stands together."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        made = await caller.conversations.create()
        asked = [caller.responses.create(model="auto", input=f"n{n}", conversation=made.id) for n in range(6)]
        answered = await asyncio.gather(*asked)
        assert all(each.conversation is not None for each in answered)
        listed = [item async for item in caller.conversations.items.list(made.id, order="asc")]
        texts = said(listed)
        assert sorted(texts[::2]) == [f"n{n}" for n in range(6)]
        assert texts[1::2] == [" w0 w1 w2"] * 6


async def test_items_and_metadata_are_changed(tmp_path: Path, upstream: Upstream) -> None:
    """Every route, by the client's own names for them."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        made = await caller.conversations.create()
        call: Any = {"type": "function_call", "call_id": "c1", "name": "weigh", "arguments": "{}"}
        output: Any = {"type": "function_call_output", "call_id": "c1", "output": "7 kg"}
        added = await caller.conversations.items.create(made.id, items=[call, output])
        assert [item.type for item in added.data] == ["function_call", "function_call_output"]
        one: Any = await caller.conversations.items.retrieve(added.data[1].id or "", conversation_id=made.id)
        assert (one.type, one.output) == ("function_call_output", "7 kg")
        left = await caller.conversations.items.delete(added.data[0].id or "", conversation_id=made.id)
        assert left.id == made.id
        page = await caller.conversations.items.list(made.id)
        assert [item.id for item in page.data] == [added.data[1].id]
        changed = await caller.conversations.update(made.id, metadata={"a": "b"})
        assert changed.metadata == {"a": "b"}
        assert (await caller.conversations.retrieve(made.id)).metadata == {"a": "b"}
        gone = await caller.conversations.delete(made.id)
        assert (gone.deleted, gone.object) == (True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError):
            await caller.conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError) as refused:
            await caller.responses.create(model="auto", input="on", conversation=made.id)
        assert refused.value.code == "conversation_not_found"


async def test_a_conversation_is_its_teams_alone(tmp_path: Path, upstream: Upstream) -> None:
    """Others get the same 404 as for one that never was, by every route."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        made = await caller.conversations.create()
        environment = Environment(data_dir=tmp_path, pepper=pydantic.SecretStr(PEPPER))
        await gateway.accounts.create_team("team_b", name="Team B")
        minted = await gateway.accounts.create_key(
            "team_b", "tests", peppers(load(gateway.config_path, environment), environment)[0]
        )
        async with client(gateway, minted.plaintext) as stranger:
            for call in (stranger.conversations.retrieve, stranger.conversations.delete):
                with pytest.raises(openai.NotFoundError):
                    await call(made.id)
            with pytest.raises(openai.NotFoundError):
                await stranger.responses.create(model="auto", input="on", conversation=made.id)
            with pytest.raises(openai.NotFoundError):
                await stranger.conversations.items.list(made.id)
        for mistaken in (caller.responses.retrieve, caller.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await mistaken(made.id)


@pytest.mark.parametrize(
    "asked",
    [
        {"items": [{"type": "web_search_call", "id": "ws_1"}]},
        {"items": [{"role": "user", "content": "x"}] * 21},
        {"metadata": {str(n): "x" for n in range(17)}},
    ],
)
async def test_what_cannot_be_kept_is_refused(tmp_path: Path, upstream: Upstream, asked: Any) -> None:
    """Items that no target could be given, too many of them, and too much metadata."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        with pytest.raises(openai.BadRequestError):
            await caller.conversations.create(**asked)
        with pytest.raises(openai.BadRequestError):
            await caller.responses.create(model="auto", input="x", conversation="conv_1", previous_response_id="resp_1")


async def test_an_error_names_the_field_that_its_caller_sent(tmp_path: Path, upstream: Upstream) -> None:
    """And not that as which it is read here; the same with files and batches."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        headers = {"authorization": f"Bearer {gateway.key}"}
        async with httpx.AsyncClient(headers=headers, base_url=gateway.base_url) as caller:
            batch = {"input_file_id": "file-none", "endpoint": "/v1/responses", "completion_window": "24h"}
            for path, body, param, words in (
                ("conversations", {"items": [{"role": "judge", "content": "hi"}]}, "items.0.role", "`items.0.role`"),
                ("responses", {"model": "auto", "input": 7}, "input", "a text or a list of objects"),
                ("messages", {"model": "auto", "max_tokens": 1, "system": 7, "messages": []}, "system", "a text or"),
                ("batches", batch, "input_file_id", "`file-none`"),
                ("messages/batches/msgbatch_nope/cancel", {}, "batch_id", "`msgbatch_nope`"),
            ):
                told = (await caller.post(path, json=body)).json()["error"]
                assert (told["param"], words in told["message"]) == (param, True), told
