"""Anthropic's client on one side and Anthropic's wire on the other: what passes as it was written, and what comes by other wires."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from tests.providers.wires import (
    ANTHROPIC_USAGE,
    Provider,
    anthropic_stream,
    anthropic_whole,
    provider,
)
from tests.running_gateway import Running, model, running_gateway

MARK: Final[Any] = {"type": "ephemeral"}
ATTRIBUTION: Final[Any] = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=ab;"}
THOUGHT: Final[Any] = {"type": "thinking", "thinking": "It is heavy.", "signature": "c2lnbmVk"}


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration refers to."""
    monkeypatch.setenv("MADE_UP_ANTHROPIC_KEY", "sk-ant-made-up-0123456789")


@asynccontextmanager
async def house(folder: Path, served: Provider) -> AsyncIterator[tuple[Running, anthropic.AsyncAnthropic]]:
    deployment = {
        "name": "anthropic",
        "kind": "litellm",
        "upstream_model": "anthropic/claude-sonnet-4-5",
        "base_url": served.base_url,
        "api_key": "env:MADE_UP_ANTHROPIC_KEY",
    }
    async with (
        running_gateway(folder, [model("claude-house", [deployment])]) as gateway,
        anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as caller,
    ):
        yield gateway, caller


async def thinking_whole(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [THOUGHT, {"type": "text", "text": "7 t"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": ANTHROPIC_USAGE,
        }
    )


def _thinking_events() -> Iterator[dict[str, Any]]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "usage": ANTHROPIC_USAGE,
    }
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}
    begun = {"type": "thinking", "thinking": "", "signature": ""}
    deltas = [
        {"type": "thinking_delta", "thinking": THOUGHT["thinking"]},
        {"type": "signature_delta", "signature": THOUGHT["signature"]},
    ]
    yield {"type": "content_block_start", "index": 0, "content_block": begun}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "7 t"}}
    yield {"type": "content_block_stop", "index": 1}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


async def thinking_stream(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for event in _thinking_events():
        await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    return reply


async def test_text_and_usage_both_ways(tmp_path: Path) -> None:
    """The figures are Anthropic's own, whole and streamed: what is cached stands beside the input."""
    async with provider(anthropic_whole) as served, house(tmp_path, served) as (gateway, caller):
        asked: Any = {"model": "claude-house", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        whole = await caller.messages.create(**asked)
        served.answer = anthropic_stream
        async with caller.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            usage = message.usage
            assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "hello there"}]
            assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
                10,
                100,
                20,
            )
            assert (usage.output_tokens, message.stop_reason) == (5, "end_turn")
        rows = await gateway.rows("entry = 'settle'")
        assert [(row["input_tokens"], row["cached_input_tokens"]) for row in rows] == [(130, 100)] * 2


async def test_marks_blocks_and_thinking_reach_a_claude(tmp_path: Path) -> None:
    """As they were sent; a mark on the system prompt, a tool, a text and a result."""
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Weigh it.", "cache_control": MARK}]},
        {
            "role": "assistant",
            "content": [THOUGHT, {"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {"kg": 7}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "7 t", "cache_control": MARK}],
        },
    ]
    asked: Any = {
        "model": "claude-house",
        "max_tokens": 4_000,
        "system": [ATTRIBUTION, {"type": "text", "text": "You weigh.", "cache_control": MARK}],
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "tools": [{"name": "weigh", "input_schema": {"type": "object", "properties": {}}, "cache_control": MARK}],
        "messages": turns,
    }
    async with provider(thinking_whole) as served, house(tmp_path, served) as (_, caller):
        await caller.messages.create(**asked, extra_body={"top_k": 5})
        (sent,) = served.bodies
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 2_000}
    assert (sent["top_k"], sent["max_tokens"]) == (5, 4_000)
    assert sent["tools"][0]["cache_control"] == MARK
    assert [block["text"] for block in sent["system"]] == [ATTRIBUTION["text"], "You weigh."]
    assert sent["system"][1]["cache_control"] == MARK
    first, second, third = sent["messages"]
    assert first["content"][0]["cache_control"] == MARK
    assert [block["type"] for block in second["content"]] == ["thinking", "tool_use"]
    assert second["content"][0] == THOUGHT
    assert (third["content"][0]["type"], third["content"][0]["cache_control"]) == ("tool_result", MARK)


