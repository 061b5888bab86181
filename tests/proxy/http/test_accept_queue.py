"""The door: who waits in front of a listening socket, and letting them in."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator

import pytest

from gateway.process.listener import bind
from proxy.http.accept_queue import AcceptQueue, AcceptWait, waiting

_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")


@pytest.fixture(name="listener")
def _listener() -> Iterator[socket.socket]:
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        yield listener


def _callers(listener: socket.socket, count: int, stack: contextlib.ExitStack) -> None:
    for _ in range(count):
        stack.enter_context(socket.create_connection(listener.getsockname()))


class _Arriving(asyncio.Protocol):
    def __init__(self, met: "_Met") -> None:
        self._met = met

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._met.one(transport)


class _Met:
    """Who came in."""

    def __init__(self) -> None:
        self.all: list[asyncio.BaseTransport] = []
        self._new: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()

    def protocol(self) -> asyncio.Protocol:
        return _Arriving(self)

    def one(self, transport: asyncio.BaseTransport) -> None:
        self.all.append(transport)
        self._new.put_nowait(transport)

    async def more(self, count: int) -> None:
        async with asyncio.timeout(10):
            for _ in range(count):
                await self._new.get()

    async def end(self) -> None:
        for transport in self.all:
            transport.close()
        await asyncio.sleep(0)


@_linux
def test_the_system_tells_who_waits(listener: socket.socket) -> None:
    """Connections that nobody accepted are counted, each once."""
    with contextlib.ExitStack() as stack:
        assert waiting(listener) == 0
        _callers(listener, 3, stack)
        assert waiting(listener) == 3
        stack.enter_context(listener.accept()[0])
        assert waiting(listener) == 2


def test_what_is_no_listening_socket_has_nobody_waiting() -> None:
    """A socket of another kind is no error."""
    one, other = socket.socketpair()
    with one, other:
        assert waiting(one) == 0


def test_the_wait_is_what_wait_by_how_fast_they_come_in() -> None:
    """100 in front of a process that accepts 200 a second wait for half a second; only busy times tell how fast."""
    wait = AcceptWait()
    assert wait.seen(0, 0, 0.0) == 0
    assert wait.seen(100, 5, 60.0) == 0
    assert wait.seen(100, 25, 60.1) == 0
    assert wait.seen(100, 105, 60.5) == pytest.approx(0.5)
    assert wait.seen(40, 110, 60.6) == pytest.approx(0.2)
    assert wait.seen(0, 150, 60.7) == 0
    assert wait.seen(1, 150, 90.0) == 0


def test_where_nobody_is_accepted_the_wait_is_long() -> None:
    """And not a division by zero."""
    wait = AcceptWait()
    wait.seen(10, 7, 0.0)
    assert wait.seen(10, 7, 1.0) == pytest.approx(10)


async def test_it_lets_in_who_waits(listener: socket.socket) -> None:
    """All of them, whether before it was opened or after; closed, it lets in nobody and waits for nothing."""
    met = _Met()
    door = AcceptQueue(listener, met.protocol, lambda: len(met.all), 1)
    with contextlib.ExitStack() as stack:
        _callers(listener, 40, stack)
        await asyncio.sleep(0.01)
        assert not met.all
        door.open(wide=False)
        await met.more(40)
        door.open(wide=True)
        _callers(listener, 40, stack)
        await met.more(40)
        door.close()
        door.close()
        await door.wait_closed()
        door.open(wide=True)
        _callers(listener, 2, stack)
        await asyncio.sleep(0.01)
        assert len(met.all) == 80
        assert door.wait_s(1.0) == 0
        await met.end()


async def test_whoever_waits_is_accepted_before_the_end(listener: socket.socket) -> None:
    """However many: closing the socket would reset them."""
    met = _Met()
    door = AcceptQueue(listener, met.protocol, lambda: len(met.all), 1)
    with contextlib.ExitStack() as stack:
        _callers(listener, 300, stack)
        await door.empty()
        door.close()
        await met.more(300)
        await met.end()


async def test_who_is_gone_already_is_no_error(listener: socket.socket) -> None:
    """A connection that was reset while it waited harms nobody; the next one comes in."""
    met = _Met()
    door = AcceptQueue(listener, met.protocol, lambda: len(met.all), 1)
    with contextlib.ExitStack() as stack:
        gone = socket.create_connection(listener.getsockname())
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        gone.close()
        _callers(listener, 1, stack)
        door.open(wide=True)
        await met.more(1)
        door.close()
        await asyncio.sleep(0.01)
        await met.end()
