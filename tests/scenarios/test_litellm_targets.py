"""Anthropic and Bedrock as targets of a whole gateway: the `openai` client on one side, their wires on the other."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.processes import until
from tests.providers.wires import (
    LITELLM_WARNINGS,
    TOOLS,
    Answer,
    Provider,
    anthropic_events,
    anthropic_stream,
    anthropic_whole,
    bedrock_stream,
    bedrock_whole,
    provider,
)
from tests.running_gateway import Running, model, running_gateway
from tests.scenarios.conftest import Upstream

pytestmark = LITELLM_WARNINGS

ASK: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
KEY = "sk-ant-made-up-0123456789"
PRICES = {"input": "3", "cached_input": "0.3", "cache_write": "3.75", "output": "15", "version": "test"}
# 10 fresh tokens, 100 read from the cache, 20 written to it, 5 out; nano-dollars.
COST = 10 * 3_000 + 100 * 300 + 20 * 3_750 + 5 * 15_000


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", KEY)
    monkeypatch.setenv("MADE_UP_AWS_KEY", "made-up")


def anthropic(served: Provider) -> dict[str, Any]:
    return {
        "name": "anthropic",
        "kind": "litellm",
        "upstream_model": "anthropic/claude-sonnet-4-5",
        "base_url": served.base_url,
        "api_key": "env:MADE_UP_ANTHROPIC_KEY",
    }


def bedrock(served: Provider) -> dict[str, Any]:
    return {
        "name": "bedrock",
        "kind": "litellm",
        "upstream_model": "bedrock/converse/anthropic.claude-3-haiku-20240307-v1:0",
        "options": {
            "aws_region_name": "us-east-1",
            "aws_access_key_id": "env:MADE_UP_AWS_KEY",
            "aws_secret_access_key": "env:MADE_UP_AWS_KEY",
            "aws_bedrock_runtime_endpoint": served.base_url,
        },
    }


def claude(deployments: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return model("claude", deployments, prices=PRICES, **fields)


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


Deploy = Callable[[Provider], dict[str, Any]]
WIRES = [
    pytest.param(anthropic, anthropic_whole, anthropic_stream, id="anthropic"),
    pytest.param(bedrock, bedrock_whole, bedrock_stream, id="bedrock"),
]


async def _booked(gateway: Running) -> tuple[Any, ...]:
    """The one closing row, in short."""
    (row,) = await gateway.rows("entry != 'reserve'")
    tokens = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens")
    return (row["entry"], row["usage_source"], *(row[name] for name in tokens), row["cost_nanousd"], row["flags"])


@pytest.mark.parametrize(("deploy", "whole", "streamed"), WIRES)
async def test_text_both_ways(tmp_path: Path, deploy: Deploy, whole: Answer, streamed: Answer) -> None:
    """The answer is OpenAI's in shape, and cache reads and writes are a part of the input, each at its own price."""
    async with provider(whole) as served, running_gateway(tmp_path, [claude([deploy(served)])]) as gateway:
        async with client(gateway) as caller:
            answer = await caller.chat.completions.create(model="claude", messages=ASK, temperature=0.5, max_tokens=50)
            first = await _booked(gateway)
            served.answer = streamed
            chunks = [
                chunk
                async for chunk in await caller.chat.completions.create(
                    model="claude", messages=ASK, stream=True, stream_options={"include_usage": True}
                )
            ]
        rows = await gateway.rows("entry != 'reserve'")
    assert answer.choices[0].message.content == "hello there"
    assert (answer.model_extra or {})["model_used"] == "claude"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (130, 5)
    assert first == ("settle", "upstream", 130, 100, 20, 5, COST, "[]")
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "hello there"
    assert {(chunk.model_extra or {})["model_used"] for chunk in chunks} == {"claude"}
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert (last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens) == (130, 100)
    assert (last.model_extra or {})["weighbridge"]["cost_usd"] == f"{COST / 1e9:.9f}"
    assert {(row["input_tokens"], row["cache_write_tokens"], row["cost_nanousd"]) for row in rows} == {(130, 20, COST)}
    assert [row["stream"] for row in rows] == [0, 1]


