"""The pool over real sockets: what is kept, what is cut, and that each fault is told as what it is."""

import asyncio
import contextlib
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from providers.connections.address import Address, AddressInvalid, address_of
from providers.connections.connection import Connection
from providers.connections.errors import (
    ConnectionFailed,
    ConnectionTimeout,
    NotHttp,
    ReplyLost,
    ReplySilent,
    ReplyTimeout,
)
from providers.connections.pool import ConnectionPool, PoolLimits, fields
from tests.cost.entries import until
from tests.selfhosted.discovery import authorities

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Address]:
    """A server of this behaviour; the address names it."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0, ssl=tls)
    async with server:
        scheme = "https" if tls else "http"
        yield address_of(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")


async def request(reader: asyncio.StreamReader) -> bytes:
    """One request's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
    return await reader.readexactly(length)


def replying(*replies: bytes) -> Serve:
    """Answers the requests of each connection in turn, and then waits."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await request(reader)
            writer.write(reply)
        await reader.read()

    return serve


async def send(pool: ConnectionPool, address: Address, *, connect_s: float = 5.0, total_s: float = 5.0) -> Connection:
    return await pool.send(address, b"", b"{}", connect_s=connect_s, total_s=total_s, reaches=lambda _: None)


async def read(connection: Connection) -> bytes:
    await connection.reply_begins()
    whole = b""
    while piece := await connection.read():
        whole += piece
    return whole


async def asked(pool: ConnectionPool, address: Address) -> bytes:
    connection = await send(pool, address)
    try:
        return await read(connection)
    finally:
        pool.release(connection)


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(PoolLimits(max_connections=3, max_connections_per_origin=2, keepalive_s=5.0))
    yield made
    await made.aclose()
    assert made.open == 0


@pytest.mark.parametrize(
    ("url", "head"),
    [
        ("http://engine:8000/v1/x", b"POST /v1/x HTTP/1.1\r\nhost: engine:8000\r\n"),
        ("https://api.example.com/v1", b"POST /v1 HTTP/1.1\r\nhost: api.example.com\r\n"),
        ("http://[::1]:80/v1", b"POST /v1 HTTP/1.1\r\nhost: [::1]\r\n"),
        ("https://h/v1?api-version=2024", b"POST /v1?api-version=2024 HTTP/1.1\r\nhost: h\r\n"),
        ("http://bücher.example/ä", b"POST /%C3%A4 HTTP/1.1\r\nhost: xn--bcher-kva.example\r\n"),
    ],
)
def test_an_address_is_taken_apart(url: str, head: bytes) -> None:
    assert address_of(url).head == head


@pytest.mark.parametrize(
    "url", ["", "ftp://h/", "http:///v1", "http://h:99999/", "http://a@h/", "http://h/\r\nx: y", "http://h/a b", "h/v1"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(AddressInvalid):
        address_of(url)


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\rb", "a\0b"])
def test_a_field_cannot_end_its_line(value: str) -> None:
    """What comes from a configuration or a tracer makes no second header."""
    with pytest.raises(ValueError, match="x-made-up"):
        fields([("x-made-up", value)])


@pytest.mark.parametrize(
    "reply",
    [
        OK,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-after: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
    ],
)
async def test_a_connection_is_used_again(pool: ConnectionPool, reply: bytes) -> None:
    """After a whole reply, however it was framed, and behind interim replies too."""
    async with serving(replying(reply, reply)) as address:
        assert [await asked(pool, address) for _ in range(2)] == [b"ok", b"ok"]
        assert pool.open == 1


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        # More than was announced would be read as the next call's reply.
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong",
    ],
)
async def test_a_connection_is_not_used_again(pool: ConnectionPool, reply: bytes) -> None:
    async with serving(replying(reply)) as address:
        connection = await send(pool, address)
        assert await read(connection) == b"ok"
        pool.release(connection)
        await asyncio.sleep(0.01)
        assert pool.open == 0


async def test_a_reply_that_ends_with_its_connection(pool: ConnectionPool) -> None:
    """Without a length the reply ends where the connection does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the end")

    async with serving(serve) as address:
        assert await asked(pool, address) == b"to the end"


