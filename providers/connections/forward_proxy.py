"""The way out through a forward proxy: a tunnel by CONNECT, in which TLS is then spoken with the upstream itself."""

import asyncio
import base64
import ipaddress
import re
import socket
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from providers.connections.address import AddressInvalid, Origin
from providers.connections.errors import ConnectionFailed

_MAX_HEAD_BYTES: Final = 16 * 1024
_USUAL_PORT: Final = 80
_ESTABLISHED: Final = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9](?= |\r)")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?= |\r)")


class ForwardProxy(msgspec.Struct, frozen=True):
    """A proxy for https, and the hosts that are called without it, as in `HTTPS_PROXY` and `NO_PROXY`. Never show it:
    it may hold a password.
    """

    host: str
    port: int
    authorization: str
    """The `proxy-authorization` field; empty for none."""
    past: tuple[str, ...]
    """Names and their subdomains, addresses, networks, each perhaps with a port; `*` for everything."""

    def __repr__(self) -> str:
        return f"ForwardProxy({self.host!r}, {self.port})"

    def serves(self, origin: Origin) -> bool:
        """Return True when the origin is called through the proxy. An http origin, such as an own engine, never is."""
        return origin.tls and not any(_is_about(each, origin) for each in self.past)


def forward_proxy_of(url: str, no_proxy: str = "") -> ForwardProxy:
    """Parse the values of `HTTPS_PROXY` and `NO_PROXY`. Raises AddressInvalid."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise AddressInvalid("it is no address") from error
    if parts.scheme != "http" or not parts.hostname:
        raise AddressInvalid("it must be http://[USER:PASSWORD@]HOST[:PORT]; only proxies that take HTTP are known")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
    past = tuple(each.strip().lower() for each in no_proxy.split(",") if each.strip())
    return ForwardProxy(parts.hostname, port or _USUAL_PORT, authorization, past)


async def tunnel(loop: asyncio.AbstractEventLoop, proxy: ForwardProxy, origin: Origin) -> socket.socket:
    """Return a connected socket to the origin, through the proxy. Raises ConnectionFailed or OSError."""
    made = await _connected(loop, proxy)
    try:
        await _establish(loop, made, proxy, origin)
    except BaseException:
        made.close()
        raise
    return made


async def _establish(loop: asyncio.AbstractEventLoop, made: socket.socket, proxy: ForwardProxy, origin: Origin) -> None:
    """Ask for the tunnel, and read the proxy's answer."""
    named = f"[{origin.host}]" if ":" in origin.host else origin.host
    fields = f"host: {named}:{origin.port}\r\n"
    if proxy.authorization:
        fields += f"proxy-authorization: {proxy.authorization}\r\n"
    await loop.sock_sendall(made, f"CONNECT {named}:{origin.port} HTTP/1.1\r\n{fields}\r\n".encode("ascii"))
    head = b""
    # An upstream waits for our first byte of TLS, so nothing may come behind the head.
    while not head.endswith(b"\r\n\r\n"):
        piece = await loop.sock_recv(made, _MAX_HEAD_BYTES)
        head += piece
        if not piece or len(head) > _MAX_HEAD_BYTES:
            raise ConnectionFailed("the proxy did not answer as a proxy does")
    if not _ESTABLISHED.match(head):
        status = _STATUS.match(head)
        told = "an answer that is none" if status is None else f"status {status[1].decode()}"
        raise ConnectionFailed(f"the proxy refused the way to the upstream with {told}")


async def _connected(loop: asyncio.AbstractEventLoop, proxy: ForwardProxy) -> socket.socket:
    """Return a connection to the proxy, by the first of its addresses that answers."""
    failure: OSError | None = None
    for family, kind, number, _, address in await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, number)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure or ConnectionFailed("the proxy has no address")


def _is_about(entry: str, origin: Origin) -> bool:
    host = origin.host.lower()
    if entry == "*":
        return True
    name, _, port = entry.rpartition(":")
    if name and port.isdecimal() and (":" not in name or name.endswith("]")):
        if int(port) != origin.port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*").removeprefix(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == entry or host.endswith(f".{entry}")
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
