"""A caller's connection: its requests are parsed one at a time, and the cost of each is bounded.

A request is handed on when its head is complete. Until then nobody has shown a key, so the size of a head, the time it
may take and the number of open connections are bounded here. Pipelined requests wait as bytes.
"""

import asyncio
import math
import select
from typing import Final, Protocol, cast

import msgspec

from providers.held_bytes import HeldBytes
from proxy.errors import Overloaded, Refused, UnknownExpectation, UploadTimeout, error_reply
from proxy.http.chunks import Chunks
from proxy.http.exchange import Exchange, Gone, ProtocolUpgrade
from proxy.http.head import END, Head, check_unfinished, parse_head
from proxy.http.reply_head import CONTINUE, reply_head
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id

_PATIENT_BYTES_PER_S: Final = 16 * 1024
"""A body that is read piece by piece gets a second more for each so many bytes."""
_LOOK_AFTER_S: Final = 0.05
"""Seconds after a caller's end of sending until the first look whether it is still there; later looks come once a
tick.
"""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the connections of one process. Those in seconds are looked at once a tick."""

    max_head_bytes: int = 64 * 1024
    """The most bytes of request line and header fields, and of a body's trailers."""
    max_head_fields: int = 128
    """The most header fields, and the most trailers."""
    head_timeout_s: float = 10.0
    """Seconds from the connection, or the first byte of a later request, until the head is complete."""
    keep_alive_s: float = 75.0
    """Seconds for which a connection is kept without a request."""
    body_timeout_s: float = 30.0
    """Seconds for which a body is waited for."""
    slow_reader_s: float = 30.0
    """Seconds for which a caller may take none of the bytes written to it."""
    ping_after_s: float = 15.0
    """Seconds after which the silence of a stream of events is broken; 0 for never."""
    linger_s: float = 1.0
    """Seconds for which the rest of an early-answered request is read: closing a socket over unread bytes resets it,
    and the reset may overtake the answer. Also the seconds for which a connection stays open whose caller was not
    told to leave, as its reply had begun: closing it just as the next request is sent would lose that request.
    """
    max_connections: int = 20_000
    max_ahead_bytes: int = 64 * 1024
    """The bytes of pipelined requests at which no more are read until the running one is answered."""
    max_bodies_bytes: int = 256 * 1024 * 1024
    """The most bytes of request bodies, all together."""


class Host(Protocol):
    """The server as a connection uses it."""

    limits: ConnectionLimits
    held: HeldBytes
    leaving: bool
    """True while every reply is its connection's last one, with `connection: close`."""

    def now(self) -> float: ...

    def common_fields(self, exchange: Exchange | None) -> bytes:
        """Return the header fields of every reply, as bytes with their line ends."""
        ...

    def register(self, connection: "Connection") -> bool:
        """Register a new connection. Return False when there are too many."""
        ...

    def unregister(self, connection: "Connection") -> None: ...

    def half_closed(self, connection: "Connection") -> None:
        """Note that a connection's caller sends no more: it may be gone, or wait for its answer."""
        ...

    def not_http(self) -> None:
        """Count bytes that are no HTTP request."""
        ...

    def dispatch(self, exchange: Exchange) -> None:
        """Begins to answer."""
        ...


_HEAD, _BODY, _CHUNKS, _FULL, _SPOILT, _OVER = range(6)
"""The states of reading: a head, a body of known length or in chunks. `_FULL`: the request is whole, and the bytes
behind it wait for its reply. `_SPOILT`: nothing can be read any more, but a reply may be sent. `_OVER`: neither.
"""


