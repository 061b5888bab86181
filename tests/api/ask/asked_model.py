"""A model over HTTP that plays a script of turns: what it was sent is kept, and what it says is whatever a test wants it to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from tests.running_gateway import model

Turn = Callable[[dict[str, Any]], Any]
"""Takes the request's body and returns the message, or a web.Response."""


def calls(*wanted: tuple[str, Any]) -> Turn:
    """A turn that calls tools, with arguments as JSON or as the text that stands there."""
    return lambda _body: {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for at, (name, given) in enumerate(wanted)
        ],
    }


def says(text: str) -> Turn:
    """A turn that answers."""
    return lambda _body: {"role": "assistant", "content": text}


class AskedModel:
    """Plays `turns`, the last one again and again."""

    def __init__(self) -> None:
        self.url = ""
        self.turns: Sequence[Turn] = [says("Nothing.")]
        self.bodies: list[dict[str, Any]] = []
        self.gate: asyncio.Event | None = None
        """Answers wait for it."""

    def plays(self, *turns: Turn) -> None:
        """What it does from now on."""
        self.turns, self.bodies = turns, []

    def entry(self, **fields: Any) -> dict[str, Any]:
        """It in a catalog."""
        deployment = {"name": "main", "kind": "openai", "base_url": f"{self.url}/v1", "upstream_model": "asked"}
        return model("asked", [deployment], **fields)

    @property
    def results(self) -> list[str]:
        """What its calls were answered with."""
        return [each["content"] for body in self.bodies[-1:] for each in body["messages"] if each["role"] == "tool"]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        body = await request.json()
        self.bodies.append(body)
        if self.gate is not None:
            await self.gate.wait()
        said = self.turns[min(len(self.bodies), len(self.turns)) - 1](body)
        if isinstance(said, web.StreamResponse):
            return said
        finish = "tool_calls" if said.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        choice = {"index": 0, "message": said, "finish_reason": finish}
        told: Mapping[str, Any] = {"id": "c", "object": "chat.completion", "created": 0, "model": "asked"}
        if not body.get("stream"):
            return web.json_response({**told, "choices": [choice], "usage": usage})
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        delta = {**said}
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": at, **each} for at, each in enumerate(delta["tool_calls"])]
        for event in (
            {**told, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]},
            {
                **told,
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {}, "finish_reason": finish}],
            },
            {**told, "object": "chat.completion.chunk", "choices": [], "usage": usage},
        ):
            await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        await reply.write_eof()
        return reply


@contextlib.asynccontextmanager
async def asked_model() -> AsyncIterator[AskedModel]:
    """One that is ready to be asked."""
    made = AskedModel()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.chat)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()
