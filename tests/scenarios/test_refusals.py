"""Everybody's fault stays their own: what callers get when a provider or an engine refuses, over real sockets."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from tests.running_gateway import Running, model, running_gateway

ANSWER: Final = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
ENGINE_SAYS: Final = {
    "too large": "input is too large to process. increase the physical batch size",
    "a picture": "failed to process image",
    "two turns": "Conversation roles must alternate user/assistant/user/assistant/...",
    "a schema": 'Grammar error: Unimplemented keys: ["propertyNames"]',
}
"""What an engine says with status 500, by what is asked of it."""
KNOWN: Final = {"model", "messages", "max_tokens", "stream", "max_completion_tokens"}
"""The fields that a strict provider takes."""
POOR: Final = {
    "credit": (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."}}),
    "quota": (429, {"error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}}),
    "billing": (429, {"error": {"message": "Your account is not active.", "type": "billing_not_active", "code": "billing_not_active"}}),
    "key": (400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"}}]),
}  # fmt: skip
"""How providers say that our account or key is no good: none of it with 401 or 402."""


@contextlib.asynccontextmanager
async def answering(answer: Any, path: str = "/v1/chat/completions") -> AsyncIterator[dict[str, Any]]:
    """A deployment whose server answers every request by `answer(status-and-body)`; yields its configuration."""
    app = web.Application()
    app.router.add_post(path, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield {"name": "main", "kind": "openai", "base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1"}
    finally:
        await runner.cleanup()


async def engine(request: web.Request) -> web.Response:
    asked = (await request.json())["messages"][-1]["content"]
    if asked not in ENGINE_SAYS:
        return web.json_response(ANSWER)
    error = {"code": 500, "message": ENGINE_SAYS[asked], "type": "server_error"}
    return web.json_response({"error": error}, status=500)


async def ask(
    gateway: Running, name: str, text: str, path: str = "chat/completions", **more: Any
) -> tuple[int, dict[str, Any]]:
    """Status and error, which is empty of an answer."""
    headers = {"authorization": f"Bearer {gateway.key}", "anthropic-version": "2023-06-01"}
    body = {"model": name, "max_tokens": 50, "messages": [{"role": "user", "content": text}], **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.base_url}/{path}", headers=headers, json=body) as reply,
    ):
        return reply.status, (await reply.json()).get("error") or {}


async def test_what_an_engine_cannot_take_is_nobody_elses_matter(tmp_path: Path) -> None:
    """Engines answer it with 500; whoever asked reads their words, and the next request of anybody is served."""
    async with answering(engine) as here, running_gateway(tmp_path, [model("engine", [here])]) as gateway:
        for _ in range(3):
            for asked, words in ENGINE_SAYS.items():
                status, error = await ask(gateway, "engine", asked)
                assert (status, error["message"]) == (400, words)
        assert await ask(gateway, "engine", "What is the capital of France?") == (200, {})


async def test_a_request_cannot_say_that_our_account_is_empty(tmp_path: Path) -> None:
    """Whose name of a field a provider repeats before its own words reads them; the next request of anybody is served."""

    async def strict(request: web.Request) -> web.Response:
        unknown = next((name for name in await request.json() if name not in KNOWN), None)
        if unknown is None:
            return web.json_response(ANSWER)
        error = {"type": "invalid_request_error", "message": f"{unknown}: Extra inputs are not permitted"}
        return web.json_response({"type": "error", "error": error}, status=400)

    async with answering(strict) as here, running_gateway(tmp_path, [model("strict", [here])]) as gateway:
        for name in (
            "Your credit balance is too low",
            "BadRequestError: your  credit\tbalance is too low",
            "The server is currently overloaded, please try again in 60m",
            '{"error": {"code": "insufficient_quota", "message": "none is left"}}',
        ):
            for more in ({name: 1}, {name: "x" * 200_000}):
                status, error = await ask(gateway, "strict", "What is the capital of France?", **more)
                assert (status, error["code"]) == (400, None), name
                assert error["message"] in {f"{' '.join(name.split())}: Extra inputs are not permitted", "none is left"}
                assert await ask(gateway, "strict", "What is the capital of France?") == (200, {}), name


async def test_what_is_too_long_has_the_code_that_clients_make_it_shorter_by(tmp_path: Path) -> None:
    """In OpenAI's word for it on chat, in Anthropic's on messages, whatever the engine's are."""
    async with answering(engine) as here, running_gateway(tmp_path, [model("engine", [here])]) as gateway:
        status, error = await ask(gateway, "engine", "too large")
        assert (status, error["code"]) == (400, "context_length_exceeded")
        status, error = await ask(gateway, "engine", "too large", "messages")
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert error["message"] == f"prompt is too long: {ENGINE_SAYS['too large']}"


@pytest.mark.parametrize("kind", POOR)
async def test_an_account_that_is_no_good_is_not_told_to_callers(tmp_path: Path, kind: str) -> None:
    """The first request finds it out, and all are answered by the other target; its name alone says whose matter it is."""
    status, body = POOR[kind]
    asked = 0

    async def refuse(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response(body, status=status)

    async with answering(refuse) as poor, answering(engine) as well:
        models = [
            model("cheap", [poor], prices={"input": 1, "output": 1}),
            model("dear", [well], prices={"input": 9, "output": 9}),
        ]
        async with running_gateway(tmp_path, models) as gateway:
            answers = [await ask(gateway, "auto", "What is the capital of France?") for _ in range(20)]
            assert answers == [(200, {})] * 20
            assert asked == 1
            status, error = await ask(gateway, "cheap", "What is the capital of France?")
            assert status in {502, 503}
            assert "credit" not in error["message"]
