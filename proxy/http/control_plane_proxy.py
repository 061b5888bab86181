"""The proxy to the control plane, an HTTP server at a Unix socket: requests and replies pass with their bodies
streamed both ways.

Each request has a connection of its own, which begins with the caller's peer and is cut when the exchange is over, so
no byte of one request can become part of another. Small bodies are read whole before there is a connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple, cast

import httptools

from proxy.errors import ControlPlaneAway, Overloaded
from proxy.http.exchange import COMMENT, EVENTS, CallerGone, Exchange, probe_behind
from proxy.http.head import Header
from proxy.http.preamble import Asker, preamble
from proxy.http.slots import Slots

_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
"""Fields that concern one connection alone. Those that `Connection` names besides are passed on: these two processes
are one server, and a caller that could have fields left out could hide its address or origin.
"""
_WRITTEN_HERE: Final = frozenset({*_HOP_BY_HOP, b"content-length", b"expect"})
_RESTART_S: Final = 8.0
"""Seconds that a request waits for a control plane that is being started again."""
_RETRY_S: Final = 0.1
_SILENT_S: Final = 120.0
"""Seconds from the end of a request until its reply begins, and for which nothing of a body may be taken. A report
over a year takes its time; a longer silence is a hang.
"""
_MAX_CONNECTIONS: Final = 1_024
SMALL_BYTES: Final = 64 * 1024
"""The most bytes of a body that is read whole before a connection to the control plane is opened."""
_MOST_COMING: Final = 1_024
"""The most small bodies that may be incomplete at once. One more, and the oldest incomplete one is refused, so slow
senders make way for others.
"""
_MOST_LONG: Final = 256
_MOST_LONG_EACH: Final = 32
"""The most longer bodies at once, in all, and of one team or, without a key, of one address."""
_MOST_LONG_OF_STRANGERS: Final = 64
"""The most longer bodies of all keyless addresses together: many addresses without a key do not keep teams from
uploading.
"""
_MAX_HEAD_BYTES: Final = 64 * 1024
_PAUSE_BYTES: Final = 256 * 1024
_FIRST_FINAL: Final = 200
_NO_BODY: Final = frozenset({204, 304})
_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class Sender(NamedTuple):
    """The account on which a long body is counted."""

    name: str
    is_known: bool
    """True when a key names the account."""


Whose = Callable[[Exchange], Awaitable[Sender]]


class _Lost(Exception):
    """The connection ended before the reply did, or the bytes are no HTTP."""


async def _by_address(exchange: Exchange) -> Sender:
    return Sender("" if exchange.peer is None else exchange.peer[0], is_known=False)


class ControlPlaneProxy:
    """The HTTP server at a Unix socket, as the route that answers exchanges."""

    def __init__(
        self,
        path: Path,
        whose: Whose = _by_address,
        *,
        restart_s: float = _RESTART_S,
        max_connections: int = _MAX_CONNECTIONS,
        max_coming: int = _MOST_COMING,
    ) -> None:
        self._path = str(path)
        self._whose = whose
        self._restart_s = restart_s
        self._max_connections = max_connections
        self._max_coming = max_coming
        self._coming: dict[Exchange, None] = {}
        self._long = Slots(_MOST_LONG - _MOST_LONG_OF_STRANGERS, _MOST_LONG_EACH)
        self._long_of_strangers = Slots(_MOST_LONG_OF_STRANGERS, _MOST_LONG_EACH)
        self._open: set[_Connection] = set()
        self._streams: set[_Connection] = set()
        self._is_ending = False

    async def aclose(self) -> None:
        """Cut all connections."""
        for connection in tuple(self._open):
            connection.cut()
        # A lost connection is told in the loop's next turn.
        await asyncio.sleep(0)

    def end_streams(self) -> None:
        """End replies of events, present and future, as if they were whole: their callers come again, elsewhere."""
        self._is_ending = True
        for connection in tuple(self._streams):
            connection.finish()

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request. Raises ControlPlaneAway before anything was answered, CallerGone, or the errors of
        `read`.
        """
        begun = await self._begun(exchange)
        if exchange.at_end:
            await self._answer(exchange, begun)
            return
        async with self._long_body(exchange):
            await self._answer(exchange, begun)

    async def _answer(self, exchange: Exchange, begun: bytes) -> None:
        connection = await self._asked(exchange, begun)
        try:
            await self._reply_back(exchange, connection)
        except _Lost:
            # A reply that has begun is cut: its caller must not take it for whole.
            exchange.abort()
        finally:
            exchange.on_gone = None
            self._streams.discard(connection)
            connection.cut()

    # The body.

    async def _begun(self, exchange: Exchange) -> bytes:
        """Return the whole of a small body, or the bytes that have come of a longer one."""
        if exchange.whole:
            return await exchange.read()
        while len(self._coming) >= self._max_coming:
            oldest = next(iter(self._coming))
            del self._coming[oldest]
            oldest.fail(
                Overloaded("The rest of the request body took longer than there was room for it.", retry_after_s=1.0)
            )
        self._coming[exchange] = None
        try:
            return await exchange.begin_body(SMALL_BYTES)
        finally:
            self._coming.pop(exchange, None)

    @contextlib.asynccontextmanager
    async def _long_body(self, exchange: Exchange) -> AsyncIterator[None]:
        """Hold the place of a longer body. Raises Overloaded."""
        whose, is_known = await self._whose(exchange)
        slots = self._long if is_known else self._long_of_strangers
        if not slots.take(whose):
            raise Overloaded(
                "This gateway process takes as many long request bodies at once as it may, in all or of one team or "
                "address; try again shortly.",
                retry_after_s=1.0,
            )
        try:
            yield
        finally:
            slots.give_back(whose)

    # The request and its reply.

    async def _asked(self, exchange: Exchange, begun: bytes) -> "_Connection":
        """Send the request until a reply begins. Wait for a control plane that is away while that is possible."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._restart_s
        # The rest of a body can be read from its caller only once.
        may_repeat = exchange.method in _REPEATABLE and exchange.at_end
        while True:
            if exchange.gone is not None:
                raise CallerGone
            try:
                connection = await self._connection(loop)
            except OSError:
                await self._wait_on(deadline, _away())
                continue
            try:
                await self._sent(exchange, connection, begun)
            except _Lost:
                connection.cut()
                await self._wait_on(deadline if may_repeat else 0.0, _ended_before())
            except BaseException:
                connection.cut()
                raise
            else:
                return connection

    async def _wait_on(self, deadline: float, away: ControlPlaneAway) -> None:
        """Wait a little before the request is sent again. Raises `away` after the deadline."""
        if asyncio.get_running_loop().time() >= deadline:
            raise away
        await asyncio.sleep(_RETRY_S)

    async def _sent(self, exchange: Exchange, connection: "_Connection", begun: bytes) -> None:
        """Send the request, and return when a reply begins. From then on no more of the body is sent: a server that
        answers before the end of a request does not want the rest.
        """
        exchange.on_gone = connection.cut
        begin = preamble(Asker(exchange.peer, exchange.tls)) + _head_of(exchange) + _framed(exchange, begun)
        sending = None
        if exchange.at_end:
            connection.write(begin + _end_of(exchange))
        else:
            connection.write(begin)
            sending = asyncio.ensure_future(_send_rest(exchange, connection))
        try:
            await _first(connection, sending)
        finally:
            if sending is not None:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await sending

    async def _reply_back(self, exchange: Exchange, connection: "_Connection") -> None:
        headers = [header for header in connection.headers if header[0] not in _HOP_BY_HOP]
        has_events = dict(headers).get(b"content-type", b"").startswith(EVENTS)
        exchange.start(connection.status, headers, probe=COMMENT if has_events else b"")
        if exchange.method == "HEAD":
            exchange.end()
            return
        if has_events:
            self._streams.add(connection)
            if self._is_ending:
                connection.finish()
        while data := await connection.read():
            if exchange.gone is not None:
                raise CallerGone
            if connection.at_end:
                exchange.end(data)
                return
            exchange.write(data)
            if has_events:
                exchange.probe = probe_behind(data)
            await exchange.drained()
        exchange.end()

    async def _connection(self, loop: asyncio.AbstractEventLoop) -> "_Connection":
        """Open a connection. Raises OSError, or Overloaded when there are as many as there may be."""
        if len(self._open) >= self._max_connections:
            raise Overloaded(
                "This gateway process waits for the control plane in as many requests as it may; try again shortly.",
                retry_after_s=1.0,
            )
        connection = _Connection(self._open.discard)
        self._open.add(connection)
        try:
            await loop.create_unix_connection(lambda: connection, self._path)
        except BaseException:
            self._open.discard(connection)
            connection.cut()
            raise
        return connection


async def _first(connection: "_Connection", sending: "asyncio.Task[None] | None") -> None:
    """Wait for the head of the reply. A body that its caller does not send whole ends this with its own error."""
    head = asyncio.ensure_future(connection.head())
    try:
        if sending is not None:
            await asyncio.wait({head, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not head.done():
                sending.result()
        async with asyncio.timeout(_SILENT_S):
            await head
    except TimeoutError:
        raise _away() from None
    finally:
        head.cancel()


async def _send_rest(exchange: Exchange, connection: "_Connection") -> None:
    """Send the rest of the body, as long as that takes. Raises TimeoutError when it is not taken."""
    while data := await exchange.read():
        connection.write(_framed(exchange, data))
        async with asyncio.timeout(_SILENT_S):
            await connection.drained()
    connection.write(_end_of(exchange))


def _away() -> ControlPlaneAway:
    return ControlPlaneAway(
        "The control plane, which serves this path, is away; models are served all the same. Try again shortly.",
        retry_after_s=1.0,
    )


def _ended_before() -> ControlPlaneAway:
    return ControlPlaneAway(
        "The control plane, which serves this path, ended before it answered. Look whether what was asked is done, and send "
        "the request again.",
        retry_after_s=1.0,
    )


def _framed(exchange: Exchange, data: bytes) -> bytes:
    return data if exchange.length is not None or not data else b"%x\r\n%b\r\n" % (len(data), data)


def _end_of(exchange: Exchange) -> bytes:
    return b"" if exchange.length is not None else b"0\r\n\r\n"


def _head_of(exchange: Exchange) -> bytes:
    target = exchange.path.encode("ascii") + (b"?" + exchange.query if exchange.query else b"")
    # Routes answer GET, and the exchange leaves the body out.
    method = b"GET" if exchange.method == "HEAD" else exchange.method.encode()
    lines = [method + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in exchange.headers if name not in _WRITTEN_HERE]
    if all(name != b"host" for name, _ in exchange.headers):
        # HTTP/1.0 may do without, the control plane not.
        lines.append(b"host: ")
    if exchange.length is None:
        lines.append(b"transfer-encoding: chunked")
    elif exchange.length or exchange.method in {"POST", "PUT", "PATCH"}:
        lines.append(b"content-length: %d" % exchange.length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


class _Connection(asyncio.Protocol):
    """A connection to the control plane, for one request and its reply."""

    def __init__(self, lost: Callable[["_Connection"], None]) -> None:
        self._tell_lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._body = bytearray()
        self._head_bytes = 0
        self._has_head = False
        self._is_bounded = False
        self._is_broken = False
        self._is_full = False
        self._is_paused = False
        self._ended = False
        self.status = 0
        self.headers: list[Header] = []

    def cut(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Take the reply for whole, however much of it came."""
        self._ended = True
        self._wake()

    # The request's side.

    def write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait while the control plane does not take the bytes written."""
        if self._is_full and self._transport is not None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def head(self) -> None:
        """Wait for the head of the reply, which is then in `status` and `headers`. Raises _Lost."""
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """Return all bytes that came since the last read, b"" at the reply's end. Raises _Lost."""
        while not self._body:
            if self._ended:
                return b""
            await self._more()
        data = bytes(self._body)
        self._body.clear()
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    @property
    def at_end(self) -> bool:
        """True once the whole reply was read."""
        return self._ended and not self._body

    async def _more(self) -> None:
        if self._transport is None or self._is_broken:
            raise _Lost
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self) -> None:
        self._is_broken = True
        self._wake()
        self.cut()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # The two know each other, which only the collector would undo.
        self._transport = self._parser = None
        if self._has_head and not self._is_bounded and exc is None:
            self._ended = True
        self._tell_lost(self)
        self._wake()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._ended or self._parser is None:
            # Nothing more was asked.
            self.cut()
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break()
            return
        if not self._has_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._break()
        elif len(self._body) > _PAUSE_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        if self._has_head:
            self._wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # httptools' side.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; trailers are dropped."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the head as whole; one of an interim reply is forgotten."""
        assert self._parser is not None  # noqa: S101 - It calls.
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self.headers = []
            return
        self.status, self._has_head = status, True
        names = {name for name, _ in self.headers}
        self._is_bounded = not names.isdisjoint({b"content-length", b"transfer-encoding"}) or status in _NO_BODY

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the reply."""
        if not self._ended:
            self._body += body

    def on_message_complete(self) -> None:
        """Take the reply as whole, unless it was an interim one."""
        if self._has_head:
            self._ended = True