@pytest.mark.parametrize(("deploy", "whole", "streamed"), WIRES)
async def test_tools_both_ways(tmp_path: Path, deploy: Deploy, whole: Answer, streamed: Answer) -> None:
    """A tool goes out in the provider's shape, and its call comes back in OpenAI's."""
    tools: Any = TOOLS
    async with provider(whole) as served, running_gateway(tmp_path, [claude([deploy(served)])]) as gateway:
        async with client(gateway) as caller:
            answer = await caller.chat.completions.create(model="claude", messages=ASK, tools=tools)
            served.answer = streamed
            chunks = [
                chunk
                async for chunk in await caller.chat.completions.create(
                    model="claude", messages=ASK, tools=tools, stream=True
                )
            ]
        rows = await gateway.rows("entry = 'settle'")
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weigh", {"kg": 7})
    pieces = [
        made.function
        for chunk in chunks
        for choice in chunk.choices
        for made in choice.delta.tool_calls or ()
        if made.function is not None
    ]
    assert "".join(piece.name or "" for piece in pieces) == "weigh"
    assert json.loads("".join(piece.arguments or "" for piece in pieces)) == {"kg": 7}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert all(chunk.usage is None for chunk in chunks)
    assert [row["output_tokens"] for row in rows] == [5, 5]


async def test_the_providers_key_goes_out_and_the_callers_does_not(tmp_path: Path) -> None:
    """Each side sees its own key only; the provider learns nothing of the gateway's."""
    async with provider(anthropic_whole) as served, running_gateway(tmp_path, [claude([anthropic(served)])]) as gateway:
        async with client(gateway) as caller:
            await caller.chat.completions.create(model="claude", messages=ASK)
        (request,) = served.requests
        assert request.path == "/v1/messages"
        assert request.headers["x-api-key"] == KEY
        assert gateway.key not in str(request.headers) + json.dumps(served.bodies)
        assert served.bodies[0]["model"] == "claude-sonnet-4-5"


def refusing(status: int) -> Answer:
    """An Anthropic that says no, and quotes our key."""

    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": f"bad {KEY} line"}}
        return web.json_response(error, status=status, headers={"retry-after": "7"})

    return refuse


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "seen", "code"),
    [
        (400, 400, None),
        (401, 502, "upstream_refused"),
        (429, 429, "upstream_rate_limited"),
        (500, 502, "upstream_unavailable"),
        (529, 503, "upstream_overloaded"),
    ],
)
async def test_a_providers_error_is_told_in_openais_shape(
    tmp_path: Path, status: int, seen: int, code: str | None, stream: bool
) -> None:
    """The status says whose fault it is, no key is shown, and nothing is charged."""
    async with (
        provider(refusing(status)) as served,
        running_gateway(tmp_path, [claude([anthropic(served)])], providers={"retry": {"attempts": 1}}) as gateway,
    ):
        async with client(gateway) as caller:
            with pytest.raises(openai.APIStatusError) as told:
                await caller.chat.completions.create(model="claude", messages=ASK, stream=stream)
        assert told.value.status_code == seen
        assert told.value.code == code or status == 400
        assert KEY not in str(told.value.body)
        assert told.value.response.headers.get("retry-after") == ("7" if status in {429, 529} else None)
        assert len(served.requests) == 1
        assert (await _booked(gateway))[0] == "void"


@pytest.mark.parametrize(
    ("asked", "told", "sampling"),
    [
        ({}, None, {"temperature": 0.2}),
        ({"reasoning_effort": "none"}, None, {"temperature": 0.2}),
        ({"reasoning_effort": "minimal"}, "low", {}),
        ({"reasoning_effort": "xhigh"}, "high", {}),
    ],
    ids=["unsaid", "none", "minimal", "xhigh"],
)
async def test_a_nova_reasons_in_its_own_words_and_without_a_temperature(
    tmp_path: Path, asked: dict[str, Any], told: str | None, sampling: dict[str, Any]
) -> None:
    """Bedrock refuses other efforts, and a temperature beside the highest."""
    async with provider(bedrock_whole) as served:
        deployment = bedrock(served) | {"upstream_model": "bedrock/converse/us.amazon.nova-2-lite-v1:0"}
        async with running_gateway(tmp_path, [claude([deployment])]) as gateway, client(gateway) as caller:
            reply = await caller.chat.completions.with_raw_response.create(
                model="claude", messages=ASK, temperature=0.2, max_tokens=50, **asked
            )
    (body,) = served.bodies
    config = (body.get("additionalModelRequestFields") or {}).get("reasoningConfig")
    assert (config or {}).get("maxReasoningEffort") == told
    assert body["inferenceConfig"] == {"maxTokens": 50, **sampling}
    assert reply.headers.get("x-weighbridge-dropped") == (None if sampling else "temperature")


