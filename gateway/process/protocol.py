"""Uvicorn's HTTP protocol with limits on what a connection may cost before its request reaches the app.

The app sees a request when its head is complete. Until then nobody has shown a key, so what the head
may weigh, how long it may take and how many connections may be open is bounded here.
"""

import asyncio
import http
import math
from typing import Any, Final, cast

import httptools
import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from proxy.errors import Fault, retry_headers

_HEAD_TOO_LARGE: Final = Fault(431, "invalid_request_error", "request_header_fields_too_large")
_INVALID: Final = Fault(400, "invalid_request_error", "invalid_http")
_TOO_MANY: Final = Fault(503, "server_error", "overloaded")
_RETRY_AFTER_S: Final = 1.0
_HEADER_EXTRA_BYTES: Final = 4
"""A colon, a space and the line end, which each header costs beside its name and value."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the connections of one process."""

    max_head_bytes: int = 64 * 1024
    """The most bytes of request line and headers, and of a body's trailers; an incomplete head may take one read more.
    """
    head_timeout_s: float = 10.0
    """Seconds from the connection, or the first byte of a later request, until the head is complete."""
    max_connections: int = 20_000
    max_waiting: int = 64
    """The most pipelined requests of one connection behind the running one."""


_LINGER_S: Final = 1.0
"""Seconds for which the rest of an early-answered request is read: closing a socket over unread bytes resets it, and
the reset may overtake the answer.
"""


_LAST_CHANCE_S: Final = 1.0
"""Seconds for which a connection stays open at the end though its caller was not told to leave, because the reply had
begun or a request is on its way. Closing just as the next request is sent would lose that request.
"""


class ServerConnections(ServerState):
    """State shared by the connections of one server, including how far its shutdown has come."""

    stopping: bool = False
    leaving: bool = False
    """True when every reply is its connection's last one, with `connection: close`."""
    accepted: int = 0
    """Connections accepted so far."""
    connections: set["BoundedProtocol"]  # type: ignore[assignment]  # uvicorn's own is a union of its protocols


class _NotParsed(Exception):
    """Raised in a parser callback to end the parsing."""


