"""Hands requests over to the control plane, an HTTP server at a Unix socket, with bodies streamed both ways."""

import asyncio
import contextlib
import select
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import httptools

from proxy.errors import ControlPlaneAway, Overloaded
from proxy.http.exchange import COMMENT, EVENTS, CallerGone, Exchange, probe_behind
from proxy.http.head import Header

PEER_HEADER: Final = b"x-weighbridge-peer"
"""Who asked the worker: address, a blank, port. What a caller sends under this name is left out, so it can be believed.
`x-forwarded-for` and the like are passed on as they came: who may be believed there, the control plane decides by this peer.
"""
TLS_HEADER: Final = b"x-weighbridge-tls"
"""`1` where the caller's connection is encrypted."""
_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
_WRITTEN_HERE: Final = frozenset({b"content-length", b"expect", PEER_HEADER, TLS_HEADER})
_RESTART_S: Final = 8.0
"""Seconds that a request waits for a control plane that is being started again."""
_RETRY_S: Final = 0.1
_SILENT_S: Final = 120.0
"""Seconds until a reply begins. A report over a year takes its time; what takes longer is stuck."""
_IDLE_S: Final = 30.0
"""Seconds for which a connection is kept, fewer than the control plane keeps it."""
_MAX_CONNECTIONS: Final = 1_024
_MAX_HEAD_BYTES: Final = 64 * 1024
_PAUSE_BYTES: Final = 256 * 1024
_FIRST_FINAL: Final = 200
_NO_BODY: Final = frozenset({204, 304})
_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class _Lost(Exception):
    """The connection ended before the reply did, or what came is no HTTP."""


