"""Models that speak another wire call the same tools: Anthropic's, with its blocks of tool use and of results."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.api.admin_api.calls import call, key_of
from tests.api.ask.test_ask import ask
from tests.dashboards.pages.teams import asked, keep
from tests.providers.wires import LITELLM_WARNINGS, provider
from tests.running_gateway import running_gateway

pytestmark = LITELLM_WARNINGS


def events(blocks: list[dict[str, Any]], stop: str) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None, "usage": usage}  # fmt: skip
    yield {"type": "message_start", "message": message}
    begun: dict[str, Any]
    for at, block in enumerate(blocks):
        if block["type"] == "text":
            begun, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            begun = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": at, "content_block": begun}
        yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    yield {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}
    yield {"type": "message_stop"}


async def claude(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Calls two tools at once beside a text, then answers."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "usage", "input": {"period": "today"}},
        {"type": "tool_use", "id": "toolu_2", "name": "usage", "input": {"team": "fjord-lab"}},
    ]
    stop = "tool_use"
    if len(body["messages"]) > 1:
        blocks, stop = [{"type": "text", "text": "You spent $10.00."}], "end_turn"
    if not body.get("stream"):
        usage = {"input_tokens": 10, "output_tokens": 5}
        return web.json_response({"id": "m", "type": "message", "role": "assistant", "model": "c", "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": usage})  # fmt: skip
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for event in events(blocks, stop):
        await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    return reply


async def test_claude_asks_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both calls are answered in one message of results, and the answer's figure leads to its rows."""
    monkeypatch.setenv("MADE_UP_KEY", "made-up")
    async with provider(claude) as served:
        entry = {"kind": "anthropic", "model": "claude-sonnet-4-5", "base_url": served.base_url, "api_key": "env:MADE_UP_KEY"}  # fmt: skip
        async with running_gateway(tmp_path, [entry]) as running:
            await keep(running, [asked("req_a", cost_nanousd=10**10)])
            await call(running, "PUT", "/ask", await key_of(running, "admin"), {"team_id": "ask"})
            reply = await ask(running, running.key)
    assert reply.status == 200, reply.body
    assert list(reply.figures) == ["$10.00"]
    results = [block for block in served.bodies[-1]["messages"][-1]["content"] if block["type"] == "tool_result"]
    assert [block["tool_use_id"] for block in results] == ["toolu_1", "toolu_2"]
    assert "no team" in json.dumps(results[1])