class _HeadTooLarge(_NotParsed):
    """Raised for a complete head that exceeds the limit."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `limits` is a class attribute, because uvicorn creates the instances."""

    limits = ConnectionLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._read_bytes = 0
        self._total_bytes = 0
        # How much had come, and how much in that read, when header fields began; infinite outside of them.
        self._fields_from_bytes: float = 0
        self._fields_read_bytes = 0
        # Infinite while no head is awaited. One timer a connection looks at it now and then, so that a
        # request costs no timer.
        self._head_due_at = math.inf
        self._head_timer: asyncio.TimerHandle | None = None
        self._plain_head = b""
        self.url = b""
        self._running: RequestResponseCycle | None = None
        self._last: RequestResponseCycle | None = None
        self._lingering = False
        self._closes_soon = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._shared.accepted += 1
        if len(self.connections) > self.limits.max_connections:
            self._refuse(_TOO_MANY, "This gateway has as many connections as it may. Try again shortly.")
            return
        self._await_head()
        self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._check_head)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().connection_lost(exc)
        # Uvicorn tells the last request only, which may be one that waits behind the one that runs.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._read_bytes = len(data)
        self._total_bytes += self._read_bytes
        rest: bytes | None = data
        while rest is not None:
            rest = self._parse(rest)
        if self._total_bytes - self._fields_from_bytes > self.limits.max_head_bytes:
            self._refuse(_HEAD_TOO_LARGE, self._too_large())
        if self._head_due_at == math.inf and self._idle:
            # What came is the rest of a body that nobody reads, or empty lines. It stopped the keep-alive
            # timer, so this one takes over.
            self._head_due_at = self.loop.time() + self.timeout_keep_alive

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._fields_from_bytes = self._total_bytes
        self._fields_read_bytes = self._read_bytes
        self._await_head()

    def on_headers_complete(self) -> None:
        limit = self.limits.max_head_bytes
        # The reads say at once that most heads are small enough; only others are counted.
        if (
            self._total_bytes - self._fields_from_bytes + self._fields_read_bytes > limit
            and _head_bytes(self.url, self.headers) > limit
        ):
            raise _HeadTooLarge
        self._fields_from_bytes = self._head_due_at = math.inf
        if self.parser.should_upgrade():
            self._plain_head = self._head_without_upgrade()
            return
        if self._lingering or self.transport.is_closing():
            # The connection closes after the last reply: nothing more is answered here.
            raise _NotParsed
        super().on_headers_complete()
        if self._shared.stopping:
            self.cycle.transport = _Lingering(self)  # type: ignore[assignment]  # all that a cycle needs of one
            if self._shared.leaving:
                self.end_with_this()
        if not self.pipeline:
            return
        if len(self.pipeline) > self.limits.max_waiting:
            raise _NotParsed
        if len(self.pipeline) == 1:
            # Uvicorn stops reading here and so would not see the caller of the running request hang up.
            # One request that waits is little enough to keep; at a second one the reading stops.
            self.flow.resume_reading()

    def on_chunk_header(self) -> None:
        """Starts counting header bytes again: after the last chunk trailers may come."""
        self._fields_from_bytes = self._total_bytes

    def on_body(self, body: bytes) -> None:
        self._fields_from_bytes = math.inf
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
        if self._lingering:
            self.transport.close()

    def end_with_this(self) -> None:
        """Makes the reply to the newest request the last one of this connection, and says so if it has not begun."""
        if self._idle or self.cycle.response_started or self.cycle is self._last:
            return
        if self._last is not None and not self._last.response_started:
            self._last.keep_alive = True
        if self.cycle.keep_alive:
            self._last, self.cycle.keep_alive = self.cycle, False

    def shutdown(self) -> None:
        """Shuts down for uvicorn: idle connections are closed, the others send one more reply at most."""
        if not self._idle:
            self.end_with_this()
        elif self._fields_from_bytes != math.inf and self._total_bytes:
            self.loop.call_later(_LAST_CHANCE_S, self._close_if_idle)
        elif not (self._lingering or self._closes_soon):
            self.transport.close()

    def _close_if_idle(self) -> None:
        if self._idle:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._shared.leaving and self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self._closes_soon = True
            self.timeout_keep_alive_task = self.loop.call_later(_LAST_CHANCE_S, self.timeout_keep_alive_handler)

    def close_after_body(self) -> None:
        """Closes the connection once the rest of the answered request was read, as it may have been refused early."""
        if self._running is not None and self._running.more_body and not self.transport.is_closing():
            self._lingering = True
            self.flow.resume_reading()
            self.loop.call_later(_LINGER_S, self.transport.close)
        else:
            self.transport.close()

    @property
    def _shared(self) -> ServerConnections:
        return cast("ServerConnections", self.server_state)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _idle(self) -> bool:
        return self._running is None or self._running.response_complete

    def _parse(self, data: bytes) -> bytes | None:
        """Parses data. Returns what must be parsed next, or None."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The request is read again as if it had asked for no upgrade, as a server may. The parser
            # took it to have no body, and cannot be told otherwise.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return self._plain_head + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _HeadTooLarge):
                self._refuse(_HEAD_TOO_LARGE, self._too_large())
            elif not (self._lingering or self.transport.is_closing()):
                self.logger.warning("Invalid HTTP request received.")
                self._refuse(_INVALID, "This is not an HTTP request that the gateway can read.")
        return None

    def _head_without_upgrade(self) -> bytes:
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise _NotParsed
        lines = [method + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        lines += [name + b": " + value for name, value in self.headers if name not in _UPGRADE_HEADERS]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _await_head(self) -> None:
        self._head_due_at = self.loop.time() + self.limits.head_timeout_s

    def _check_head(self) -> None:
        self._head_timer = None
        left_s = self._head_due_at - self.loop.time()
        if left_s <= 0 and not self.flow.read_paused:
            self.transport.close()
            return
        timeout_s = self.limits.head_timeout_s
        self._head_timer = self.loop.call_later(left_s if 0 < left_s < timeout_s else timeout_s, self._check_head)

    def _too_large(self) -> str:
        return f"The request line and the headers may have {self.limits.max_head_bytes} bytes."

    def _refuse(self, fault: Fault, message: str) -> None:
        """Answers with an error and closes; only closes where the answer would stand amid another request's."""
        if self.transport.is_closing():
            return
        if self._idle:
            self.transport.write(_reply(fault, message))
        self.transport.close()


class _Lingering:
    """A transport wrapper for a reply that may be its connection's last: closing it waits for the request's body."""

    __slots__ = ("_protocol", "_transport")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self._transport = protocol.transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._protocol.close_after_body()


_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings"})


def _head_bytes(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum(len(name) + len(value) + _HEADER_EXTRA_BYTES for name, value in headers)


def _reply(fault: Fault, message: str) -> bytes:
    body = msgspec.json.encode({"error": {"message": message, "type": fault.type, "param": None, "code": fault.code}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if fault is _TOO_MANY:
        headers += retry_headers(_RETRY_AFTER_S)
    lines = [f"HTTP/1.1 {fault.status} {http.HTTPStatus(fault.status).phrase}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
