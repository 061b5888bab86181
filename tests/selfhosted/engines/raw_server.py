"""An HTTP server of raw sockets, whose pages may be as hostile as a test wants them."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

Page = Callable[[asyncio.StreamWriter], Awaitable[None]]

_RESET: Final = struct.pack("ii", 1, 0)


def reply(body: bytes | str, status: int = 200, headers: str = "") -> Page:
    """A whole and honest answer."""
    content = body.encode() if isinstance(body, str) else body

    async def write(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n{headers}\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    return write


def raw(data: bytes, *, reset: bool = False) -> Page:
    """These bytes, and then the connection is closed, or reset."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if reset:
            await asyncio.sleep(0.01)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.close()

    return write


def drip(data: bytes, every_s: float = 0.02) -> Page:
    """One byte at a time, for ever."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            for byte in data:
                writer.write(b"1\r\n" + bytes((byte,)) + b"\r\n")
                await writer.drain()
                await asyncio.sleep(every_s)

    return write


def endless(chunk: bytes) -> Page:
    """As fast as it is read, for ever."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()

    return write


async def silence(_writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await asyncio.Event().wait()


class RawServer:
    """`pages` may be changed while it runs; what is asked for is counted."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: dict[str, int] = {}
        self.at_once: dict[str, int] = {}
        self.most_at_once: dict[str, int] = {}
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """At once, connections and all."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # A peer that goes away in the middle is what these tests are about.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        self.heads.append(head)
        length = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length:")]
        self.bodies.append(await reader.readexactly(int(length[0])) if length else b"")
        self.asked[path] = self.asked.get(path, 0) + 1
        self.at_once[path] = self.at_once.get(path, 0) + 1
        self.most_at_once[path] = max(self.most_at_once.get(path, 0), self.at_once[path])
        try:
            await self.pages.get(path, reply("no", 404))(writer)
        finally:
            self.at_once[path] -= 1


@contextlib.asynccontextmanager
async def raw_server(**pages: Page) -> AsyncIterator[RawServer]:
    """`health=...` is the page at /health."""
    server = RawServer()
    server.pages = {f"/{name}": page for name, page in pages.items()}
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
