"""The scripted upstream over a real socket, OpenAI-shaped, with a log of every request it saw.

    python -m testing.scripted.server --port 9000 --log seen.jsonl

The script is named by the request's `model` (see testing.scripted.upstream). It has the batch APIs of OpenAI and Anthropic, too. The log gets one line when a
request arrives and one when its reply is over, each appended in one write, so that it holds when
several servers share it and when the gateway is killed.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiohttp import web

from testing.scripted import dialects
from testing.scripted.batches import ScriptedBatches
from testing.scripted.log import LogLine, Write
from testing.scripted.metered import add_metered_routes
from testing.scripted.upstream import (
    Script,
    ScriptUnknown,
    chat_as_text,
    chunks,
    completion,
    completion_tokens,
    error_body,
    pace,
    retry_headers,
    script_named,
)

_MAX_BODY_BYTES = 64 * 1024 * 1024


class _RequestBody(msgspec.Struct):
    model: str
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


class _Cut(Exception):
    """The script cuts the connection here."""


@contextlib.contextmanager
def _log_file(path: Path | None) -> Any:
    """Return the context manager for a Write: one write call for each line, on a descriptor opened for appending."""
    if path is None:
        yield lambda _line: None
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        yield lambda line: os.write(descriptor, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)


Answer = Callable[[bytes], str]
"""Gives the text of the answer to a chat's body."""


def make_app(write: Write, answer: Answer | None = None) -> web.Application:
    """Return the server's routes; `write` gets a line for every request and every reply.

    With an `answer` chats are answered by its text, at the script's pace.
    """
    app = web.Application(client_max_size=_MAX_BODY_BYTES)

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _chat(request, write, lambda payload: payload, answer)

    async def text(request: web.Request) -> web.StreamResponse:
        return await _chat(request, write, chat_as_text)

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def response(request: web.Request) -> web.StreamResponse:
        return await _in_dialect(request, write, dialects.response, dialects.response_events)

    async def message(request: web.Request) -> web.StreamResponse:
        return await _in_dialect(request, write, dialects.message, dialects.message_events)

    async def tokens_of_message(request: web.Request) -> web.StreamResponse:
        return web.json_response({"input_tokens": dialects.count_of(await request.read())})

    async def tokens_of_chat(request: web.Request) -> web.StreamResponse:
        return web.json_response({"count": dialects.count_of(await request.read()), "max_model_len": 32_000})

    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/responses", response)
    app.router.add_post("/v1/messages", message)
    app.router.add_post("/v1/messages/count_tokens", tokens_of_message)
    app.router.add_post("/v1/responses/input_tokens", tokens_of_message)
    app.router.add_post("/tokenize", tokens_of_chat)
    app.router.add_post("/v1/completions", text)
    app.router.add_get("/health", health)
    ScriptedBatches(write).add_to(app)
    add_metered_routes(app.router)
    return app


class _Progress(msgspec.Struct):
    """The progress of a reply."""

    events: int = 0
    ended: bool = False


Shape = Callable[[bytes], bytes]
"""Turns a chat's payload into one of the route that was asked."""


async def _chat(request: web.Request, write: Write, shape: Shape, answer: Answer | None = None) -> web.StreamResponse:
    try:
        body = await request.read()
        asked = msgspec.json.decode(body, type=_RequestBody)
        script = script_named(asked.model)
        if answer is not None:
            script = msgspec.structs.replace(script, text=answer(body))
    except (msgspec.DecodeError, ScriptUnknown):
        return _error(400, {})
    request_id = request.headers.get("x-request-id", "")
    progress = _Progress()

    def line(event: Literal["arrived", "ended", "cut"]) -> LogLine:
        return LogLine(
            event=event,
            request_id=request_id,
            model=asked.model,
            stream=bool(asked.stream),
            prompt_tokens=script.prompt_tokens,
            completion_tokens=completion_tokens(script, progress.events),
        )

    write(line("arrived"))
    try:
        return await _answer(request, script, asked, request_id, progress, shape)
    except _Cut:
        # Breaks the connection in the middle, as a dying server does. Nobody reads what is returned.
        if request.transport is not None:
            request.transport.close()
        return web.Response()
    finally:
        write(line("ended" if progress.ended else "cut"))


