"""Anthropic's own client against a gateway on a socket: unchanged, through `auto`, over targets that speak chat."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anthropic
import httpx
import pytest

from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

ASK: Final[Any] = [{"role": "user", "content": "hi"}]
TOOL: Final[Any] = {"name": "weigh", "input_schema": {"type": "object", "properties": {"kg": {"type": "integer"}}}}


@contextlib.asynccontextmanager
async def client(gateway: Running, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    fields: dict[str, Any] = {"api_key": gateway.key, "base_url": gateway.url, "max_retries": 0, **options}
    async with anthropic.AsyncAnthropic(**fields) as caller:
        yield caller


def house(upstream: Upstream, script: str = "ok", **fields: Any) -> list[dict[str, Any]]:
    return [model("cheap", [upstream.deployment(script, **fields)], prices=CHEAP_PRICES)]


async def test_a_whole_message(tmp_path: Path, upstream: Upstream) -> None:
    """Text, usage and decision headers, and the ledger has the row."""
    async with running_gateway(tmp_path, house(upstream, "ok+cached-tokens-5")) as gateway, client(gateway) as caller:
        raw = await caller.messages.with_raw_response.create(model="auto", max_tokens=50, messages=ASK)
        message = await raw.parse()
        assert [block.to_dict() for block in message.content] == [{"type": "text", "text": " w0 w1 w2"}]
        assert message.stop_reason == "end_turn"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (7, 5)
        assert message.usage.output_tokens == 3
        assert raw.headers["x-weighbridge-target"] == "cheap"
        assert raw.headers["request-id"] == raw.headers["x-request-id"]
        (row,) = await gateway.rows("entry = 'settle'")
        assert (row["input_tokens"], row["output_tokens"], row["alias"]) == (12, 3, "auto")


async def test_a_streamed_message_with_the_clients_own_helper(tmp_path: Path, upstream: Upstream) -> None:
    """The helper puts the final message together out of the events."""
    async with running_gateway(tmp_path, house(upstream, "ok+tokens-5")) as gateway, client(gateway) as caller:
        async with caller.messages.stream(model="claude-of-tomorrow", max_tokens=50, messages=ASK) as stream:
            said = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(said) == final.content[0].text == " w0 w1 w2 w3 w4"  # type: ignore[union-attr]
        assert (final.usage.input_tokens, final.usage.output_tokens) == (12, 5)
        assert final.stop_reason == "end_turn"


@pytest.mark.parametrize("streams", [True, False])
async def test_tools_are_called(tmp_path: Path, upstream: Upstream, streams: bool) -> None:
    """Name, arguments and stop reason, streamed or whole."""
    asked: Any = {"model": "auto", "max_tokens": 50, "messages": ASK, "tools": [TOOL], "tool_choice": {"type": "any"}}
    async with running_gateway(tmp_path, house(upstream, "tools")) as gateway, client(gateway) as caller:
        if streams:
            async with caller.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
        else:
            message = await caller.messages.create(**asked)
        (block,) = message.content
        assert block.type == "tool_use"
        assert (block.name, block.input, message.stop_reason) == ("weigh", {"kg": 7}, "tool_use")


async def test_bearer_tokens_do_as_well(tmp_path: Path, upstream: Upstream) -> None:
    """As agents send them that were given a token."""
    async with (
        running_gateway(tmp_path, house(upstream)) as gateway,
        client(gateway, api_key=None, auth_token=gateway.key) as caller,
    ):
        assert (await caller.messages.create(model="auto", max_tokens=5, messages=ASK)).role == "assistant"


async def test_refusals_are_the_clients_own_errors(tmp_path: Path, upstream: Upstream) -> None:
    """A wrong key, a wrong model and a broken stream, each as the client knows it."""
    async with running_gateway(tmp_path, house(upstream, "cut-3+tokens-9")) as gateway, client(gateway) as caller:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await caller.messages.create(model="gpt-9", max_tokens=5, messages=ASK)
        assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        with pytest.raises(anthropic.BadRequestError) as refused:
            await caller.messages.create(model="auto", max_tokens=0, messages=ASK)
        assert "max_tokens" in str(refused.value)
        with pytest.raises(anthropic.APIStatusError):
            async with caller.messages.stream(model="auto", max_tokens=5, messages=ASK) as stream:
                await stream.get_final_message()
        async with client(gateway, api_key="wb_wrong") as stranger:
            with pytest.raises(anthropic.AuthenticationError):
                await stranger.messages.create(model="auto", max_tokens=5, messages=ASK)


async def test_tokens_are_counted_without_asking_a_model(tmp_path: Path, upstream: Upstream) -> None:
    """Our estimate, and a header says that it is one; nothing is booked."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        raw = await caller.messages.with_raw_response.count_tokens(
            model="claude-auto", system="Be brief.", messages=ASK, tools=[TOOL]
        )
        assert raw.headers["x-weighbridge-token-count"] == "estimated"
        assert b'"input_tokens":' in raw.http_response.content
        assert await gateway.rows() == []
        assert upstream.log == []


async def test_models_are_listed_in_the_shape_of_the_client(tmp_path: Path, upstream: Upstream) -> None:
    """Every name begins with `claude-`, and each of them can be sent."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        names = [found.id async for found in caller.models.list()]
        assert names == ["claude-auto", "claude-cheap"]
        for name in names:
            assert (await caller.models.retrieve(name)).id == name
            await caller.messages.create(model=name, max_tokens=5, messages=ASK)
        aliases = [row["alias"] for row in await gateway.rows("entry = 'settle'")]
        assert aliases == ["auto", "cheap"]


async def test_a_message_of_an_idempotency_key_is_answered_once(tmp_path: Path, upstream: Upstream) -> None:
    """The same bytes come again, from one upstream call."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, httpx.AsyncClient() as caller:
        sent: Any = {
            "json": {"model": "auto", "max_tokens": 5, "messages": ASK, "stream": True},
            "headers": {"x-api-key": gateway.key, "idempotency-key": "once"},
        }
        first, second = [await caller.post(f"{gateway.url}/v1/messages", **sent) for _ in range(2)]
        assert (first.status_code, second.content) == (200, first.content)
        assert len(upstream.arrived()) == 1


async def test_a_header_with_two_spaces_and_a_count_for_a_fast_answer(tmp_path: Path, upstream: Upstream) -> None:
    """Both are taken: the spaces mean nothing, and no answer is made whose speed had a price."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, httpx.AsyncClient() as caller:
        reply = await caller.post(
            f"{gateway.url}/v1/messages/count_tokens",
            json={"model": "auto", "speed": "fast", "messages": ASK},
            headers={"authorization": f"Bearer  {gateway.key}"},
        )
    assert (reply.status_code, reply.json()["input_tokens"] > 0) == (200, True)
