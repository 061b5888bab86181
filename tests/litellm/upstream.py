"""An upstream that speaks OpenAI's wire: chat, streams, tools, embeddings, and refusals that the model's name asks for."""

import json
from typing import Any, Final

from aiohttp import web

USAGE: Final = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
"""What such prompts have: a host that tells more than they can be is set aside for hard budgets."""
_REFUSALS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "unauthorized": (401, {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key"}),
    "limited": (429, {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}),
    "wrong": (400, {"message": "Unknown parameter: 'x'", "type": "invalid_request_error", "code": "unknown_parameter"}),
    "broken": (500, {"message": "The server had an error", "type": "server_error", "code": "server_error"}),
}


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer as OpenAI does."""
    refused = _REFUSALS.get(body["model"])
    if refused is not None:
        headers = {"retry-after": "1"} if refused[0] == 429 else {}
        return web.json_response({"error": {"param": None, **refused[1]}}, status=refused[0], headers=headers)
    if request.path.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}]
        usage = {"prompt_tokens": 8, "total_tokens": 8}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})
    if body.get("stream"):
        return await _stream(request, body)
    message: dict[str, Any] = {"role": "assistant", "content": "hello there"}
    if "tools" in body:
        call = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg": 7}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls" if "tools" in body else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
    return web.json_response(whole | {"usage": USAGE})


async def _stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    for delta, reason in (
        ({"role": "assistant", "content": "hello"}, None),
        ({"content": " there"}, None),
        ({}, "stop"),
    ):
        await _write(reply, head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        await _write(reply, head | {"choices": [], "usage": USAGE})
    await reply.write(b"data: [DONE]\n\n")
    return reply


async def _write(reply: web.StreamResponse, event: dict[str, Any]) -> None:
    await reply.write(f"data: {json.dumps(event)}\n\n".encode())