async def _in_dialect(
    request: web.Request,
    write: Write,
    whole: Callable[[Script, dialects.Asked], dialects.Fields],
    events: Callable[[Script, dialects.Asked], Iterator[dialects.Fields]],
) -> web.StreamResponse:
    """Return a reply in another dialect than chat's. Positions of a script count that dialect's events."""
    try:
        asked = msgspec.json.decode(await request.read(), type=dialects.Asked)
        script = script_named(asked.model)
    except (msgspec.DecodeError, ScriptUnknown):
        return _error(400, {})

    def line(event: Literal["arrived", "ended", "cut"]) -> LogLine:
        return LogLine(
            event=event,
            request_id=request.headers.get("x-request-id", ""),
            model=asked.model,
            stream=bool(asked.stream),
            prompt_tokens=script.prompt_tokens,
            completion_tokens=script.tokens,
        )

    write(line("arrived"))
    if script.error_status is not None:
        write(line("ended"))
        return _error(script.error_status, retry_headers(script))
    if not asked.stream:
        write(line("ended"))
        return web.json_response(whole(script, asked))
    reply = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
    await reply.prepare(request)
    for index, event in enumerate(events(script, asked)):
        await pace(script, index, asyncio.sleep)
        if index == script.cut_at:
            write(line("cut"))
            if request.transport is not None:
                request.transport.close()
            return web.Response()
        await reply.write(f"event: {event['type']}\ndata: ".encode() + msgspec.json.encode(event) + b"\n\n")
    await reply.write_eof()
    write(line("ended"))
    return reply


async def _answer(
    request: web.Request, script: Script, asked: _RequestBody, request_id: str, progress: _Progress, shape: Shape
) -> web.StreamResponse:
    await pace(script, -1, asyncio.sleep)
    if script.error_status is not None:
        progress.ended = True
        return _error(script.error_status, retry_headers(script))
    if not asked.stream:
        whole = await _whole_reply(script, asked.model, request_id, shape)
        progress.events, progress.ended = script.tokens + 1, True
        return whole
    reply = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
    await reply.prepare(request)
    async for payload in _stream_payloads(script, asked, request_id):
        await reply.write(b"data: " + shape(payload) + b"\n\n")
        progress.events += 1
    if script.end_marker:
        await reply.write(b"data: [DONE]\n\n")
    await reply.write_eof()
    progress.ended = True
    return reply


async def _whole_reply(script: Script, model: str, request_id: str, shape: Shape) -> web.Response:
    await pace(script, 1 if script.hang_at is None else script.hang_at, asyncio.sleep)
    if script.cut_at is not None:
        raise _Cut
    return web.Response(body=shape(completion(script, model, request_id)), content_type="application/json")


async def _stream_payloads(script: Script, asked: _RequestBody, request_id: str) -> AsyncIterator[bytes]:
    options = asked.stream_options or {}
    payloads = chunks(
        script,
        asked.model,
        request_id,
        with_usage=bool(options.get("include_usage")),
        continuous=bool(options.get("continuous_usage_stats")),
    )
    for index, payload in enumerate(payloads):
        await pace(script, index, asyncio.sleep)
        if index == script.cut_at:
            raise _Cut
        yield payload


def _error(status: int, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=error_body(status), content_type="application/json", headers=headers)


async def serve(host: str, port: int, log: Path | None, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is told the address, with the port that was bound."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _log_file(log) as write:
        # A request whose caller hung up is cancelled at once, as real engines do.
        runner = web.AppRunner(make_app(write), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port, backlog=4_096).start()
            announce(f"http://{host}:{runner.addresses[0][1]}/v1")
            await stop.wait()
        finally:
            await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testing.scripted.server", description="A scripted upstream.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 lets the system choose; the address is printed")
    parser.add_argument("--log", type=Path, help="append a line for every request and every reply")
    asked = parser.parse_args()

    def announce(address: str) -> None:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()

    asyncio.run(serve(asked.host, asked.port, asked.log, announce))


if __name__ == "__main__":
    main()
