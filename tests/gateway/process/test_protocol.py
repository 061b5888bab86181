"""What a connection may cost before its request reaches the app; over real sockets, with an app of a few lines."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config

from gateway.process.protocol import BoundedProtocol, ConnectionLimits, ServerConnections
from tests.cost.entries import until

_UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
_NEVER_S = 3600.0


class EchoApp:
    """Answers with the body, the headers' names and a number; `/held` waits for the test or for a hang-up."""

    def __init__(self) -> None:
        self.seen: list[Scope] = []
        self.gate = asyncio.Event()
        self.arrived = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        body = b""
        if scope["path"] != "/unread":
            more = True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
        self.arrived.set()
        if scope["path"] == "/held":
            await self._hold(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})

    async def _hold(self, receive: Receive) -> None:
        opened = asyncio.create_task(self.gate.wait())
        left = asyncio.ensure_future(receive())
        await asyncio.wait([opened, left], return_when=asyncio.FIRST_COMPLETED)
        if left.done() and left.result()["type"] == "http.disconnect":
            self.hung_up.set()
        for task in (opened, left):
            task.cancel()


class Caller:
    """One connection, read as HTTP by hand so that it may be wrong."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()

    async def send_slowly(self, data: bytes) -> None:
        """A byte at a time, so that the server reads it in many pieces."""
        for index in range(len(data)):
            await self.send(data[index : index + 1])
            await asyncio.sleep(0)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:-2])

    async def reply(self) -> tuple[int, bytes]:
        status, headers = await self.head()
        if "content-length" in headers:
            return status, await self._reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self._reader.readline(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return status, body

    async def rest(self) -> bytes:
        """What comes before the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return await self._reader.read()
        return b""

    async def leave(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class Running:
    """A server of one protocol class, and its callers."""

    def __init__(self, port: int, state: ServerConnections, callers: contextlib.AsyncExitStack) -> None:
        self.state = state
        self._port = port
        self._callers = callers

    async def call(self) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self._port))
        self._callers.push_async_callback(caller.leave)
        return caller


@contextlib.asynccontextmanager
async def _running(app: EchoApp, **limits: Any) -> AsyncIterator[Running]:
    config = Config(app, ws="none", lifespan="off", log_config=None, timeout_keep_alive=75)
    config.load()
    state = ServerConnections()
    bounds = ConnectionLimits(**{"head_timeout_s": _NEVER_S, **limits})
    protocol = type("Bounded", (BoundedProtocol,), {"limits": bounds})
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    try:
        async with asyncio.timeout(20), contextlib.AsyncExitStack() as callers:
            yield Running(server.sockets[0].getsockname()[1], state, callers)
    finally:
        server.close()
        await server.wait_closed()
        app.gate.set()
        await asyncio.gather(*state.tasks)


@pytest.fixture
def app() -> EchoApp:
    return EchoApp()


