"""Local servers that speak the wires of Anthropic's Messages and Bedrock's Converse, streams and tools included."""

import binascii
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

LITELLM_WARNINGS = [
    # litellm's own: deprecated uses of pydantic and of its libraries, not ours to mend.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict class:UserWarning"),
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weigh",
            "description": "Weighs.",
            "parameters": {"type": "object", "properties": {"kg": {"type": "integer"}}},
        },
    }
]

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class Provider:
    """A local server: what it was asked, and how it answers."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[web.Request] = []
        self.base_url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.requests.append(request)
        return await self.answer(request, body)


@asynccontextmanager
async def provider(answer: Answer) -> AsyncIterator[Provider]:
    served = Provider(answer)
    app = web.Application()
    app.router.add_post("/{path:.*}", served.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield served
    finally:
        await runner.cleanup()


ANTHROPIC_USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 20,
    "output_tokens": 5,
}


async def anthropic_whole(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    content: list[dict[str, Any]] = [{"type": "text", "text": "hello there"}]
    if "tools" in body:
        content = [{"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {"kg": 7}}]
    return web.json_response(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": content,
            "stop_reason": "tool_use" if "tools" in body else "end_turn",
            "stop_sequence": None,
            "usage": ANTHROPIC_USAGE,
        }
    )


def anthropic_events(body: dict[str, Any]) -> Iterable[dict[str, Any]]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": ANTHROPIC_USAGE | {"output_tokens": 1},
    }
    yield {"type": "message_start", "message": message}
    if "tools" in body:
        block = {"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {}}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        for piece in ('{"kg":', " 7}"):
            yield {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": piece},
            }
    else:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for piece in ("hello", " there"):
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use" if "tools" in body else "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    }
    yield {"type": "message_stop"}


async def anthropic_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for event in anthropic_events(body):
        await reply.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    return reply


BEDROCK_USAGE = {
    "inputTokens": 10,
    "outputTokens": 5,
    "totalTokens": 135,
    "cacheReadInputTokens": 100,
    "cacheWriteInputTokens": 20,
}


async def bedrock_whole(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    content: list[dict[str, Any]] = [{"text": "hello there"}]
    if "toolConfig" in body:
        content = [{"toolUse": {"toolUseId": "t1", "name": "weigh", "input": {"kg": 7}}}]
    return web.json_response(
        {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": "tool_use" if "toolConfig" in body else "end_turn",
            "usage": BEDROCK_USAGE,
            "metrics": {"latencyMs": 1},
        }
    )


def frame(kind: str, payload: dict[str, Any]) -> bytes:
    """One message of AWS's event stream: prelude with its checksum, headers, payload, checksum."""
    headers = b"".join(
        struct.pack("!B", len(name)) + name + b"\x07" + struct.pack("!H", len(value)) + value
        for name, value in (
            (b":event-type", kind.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    head = prelude + struct.pack("!I", binascii.crc32(prelude))
    message = head + headers + body
    return message + struct.pack("!I", binascii.crc32(message))


def bedrock_frames(body: dict[str, Any]) -> Iterable[bytes]:
    tools = "toolConfig" in body
    yield frame("messageStart", {"role": "assistant"})
    if tools:
        start = {"toolUse": {"toolUseId": "t1", "name": "weigh"}}
        yield frame("contentBlockStart", {"contentBlockIndex": 0, "start": start})
    for piece in ('{"kg":', " 7}") if tools else ("hello", " there"):
        delta: dict[str, Any] = {"toolUse": {"input": piece}} if tools else {"text": piece}
        yield frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta})
    yield frame("contentBlockStop", {"contentBlockIndex": 0})
    yield frame("messageStop", {"stopReason": "tool_use" if tools else "end_turn"})
    yield frame("metadata", {"usage": BEDROCK_USAGE, "metrics": {"latencyMs": 1}})


async def bedrock_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "application/vnd.amazon.eventstream"})
    await reply.prepare(request)
    for message in bedrock_frames(body):
        # Split in the middle: frames do not respect reads.
        await reply.write(message[:9])
        await reply.write(message[9:])
    return reply
