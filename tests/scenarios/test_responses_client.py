"""OpenAI's own client and its responses, against a gateway on a socket, over targets that speak chat."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pydantic
import pytest
from sqlalchemy import text

from gateway.configuration.environment import Environment
from gateway.configuration.peppers import peppers
from gateway.configuration.settings import load
from tests.running_gateway import CHEAP_PRICES, PEPPER, Running, gateway_at, model, running_gateway
from tests.scenarios.conftest import Upstream

TOOL: Final[Any] = {
    "type": "function",
    "name": "weigh",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"kg": {"type": "integer"}},
        "required": ["kg"],
        "additionalProperties": False,
    },
}


@contextlib.asynccontextmanager
async def client(gateway: Running, key: str | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=key or gateway.key, base_url=gateway.base_url, max_retries=0) as caller:
        yield caller


def house(upstream: Upstream, script: str = "ok") -> list[dict[str, Any]]:
    return [model("cheap", [upstream.deployment(script)], prices=CHEAP_PRICES)]


async def test_a_whole_response(tmp_path: Path, upstream: Upstream) -> None:
    """Text, usage and decision headers, and the ledger has the row."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        raw = await caller.responses.with_raw_response.create(model="auto", input="hi")
        response = raw.parse()
        assert (response.output_text, response.status) == (" w0 w1 w2", "completed")
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens) == (12, 3)
        assert raw.headers["x-weighbridge-target"] == "cheap"
        (row,) = await gateway.rows("entry = 'settle'")
        assert (row["input_tokens"], row["output_tokens"], row["alias"]) == (12, 3, "auto")


async def test_a_streamed_response_with_the_clients_own_helper(tmp_path: Path, upstream: Upstream) -> None:
    """The helper puts the final response together out of the events."""
    async with running_gateway(tmp_path, house(upstream, "ok+tokens-5")) as gateway, client(gateway) as caller:
        async with caller.responses.stream(model="auto", input="hi") as stream:
            said = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert "".join(said) == final.output_text == " w0 w1 w2 w3 w4"


@pytest.mark.parametrize("streams", [True, False])
async def test_tools_are_called(tmp_path: Path, upstream: Upstream, streams: bool) -> None:
    """Name and arguments, streamed or whole."""
    asked: Any = {"model": "auto", "input": "hi", "tools": [TOOL]}
    async with running_gateway(tmp_path, house(upstream, "tools")) as gateway, client(gateway) as caller:
        if streams:
            async with caller.responses.stream(**asked) as stream:
                response: Any = await stream.get_final_response()
        else:
            response = await caller.responses.create(**asked)
        (item,) = response.output
        assert (item.type, item.name, item.arguments) == ("function_call", "weigh", '{"kg": 7}')


class Answer(pydantic.BaseModel):
    answer: int


async def test_answers_are_parsed_by_their_schema(tmp_path: Path, upstream: Upstream) -> None:
    """The client's own `parse`."""
    async with running_gateway(tmp_path, house(upstream, "json")) as gateway, client(gateway) as caller:
        parsed = await caller.responses.parse(model="auto", input="hi", text_format=Answer)
        assert parsed.output_parsed == Answer(answer=42)


async def test_a_conversation_goes_on_from_a_kept_response(tmp_path: Path, upstream: Upstream) -> None:
    """The next turn's prompt has all of the one before, in any process that has the database and the pepper."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        first = await caller.responses.create(model="auto", input="one " * 50, instructions="Be brief.")
        second = await caller.responses.create(model="auto", input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        listed = [item.to_dict() async for item in caller.responses.input_items.list(second.id, order="asc")]
        texts = [part["text"] for item in listed for part in item["content"]]  # type: ignore[attr-defined]
        # The instructions of the former response are not carried over.
        assert texts == ["one " * 50, " w0 w1 w2", "two"]
        environment = Environment(data_dir=tmp_path, pepper=pydantic.SecretStr(PEPPER))
        async with (
            gateway_at(gateway.config_path, environment, gateway.engine, gateway.key) as another,
            client(another) as other,
        ):
            third = await other.responses.create(model="auto", input="three", previous_response_id=second.id)
        page = await caller.responses.input_items.list(third.id, limit=2)
        assert (page.has_more, len(page.data)) == (True, 2)


async def test_items_are_referred_to_by_their_ids(tmp_path: Path, upstream: Upstream) -> None:
    """As clients do that keep nothing themselves; unknown ones are told."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        first = await caller.responses.create(model="auto", input="one")
        reference: Any = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "two"}]
        second = await caller.responses.create(model="auto", input=reference)
        listed = await caller.responses.input_items.list(second.id, order="asc")
        assert listed.data[0].id == first.output[0].id
        for unknown in ("msg_00_7", "nothing"):
            with pytest.raises(openai.BadRequestError):
                await caller.responses.create(model="auto", input=[{"type": "item_reference", "id": unknown}])


