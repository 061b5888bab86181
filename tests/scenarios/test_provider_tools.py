"""Tools that a provider runs, asked for by OpenAI's and Anthropic's own clients, at targets that have them and at others."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import pytest

from tests.running_gateway import CHEAP_PRICES, DEAR_PRICES, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

SEARCH: Final[Any] = {"type": "web_search"}
CLAUDES_SEARCH: Final[Any] = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
SEARCHED_NANOUSD: Final = 10_000_000
PRICED: Final[Any] = {**DEAR_PRICES, "tool_calls": {"web_search": "0.01"}}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")


def house(upstream: Upstream) -> list[dict[str, Any]]:
    """A cheap model that runs nothing, one that speaks responses and one that speaks messages."""
    claude = {
        "kind": "litellm",
        "base_url": upstream.url,
        "upstream_model": "anthropic/ok+tokens-4",
        "api_key": "env:MADE_UP_ANTHROPIC_KEY",
    }
    tools = {"provider_tools": ["web_search"]}
    return [
        model("cheap", [upstream.deployment("ok")], prices=CHEAP_PRICES),
        model("openai-house", [upstream.deployment("ok+tokens-5")], prices=PRICED, **tools),
        model("claude-house", [claude], **tools),
    ]


@contextlib.asynccontextmanager
async def serving(
    folder: Path, models: list[dict[str, Any]]
) -> AsyncIterator[tuple[Running, openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    async with (
        running_gateway(folder, models) as gateway,
        openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as caller,
        anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as other,
    ):
        yield gateway, caller, other


async def test_a_search_goes_to_who_has_it(tmp_path: Path, upstream: Upstream) -> None:
    """`auto` passes over the cheap model, and says why; calls are booked where they have a price; the next turn has the
    search in its conversation, so it goes where that can be read.
    """
    async with serving(tmp_path, house(upstream)) as (gateway, caller, other):
        raw = await caller.responses.with_raw_response.create(model="auto", input="hi", tools=[SEARCH])
        first = raw.parse()
        assert raw.headers["x-weighbridge-target"] == "openai-house"
        assert [item.type for item in first.output] == ["web_search_call", "message"]
        assert first.output_text == " w0 w1 w2 w3 w4"
        assert (await caller.responses.retrieve(first.id)).output_text == first.output_text
        async with caller.responses.stream(model="auto", input="on", previous_response_id=first.id) as stream:
            second = [event async for event in stream][-1]
        assert second.type == "response.completed"
        assert (second.response.previous_response_id, second.response.output_text) == (first.id, first.output_text)

        said = await other.messages.create(
            model="auto", max_tokens=100, messages=[{"role": "user", "content": "hi"}], tools=[CLAUDES_SEARCH]
        )
        assert [block.type for block in said.content] == ["server_tool_use", "web_search_tool_result", "text"]
        told: Any = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": said.content}]
        told.append({"role": "user", "content": "and on"})
        async with other.messages.stream(model="auto", max_tokens=100, messages=told, tools=[CLAUDES_SEARCH]) as talk:
            streamed = await talk.get_final_message()
        assert [block.type for block in streamed.content] == [block.type for block in said.content]
        assert streamed.usage.server_tool_use is not None

        rows = await gateway.rows("entry = 'settle'")
        assert [row["target_id"] for row in rows] == ["openai-house"] * 2 + ["claude-house"] * 2
        # 12 tokens at 2.5 and 5 at 10 dollars a million; the second turn had no tool to search with.
        assert [row["cost_nanousd"] for row in rows[:2]] == [80_000 + SEARCHED_NANOUSD, 80_000]
        assert "web_search" in rows[0]["considered"]
        # Nobody knows what a search costs there.
        assert [(row["cost_nanousd"], row["flags"]) for row in rows[2:]] == [(70_000, '["tool_calls_unpriced"]')] * 2
        assert {row["baseline_nanousd"] for row in rows} == {None}


async def test_without_anybody_who_has_it(tmp_path: Path, upstream: Upstream) -> None:
    """It is refused by name, with what to do, on either wire, and so is a tool that is asked for in another's dialect."""
    async with serving(tmp_path, house(upstream)[:2]) as (gateway, caller, other):
        hi: Any = [{"role": "user", "content": "hi"}]
        for tool in ({"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "file_search"}):
            asked: Any = [tool]
            with pytest.raises(openai.BadRequestError) as refused:
                await caller.responses.create(model="auto", input="hi", tools=asked)
            assert (refused.value.param, refused.value.code) == ("tools.0.type", "unsupported_parameter")
            assert f"`{tool['type']}`" in refused.value.message
            assert "provider_tools" in refused.value.message
        for more in ({"tools": [CLAUDES_SEARCH]}, {"extra_body": {"mcp_servers": [{"url": "https://x"}]}}):
            with pytest.raises(anthropic.BadRequestError, match="that a provider runs itself"):
                await other.messages.create(model="auto", max_tokens=9, messages=hi, **more)
        assert await gateway.rows() == []


async def test_failures_are_told_in_the_callers_dialect(tmp_path: Path, upstream: Upstream) -> None:
    """A refusal, and a stream that breaks off in the middle; each is booked once."""
    tools = {"provider_tools": ["web_search"]}
    models = [
        model("refuses", [upstream.deployment("error-400")], **tools),
        model("breaks", [upstream.deployment("cut-6")], **tools),
    ]
    async with serving(tmp_path, models) as (gateway, caller, _):
        with pytest.raises(openai.BadRequestError, match="The script answers 400"):
            await caller.responses.create(model="refuses", input="hi", tools=[SEARCH])
        events = [
            event
            async for event in await caller.responses.create(model="breaks", input="hi", tools=[SEARCH], stream=True)
        ]
        assert [event.type for event in events][-2:] == ["error", "response.failed"]
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))
        assert len(await gateway.rows("entry IN ('settle', 'void')")) == 2


async def test_tokens_are_counted_by_who_would_answer(tmp_path: Path, upstream: Upstream) -> None:
    """Anthropic, OpenAI and vLLM count; of who does not, or of another's dialect, it is our estimate, and said so."""
    vllm = {**upstream.deployment("ok"), "kind": "vllm"}
    claude = house(upstream)[2]["deployments"][0]
    models = [
        model("claude-house", [claude]),
        model("own", [vllm]),
        model("openai-house", [upstream.deployment("ok")], provider_tools=["web_search"]),
        model("plain", [upstream.deployment("ok")]),
        model("away", [{**claude, "base_url": "http://127.0.0.1:9"}]),
    ]
    hi: Any = [{"role": "user", "content": "one two three"}]
    async with serving(tmp_path, models) as (gateway, caller, other):
        for name, told in (
            ("claude-house", "counted"),
            ("own", "counted"),
            ("openai-house", "estimated"),
            ("away", "estimated"),
        ):
            raw = await other.messages.with_raw_response.count_tokens(model=name, messages=hi)
            assert raw.headers["x-weighbridge-token-count"] == told
            # The upstream counts words of the decoded body, which no estimate does.
            assert raw.headers.get("x-weighbridge-target") == (name if told == "counted" else None)
        for name, told in (("openai-house", "counted"), ("own", "counted"), ("plain", "estimated")):
            found = await caller.responses.input_tokens.with_raw_response.count(model=name, input="one two three")
            assert found.headers["x-weighbridge-token-count"] == told
        assert found.parse().input_tokens > 3
        assert await gateway.rows() == []
    assert upstream.log == []