async def test_signed_thinking_comes_back_and_goes_on(tmp_path: Path) -> None:
    """Whole and streamed, on this wire and as a response's encrypted content, and then into the next turn."""
    asked: Any = {
        "model": "claude-house",
        "max_tokens": 4_000,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with provider(thinking_whole) as served, house(tmp_path, served) as (gateway, caller):
        whole = await caller.messages.create(**asked)
        served.answer = thinking_stream
        async with caller.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            assert [block.to_dict() for block in message.content] == [THOUGHT, {"type": "text", "text": "7 t"}]
        async with openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as responses:
            first = await responses.responses.create(model="claude-house", input="hi", stream=True)
            events = [event async for event in first]
            last: Any = events[-1]
            served.answer = thinking_whole
            await responses.responses.create(
                model="claude-house", input="And now?", previous_response_id=last.response.id
            )
        blocks = served.bodies[-1]["messages"][1]["content"]
        assert blocks[0] == THOUGHT
        assert blocks[1]["text"] == "7 t"


NEW_BLOCK: Final[Any] = {"type": "tomorrow_block", "said": {"a": [1, None]}}


def _new_events() -> Iterator[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "usage": ANTHROPIC_USAGE, "newer": 1}}
    yield {"type": "content_block_start", "index": 0, "content_block": NEW_BLOCK}
    yield {"type": "content_block_delta", "index": 0, "delta": {"type": "tomorrow_delta", "said": "x"}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}
    yield {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "7 t"}}
    yield {"type": "content_block_stop", "index": 1}
    end = {"stop_reason": "tomorrow", "stop_sequence": None, "stop_details": {"b": 2}}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}, "context_management": {"applied": []}}
    yield {"type": "message_stop"}


async def new_whole(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    content = [NEW_BLOCK, {"type": "text", "text": "7 t"}]
    return web.json_response(
        {**message, "content": content, "stop_reason": "tomorrow", "usage": ANTHROPIC_USAGE, "newer": 1}
    )


async def new_stream(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for event in _new_events():
        await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    return reply


async def test_what_nobody_here_knows_passes_both_ways(tmp_path: Path) -> None:
    """Betas, fields and blocks of tomorrow go to Anthropic and come back as they were written, and all of it is booked."""
    unknown: dict[str, Any] = {"context_management": {"edits": []}, "metadata": {"user_id": "u"}, "tomorrow": [1, None]}
    asked: Any = {"model": "claude-house", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"x-api-key": "", "anthropic-version": "2023-06-01", "anthropic-beta": "tomorrow-2027-01-01"}
    async with (
        provider(new_whole) as served,
        house(tmp_path, served) as (gateway, _),
        aiohttp.ClientSession(headers=headers | {"x-api-key": gateway.key}) as session,
    ):
        async with session.post(f"{gateway.base_url}/messages", json=asked | unknown) as reply:
            whole = await reply.json()
            assert "x-weighbridge-dropped" not in reply.headers
        served.answer = new_stream
        async with session.post(f"{gateway.base_url}/messages", json=asked | {"stream": True}) as reply:
            events = [json.loads(line[6:]) for line in (await reply.text()).splitlines() if line.startswith("data: ")]
        rows = await gateway.rows("entry = 'settle'")
    sent = served.bodies[0]
    assert sent == asked | unknown | {"model": "claude-sonnet-4-5", "stream": False}
    assert served.requests[0].headers["anthropic-beta"] == "tomorrow-2027-01-01"
    assert (whole["content"][0], whole["stop_reason"], whole["newer"]) == (NEW_BLOCK, "tomorrow", 1)
    assert whole["model_used"] == "claude-house"
    last = {name: value for name, value in events[-2].items() if name not in ("model_used", "weighbridge")}
    assert [*events[:-2], last, events[-1]] == list(_new_events())
    assert [(row["input_tokens"], row["output_tokens"]) for row in rows] == [(130, 5)] * 2


TOO_LONG: Final = "prompt is too long: 210431 tokens > 200000 maximum"
ERRORS: Final = [
    (400, "invalid_request_error", TOO_LONG),
    (400, "invalid_request_error", "messages.1.content.0: Invalid `signature`\n in `thinking` block"),
    (413, "request_too_large", "Request exceeds the maximum size"),
    (
        429,
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 30,000 input tokens per minute.",
    ),
    (500, "api_error", "Internal server error"),
    (529, "overloaded_error", "Overloaded"),
]


@pytest.mark.parametrize(("status", "kind", "words"), ERRORS)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_claudes_errors_pass_word_for_word(
    tmp_path: Path, status: int, kind: str, words: str, streams: bool
) -> None:
    """Status, type and message are its own, as agents recover by the words. On OpenAI's wire they are ours."""

    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"type": "error", "error": {"type": kind, "message": words}}, status=status)

    async with provider(refuse) as served, house(tmp_path, served) as (gateway, caller):
        messages: Any = [{"role": "user", "content": "hi"}]
        with pytest.raises(anthropic.APIStatusError) as refused:
            await caller.messages.create(model="claude-house", max_tokens=5, messages=messages, stream=streams)
        assert refused.value.status_code == status
        body: Any = refused.value.body
        assert body["error"] == {"type": kind, "message": words}
        assert body["request_id"] == refused.value.response.headers["request-id"]
        async with openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as other:
            with pytest.raises(openai.APIStatusError) as elsewhere:
                await other.chat.completions.create(model="claude-house", messages=messages)
            told: Any = elsewhere.value.body
            assert {"message", "type", "param", "code"} <= told.keys()