async def test_kept_responses_are_read_and_deleted_by_their_team_alone(tmp_path: Path, upstream: Upstream) -> None:
    """Others get the same 404 as for one that never was; what was deleted is gone."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        first = await caller.responses.create(model="auto", input="secret words")
        assert (await caller.responses.retrieve(first.id)).output_text == " w0 w1 w2"
        environment = Environment(data_dir=tmp_path, pepper=pydantic.SecretStr(PEPPER))
        await gateway.accounts.create_team("team_b", name="Team B")
        minted = await gateway.accounts.create_key(
            "team_b", "tests", peppers(load(gateway.config_path, environment), environment)[0]
        )
        async with client(gateway, minted.plaintext) as stranger:
            for call in (stranger.responses.retrieve, stranger.responses.delete, stranger.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    await call(first.id)
            with pytest.raises(openai.BadRequestError) as refused:
                await stranger.responses.create(model="auto", input="go on", previous_response_id=first.id)
            assert refused.value.code == "previous_response_not_found"
        async with gateway.engine.connect() as connection:
            (sealed,) = (await connection.execute(text("SELECT sealed FROM stored_response"))).scalars()
        assert b"secret" not in sealed
        with pytest.raises(openai.BadRequestError):
            await caller.responses.cancel(first.id)
        await caller.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await caller.responses.retrieve(first.id)


async def test_nothing_is_kept_that_was_not_to_be(tmp_path: Path, upstream: Upstream) -> None:
    """`store: false`, a gateway that keeps nothing, and a response that broke off."""
    async with running_gateway(tmp_path, house(upstream, "cut-3+tokens-9")) as gateway, client(gateway) as caller:
        broken = [event.type async for event in await caller.responses.create(model="auto", input="hi", stream=True)]
        assert broken[-2:] == ["error", "response.failed"]
        async with gateway.engine.connect() as connection:
            assert await connection.scalar(text("SELECT count(*) FROM stored_response")) == 0
    (tmp_path / "off").mkdir()
    sections = {"responses": {"keep_days": 0}}
    async with running_gateway(tmp_path / "off", house(upstream), **sections) as gateway, client(gateway) as caller:
        for store in (True, False):
            response = await caller.responses.create(model="auto", input="hi", store=store)
            assert (response.model_extra or {})["store"] is False
        streamed = [event async for event in await caller.responses.create(model="auto", input="hi", stream=True)]
        assert (streamed[-1].response.model_extra or {})["store"] is False  # type: ignore[union-attr]


async def test_tokens_are_counted_without_asking_a_model(tmp_path: Path, upstream: Upstream) -> None:
    """Our estimate, and a header says that it is one."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        raw = await caller.responses.input_tokens.with_raw_response.count(model="auto", input="hi")
        assert raw.headers["x-weighbridge-token-count"] == "estimated"
        assert raw.parse().input_tokens > 0
        assert upstream.log == []


async def test_errors_are_openais(tmp_path: Path, upstream: Upstream) -> None:
    """A tool that only a provider has is refused by name; unknown paths stay unknown."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        with pytest.raises(openai.BadRequestError) as refused:
            await caller.responses.create(model="auto", input="hi", tools=[{"type": "web_search"}])
        assert refused.value.param == "tools.0.type"
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {gateway.key}"}) as plain:
            assert (await plain.post(f"{gateway.base_url}/responses/unknown", json={})).status_code in {404, 405}