def test_a_stale_connection_is_not_written_to() -> None:
    """An upstream that closed while the loop was busy gets no request on the old connection, so none can be lost."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []
    closed = threading.Event()

    def serve() -> None:
        for _ in range(2):
            peer, _ = listener.accept()
            with peer:
                seen.append(peer.recv(65_536))
                peer.sendall(OK)
                peer.settimeout(0.05)
                # The end is sent and the socket stays, so that what is written to it would be seen.
                peer.shutdown(socket.SHUT_WR)
                closed.set()
                with contextlib.suppress(TimeoutError):
                    seen.append(peer.recv(65_536))

    async def ask_twice() -> None:
        pool = ConnectionPool()
        address = address_of(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        connection = await send(pool, address)
        whole = await read(connection)
        pool.release(connection)
        # Blocks the loop, on purpose: it shall not read the end by itself.
        assert closed.wait(5)
        assert [whole, await asked(pool, address)] == [b"ok", b"ok"]
        await pool.aclose()

    thread = threading.Thread(target=serve)
    thread.start()
    asyncio.run(ask_twice())
    thread.join(5)
    listener.close()
    assert len([request for request in seen if request]) == 2


async def test_an_idle_connection_that_speaks_is_cut(pool: ConnectionPool) -> None:
    """Bytes that nobody asked for would be taken for the next reply."""
    speak = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        await speak.wait()
        writer.write(OK)
        await reader.read()

    async with serving(serve) as address:
        await asked(pool, address)
        speak.set()
        await until(lambda: not pool.open)


async def test_what_nobody_asked_for_is_no_reply(pool: ConnectionPool) -> None:
    """A second reply that has arrived, and that the loop has not read yet, is not taken for the next call's."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await replying(OK)(reader, writer) if len(writers) == 1 else await replying(OK.replace(b"ok", b"no"))(
            reader, writer
        )

    async with serving(serve) as address:
        assert await asked(pool, address) == b"ok"
        writers[0].write(OK.replace(b"ok", b"??"))
        assert await asked(pool, address) == b"no"


async def test_idle_connections_do_not_stay() -> None:
    pool = ConnectionPool(PoolLimits(keepalive_s=0.03))
    async with serving(replying(OK)) as address:
        await asked(pool, address)
        assert pool.open == 1
        await until(lambda: not pool.open)


async def test_who_finds_no_room_waits_for_it(pool: ConnectionPool) -> None:
    """Two to one origin at most: a third waits until one is given back, and takes that one; or gives up in time."""
    async with serving(replying(OK, OK)) as address:
        first, second = await send(pool, address), await send(pool, address)
        with pytest.raises(ConnectionTimeout):
            await send(pool, address, connect_s=0.02)
        third = asyncio.ensure_future(send(pool, address))
        await read(first)
        assert not third.done()
        pool.release(first)
        assert await third is first
        for connection in (first, second):
            await read(connection)
            pool.release(connection)
        assert pool.open == 2


async def test_an_idle_connection_makes_way(pool: ConnectionPool) -> None:
    """At most three in all: one that idles at another origin is closed for one that is needed here."""
    async with serving(replying(OK)) as here, serving(replying(OK)) as there:
        idle = [await send(pool, there) for _ in range(2)]
        for connection in idle:
            await read(connection)
            pool.release(connection)
        busy = [await send(pool, here) for _ in range(2)]
        assert pool.open == 3
        for connection in busy:
            pool.release(connection)


async def test_who_gives_up_takes_no_room(pool: ConnectionPool) -> None:
    """A call that is cancelled while it waits leaves its turn to the next."""
    async with serving(replying(OK, OK)) as address:
        busy = [await send(pool, address) for _ in range(2)]
        waiting = [asyncio.ensure_future(send(pool, address)) for _ in range(2)]
        await asyncio.sleep(0)
        pool.release(busy[0])
        waiting[0].cancel()
        connection = await asyncio.wait_for(waiting[1], 1)
        for each in (*busy, connection):
            pool.release(each)


async def test_a_reader_that_does_not_read_fills_no_memory(pool: ConnectionPool) -> None:
    """What a fast upstream sends stays with it until somebody reads."""
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 64000000\r\n\r\n")
        for _ in range(1_000):
            writer.write(b"x" * 64_000)
            await writer.drain()
            sent += 64_000

    async with serving(serve) as address:
        connection = await send(pool, address)
        await connection.reply_begins()
        connection.limit_silence(0.05)
        await asyncio.sleep(0.2)
        # The kernel's buffers on both sides take some MB; the upstream's silence is ours.
        assert sent < 32_000_000
        assert len(connection.take()) < 2_000_000
        whole = 0
        while piece := await connection.read():
            whole += len(piece)
        assert whole > 60_000_000
        pool.release(connection)


async def test_a_reply_that_nobody_read_holds_up_no_other(pool: ConnectionPool) -> None:
    """It came whole, and so fast that its connection was not to be read from for a while."""
    large = b"HTTP/1.1 200 OK\r\ncontent-length: 300000\r\n\r\n" + b"x" * 300_000
    async with serving(replying(large, OK)) as address:
        connection = await send(pool, address)
        await connection.reply_begins()
        await asyncio.sleep(0.02)
        pool.release(connection)
        assert (await asyncio.wait_for(asked(pool, address), 2))[-2:] in (b"ok", b"xx")


