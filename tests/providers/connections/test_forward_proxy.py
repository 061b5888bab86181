"""The way out through a forward proxy, before a real one that tunnels, and a real upstream with TLS behind it."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from providers.connections.address import Address, AddressInvalid, Origin, address_of
from providers.connections.errors import ConnectionFailed
from providers.connections.forward_proxy import ForwardProxy, forward_proxy_of
from providers.connections.pool import ConnectionPool
from tests.providers.connections.test_pool import OK, replying, send, serving
from tests.selfhosted.discovery import authorities


@contextlib.asynccontextmanager
async def proxying(refuses: bytes | None = None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy's address, and the heads of what it was asked. It tunnels, or `refuses` with this."""
    asked: list[bytes] = []
    ends: list[asyncio.StreamWriter] = []

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                sink.write(data)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if refuses is not None:
            writer.write(refuses)
            writer.close()
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        upstream, sink = await asyncio.open_connection(host, int(port))
        ends.append(sink)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pass_on(reader, sink), pass_on(upstream, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        for end in ends:
            end.close()
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key."""
    path = tmp_path / "made-up.pem"
    path.write_text(authorities.ONE.key + authorities.ONE.certificate)
    return path


@contextlib.asynccontextmanager
async def upstream(certificate: Path) -> AsyncIterator[Address]:
    """An upstream that answers two requests of each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with serving(replying(OK, OK), context) as address:
        yield address


async def answers(certificate: Path, address: Address, proxy: ForwardProxy) -> list[bytes]:
    """What two requests get, one after the other."""
    pool = ConnectionPool(tls=lambda: ssl.create_default_context(cafile=certificate), proxy=proxy)
    found = []
    try:
        for _ in range(2):
            connection = await send(pool, address)
            await connection.reply_begins()
            found.append(await connection.read())
            await connection.read()
            pool.release(connection)
    finally:
        await pool.aclose()
    return found


async def test_an_upstream_is_called_through_a_tunnel(certificate: Path) -> None:
    """One tunnel for both requests, with the proxy's name and password; TLS is the upstream's own, so it sees no word."""
    async with upstream(certificate) as address, proxying() as (place, asked):
        proxy = forward_proxy_of(f"http://me:p%40ss@{place}")
        assert await answers(certificate, address, proxy) == [b"ok", b"ok"]
    named = f"{address.origin.host}:{address.origin.port}".encode()
    assert asked == [
        b"CONNECT %b HTTP/1.1\r\nhost: %b\r\nproxy-authorization: Basic bWU6cEBzcw==\r\n\r\n" % (named, named)
    ]
    assert "p@ss" not in repr(proxy)


async def test_what_is_to_be_called_past_it_is(certificate: Path) -> None:
    """The proxy is not even asked."""
    async with upstream(certificate) as address, proxying() as (place, asked):
        assert await answers(certificate, address, forward_proxy_of(place, "127.0.0.0/8")) == [b"ok", b"ok"]
    assert asked == []


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "with status 407"),
        (b"SSH-2.0-nonsense\r\n\r\n", "an answer that is none"),
        (b"HTTP/1.1 200 OK\r\n", "did not answer as a proxy does"),
    ],
)
async def test_a_proxy_that_refuses_is_a_failed_connection(certificate: Path, says: bytes, told: str) -> None:
    """Nothing was sent, and no connection is left."""
    async with upstream(certificate) as address, proxying(says) as (place, _):
        with pytest.raises(ConnectionFailed, match=told):
            await answers(certificate, address, forward_proxy_of(place))


@pytest.mark.parametrize(
    ("no_proxy", "origin", "served"),
    [
        ("", "https://api.openai.com", True),
        ("", "http://10.0.0.5:8000", False),
        ("*", "https://api.openai.com", False),
        ("openai.com", "https://api.openai.com", False),
        (".openai.com", "https://openai.com", False),
        ("*.openai.com", "https://api.openai.com", False),
        ("nai.com", "https://openai.com", True),
        ("openai.com:8443", "https://openai.com", True),
        ("openai.com:443", "https://openai.com", False),
        ("localhost, 10.0.0.0/8", "https://10.9.8.7", False),
        ("10.0.0.0/8", "https://11.0.0.1", True),
        ("[::1]:8443,fd00::/8", "https://[fd00::1]", False),
        ("[::1]:8443", "https://[::1]:8443", False),
    ],
)
def test_what_goes_past_it(no_proxy: str, origin: str, *, served: bool) -> None:
    """Names and what is below them, addresses, networks, ports; and whatever is called in the clear."""
    found: Origin = address_of(origin).origin
    assert forward_proxy_of("http://proxy:3128", no_proxy).serves(found) is served


@pytest.mark.parametrize("url", ["socks5://proxy:1080", "https://proxy", "http://", "http://proxy:x"])
def test_other_proxies_are_refused(url: str) -> None:
    """By what is wrong with the address."""
    with pytest.raises(AddressInvalid):
        forward_proxy_of(url)
