"""Callers of streams are told that they are still served while no upstream says anything, and lose nothing by it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from tests.published_types import check_response
from tests.running_gateway import CHEAP_PRICES, DEAR_PRICES, Running, model, running_gateway

_COMMENT: Final = b": waiting\n"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_ASKED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "completions": ("/v1/completions", {"prompt": "hi"}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
}
_SERVER: Final = {"ping_after_s": 0.2}


class _Quiet:
    """An upstream that waits to be let go on, before its status, before its first word, and between its words."""

    def __init__(self, fails: int = 0) -> None:
        self.asked = 0
        self.was_asked = asyncio.Event()
        self.fails = fails
        """The status it answers with at last; 0 to answer well."""
        self.may_answer = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.was_asked.set()
        await self.may_answer.wait()
        if self.fails:
            return web.json_response({"error": {"message": "out of order"}}, status=self.fails)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await reply.prepare(request)
        for word, finish in (("one", None), (" two", "stop")):
            choice = {"index": 0, "delta": {"content": word}, "text": word, "finish_reason": finish}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            await reply.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            await self.may_go_on.wait()
        await reply.write(b"data: [DONE]\n\n")
        return reply


@contextlib.asynccontextmanager
async def _at(*upstreams: _Quiet) -> AsyncIterator[list[str]]:
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for each in upstreams:
            app = web.Application()
            app.router.add_post("/v1/{tail:.*}", each.answer)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        yield urls


def _house(urls: list[str], **fields: Any) -> list[dict[str, Any]]:
    prices = (CHEAP_PRICES, DEAR_PRICES)
    deployments = [[{"name": "main", "kind": "openai", "base_url": url, "upstream_model": "m"}] for url in urls]
    return [model(f"m{index}", each, prices=prices[index], **fields) for index, each in enumerate(deployments)]


@contextlib.asynccontextmanager
async def _asking(gateway: Running, wire: str, **fields: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    path, body = _ASKED[wire]
    headers = {"authorization": f"Bearer {gateway.key}", **fields.pop("headers", {})}
    sent = {"model": "auto", "stream": True, **body, **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(gateway.url + path, json=sent, headers=headers) as reply,
    ):
        yield reply


async def _heard(reply: aiohttp.ClientResponse, words: bytes) -> bytes:
    """Read on until these words came."""
    heard = b""
    while words not in heard:
        piece = await reply.content.readany()
        assert piece, heard
        heard += piece
    return heard


@pytest.mark.parametrize("wire", _ASKED)
async def test_silence_is_broken_and_another_target_still_answers(tmp_path: Path, wire: str) -> None:
    """Before the status of the first target, which then fails, before the first token of the second, and between tokens."""
    probe = _PING if wire == "messages" else _COMMENT
    ill, well = _Quiet(fails=500), _Quiet()
    async with _at(ill, well) as urls, running_gateway(tmp_path, _house(urls), server=_SERVER) as gateway:
        async with _asking(gateway, wire) as reply:
            assert reply.status == 200
            assert reply.headers["x-request-id"].startswith("req_")
            assert "x-weighbridge-target" not in reply.headers
            assert await _heard(reply, probe) == probe
            ill.may_answer.set()
            await _heard(reply, probe)
            well.may_answer.set()
            heard = await _heard(reply, b"one")
            heard += await _heard(reply, probe)
            well.may_go_on.set()
            heard += await reply.read()
        assert ill.asked
        assert well.asked == 1
        rest = heard.replace(probe, b"")
        assert b" two" in rest
        # What is left is whole events, each with its end.
        assert all(event.startswith((b"data: ", b"event: ")) for event in rest.split(b"\n\n")[:-1])
        assert rest.endswith(b"\n\n")
        rows = await gateway.rows("entry = 'settle'")
        assert [row["target_id"] for row in rows if row["output_tokens"]] == ["m1"]


@pytest.mark.parametrize("wire", _ASKED)
async def test_an_error_behind_the_head_is_an_event(tmp_path: Path, wire: str) -> None:
    """All targets fail after the caller was told that it waits: the clients of its wire raise."""
    ill = _Quiet(fails=500)
    async with _at(ill) as urls, running_gateway(tmp_path, _house(urls), server=_SERVER) as gateway:
        async with _asking(gateway, wire) as reply:
            await _heard(reply, _PING if wire == "messages" else _COMMENT)
            ill.may_answer.set()
            told = await reply.read()
        assert b'"code":"upstream_unavailable"' in told.replace(_PING, b"")
        assert b"[DONE]" not in told
        if wire == "responses":
            (failed,) = (line for line in told.split(b"\n") if line.startswith(b'data: {"type":"response.failed"'))
            check_response(json.loads(failed.removeprefix(b"data: "))["response"])


async def test_a_whole_answer_and_a_gateway_without_pings_wait_in_silence(tmp_path: Path) -> None:
    """A reply that is no stream has its true status, however late; 0 turns the rest off."""
    for fields, server in (({"stream": False}, _SERVER), ({}, {"ping_after_s": 0})):
        ill = _Quiet(fails=500)
        folder = tmp_path / str(server["ping_after_s"])
        folder.mkdir()
        async with _at(ill) as urls, running_gateway(folder, _house(urls), server=server) as gateway:
            asking = asyncio.ensure_future(_status(gateway, fields))
            await ill.was_asked.wait()
            for _ in range(5):
                await asyncio.sleep(0.25)
                gateway.server.tick()
            assert not asking.done()
            ill.may_answer.set()
            assert await asking == 502


async def _status(gateway: Running, fields: dict[str, Any]) -> int:
    async with _asking(gateway, "chat", **fields) as reply:
        return reply.status


async def test_an_error_in_an_early_stream_frees_its_idempotency_key(tmp_path: Path) -> None:
    """It cost nothing, so the retry is answered; the answer is repeated without what only kept the line open."""
    quiet = _Quiet(fails=500)
    headers = {"idempotency-key": "one"}
    async with _at(quiet) as urls, running_gateway(tmp_path, _house(urls), server=_SERVER) as gateway:
        async with _asking(gateway, "chat", headers=headers) as reply:
            await _heard(reply, _COMMENT)
            quiet.may_answer.set()
            assert b"error" in await reply.read()
        quiet.fails = 0
        quiet.may_answer.clear()
        async with _asking(gateway, "chat", headers=headers) as reply:
            await _heard(reply, _COMMENT)
            quiet.may_answer.set()
            quiet.may_go_on.set()
            first = (await reply.read()).replace(_COMMENT, b"")
        async with _asking(gateway, "chat", headers=headers) as reply:
            assert await reply.read() == first
            assert reply.headers["idempotent-replayed"] == "true"
            assert reply.headers["x-weighbridge-target"] == "m0"


async def test_official_clients_read_over_it(tmp_path: Path) -> None:
    """Text and errors come as ever."""
    for fails in (0, 500):
        folder = tmp_path / str(fails)
        folder.mkdir()
        quiet = _Quiet(fails=fails)
        async with _at(quiet) as urls, running_gateway(folder, _house(urls), server=_SERVER) as gateway:
            for said in (_openai_chat, _openai_responses, _anthropic_messages):
                quiet.may_answer.clear()
                quiet.may_go_on.clear()
                letting = asyncio.ensure_future(_let_go(gateway, quiet))
                try:
                    assert await said(gateway) == ("one two" if not fails else "error")
                finally:
                    await letting


async def _let_go(gateway: Running, quiet: _Quiet) -> None:
    for event in (quiet.may_answer, quiet.may_go_on):
        for _ in range(4):
            await asyncio.sleep(0.25)
            gateway.server.tick()
        event.set()


async def _openai_chat(gateway: Running) -> str:
    async with openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as caller:
        try:
            stream = await caller.chat.completions.create(
                model="auto", stream=True, messages=[{"role": "user", "content": "hi"}]
            )
            return "".join([each.choices[0].delta.content or "" async for each in stream if each.choices])
        except openai.APIError:
            return "error"


async def _openai_responses(gateway: Running) -> str:
    async with openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0) as caller:
        try:
            stream = await caller.responses.create(model="auto", stream=True, input="hi")
            return "".join([each.delta async for each in stream if each.type == "response.output_text.delta"])
        except openai.APIError:
            return "error"


async def _anthropic_messages(gateway: Running) -> str:
    async with anthropic.AsyncAnthropic(api_key=gateway.key, base_url=gateway.url, max_retries=0) as caller:
        try:
            async with caller.messages.stream(
                model="auto", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
            ) as stream:
                return "".join([each async for each in stream.text_stream])
        except anthropic.APIError:
            return "error"
