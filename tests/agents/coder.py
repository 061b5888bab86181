"""An engine that plays a model at work: it calls the agent's shell once, and says that it is done once it has the result; an
agent without tools is told what to write.

It has a prefix cache that forgets nothing, and tells of each prompt how much of it was there.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec
from aiohttp import web

COMMAND: Final = "echo hi > made.txt"
DONE: Final = "made.txt is there."
_CHARS_A_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 9
_SHELLS: Final = {"Bash": "command", "bash": "command", "exec_command": "cmd"}
"""The agents' tools that run a command, and the argument that it is given as."""
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024


class Coder(msgspec.Struct, frozen=True):
    """A running one, and the bodies that it was sent."""

    url: str
    bodies: list[dict[str, Any]]
    cached: list[tuple[int, int]]
    """Of each prompt its tokens, and how many of them were cached."""


@contextlib.asynccontextmanager
async def coder(without_tools: str = DONE) -> AsyncIterator[Coder]:
    """Serves it until the block ends; `without_tools` is what a request without tools gets."""
    bodies: list[dict[str, Any]] = []
    cached: list[tuple[int, int]] = []

    async def empty(_request: web.Request) -> web.Response:
        return web.Response()

    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = _prompt(body)
        read = max((_shared(prompt, _prompt(each)) for each in bodies), default=0)
        bodies.append(body)
        cached.append((len(prompt) // _CHARS_A_TOKEN, read // _CHARS_A_TOKEN))
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for chunk in _chunks(_said(body, without_tools), *cached[-1]):
            await reply.write(
                b"data: " + json.dumps({"id": "c", "created": 0, "model": "m", **chunk}).encode() + b"\n\n"
            )
        await reply.write(b"data: [DONE]\n\n")
        await reply.write_eof()
        return reply

    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_post("/v1/chat/completions", chat)
    for path in ("/health", "/metrics"):
        app.router.add_get(path, empty)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Coder(f"http://127.0.0.1:{runner.addresses[0][1]}", bodies, cached)
    finally:
        await runner.cleanup()


def _prompt(body: dict[str, Any]) -> str:
    """As a template writes it: the tools first."""
    return json.dumps([body.get("tools", []), *body["messages"]])[:-1]


def _shared(one: str, other: str) -> int:
    """The characters that two prompts begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _chunks(said: tuple[dict[str, Any], str], prompt: int, cached: int) -> Iterator[dict[str, Any]]:
    delta, finish = said
    for each, reason in (({"role": "assistant", "content": ""}, None), (delta, None), ({}, finish)):
        yield {"choices": [{"index": 0, "delta": each, "finish_reason": reason}]}
    usage = {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens": _ANSWER_TOKENS,
        "total_tokens": prompt + _ANSWER_TOKENS,
    }
    yield {"choices": [], "usage": usage}


def _said(body: dict[str, Any], without_tools: str) -> tuple[dict[str, Any], str]:
    functions = [tool["function"] for tool in body.get("tools", ())]
    shell = next((each for each in functions if each["name"] in _SHELLS), None)
    if shell is None:
        return {"content": without_tools}, "stop"
    if any(message["role"] == "tool" for message in body["messages"]):
        return {"content": DONE}, "stop"
    arguments = {_SHELLS[shell["name"]]: COMMAND}
    if "description" in shell["parameters"]["properties"]:
        arguments["description"] = "Makes a file"
    function = {"name": shell["name"], "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}, "tool_calls"
