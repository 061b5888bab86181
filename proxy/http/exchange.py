"""One request and its reply, as seen by the code that answers."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from providers.held_bytes import HeldBytes
from proxy.errors import BodyTooLarge, Overloaded
from proxy.http.content_coding import decompressed
from proxy.http.head import Head, Header
from proxy.http.reply_head import reply_head

Gone = Literal["hung_up", "slow_reader"]
"""The reason for which nobody reads the reply any more."""

_PAUSE_BYTES: Final = 64 * 1024
"""Bytes of a body that came and were not asked for at which no more are taken from the socket."""
_FULL_RETRY_S: Final = 1.0
_AT_ONCE_BYTES: Final = 8 * 1024
"""A compressed body of more than these is decompressed beside the loop: it may become a thousand times as long."""
_SWITCHING: Final = 101
_NO_BODY: Final = frozenset({204, 304})
_FIRST_ERROR: Final = 400
_CLOSE: Final = (b"connection", b"close")

EVENTS: Final = b"text/event-stream"
COMMENT: Final = b": waiting\n"
"""A line without a meaning, sent to learn whether a stream is still read, and to tell its reader that it goes on. An empty line
behind it would end an event, which some clients then take for one without data.
"""


def probe_behind(data: bytes) -> bytes:
    """Return the probe that may follow this piece of a stream of events: only between two events is there room for a
    comment.
    """
    return COMMENT if data.endswith(b"\n\n") else b""


class CallerGone(Exception):
    """The caller hung up before its request was whole."""


class ProtocolUpgrade(Protocol):
    """The owner of a connection that was upgraded from HTTP to another protocol. The exchange's `on_gone` tells it of
    the connection's loss.
    """

    def data_received(self, data: bytes) -> None: ...

    def leave(self) -> None:
        """End as soon as nothing is under way: the server wants to stop."""
        ...


class Wire(Protocol):
    """The connection as an exchange uses it."""

    @property
    def blocked_since(self) -> float | None:
        """The server's time since which the caller takes nothing of the bytes written; None while it does."""
        ...

    @property
    def peer(self) -> tuple[str, int] | None:
        """The caller's address and port."""
        ...

    @property
    def tls(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    async def drained(self) -> None: ...

    def abort(self) -> None:
        """Cut the connection at once."""
        ...

    def more_wanted(self, *, whole: bool) -> None:
        """Ask for the body: for its next piece, or for the whole of it."""
        ...

    def tail(self, exchange: "Exchange", *, closes: bool) -> bytes:
        """Return the fields that every reply ends with, and the end of the head. `closes`: it is the connection's
        last reply in any case.
        """
        ...

    def reply_ended(self) -> None: ...

    def switched(self, upgraded: ProtocolUpgrade) -> None:
        """Hand the connection over: all bytes from now on, and its end, go to `upgraded`."""
        ...

    def pause(self) -> None:
        """Read nothing more from the caller for now."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """Close the connection once everything is written."""
        ...


class Exchange:
    """A request and its reply. `gone` is set, and `on_gone` called, when the caller has hung up or was cut off
    because it does not read; later writes then go nowhere. `started`: the reply's head is out. `ended`: so is its
    end.
    """

    __slots__ = (
        "_ahead",
        "_arrived",
        "_chunked",
        "_failure",
        "_head",
        "_held",
        "_holds",
        "_left",
        "_limit",
        "_pieces",
        "_waiter",
        "_wire",
        "ended",
        "gone",
        "headers",
        "method",
        "on_gone",
        "on_quiet",
        "path",
        "probe",
        "started",
        "status",
        "task",
        "whole",
    )

    def __init__(self, head: Head, wire: Wire, held: HeldBytes) -> None:
        self._head = head
        self._wire = wire
        self._held = held
        self.method = head.method
        self.path = head.path
        self.headers = head.headers
        self.whole = head.length == 0
        """True once all of the request has come."""
        self.started = False
        self.ended = False
        self.status = 0
        self.gone: Gone | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_quiet: Callable[[], None] | None = None
        """Called when the caller has heard nothing for long, and no reply has begun."""
        self.task: asyncio.Task[None] | None = None
        """The task that answers it, where the server started one."""
        self.probe = b""
        """Bytes without a meaning that may stand at any place of the stream, to learn whether its caller is still
        there.
        """
        self._pieces: bytes | bytearray = b""
        self._arrived = 0
        self._holds = 0
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._limit: int | None = None
        self._chunked = False
        self._ahead = b""
        """The head that waits for the first piece."""
        self._left: int | None = None

    # The request.

    @property
    def query(self) -> bytes:
        return self._head.query

    @property
    def version(self) -> Literal["1.0", "1.1"]:
        return self._head.version

    @property
    def length(self) -> int | None:
        """The body's length in bytes, 0 without a body; None when it comes in chunks."""
        return self._head.length

    @property
    def expects_continue(self) -> bool:
        """True when the caller waits with its body until it is told to go on."""
        return b"expect" in self._head.noted

    @property
    def upgrade(self) -> bytes:
        """The protocol that the caller would rather speak, in lower case; empty for none."""
        return self._head.noted.get(b"upgrade", b"").strip().lower()

    @property
    def coding(self) -> bytes:
        """The body's content encoding, in lower case; empty for none."""
        return self._head.noted.get(b"content-encoding", b"").strip().lower()

    @property
    def is_encoded(self) -> bool:
        """True when the body is in a content encoding, which `body` undoes and `read` does not."""
        return self._head.length != 0 and self.coding not in {b"", b"identity"}

    @property
    def arrived(self) -> int:
        """The bytes of the body that have come so far."""
        return self._arrived

    @property
    def peer(self) -> tuple[str, int] | None:
        """The caller's address and port; None where there are none."""
        return self._wire.peer

    @property
    def tls(self) -> bool:
        """True when the request came encrypted."""
        return self._wire.tls

    def field(self, name: bytes) -> bytes | None:
        """Return the value of the first header field of a lower-case name."""
        return next((value for found, value in self._head.headers if found == name), None)

    async def read(self) -> bytes:
        """Return the next piece of the body, b"" at its end. Nothing is read from the caller before it is asked for
        here. Raises CallerGone, UploadTimeout, Overloaded when the process holds too many bodies, or InvalidHttp.
        """
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.whole:
                return b""
            await self._more()
        pieces, self._pieces = self._pieces, b""
        self._held.give_back(self._holds)
        self._holds = 0
        return bytes(pieces)

    async def body(self, limit: int) -> bytes:
        """Return the whole body, decompressed. Raises BodyTooLarge beyond `limit` bytes, BadRequest for one that cannot be
        decompressed, and the errors of `read`.
        """
        if (self._head.length or 0) > limit:
            raise _too_large(limit)
        self._limit = limit
        while self._failure is None and self._arrived <= limit:
            if self.whole:
                # It counts as held until the exchange is over, as whoever asked for it has it.
                pieces, self._pieces = self._pieces, b""
                return await self._decoded(bytes(pieces), limit) if self.is_encoded else bytes(pieces)
            await self._more()
        raise self._failure or _too_large(limit)

    async def _decoded(self, body: bytes, limit: int) -> bytes:
        if len(body) > _AT_ONCE_BYTES:
            plain = await asyncio.to_thread(decompressed, self.coding, body, limit)
        else:
            plain = decompressed(self.coding, body, limit)
        if not self.hold(len(plain)):
            raise _too_many()
        return plain

    async def begin_body(self, most: int) -> bytes:
        """Return the whole body if it has at most `most` bytes; otherwise the bytes that have come once it is known
        to be longer, whose rest `read` returns. Raises the errors of `read`.
        """
        if (self._head.length or 0) > most:
            return b""
        self._limit = most
        try:
            while not self.whole and self._failure is None and self._arrived <= most:
                await self._more()
        finally:
            self._limit = None
        return await self.read()

    @property
    def at_end(self) -> bool:
        """True once all of the body was read."""
        return self.whole and not self._pieces

    async def _more(self) -> None:
        self._wire.more_wanted(whole=self._limit is not None)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # The reply.

    @property
    def blocked_since(self) -> float | None:
        """The server's time since which the caller takes nothing of the bytes written; None while it does."""
        return self._wire.blocked_since

    def respond(self, status: int, headers: Sequence[Header], body: bytes = b"", lines: bytes = b"") -> None:
        """Send a whole reply in one write. `lines` are further fields, as `field_lines` makes them. `content-length`
        and `date` are added.
        """
        without = status in _NO_BODY
        if not without:
            lines = b"%bcontent-length: %d\r\n" % (lines, len(body))
        head = self._begin(status, headers, lines)
        self.ended = True
        if self.gone is None:
            self._wire.write(head if without or self.method == "HEAD" else head + body)
        self._wire.reply_ended()

    def switch(self, headers: Sequence[Header], upgraded: ProtocolUpgrade) -> None:
        """Switch to the protocol that the caller asked for. `finish` ends it."""
        tail = b"connection: Upgrade\r\nupgrade: %b\r\n\r\n" % self.upgrade
        head = reply_head(_SWITCHING, headers, tail)
        self.started = True
        self.status = _SWITCHING
        if self.gone is None:
            self._wire.write(head)
            self._wire.switched(upgraded)

    def send(self, data: bytes) -> None:
        """Send bytes of the protocol that was switched to."""
        if self.gone is None and not self.ended:
            self._wire.write(data)

    def pause(self) -> None:
        """Read nothing more from the caller for now."""
        self._wire.pause()

    def resume(self) -> None:
        self._wire.resume()

    def finish(self) -> None:
        """End the protocol that was switched to, and close the connection once everything is written."""
        if not self.ended:
            self.ended = True
            self._wire.close()

    def hold(self, count: int) -> bool:
        """Count bytes that are kept for the caller among those that the process holds. Return False when they are too
        many.
        """
        if not self._held.take(count):
            return False
        self._holds += count
        return True

    def let_go(self, count: int) -> None:
        """Take bytes off the count of those held."""
        self._held.give_back(count)
        self._holds -= count

    def start(
        self, status: int, headers: Sequence[Header], lines: bytes = b"", *, probe: bytes = b"", waits: bool = False
    ) -> None:
        """Begin a reply. Without a `content-length` among `headers` the body goes in chunks, or, to HTTP/1.0, until
        the connection closes. `lines` are further fields, as `field_lines` makes them. `probe` becomes the attribute
        of that name. A head that `waits` goes out with the first piece, which has to follow at once.
        """
        length = next((value for name, value in headers if name == b"content-length"), None)
        framing = b""
        if self.method != "HEAD" and status not in _NO_BODY:
            if length is not None:
                self._left = int(length)
            elif self._head.version == "1.1":
                self._chunked = True
                framing = b"transfer-encoding: chunked\r\n"
        elif length is not None:
            self._left = 0
        if length is not None and status not in _NO_BODY:
            framing = b"content-length: %b\r\n" % length
        head = self._begin(status, headers, lines + framing)
        self.probe = probe
        if waits:
            self._ahead = head
        elif self.gone is None:
            self._wire.write(head)

    def write(self, data: bytes) -> None:
        """Send a piece of the body. Wait for `drained` before more of it."""
        if self._chunked and not self.ended:
            if data and self.gone is None:
                self._wire.write(b"%b%x\r\n%b\r\n" % (self._ahead, len(data), data))
                self._ahead = b""
        elif data and not self._is_bodiless():
            self._count(len(data))
            if self.gone is None:
                self._wire.write(self._ahead + data)
                self._ahead = b""

    def break_silence(self) -> None:
        """Tell a caller that waits for events that it is still served. There is nothing to tell one that waits for a whole reply."""
        if self.gone is not None or self.ended or self._wire.blocked_since is not None:
            return
        if self.started:
            self.write(self.probe)
        elif self.on_quiet is not None:
            self.on_quiet()

    async def drained(self) -> None:
        """Wait while the caller does not take the bytes written."""
        if self._wire.blocked_since is not None and self.gone is None:
            await self._wire.drained()

    def end(self, data: bytes = b"") -> None:
        """End the reply, after a last piece of its body. A reply shorter than its `content-length` is cut off, and
        raises RuntimeError.
        """
        if not self.started or self.ended:
            raise RuntimeError("a reply ends once, after its start")
        if self._is_bodiless():
            data = b""
        self._count(len(data))
        if self._left:
            self.abort()
            raise RuntimeError("the reply is shorter than its content-length")
        self.ended = True
        if self.gone is None:
            if self._chunked:
                data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            if self._ahead or data:
                self._wire.write(self._ahead + data)
        self._wire.reply_ended()

    def abort(self) -> None:
        """Cut the connection, unless the reply has ended: a reply that has begun must not be taken for whole."""
        if not self.ended:
            self.ended = True
            self._wire.abort()

    def _begin(self, status: int, headers: Sequence[Header], lines: bytes) -> bytes:
        if self.started:
            raise RuntimeError("a reply starts once")
        # Where the rest of the body will never come, and where an error says so.
        closes = self._failure is not None or (status >= _FIRST_ERROR and _CLOSE in headers)
        head = reply_head(status, headers, lines + self._wire.tail(self, closes=closes))
        self.started = True
        self.status = status
        return head

    def _is_bodiless(self) -> bool:
        return self.method == "HEAD" or self.status in _NO_BODY

    def _count(self, count: int) -> None:
        if not self.started or (self.ended and self.gone is None):
            raise RuntimeError("a piece of a reply comes between its start and its end")
        if self._left is not None:
            if count > self._left:
                self.abort()
                raise RuntimeError("the reply is longer than its content-length")
            self._left -= count

    # The connection's side.

    def add_body(self, data: bytes, *, whole: bool) -> bool:
        """Add a piece of the body; `whole` with the last one. Return False when no more should be read until somebody
        asks for it.
        """
        self.whole = whole
        count = len(data)
        self._arrived += count
        if self.ended or self._failure is not None:
            return True
        if not self._held.take(count):
            self.fail(_too_many())
            return True
        self._holds += count
        if not self._pieces:
            self._pieces = data
        else:
            if isinstance(self._pieces, bytes):
                self._pieces = bytearray(self._pieces)
            self._pieces += data
        if self._limit is not None and self._arrived <= self._limit:
            # A reader of the whole body needs to wake at its end alone.
            if whole:
                self._wake()
            return True
        self._wake()
        return self._limit is None and len(self._pieces) <= _PAUSE_BYTES

    def fail(self, error: Exception) -> None:
        """Let the reader of the body fail with `error`; the first failure counts."""
        if self._failure is None:
            self._failure = error
            self._wake()

    def lost(self, why: Gone) -> None:
        """Mark the caller as gone."""
        if self.gone is not None:
            return
        self.gone = why
        if not self.whole:
            self.fail(CallerGone())
        if self.on_gone is not None and not self.ended:
            self.on_gone()

    def release(self) -> None:
        """Forget the body: the exchange is over."""
        self._pieces = b""
        self._held.give_back(self._holds)
        self._holds = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _too_many() -> Overloaded:
    return Overloaded(
        "This gateway process holds as many bytes of request bodies as it may; try again shortly.",
        retry_after_s=_FULL_RETRY_S,
    )


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes, the limit of this gateway.")