def _post(path: bytes, body: bytes, *, extra: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (path, extra, len(body), body)


def _chunked(path: bytes, body: bytes, *, extra: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (path, extra)
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


async def test_a_connection_serves_many_requests(app: EchoApp) -> None:
    """Bodies of any framing, in any pieces, and stray empty lines between requests are served as before."""
    async with _running(app) as server:
        caller = await server.call()
        await caller.send(_post(b"/a", b"one"), b"\r\n")
        assert await caller.reply() == (200, b"/a one")
        await caller.send_slowly(_chunked(b"/b", b"two"))
        assert await caller.reply() == (200, b"/b two")
        await caller.send(_post(b"/c", b"x" * 300_000))
        assert await caller.reply() == (200, b"/c " + b"x" * 300_000)
        await caller.send(_post(b"/d", b"", extra=b"Expect: 100-continue\r\n").replace(b"Length: 0", b"Length: 4"))
        assert (await caller.head())[0] == 100
        await caller.send(b"four")
        assert await caller.reply() == (200, b"/d four")


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("before", [b"", _post(b"/first", b"x" * 3000), _chunked(b"/first", b"x" * 3000)])
async def test_a_large_head_is_refused(app: EchoApp, before: bytes, *, complete: bool) -> None:
    """Headers over the limit get 431 in OpenAI's shape and a close, whether or not they ever end."""
    async with _running(app, max_head_bytes=2000) as server:
        caller = await server.call()
        if before:
            await caller.send(before)
            assert (await caller.reply())[0] == 200
        large = b"GET /large HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 2000
        if complete:
            await caller.send(large + b"\r\n\r\n")
        else:
            await caller.send(large[:40])
            await until(lambda: any(connection.url == b"/large" for connection in _protocols(server)))
            await caller.send(large[40:] + b"z" * 100)
        status, body = await caller.reply()
        assert status == 431
        error = json.loads(body)["error"]
        assert (error["type"], error["code"], error["param"]) == (
            "invalid_request_error",
            "request_header_fields_too_large",
            None,
        )
        assert await caller.rest() == b""
        assert [scope["path"] for scope in app.seen] == (["/first"] if before else [])


def _protocols(server: Running) -> list[BoundedProtocol]:
    return list(server.state.connections)


async def test_a_head_as_large_as_allowed_is_served(app: EchoApp) -> None:
    """The limit counts headers only: a body beside them, of any size, is not held against them."""
    async with _running(app, max_head_bytes=2000) as server:
        caller = await server.call()
        for _ in range(3):
            await caller.send(_post(b"/a", b"b" * 100_000, extra=b"X: " + b"y" * 1800 + b"\r\n"))
            assert (await caller.reply())[0] == 200
        chunk = _chunked(b"/a", b"b" * 50_000)
        for at in range(0, len(chunk), 9000):
            await caller.send(chunk[at : at + 9000])
            await asyncio.sleep(0.002)
        assert (await caller.reply())[0] == 200
        many = _post(b"/a", b"b" * 1000, extra=b"X: " + b"y" * 1800 + b"\r\n") * 2
        await caller.send(many)
        assert [(await caller.reply())[0] for _ in range(2)] == [200, 200]


async def test_trailers_are_bounded(app: EchoApp) -> None:
    """Header fields behind a body end the connection like those before it when they are too many."""
    async with _running(app, max_head_bytes=2000) as server:
        caller = await server.call()
        await caller.send(_chunked(b"/a", b"body")[:-2])
        with contextlib.suppress(ConnectionError):
            for number in range(2000):
                await caller.send(b"X-%d: yyyyyyyyyyyyyyyyyyyy\r\n" % number)
                await asyncio.sleep(0)
        await caller.rest()
        assert not server.state.connections


@pytest.mark.parametrize("first", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: a\r\nX", b"\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(app: EchoApp, first: bytes) -> None:
    """A connection without a complete request is closed in time, however it begins."""
    async with _running(app, head_timeout_s=0.1) as server:
        caller = await server.call()
        await caller.send(first)
        assert await caller.rest() == b""
        assert not app.seen


async def test_a_later_head_that_does_not_come_is_not_waited_for(app: EchoApp) -> None:
    """Also a kept connection has only so long once its next request begins; before that it may be idle."""
    async with _running(app, head_timeout_s=0.1) as server:
        caller = await server.call()
        await caller.send(_post(b"/a", b"one"))
        await caller.reply()
        await asyncio.sleep(0.25)
        await caller.send(_post(b"/b", b"two"))
        assert await caller.reply() == (200, b"/b two")
        await caller.send(b"GET /c")
        assert await caller.rest() == b""


async def test_a_request_under_way_may_take_its_time(app: EchoApp) -> None:
    """The limit ends with the head: a slow body and a slow answer are the app's matter, and so is an empty line."""
    async with _running(app, head_timeout_s=0.1) as server:
        caller = await server.call()
        request = _post(b"/held", b"four")
        await caller.send(request[:-2])
        await asyncio.sleep(0.25)
        await caller.send(request[-2:] + b"\r\n")
        await app.arrived.wait()
        await asyncio.sleep(0.25)
        app.gate.set()
        assert await caller.reply() == (200, b"/held four")


async def test_a_body_that_nobody_reads_may_still_come(app: EchoApp) -> None:
    """A caller who is answered early sends the rest of a large body and then the next request."""
    async with _running(app, max_head_bytes=2000, head_timeout_s=0.2) as server:
        caller = await server.call()
        request = _post(b"/unread", b"x" * 50_000)
        await caller.send(request[:10_000])
        assert (await caller.reply())[0] == 200
        await caller.send(request[10_000:30_000])
        await asyncio.sleep(0.3)
        await caller.send(request[30_000:], _post(b"/next", b"two"))
        assert await caller.reply() == (200, b"/next two")


async def test_connections_are_bounded(app: EchoApp) -> None:
    """One connection too many is told so and closed; when another ends there is a place again."""
    async with _running(app, max_connections=2) as server:
        first, second = await server.call(), await server.call()
        await second.send(_post(b"/a", b"one"))
        assert (await second.reply())[0] == 200
        third = await server.call()
        status, headers = await third.head()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(await third.rest())["error"]["code"] == "overloaded"
        await first.leave()
        await until(lambda: len(server.state.connections) == 1)
        fourth = await server.call()
        await fourth.send(_post(b"/b", b"two"))
        assert (await fourth.reply())[0] == 200


@pytest.mark.parametrize("slowly", [True, False])
@pytest.mark.parametrize("framed", [_post, _chunked])
async def test_an_upgrade_is_ignored_and_the_body_is_kept(app: EchoApp, framed: Any, *, slowly: bool) -> None:
    """A request that asks for HTTP/2 is served as HTTP/1.1 with its whole body, and so are those after it."""
    async with _running(app) as server:
        caller = await server.call()
        data = framed(b"/a", b"one", extra=_UPGRADE) + framed(b"/b", b"two", extra=_UPGRADE) + framed(b"/c", b"three")
        await (caller.send_slowly(data) if slowly else caller.send(data))
        assert [await caller.reply() for _ in range(3)] == [(200, b"/a one"), (200, b"/b two"), (200, b"/c three")]
        assert [dict(scope["headers"]).get(b"upgrade") for scope in app.seen] == [None] * 3


@pytest.mark.parametrize("request_line", [b"CONNECT a:1 HTTP/1.1", b"CONNECT / HTTP/1.1", b"nonsense"])
async def test_what_is_no_request_is_refused(app: EchoApp, request_line: bytes) -> None:
    """A tunnel or nonsense gets 400 in OpenAI's shape and a close."""
    async with _running(app) as server:
        caller = await server.call()
        await caller.send(request_line + b"\r\nHost: a\r\n\r\n")
        status, body = await caller.reply()
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")
        assert await caller.rest() == b""
        assert not app.seen


async def test_nonsense_behind_a_request_is_not_answered_amid_its_reply(app: EchoApp) -> None:
    """While a reply is under way, what cannot be read closes the connection without a word."""
    async with _running(app) as server:
        caller = await server.call()
        await caller.send(_post(b"/held", b"one"))
        await app.arrived.wait()
        await caller.send(b"nonsense\r\n\r\n")
        assert await caller.rest() == b""
        await app.hung_up.wait()


async def test_a_hang_up_is_noticed_behind_a_waiting_request(app: EchoApp) -> None:
    """The running request learns that its caller is gone though another request was sent behind it."""
    async with _running(app) as server:
        caller = await server.call()
        await caller.send(_post(b"/held", b"one"))
        await app.arrived.wait()
        await caller.send(_post(b"/next", b"two"))
        await until(lambda: any(connection.pipeline for connection in _protocols(server)))
        await caller.leave()
        await app.hung_up.wait()
        assert [scope["path"] for scope in app.seen] == ["/held"]


async def test_requests_sent_ahead_are_answered_in_order(app: EchoApp) -> None:
    """Many requests in one write are all answered, one after the other; far too many end the connection."""
    async with _running(app, max_waiting=20) as server:
        caller = await server.call()
        await caller.send(b"".join(_post(b"/%d" % number, b"x") for number in range(20)))
        assert [await caller.reply() for _ in range(20)] == [(200, b"/%d x" % number) for number in range(20)]
        await caller.send(_post(b"/a", b"x") * 40)
        await caller.rest()
        assert not server.state.connections


async def test_the_last_reply_says_so(app: EchoApp) -> None:
    """A request under way when the end begins, and one that comes after it, are answered with `connection: close`."""
    async with _running(app) as server:
        waiting, idle = await server.call(), await server.call()
        await idle.send(_post(b"/a", b"one"))
        await idle.reply()
        await waiting.send(_post(b"/held", b"two"))
        await app.arrived.wait()
        server.state.stopping = server.state.leaving = True
        for connection in _protocols(server):
            connection.end_with_this()
        await idle.send(_post(b"/b", b"three"))
        app.gate.set()
        for caller in (waiting, idle):
            assert (await caller.head())[1]["connection"] == "close"
            await caller.rest()


async def test_requests_sent_ahead_of_the_end_are_all_answered(app: EchoApp) -> None:
    """Only the reply to the last of them says `close`."""
    async with _running(app) as server:
        caller = await server.call()
        await caller.send(_post(b"/held", b"one"))
        await app.arrived.wait()
        server.state.stopping = server.state.leaving = True
        for connection in _protocols(server):
            connection.end_with_this()
        await caller.send(_post(b"/b", b"two"))
        await until(lambda: any(connection.pipeline for connection in _protocols(server)))
        app.gate.set()
        assert await caller.reply() == (200, b"/held one")
        status, headers = await caller.head()
        assert (status, headers["connection"]) == (200, "close")
        assert b"/b two" in await caller.rest()


@pytest.mark.parametrize("ahead", [b"", _post(b"/never", b"x")])
async def test_an_early_last_reply_waits_for_the_body(app: EchoApp, ahead: bytes) -> None:
    """A caller that still sends when it is refused gets its answer rather than a reset; nothing after it is served."""
    async with _running(app) as server:
        server.state.stopping = server.state.leaving = True
        caller = await server.call()
        request = _post(b"/unread", b"x" * 3_000_000)
        await caller.send(request[:1_000])
        status, headers = await caller.head()
        assert (status, headers["connection"]) == (200, "close")
        await caller.send(request[1_000:] + ahead)
        assert await caller.rest() == b"8\r\n/unread \r\n0\r\n\r\n"
        assert [scope["path"] for scope in app.seen] == ["/unread"]


async def test_a_body_that_never_comes_is_not_waited_for(app: EchoApp) -> None:
    """A last reply that was early closes its connection in a second."""
    async with _running(app) as server:
        server.state.stopping = server.state.leaving = True
        caller = await server.call()
        await caller.send(_post(b"/unread", b"x" * 1_000)[:500])
        await caller.head()
        async with asyncio.timeout(30):
            await caller.rest()