async def test_what_takes_too_long_is_told(pool: ConnectionPool) -> None:
    """Before the reply, in it, and between two pieces of it."""
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart"
    async with serving(replying(b"")) as silent, serving(replying(begun)) as slow:
        connection = await send(pool, silent, total_s=1.0)
        with pytest.raises(ReplyTimeout):
            await connection.reply_begins()
        pool.release(connection)
        connection = await send(pool, slow, total_s=1.0)
        with pytest.raises(ReplyTimeout) as told:
            await read(connection)
        assert told.type is ReplyTimeout
        pool.release(connection)
        connection = await send(pool, slow)
        await connection.reply_begins()
        connection.limit_silence(0.03)
        with pytest.raises(ReplySilent):
            await read(connection)
        pool.release(connection)


@pytest.mark.parametrize("port", ["refused", "unresolved"])
async def test_nobody_there(pool: ConnectionPool, port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    url = f"http://127.0.0.1:{free}/" if port == "refused" else "http://made-up.invalid/"
    with pytest.raises(ConnectionFailed):
        await send(pool, address_of(url))
    assert pool.open == 0


async def test_random_replies_are_replies_or_errors() -> None:
    """Mutated and random bytes: a reply or one of our errors within the time, and no connection is left over."""
    draw = random.Random(15)
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n0\r\n\r\n"
    pool = ConnectionPool()
    ended = {"replies": 0, "errors": 0}
    replies = [mutated(draw, draw.choice([OK, chunked, OK + OK])) for _ in range(400)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(replies.pop())
        await writer.drain()

    async with serving(serve) as address:
        while replies:
            connection = await send(pool, address, total_s=1.0)
            try:
                await read(connection)
                ended["replies"] += 1
            except (NotHttp, ReplyLost, ReplyTimeout):
                ended["errors"] += 1
            finally:
                connection.cut()
                pool.release(connection)
    await pool.aclose()
    assert pool.open == 0
    assert min(ended.values()) > 20, ended


def mutated(draw: random.Random, reply: bytes) -> bytes:
    """A reply with a few bytes changed, left out, doubled or made up."""
    raw = bytearray(reply)
    for _ in range(draw.randint(0, 4)):
        at = draw.randrange(len(raw) or 1)
        match draw.randrange(4):
            case 0:
                raw[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del raw[at : at + draw.randint(1, 6)]
            case 2:
                raw[at:at] = raw[at : at + draw.randint(1, 20)]
            case _:
                raw[at:at] = draw.randbytes(draw.randint(1, 8))
    return bytes(raw)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    path = tmp_path / "made-up.pem"
    path.write_text(authorities.ONE.key + authorities.ONE.certificate)
    return path


async def test_tls_is_verified(certificate: Path) -> None:
    """A server is believed by its certificate and name: unknown ones get no request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    asked_for: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            asked_for.append(await request(reader))
            writer.write(OK)
        await reader.read()

    def knowing() -> ssl.SSLContext:
        return ssl.create_default_context(cafile=certificate)

    async with serving(serve, context) as address:
        trusting, other = ConnectionPool(tls=knowing), ConnectionPool()
        assert [await asked(trusting, address) for _ in range(2)] == [b"ok", b"ok"]
        assert trusting.open == 1
        with pytest.raises(ConnectionFailed, match=r"(?i)certificate"):
            await send(other, address)
        named_otherwise = address_of(f"https://localhost:{address.origin.port}/v1")
        with pytest.raises(ConnectionFailed, match=r"(?i)mismatch|localhost"):
            await send(trusting, named_otherwise)
        assert len(asked_for) == 2
        await trusting.aclose()
        await other.aclose()


@pytest.mark.parametrize("tls", [False, True])
async def test_what_comes_within_a_moment_is_one_read(certificate: Path, tls: bool) -> None:
    """The connection takes nothing until the moment is over, and is as any other one then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    more = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nab")
            await more.wait()
            for piece in (b"cd", b"ef"):
                writer.write(piece)
                await asyncio.sleep(0)

    pool = ConnectionPool(PoolLimits(gather_s=0.1), lambda: ssl.create_default_context(cafile=certificate))
    async with serving(serve, context if tls else None) as address:
        connection = await send(pool, address)
        await connection.reply_begins()
        assert await connection.read() == b"ab"
        connection.gather()
        more.set()
        reading = asyncio.ensure_future(connection.read())
        await asyncio.sleep(0.02)
        assert not reading.done()
        assert await reading == b"cdef"
        pool.release(connection)
        assert await asked(pool, address) == b"abcdef"
        assert pool.open == 1
        await pool.aclose()
