"""The spoilt wire does what it is told, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.redis_server import RedisServer
from tests.toxic import ToxicProxy, Toxics, toxic_proxy

_ECHO = b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n"


class Line:
    """One connection to Redis by way of the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def echo(self, text: bytes = b"hello") -> bytes:
        self.writer.write(_ECHO % (len(text), text))
        size = int((await self.reader.readline())[1:])
        return (await self.reader.readexactly(size + 2))[:-2]


@contextlib.asynccontextmanager
async def line(proxy: ToxicProxy) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.fixture
async def proxy(empty_redis: RedisServer) -> AsyncIterator[ToxicProxy]:
    async with toxic_proxy(empty_redis.port) as made:
        yield made


async def test_a_calm_wire_changes_nothing(proxy: ToxicProxy) -> None:
    """What is said arrives, however long it is, and a hang-up is a hang-up."""
    text = b"x" * 1_000_000
    async with line(proxy) as one:
        assert await one.echo(text) == text
        one.writer.write(b"QUIT\r\n")
        assert await one.reader.read() == b"+OK\r\n"


async def test_latency_delays_each_reply_and_not_the_next_one_too(proxy: ToxicProxy) -> None:
    """Replies to commands sent together arrive together, one delay later."""
    clock = asyncio.get_running_loop().time
    proxy.slow(0.05, jitter_s=0.01)
    async with line(proxy) as one:
        began = clock()
        one.writer.write(b"PING\r\n" * 40)
        assert await one.reader.readexactly(7 * 40) == b"+PONG\r\n" * 40
        assert 0.05 <= clock() - began < 40 * 0.05


async def test_a_black_hole_answers_nothing_until_it_is_mended(proxy: ToxicProxy) -> None:
    """Connections open and commands go in; on mending, those connections are reset and new ones work."""
    async with line(proxy) as one:
        proxy.swallow()
        async with line(proxy) as other:
            for each in (one, other):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(each.echo(), 0.05)
            proxy.calm()
            for each in (one, other):
                with pytest.raises(ConnectionResetError):
                    await each.reader.read()
    async with line(proxy) as new:
        assert await new.echo() == b"hello"


async def test_a_reset_breaks_open_and_new_connections(proxy: ToxicProxy) -> None:
    """Open connections break at once and new ones as they come, until the wire is mended."""
    async with line(proxy) as one:
        await one.echo()
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await one.reader.read()
    with pytest.raises(ConnectionResetError):
        async with line(proxy) as refused:
            await refused.reader.readexactly(1)
    proxy.calm()
    async with line(proxy) as new:
        assert await new.echo() == b"hello"


@pytest.mark.parametrize(
    "toxics", [Toxics(slice_bytes=1), Toxics(bytes_per_s=1_000_000), Toxics(slice_bytes=7, latency_s=0.01)]
)
async def test_a_wire_in_pieces_carries_everything_in_order(proxy: ToxicProxy, toxics: Toxics) -> None:
    """Sliced, narrow and slow wires lose nothing."""
    proxy.toxics = toxics
    text = bytes(range(65, 91)) * 20
    async with line(proxy) as one:
        assert await one.echo(text) == text


async def test_a_server_that_dies_hangs_up_on_the_caller(proxy: ToxicProxy, empty_redis: RedisServer) -> None:
    """A killed Redis is seen through the wire as it is seen without it, and so is its return."""
    async with line(proxy) as one:
        await one.echo()
        empty_redis.kill()
        with contextlib.suppress(ConnectionResetError):
            assert await one.reader.read() == b""
    with pytest.raises(ConnectionResetError):
        async with line(proxy) as refused:
            await refused.reader.readexactly(1)
    empty_redis.start()
    async with line(proxy) as new:
        assert await new.echo() == b"hello"


async def test_a_wire_can_lead_to_another_server(proxy: ToxicProxy) -> None:
    """What was open is reset, and new connections reach the other one."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"other\n")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with other, line(proxy) as one:
        assert await one.echo() == b"hello"
        proxy.lead_to(other.sockets[0].getsockname()[1])
        with pytest.raises(ConnectionResetError):
            await one.reader.read()
        async with line(proxy) as two:
            assert await two.reader.read() == b"other\n"
