"""A wire that can be spoilt while it is in use: a small TCP proxy between a gateway and its Redis.

It runs in the loop of whoever starts it. What is spoilt is one value, `Toxics`, and changes for open connections too.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from typing import Final

import msgspec

_READ_BYTES: Final = 65_536
_MAX_CHUNKS: Final = 256
"""Waiting in one direction of one connection; beyond that nothing more is read."""
_RESET: Final = struct.pack("ii", 1, 0)


class Toxics(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the wire. The default is nothing."""

    latency_s: float = 0.0
    """Added to every reply, and so once to each round trip; order is kept."""
    jitter_s: float = 0.0
    """Up to so much more."""
    slice_bytes: int | None = None
    """Everything arrives in pieces of this size."""
    bytes_per_s: float | None = None
    swallow: bool = False
    """A black hole: connections are accepted, and nothing is carried. What was said into it is lost."""
    reset: bool = False
    """Connections, open ones and new ones, are reset."""


_CALM: Final = Toxics()


class ToxicProxy:
    """See `toxic_proxy`."""

    def __init__(self, target_port: int, chance: random.Random) -> None:
        self.toxics = _CALM
        self.port = 0
        self.accepted = 0
        """Connections so far."""
        self._target_port = target_port
        self._chance = chance
        self._links: set[_Link] = set()
        self._carrying: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def calm(self) -> None:
        """Nothing is wrong any more. A connection that has lost something in the black hole is reset."""
        self._become(_CALM)

    def slow(self, latency_s: float, jitter_s: float = 0.0) -> None:
        self._become(Toxics(latency_s=latency_s, jitter_s=jitter_s))

    def swallow(self) -> None:
        self._become(Toxics(swallow=True))

    def reset(self) -> None:
        self._become(Toxics(reset=True))

    def slice(self, slice_bytes: int) -> None:
        self._become(Toxics(slice_bytes=slice_bytes))

    def narrow(self, bytes_per_s: float) -> None:
        self._become(Toxics(bytes_per_s=bytes_per_s))

    def _become(self, toxics: Toxics) -> None:
        self.toxics = toxics
        for link in list(self._links):
            if toxics.reset or (link.lossy and not toxics.swallow):
                link.cut()

    def lead_to(self, port: int) -> None:
        """Leads to another server from now on, as an address does that moves; what was open is reset."""
        self._target_port = port
        for link in list(self._links):
            link.cut()

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def close(self, server: asyncio.Server) -> None:
        """Ends with everything that it carries."""
        server.close()
        for link in list(self._links):
            link.cut()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await server.wait_closed()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, self._chance, writer)
        self._links.add(link)
        try:
            if not self.toxics.reset:
                there, onward = await asyncio.open_connection("127.0.0.1", self._target_port)
                await link.carry(reader, there, onward)
                link.hang_up()
        except OSError:
            # Nobody is behind the wire, or no longer: the caller sees what it would see without the wire.
            pass
        finally:
            link.cut()
            self._links.discard(link)


class _Link:
    """One connection, in both directions."""

    def __init__(self, proxy: ToxicProxy, chance: random.Random, writer: asyncio.StreamWriter) -> None:
        self.lossy = False
        """Something said on it was lost, so what comes after would be misread."""
        self._proxy = proxy
        self._chance = chance
        self._ends = [writer]

    async def carry(self, near: asyncio.StreamReader, far: asyncio.StreamReader, onward: asyncio.StreamWriter) -> None:
        """Until either side hangs up, and the other has been given what was said before."""
        self._ends.append(onward)
        if self._proxy.toxics.reset:
            return
        ways = [
            asyncio.create_task(self._way(near, onward, delayed=False)),
            asyncio.create_task(self._way(far, self._ends[0], delayed=True)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def hang_up(self) -> None:
        """An orderly end."""
        for end in self._ends:
            end.close()

    def cut(self) -> None:
        """Resets it; whoever waits for something on it is told at once."""
        for end in self._ends:
            if not end.is_closing():
                with contextlib.suppress(OSError):
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delayed: bool) -> None:
        """Reads go on while what was read before waits for its time, as on a long wire."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_CHUNKS)
        giving = asyncio.create_task(self._give(waiting, writer))
        try:
            while not giving.done() and (data := await reader.read(_READ_BYTES)):
                if self._proxy.toxics.swallow:
                    self.lossy = True
                    continue
                await waiting.put((self._due(delayed=delayed), data))
            await waiting.put((0.0, b""))
            await giving
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    def _due(self, *, delayed: bool) -> float:
        toxics = self._proxy.toxics
        added_s = toxics.latency_s + toxics.jitter_s * self._chance.random() if delayed else 0.0
        return asyncio.get_running_loop().time() + added_s

    async def _give(self, waiting: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await waiting.get()
            if not data:
                return
            if due > clock():
                await asyncio.sleep(due - clock())
            toxics = self._proxy.toxics
            size = toxics.slice_bytes or len(data)
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                writer.write(piece)
                await writer.drain()
                # A turn of the loop between two pieces, so that they are not one again when they arrive.
                await asyncio.sleep(len(piece) / toxics.bytes_per_s if toxics.bytes_per_s else 0)


@contextlib.asynccontextmanager
async def toxic_proxy(target_port: int, *, seed: int = 0) -> AsyncIterator[ToxicProxy]:
    """A wire to a port of this machine, from a port of its own."""
    proxy = ToxicProxy(target_port, random.Random(seed))
    server = await proxy.serve()
    try:
        yield proxy
    finally:
        await proxy.close(server)