async def test_our_own_keys_fault_is_told_in_our_words(tmp_path: Path) -> None:
    """Else an agent would ask its user to sign in."""

    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"type": "authentication_error", "message": "invalid x-api-key"}
        return web.json_response({"type": "error", "error": error}, status=401)

    async with provider(refuse) as served, house(tmp_path, served) as (_, caller):
        with pytest.raises(anthropic.APIStatusError) as refused:
            await caller.messages.create(
                model="claude-house", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
            )
        assert refused.value.status_code == 502
        assert "x-api-key" not in str(refused.value.body)


async def long_whole(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    """An answer to a prompt that is long enough to be cached."""
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 2_000,
        "cache_creation_input_tokens": 400,
        "output_tokens": 5,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    content = [{"type": "text", "text": "7 t"}]
    return web.json_response(
        {**message, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    )


def _marks(body: dict[str, Any]) -> int:
    return json.dumps(body).count('"cache_control"')


@pytest.mark.parametrize("off", [False, True])
async def test_a_conversation_that_goes_on_is_marked(tmp_path: Path, off: bool) -> None:
    """From its second request on, on any wire; not one that is short, nor one with marks of its caller, nor where a team
    wants none. What was written and read is booked by its own prices.
    """
    cache_marks = {"off_for_teams": ["team_a"] if off else []}
    long: Any = [{"role": "user", "content": "weigh it again " * 600}]
    own: Any = [{"role": "user", "content": [{"type": "text", "text": "weigh " * 1_500, "cache_control": MARK}]}]
    deployment = {
        "name": "anthropic",
        "kind": "litellm",
        "upstream_model": "anthropic/claude-sonnet-4-5",
        "api_key": "env:MADE_UP_ANTHROPIC_KEY",
    }
    async with provider(long_whole) as served:
        # It tells 2,500 tokens, also of "hi".
        models = [model("claude-house", [{**deployment, "base_url": served.base_url}], template_tokens=5_000)]
        async with (
            running_gateway(tmp_path, models, policy={"cache_marks": cache_marks}) as gateway,
            anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as caller,
            openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as other,
        ):
            talks: list[Any] = [long, [{"role": "user", "content": "hi"}], own, own]
            for messages in talks:
                await caller.messages.create(model="claude-house", max_tokens=50, messages=messages)
            following: Any = [*long, {"role": "assistant", "content": "7 t"}, {"role": "user", "content": "And now?"}]
            await caller.messages.create(model="claude-house", max_tokens=50, system="Weigh.", messages=long)
            await caller.messages.create(model="claude-house", max_tokens=50, system="Weigh.", messages=following)
            await other.chat.completions.create(model="claude-house", messages=following)
            rows = await gateway.rows("entry = 'settle'")
    expected = 0 if off else 1
    assert [_marks(body) for body in served.bodies] == [0, 0, 1, 1, 0, 2 * expected, expected]
    assert all((row["cached_input_tokens"], row["cache_write_tokens"]) == (2_000, 400) for row in rows)
