"""Callers that speak HTTP by hand, so that they may be wrong, and a server for them whose time the test moves."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

from proxy.http.connection import ConnectionLimits
from proxy.http.exchange import Exchange
from proxy.http.server import HttpServer, Routes

_NEVER_S: Final = 3600.0


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def send_slowly(self, data: bytes) -> None:
        """A byte at a time, so that the server reads it in many pieces."""
        for index in range(len(data)):
            await self.send(data[index : index + 1])
            await asyncio.sleep(0)

    def end_sending(self) -> None:
        """Sends no more, and goes on reading."""
        self.writer.write_eof()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:-2])

    async def reply(self) -> tuple[int, bytes]:
        status, _, body = await self.whole_reply()
        return status, body

    async def whole_reply(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return status, headers, body

    async def error(self) -> tuple[int, str, dict[str, str]]:
        """Status, code and header fields of an error reply."""
        status, headers, body = await self.whole_reply()
        return status, json.loads(body)["error"]["code"], headers

    async def rest(self) -> bytes:
        """What comes before the server closes."""
        with contextlib.suppress(ConnectionResetError):
            return await self.reader.read()
        return b""

    async def rest_of(self, count: int) -> bytes:
        """So many bytes of a chunked reply, and its end."""
        _, body = await self.reply()
        assert len(body) == count
        return body

    async def leave(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Echo:
    """Answers with path and body. `/held` waits for the test or for a hang-up, `/unread` reads no body."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []
        self.gate = asyncio.Event()
        self.arrived = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        body = b"" if exchange.path == "/unread" else await exchange.body(10_000_000)
        self.arrived.set()
        if exchange.path == "/held":
            exchange.on_gone = self._gone
            await self.gate.wait()
        exchange.respond(200, [], exchange.path.encode() + b" " + body)

    def _gone(self) -> None:
        self.hung_up.set()
        self.gate.set()

    @property
    def paths(self) -> list[str]:
        return [exchange.path for exchange in self.seen]


class Served:
    """A server, its clock, and its callers."""

    def __init__(self, port: int, callers: contextlib.AsyncExitStack) -> None:
        self.time_s = 1000.0
        self.server: HttpServer
        self.port = port
        self._callers = callers

    async def call(self, **options: Any) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self._callers.push_async_callback(caller.leave)
        return caller

    def later(self, seconds: float) -> None:
        """Lets so much time pass, and the server see it."""
        self.time_s += seconds
        self.server.tick()


@contextlib.asynccontextmanager
async def serving(
    otherwise: Any,
    routes: Routes | None = None,
    *,
    cors: tuple[str, ...] = (),
    tls: Any = None,
    within_s: float = 60,
    **limits: Any,
) -> AsyncIterator[Served]:
    """Serves on a port of its own, for as long as a test may take."""
    # Connections are accepted without delay only on sockets that name their protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        async with asyncio.timeout(within_s), contextlib.AsyncExitStack() as callers:
            served = Served(listener.getsockname()[1], callers)
            server = served.server = HttpServer(
                routes or {}, otherwise, ConnectionLimits(**limits), cors_origins=cors, clock=lambda: served.time_s
            )
            await server.listen(listener, tls=tls, tick_s=_NEVER_S)
            callers.push_async_callback(server.aclose)
            yield served


def post(path: bytes, body: bytes, *, extra: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (path, extra, len(body), body)


def chunked(path: bytes, body: bytes, *, extra: bytes = b"") -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (path, extra)
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