class HandOver:
    """Answers exchanges by the HTTP server at a Unix socket."""

    def __init__(
        self,
        path: Path,
        *,
        restart_s: float = _RESTART_S,
        max_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        self._path = str(path)
        self._restart_s = restart_s
        self._max_connections = max_connections
        self._idle: list[tuple[_Connection, float]] = []
        self._open: set[_Connection] = set()
        self._streams: set[_Connection] = set()
        self._is_ending = False

    async def aclose(self) -> None:
        """Cuts all connections."""
        for connection in tuple(self._open):
            connection.cut()
        # A lost connection is told in the loop's next turn.
        await asyncio.sleep(0)

    def end_streams(self) -> None:
        """Ends replies of events, present and future, as if they were whole: their callers come again, elsewhere."""
        self._is_ending = True
        for connection in tuple(self._streams):
            connection.finish()

    async def __call__(self, exchange: Exchange) -> None:
        """Answers one request. Raises ControlPlaneAway before anything was answered, CallerGone, or what `read` raises."""
        connection, sending = await self._asked(exchange)
        try:
            await self._reply_back(exchange, connection)
        except _Lost:
            # What has begun is cut: its caller must not take it for whole.
            exchange.abort()
        finally:
            exchange.on_gone = None
            self._streams.discard(connection)
            if sending is None or sending.done():
                self._release(connection)
            else:
                connection.cut()
            await _ended(sending)

    async def _asked(self, exchange: Exchange) -> "tuple[_Connection, asyncio.Task[None] | None]":
        """Sends the request until a reply begins. A control plane that is away is waited for while that is possible."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._restart_s
        while True:
            try:
                connection = await self._connection(loop)
            except OSError:
                await self._wait_on(exchange, deadline, _away())
                continue
            sending = await self._sent(exchange, connection)
            try:
                await _first(connection, sending)
            except _Lost:
                await _ended(sending)
                connection.cut()
                # A body was taken from its caller and cannot be had again.
                may_repeat = exchange.method in _REPEATABLE and exchange.length == 0
                await self._wait_on(exchange, deadline if may_repeat else 0.0, _ended_before())
            except BaseException:
                await _ended(sending)
                connection.cut()
                raise
            else:
                return connection, sending

    async def _wait_on(self, exchange: Exchange, deadline: float, away: ControlPlaneAway) -> None:
        """Waits a little before the request is sent again. Raises CallerGone, and `away` after the deadline."""
        if exchange.gone is not None:
            raise CallerGone
        if asyncio.get_running_loop().time() >= deadline:
            raise away
        await asyncio.sleep(_RETRY_S)

    async def _sent(self, exchange: Exchange, connection: "_Connection") -> "asyncio.Task[None] | None":
        """Sends the head and what is there of the body; a task that sends the rest, where there is one."""
        exchange.on_gone = connection.cut
        connection.begin()
        head = _head_of(exchange)
        if exchange.whole:
            data = await exchange.read()
            connection.write(head + (_framed(exchange, data) if data else b"") + _end_of(exchange))
            return None
        connection.write(head)
        return asyncio.ensure_future(_send_body(exchange, connection))

    async def _reply_back(self, exchange: Exchange, connection: "_Connection") -> None:
        headers = [header for header in connection.headers if header[0] not in _left_out(connection.headers)]
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

    # The pool.

    async def _connection(self, loop: asyncio.AbstractEventLoop) -> "_Connection":
        """A kept connection, or a new one. Raises OSError, or Overloaded when there are as many as there may be."""
        now = loop.time()
        while self._idle:
            connection, until = self._idle.pop()
            if until > now and connection.is_usable:
                return connection
            connection.cut()
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
            raise
        return connection

    def _release(self, connection: "_Connection") -> None:
        if connection.is_reusable:
            self._idle.append((connection, asyncio.get_running_loop().time() + _IDLE_S))
        else:
            connection.cut()


async def _first(connection: "_Connection", sending: "asyncio.Task[None] | None") -> None:
    """Waits for the head of the reply. A body that its caller does not send whole ends that with its own error."""
    head = asyncio.ensure_future(connection.head())
    try:
        async with asyncio.timeout(_SILENT_S):
            if sending is not None:
                await asyncio.wait({head, sending}, return_when=asyncio.FIRST_COMPLETED)
                if not head.done() and sending.done():
                    sending.result()
            await head
    except TimeoutError:
        raise _away() from None
    finally:
        head.cancel()


async def _send_body(exchange: Exchange, connection: "_Connection") -> None:
    while data := await exchange.read():
        connection.write(_framed(exchange, data))
        await connection.drained()
    connection.write(_end_of(exchange))


async def _ended(sending: "asyncio.Task[None] | None") -> None:
    if sending is not None:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await sending


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
    return data if exchange.length is not None else b"%x\r\n%b\r\n" % (len(data), data)


def _end_of(exchange: Exchange) -> bytes:
    return b"" if exchange.length is not None else b"0\r\n\r\n"


def _left_out(headers: list[Header]) -> frozenset[bytes]:
    """The fields that concern one connection alone."""
    named = next((value for name, value in headers if name == b"connection"), None)
    if named is None:
        return _HOP_BY_HOP
    return _HOP_BY_HOP | {token.strip() for token in named.lower().split(b",")}


def _head_of(exchange: Exchange) -> bytes:
    target = exchange.raw_path + (b"?" + exchange.query if exchange.query else b"")
    left_out = _left_out(exchange.headers) | _WRITTEN_HERE
    # Routes answer GET, and the exchange leaves the body out.
    method = b"GET" if exchange.method == "HEAD" else exchange.method.encode()
    lines = [method + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in exchange.headers if name not in left_out]
    if all(name != b"host" for name, _ in exchange.headers):
        # HTTP/1.0 may do without, the control plane not.
        lines.append(b"host: ")
    if exchange.peer is not None:
        host, port = exchange.peer
        lines.append(b"%b: %b %d" % (PEER_HEADER, host.encode(), port))
    if exchange.tls:
        lines.append(TLS_HEADER + b": 1")
    if exchange.length is None:
        lines.append(b"transfer-encoding: chunked")
    elif exchange.length or exchange.method in {"POST", "PUT", "PATCH"}:
        lines.append(b"content-length: %d" % exchange.length)
    return b"\r\n".join(lines) + b"\r\n\r\n"


class _Connection(asyncio.Protocol):
    """One connection to the control plane: one request at a time."""

    def __init__(self, lost: Callable[["_Connection"], None]) -> None:
        self._tell_lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._from_peer = select.poll()
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_full = False
        self.begin()

    def begin(self) -> None:
        """Makes ready for a request and its reply."""
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._head_bytes = 0
        self._has_head = False
        self._is_bounded = False
        self._is_broken = False
        self._is_paused = False
        self._stays = False
        self._ended = False
        self.status = 0
        self.headers: list[Header] = []

    # The pool's side.

    @property
    def is_usable(self) -> bool:
        """Whether nobody has closed it, as far as the kernel knows by now."""
        return self._transport is not None and not self._transport.is_closing() and not self._from_peer.poll(0)

    @property
    def is_reusable(self) -> bool:
        """Whether the reply came whole and the control plane keeps the connection."""
        return self.at_end and self._stays and not self._is_broken and self._transport is not None

    def cut(self) -> None:
        """Ends it at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Takes the reply for whole, wherever it is."""
        self._stays = False
        self._ended = True
        self._wake()

    # The request's side.

    def write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Waits while the control plane does not take what was written."""
        if self._is_full and self._transport is not None:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def head(self) -> None:
        """Waits for the head of the reply, which is then in `status` and `headers`. Raises _Lost."""
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """All that came since the last read, b"" at the reply's end. Raises _Lost."""
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
        """Whether the whole reply was read."""
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
        self._from_peer.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._has_head and not self._is_bounded and exc is None:
            self._ended = True
        self._tell_lost(self)
        self._wake()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._ended:
            # Nothing was asked: it would be taken for the next reply.
            self._break()
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
        """One field of the head, or a trailer, which nobody reads."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole; one of an interim reply is forgotten."""
        assert self._parser is not None  # noqa: S101 - It calls.
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self.headers = []
            return
        self.status, self._has_head = status, True
        names = {name for name, _ in self.headers}
        self._is_bounded = not names.isdisjoint({b"content-length", b"transfer-encoding"}) or status in _NO_BODY

    def on_body(self, body: bytes) -> None:
        """A piece of the reply."""
        if not self._ended:
            self._body += body

    def on_message_complete(self) -> None:
        """The whole reply came, unless it was an interim one."""
        if self._has_head and not self._ended and self._parser is not None:
            self._ended = True
            self._stays = self._is_bounded and bool(self._parser.should_keep_alive())
