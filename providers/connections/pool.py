"""A pool of kept connections, bounded for each origin and in all."""

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from providers.connections.address import Address, Origin, trusted
from providers.connections.connection import Connection
from providers.connections.errors import ConnectionFailed, ConnectionTimeout
from providers.connections.forward_proxy import ForwardProxy, tunnel
from providers.connections.gathering import GATHER_S, Gathering

_ENDS_A_LINE: Final = re.compile(r"[\r\n\0]")


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds on connections, the seconds for which an idle one is kept, and for which a connection gathers its next
    read.
    """

    max_connections: int = 8_192
    max_connections_per_origin: int = 4_096
    keepalive_s: float = 15.0
    gather_s: float = GATHER_S


def fields(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return header fields as bytes. Raises ValueError for one that would end its line."""
    text = ""
    for name, value in headers:
        if not value.isprintable() and _ENDS_A_LINE.search(value):
            raise ValueError(f"the header field {name} may have no line ends")
        text += f"{name}: {value}\r\n"
    return text.encode("latin-1", "replace")


class _Kept:
    """The connections of one origin."""

    __slots__ = ("idle", "open", "origin", "waiting")

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.idle: list[Connection] = []
        """The most recently used comes last, and is taken first, so that those not needed grow old."""
        self.open = 0
        """Connections that stand or are being made."""
        self.waiting: deque[asyncio.Future[None]] = deque()

    def wake(self) -> bool:
        """Wake the call that has waited longest, to look again."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return True
        return False


class ConnectionPool:
    """The connections of one event loop, handed out and taken back."""

    def __init__(
        self,
        limits: PoolLimits | None = None,
        tls: Callable[[], ssl.SSLContext] = trusted,
        proxy: ForwardProxy | None = None,
    ) -> None:
        self._limits = limits or PoolLimits()
        self._proxy = proxy
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._origins: dict[Origin, _Kept] = {}
        self._of: dict[Connection, _Kept] = {}
        self._gathering = Gathering(self._limits.gather_s)
        self._open = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def open(self) -> int:
        """The number of connections that stand or are being made."""
        return self._open

    async def send(
        self,
        address: Address,
        head: bytes,
        body: bytes,
        *,
        connect_s: float,
        total_s: float,
        reaches: Callable[[bool], None],
        length: int | None = None,
    ) -> Connection:
        """Send a POST over a kept or a new connection; `head` are its further fields. Calls `reaches` with False where it has to
        wait for a connection, and with True before a byte leaves. Of a body of `length` bytes `body` is the beginning; the
        connection takes the rest by `send_more`. Whoever gets the connection must give it back by `release`.

        Raises ConnectionFailed; from there on the connection tells.
        """
        # Asked for once: until Python 3.12 each answer takes a system call.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        deadline = loop.time() + total_s
        connection = self._idle_one(address.origin)
        if connection is None:
            reaches(False)
            try:
                async with asyncio.timeout(min(connect_s, total_s)):
                    connection = await self._another(address.origin, loop)
            except TimeoutError:
                raise ConnectionTimeout("no connection in time") from None
        reaches(True)
        size = len(body) if length is None else length
        request = b"%b%bcontent-length: %d\r\n\r\n%b" % (address.head, head, size, body)
        connection.send(request, deadline, size - len(body))
        return connection

    def release(self, connection: Connection) -> None:
        """Take a connection back: it is kept where its reply was read to the end, else cut. Idempotent."""
        if not connection.busy:
            return
        kept = self._of.get(connection)
        if not connection.rest(self._limits.keepalive_s) or kept is None or self._closed:
            connection.cut()
            return
        kept.idle.append(connection)
        if kept.waiting:
            kept.wake()

    async def aclose(self) -> None:
        """Cut all connections."""
        self._closed = True
        for connection in list(self._of):
            connection.cut()
        # A lost connection is told in the loop's next turn.
        await asyncio.sleep(0)

    def _idle_one(self, origin: Origin) -> Connection | None:
        kept = self._origins.get(origin)
        while kept is not None and kept.idle:
            connection = kept.idle.pop()
            if connection.usable:
                return connection
            connection.cut()
        return None

    async def _another(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> Connection:
        """Return a connection that became idle meanwhile, or a new one as soon as there is room for it."""
        while True:
            kept = self._origins.setdefault(origin, _Kept(origin))
            if (idle := self._idle_one(origin)) is not None:
                return idle
            if kept.open < self._limits.max_connections_per_origin and self._has_room():
                return await self._new_one(kept, loop)
            waiter = loop.create_future()
            kept.waiting.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    # It was woken just when it gave up: the next in line shall have what it was woken for.
                    self._tell_room()
                raise

    def _has_room(self) -> bool:
        if self._open < self._limits.max_connections:
            return True
        # An idle connection to elsewhere makes way; its place is free when it is gone.
        for kept in self._origins.values():
            if kept.idle:
                kept.idle.pop(0).cut()
                break
        return False

    async def _new_one(self, kept: _Kept, loop: asyncio.AbstractEventLoop) -> Connection:
        origin = kept.origin
        kept.open += 1
        self._open += 1
        connection = Connection(loop, self._lost, self._gathering)
        self._of[connection] = kept
        try:
            if origin.tls and self._tls is None:
                self._tls = await asyncio.to_thread(self._make_tls)
            context = self._tls if origin.tls else None
            if self._proxy is not None and self._proxy.serves(origin):
                made = await tunnel(loop, self._proxy, origin)
                await loop.create_connection(lambda: connection, ssl=context, sock=made, server_hostname=origin.host)
            else:
                await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=context)
        except BaseException as error:
            self._lost(connection)
            connection.cut()
            if isinstance(error, OSError | UnicodeError):
                raise ConnectionFailed(str(error)) from error
            raise
        if not connection.usable:
            connection.cut()
            raise ConnectionFailed("the upstream closed the connection at once")
        return connection

    def _lost(self, connection: Connection) -> None:
        kept = self._of.pop(connection, None)
        if kept is None:
            return
        if connection in kept.idle:
            kept.idle.remove(connection)
        self._count_out(kept)

    def _count_out(self, kept: _Kept) -> None:
        kept.open -= 1
        self._open -= 1
        self._tell_room()
        if not kept.open and not kept.waiting:
            # Replicas come and go for months, each at an address of its own.
            self._origins.pop(kept.origin, None)

    def _tell_room(self) -> None:
        for kept in self._origins.values():
            if kept.waiting and (kept.idle or kept.open < self._limits.max_connections_per_origin) and kept.wake():
                return