class Connection(asyncio.Protocol):
    """One caller's HTTP/1.1 connection. It has no timer: the server's tick looks at `due_at`."""

    __slots__ = (
        "_chunks",
        "_continues",
        "_drained",
        "_eof",
        "_exchange",
        "_first_due_at",
        "_from_peer",
        "_has_begun",
        "_host",
        "_last",
        "_left",
        "_loop",
        "_paused",
        "_pending",
        "_quiet_due_at",
        "_read_due_at",
        "_state",
        "_told_to_leave",
        "_transport",
        "_upgraded",
        "_waited_from",
        "_waited_s",
        "_wants_whole",
        "_write_due_at",
        "_wrote_at",
        "blocked_since",
        "due_at",
        "peer",
        "tls",
    )

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._state = _HEAD
        self._pending = b""
        """Bytes that came and are not parsed: an unfinished head, or pipelined requests."""
        self._has_begun = False
        """True while a head has begun that is not whole."""
        self._first_due_at = math.inf
        """The time at which the first head of the connection must be whole, whenever it begins."""
        self._exchange: Exchange | None = None
        self._chunks: Chunks | None = None
        self._left = 0
        self._continues = False
        self._last = False
        self._eof = False
        self._paused = False
        self._told_to_leave = False
        self._upgraded: ProtocolUpgrade | None = None
        self._drained: asyncio.Future[None] | None = None
        self._from_peer: select.poll | None = None
        self._waited_from: float | None = None
        self._waited_s = 0.0
        self._wants_whole = False
        self.blocked_since: float | None = None
        self._read_due_at = math.inf
        self._write_due_at = math.inf
        self._wrote_at = 0.0
        self._quiet_due_at = math.inf
        """The time at which to look whether the request under way has heard nothing for long."""
        self.due_at = math.inf
        """The time at which the tick has to look at this connection; infinite when nothing is awaited."""
        self.peer: tuple[str, int] | None = None
        self.tls = False

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.peer = (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
        self.tls = transport.get_extra_info("sslcontext") is not None
        if not self._host.register(self):
            message = "This gateway has as many connections as it may. Try again shortly."
            self._refuse(Overloaded(message, retry_after_s=1.0))
            self.close()
            return
        self._first_due_at = self._host.now() + self._host.limits.head_timeout_s
        self._await_until(self._first_due_at)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._host.unregister(self)
        self._transport = None
        self._state = _OVER
        self._pending = b""
        self._read_due_at = self._write_due_at = self.due_at = math.inf
        self._lost("hung_up")
        self._unblock()

    def data_received(self, data: bytes) -> None:
        if self._state >= _SPOILT:
            return
        if self._upgraded is not None:
            self._upgraded.data_received(data)
            return
        if self._pending:
            data, self._pending = self._pending + data, b""
        self._advance(data)

    def eof_received(self) -> bool:
        self._eof = True
        exchange = self._exchange
        if exchange is None or self._state != _FULL or self.tls or self._upgraded is not None:
            # Nothing is left to answer: the request under way will never be whole.
            return False
        # A caller that has closed and one that only sends no more look alike until something is sent.
        if not exchange.started and exchange.version == "1.1":
            self.write(CONTINUE)
        elif exchange.probe:
            exchange.write(exchange.probe)
        self._host.half_closed(self)
        self._loop.call_later(_LOOK_AFTER_S, self.look_for_caller)
        return True

    def pause_writing(self) -> None:
        self.blocked_since = self._host.now()
        self._write_due_at = self.blocked_since + self._host.limits.slow_reader_s
        self._await_until(self._read_due_at)

    def resume_writing(self) -> None:
        self._unblock()
        if self._exchange is None and self._state == _HEAD and self._pending:
            self._next()

    # The tick.

    def overdue(self, now: float) -> None:
        """Act on a head, a body or a write that did not come in time."""
        if now >= self._write_due_at:
            self._lost("slow_reader")
            self.abort()
            return
        if now >= self._quiet_due_at:
            self._break_silence(now)
        if now < self._read_due_at:
            return
        self._await_until(math.inf)
        exchange = self._exchange
        if exchange is None or self._state not in {_BODY, _CHUNKS}:
            self.close()
        elif exchange.started:
            # The rest of a request that is answered already would come for as long as its caller likes.
            self._lost("hung_up")
            self.abort()
        else:
            waited_s = self._host.limits.body_timeout_s
            exchange.fail(UploadTimeout(f"The request body did not arrive within {waited_s:g} s."))

    def _break_silence(self, now: float) -> None:
        """Have the caller told that it is still served, if it has heard nothing for long."""
        after_s = self._host.limits.ping_after_s
        if self._exchange is None or not after_s:
            self._quiet_due_at = math.inf
        else:
            if now - self._wrote_at >= after_s:
                self._wrote_at = now
                self._exchange.break_silence()
            self._quiet_due_at = self._wrote_at + after_s
        self._await_until(self._read_due_at)

    def look_for_caller(self) -> bool:
        """Check whether a caller that sends no more is still there. Return True as long as this has to be checked
        again.
        """
        if self._transport is None:
            return False
        if self._exchange is None:
            return True
        if self._from_peer is None:
            socket = self._transport.get_extra_info("socket")
            if socket is None:
                return False
            self._from_peer = select.poll()
            # An error or a hang-up is always told; the end of sending is known and not asked for.
            self._from_peer.register(socket.fileno(), 0)
        if self._from_peer.poll(0):
            self._lost("hung_up")
            self.abort()
            return False
        return True

    # The end.

    @property
    def is_idle(self) -> bool:
        """True while no request is under way."""
        return self._exchange is None

    def leave(self) -> None:
        """Close the connection when it is idle; otherwise it ends with the reply under way, or with one that can say
        so.
        """
        if self._upgraded is not None:
            self._upgraded.leave()
        if self._exchange is not None or self._state == _OVER:
            return
        if self._pending:
            self._await_until(self._host.now() + self._host.limits.linger_s)
        elif not self._told_to_leave:
            self.close()

    def close(self) -> None:
        """Close once everything is written."""
        self._state = _OVER
        self._pending = b""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection at once."""
        self._state = _OVER
        if self._transport is not None:
            self._transport.abort()

    # The exchange's side.

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._wrote_at = self._host.now()
            transport.write(data)

    async def drained(self) -> None:
        if self.blocked_since is None:
            return
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.shield(self._drained)

    def more_wanted(self, *, whole: bool) -> None:
        if self._continues:
            self._continues = False
            self.write(CONTINUE)
        exchange = self._exchange
        if exchange is None or self._state not in {_BODY, _CHUNKS}:
            return
        self._wants_whole = whole
        now = self._host.now()
        if self._waited_from is None:
            patience_s = self._host.limits.body_timeout_s - self._waited_s
            self._waited_from = now
            if not whole:
                patience_s += exchange.arrived / _PATIENT_BYTES_PER_S
            self._await_until(now + max(0.0, patience_s))
        self._resume()

    def tail(self, exchange: Exchange, *, closes: bool) -> bytes:
        self._last = self._last or closes or (self._host.leaving and not self._pending)
        if not exchange.whole:
            # The rest of the request must not be taken for the next one by any reader.
            self._last = True
            if self._waited_from is None:
                self._waited_from = now = self._host.now()
                self._await_until(now + max(0.0, self._host.limits.body_timeout_s - self._waited_s))
            self._wants_whole = True
        end = b"connection: close\r\n\r\n" if self._last else b"\r\n"
        return self._host.common_fields(exchange) + end

    def reply_ended(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None or self._transport is None or self._state == _OVER:
            return
        if self._last:
            self._end(whole=exchange.whole)
        else:
            self._next()

    def switched(self, upgraded: ProtocolUpgrade) -> None:
        self._upgraded = upgraded
        self._last = True
        ahead, self._pending = self._pending, b""
        self._await_until(math.inf)
        self._resume()
        if ahead:
            upgraded.data_received(ahead)
        if self._host.leaving:
            upgraded.leave()

    def pause(self) -> None:
        self._pause()

    def resume(self) -> None:
        self._resume()

    # Reading.

    def _advance(self, data: bytes) -> None:
        """Parse the bytes that came, up to the end of a request that has to be answered first."""
        try:
            while data:
                if self._state == _HEAD and self.blocked_since is None:
                    data = self._take_head(data)
                elif self._state == _BODY:
                    piece, data = data[: self._left], data[self._left :]
                    self._left -= len(piece)
                    self._took(piece, whole=not self._left)
                elif self._state == _CHUNKS and self._chunks is not None:
                    piece, data = self._chunks.feed(data)
                    self._took(piece, whole=self._chunks.whole)
                elif self._state <= _FULL:
                    # Sent ahead, or its caller has yet to take the reply before: nothing is answered twice as fast as
                    # it is read.
                    self._pending = data
                    if len(data) > self._host.limits.max_ahead_bytes:
                        self._pause()
                    return
                else:
                    return
        except Refused as refused:
            self._spoil(refused)

    def _take_head(self, data: bytes) -> bytes:
        """Begin a request when its head is whole. Return the bytes that are left of `data`."""
        if data[0] in b"\r\n":
            # Empty lines before a request are nothing, and stop no clock.
            return data.lstrip(b"\r\n")
        limits = self._host.limits
        end = data.find(END) + len(END)
        if end >= len(END):
            self._begin(parse_head(data[:end], limits.max_head_bytes, limits.max_head_fields))
            return data[end:]
        check_unfinished(data, limits.max_head_bytes, limits.max_head_fields)
        if not self._has_begun:
            self._has_begun = True
            self._await_until(min(self._first_due_at, self._host.now() + limits.head_timeout_s))
        self._pending = data
        return b""

    def _begin(self, head: Head) -> None:
        expected = head.noted.get(b"expect")
        if expected is not None and expected.lower() != b"100-continue":
            raise UnknownExpectation("The one expectation that is met here is `100-continue`.")
        self._has_begun = False
        self._first_due_at = math.inf
        self._last = self._last or not head.keeps
        self._continues = expected is not None and head.version == "1.1" and head.length != 0
        self._waited_from, self._waited_s = None, 0.0
        self._wrote_at = self._host.now()
        self._quiet_due_at = self._wrote_at + self._host.limits.ping_after_s
        self._await_until(math.inf)
        if head.length is None:
            self._state = _CHUNKS
            self._chunks = Chunks(self._host.limits.max_head_bytes, self._host.limits.max_head_fields)
        else:
            self._left = head.length
            self._state = _BODY if self._left else _FULL
        exchange = self._exchange = Exchange(head, self, self._host.held)
        self._host.dispatch(exchange)

    def _took(self, piece: bytes, *, whole: bool) -> None:
        """Give a piece of the body to the exchange, or drop it when that is over."""
        exchange = self._exchange
        if exchange is None:
            # Behind its connection's last reply.
            if whole:
                self.close()
            return
        if self._waited_from is not None and (whole or not self._wants_whole):
            self._waited_s += self._host.now() - self._waited_from
            self._waited_from = None
            self._await_until(math.inf)
        # The caller goes on before it was told to.
        self._continues = False
        if whole:
            self._state = _FULL
        if not exchange.add_body(piece, whole=whole):
            self._pause()

    def _next(self) -> None:
        """Go on to the next request."""
        self._state = _HEAD
        if self._paused:
            self._resume()
        self._be_idle()
        if self._pending:
            data, self._pending = self._pending, b""
            self._advance(data)
        if self._eof and self._exchange is None and self._state == _HEAD and self.blocked_since is None:
            # The head that is left will never be whole.
            self.close()

    def _be_idle(self) -> None:
        limits = self._host.limits
        self._told_to_leave = self._host.leaving
        self._await_until(self._host.now() + (limits.linger_s if self._told_to_leave else limits.keep_alive_s))

    def _spoil(self, refused: Refused) -> None:
        """Stop reading for good: answer with the refusal, or let the request under way fail."""
        self._host.not_http()
        exchange = self._exchange
        if exchange is not None:
            self._state = _SPOILT
            if exchange.started:
                self._lost("hung_up")
                self.abort()
            else:
                exchange.fail(refused)
        elif self._state == _HEAD:
            self._refuse(refused)
            self._end(whole=False)
        else:
            self.close()

    def _refuse(self, refused: Refused) -> None:
        told = error_reply(refused)
        headers = (
            (b"content-type", b"application/json"),
            (REQUEST_ID_HEADER, new_request_id().encode()),
            *told.headers,
        )
        tail = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(told.body)
        self.write(reply_head(told.status, headers, self._host.common_fields(None) + tail) + told.body)

    def _end(self, *, whole: bool) -> None:
        """Close behind the last reply, once the rest of its request has come."""
        if whole or self._eof or self._transport is None:
            self.close()
            return
        self._last = True
        if self._state == _HEAD:
            self._state = _SPOILT
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._await_until(self._host.now() + self._host.limits.linger_s)
        self._resume()

    def _lost(self, why: Gone) -> None:
        if self._exchange is not None:
            self._exchange.lost(why)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None and not self._eof and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _unblock(self) -> None:
        self.blocked_since = None
        self._write_due_at = math.inf
        self._await_until(self._read_due_at)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def _await_until(self, due_at: float) -> None:
        """Set the time by which something has to come, or to be taken by `_write_due_at`."""
        self._read_due_at = due_at
        self.due_at = min(due_at, self._write_due_at, self._quiet_due_at)