async def test_a_parameter_that_the_provider_cannot_take_is_refused_by_name(tmp_path: Path) -> None:
    """It is neither dropped in silence nor sent."""
    async with provider(anthropic_whole) as served, running_gateway(tmp_path, [claude([anthropic(served)])]) as gateway:
        async with client(gateway) as caller:
            with pytest.raises(openai.BadRequestError) as told:
                await caller.chat.completions.create(model="claude", messages=ASK, extra_body={"top_a": 0.5})
        assert told.value.param == "top_a"
        assert not served.requests
        assert (await _booked(gateway))[0] == "void"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pool_of_both_kinds_hides_the_direct_ones_failure(
    tmp_path: Path, upstream: Upstream, stream: bool
) -> None:
    """Within a target the next deployment is tried, whatever wire it speaks."""
    async with provider(anthropic_stream if stream else anthropic_whole) as served:
        # Weights that make the broken one first, all but surely.
        broken = upstream.deployment("error-500", "direct", weight=100)
        pool = [broken, {**anthropic(served), "weight": 0.001}]
        async with running_gateway(tmp_path, [claude(pool)]) as gateway:
            assert await _said(gateway, "claude", stream=stream) == "hello there"
            rows = await gateway.rows("entry != 'reserve'")
    assert [(row["deployment_id"], row["entry"]) for row in rows] == [
        ("claude/direct", "void"),
        ("claude/anthropic", "settle"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
async def test_a_direct_target_falls_back_to_a_litellm_one_and_back(
    tmp_path: Path, upstream: Upstream, stream: bool
) -> None:
    """Between targets, either kind takes over from the other."""
    async with provider(refusing(500)) as served:
        models = [
            model("gpt", [upstream.deployment("error-503")], prices={"input": 1, "output": 1}),
            claude([bedrock(served)]),
            model("spare", [upstream.deployment("ok")], prices={"input": 90, "output": 90}),
        ]
        async with running_gateway(tmp_path, models, providers={"retry": {"attempts": 1}}) as gateway:
            assert await _said(gateway, "auto", stream=stream) == " w0 w1 w2"
            served.answer = bedrock_stream if stream else bedrock_whole
            assert await _said(gateway, "auto", stream=stream) == "hello there"
            rows = await gateway.rows("entry = 'settle'")
    assert [row["target_id"] for row in rows] == ["spare", "claude"]


async def _said(gateway: Running, name: str, *, stream: bool) -> str:
    async with client(gateway) as caller:
        if not stream:
            answer = await caller.chat.completions.create(model=name, messages=ASK)
            return answer.choices[0].message.content or ""
        chunks = await caller.chat.completions.create(model=name, messages=ASK, stream=True)
        return "".join([choice.delta.content or "" async for chunk in chunks for choice in chunk.choices])


async def test_a_caller_that_hangs_up_stops_the_provider(tmp_path: Path) -> None:
    """The provider's stream is cut, and what flowed is booked and flagged."""
    gone = asyncio.Event()

    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        start, block, delta, *_ = anthropic_events(body)
        try:
            for event in (start, block):
                await reply.write(_sse(event))
            while True:
                await reply.write(_sse(delta))
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with provider(endless) as served, running_gateway(tmp_path, [claude([anthropic(served)])]) as gateway:
        async with client(gateway) as caller:
            stream = await caller.chat.completions.create(model="claude", messages=ASK, stream=True)
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    break
            await stream.close()
        await asyncio.wait_for(gone.wait(), 5)
        await until(lambda: _closed(gateway))
        (row,) = await gateway.rows("entry != 'reserve'")
    assert (row["entry"], row["status"]) == ("settle", 499)
    assert row["flags"].startswith('["caller_gone"')
    assert row["output_tokens"] > 0


async def _closed(gateway: Running) -> bool:
    return bool(await gateway.rows("entry != 'reserve'"))


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
