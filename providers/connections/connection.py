"""One connection to an upstream: a request out, its reply in, and then perhaps another."""

import asyncio
import math
import select
from collections.abc import Callable
from typing import Final, cast

import httptools

from providers.connections.errors import NotHttp, ReplyLost, ReplySilent, ReplyTimeout, ReplyUnbounded
from providers.connections.gathering import Gathering
from settings.loop_turns import after_reading

MAX_HEAD_BYTES: Final = 16 * 1024
_PAUSE_BYTES: Final = 256 * 1024
"""Unread bytes at which no more are taken from the socket. As many bytes beside the body (fields behind it, extensions
of its chunks) end the connection.
"""
MAX_TRAILERS: Final = 128
_FREE_CHUNKS: Final = 20_000
_BYTES_A_CHUNK: Final = 16
"""Beyond the first _FREE_CHUNKS, chunks must be that long on average: each costs the same work, however short. Upstreams that
write a token in three pieces stay far above it.
"""
_FIRST_FINAL: Final = 200
_NO_CONTENT: Final = frozenset({204, 304})


class Connection(asyncio.Protocol):
    """A connection that carries one call at a time. The pool hands it out and takes it back.

    One timer a connection looks at the present deadline now and then, so that a read or a call costs none.
    """

    __slots__ = (
        "_at_eof",
        "_buffered",
        "_chunks",
        "_due_at",
        "_error",
        "_from_peer",
        "_gathering",
        "_gone",
        "_has_reply",
        "_head",
        "_head_bytes",
        "_idle_s",
        "_last_read_at",
        "_loop",
        "_parser",
        "_paused",
        "_read_bytes",
        "_read_chunks",
        "_stays",
        "_timer",
        "_timer_at",
        "_transport",
        "_unsent",
        "_waiter",
        "_write_paused",
        "busy",
        "fields",
        "on_body",
        "on_header",
        "status",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, gone: Callable[["Connection"], None], gathering: Gathering
    ) -> None:
        self._loop = loop
        self._gone = gone
        self._gathering = gathering
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._from_peer: select.poll | None = None
        self._error: Exception | None = None
        self._write_paused = False
        self._unsent = 0
        self.busy = False
        self._chunks: list[bytes] = []
        self._head: dict[bytes, bytes] = {}
        # The parser's for each piece of the reply, of which a stream has one a token, and for each field of head and trailers.
        self.on_body = self._chunks.append
        self.on_header = self._head.__setitem__
        self._idle_s = math.inf
        self._due_at = math.inf
        self._paused = False
        self._begin()

    def _begin(self) -> None:
        """Forget the last reply."""
        self._chunks.clear()
        self._head.clear()
        self._buffered = 0
        self._read_bytes = self._read_chunks = 0
        self._has_reply = False
        self._at_eof = False
        self._stays = False
        self._head_bytes = 0
        self._last_read_at = 0.0
        self.fields: dict[bytes, bytes] = {}
        """The reply's header fields, the last one of each name, which is in lower case."""
        self.status = 0

    # The pool's side.

    @property
    def usable(self) -> bool:
        """True when a request may be sent: the peer has not closed it and said nothing, as far as the kernel knows by now."""
        if self._transport is None or self._transport.is_closing() or self._from_peer is None:
            return False
        # What arrived is seen though the loop has not read it yet: a stale connection is not written to, and bytes that
        # nobody asked for are not taken for the next reply.
        return not self._from_peer.poll(0)

    def send(self, request: bytes, deadline: float, unsent: int = 0) -> None:
        """Send a request, whose reply must end by `deadline` on the loop's clock. So many bytes of it are still to come."""
        assert self._transport is not None  # noqa: S101 - The pool looked.
        self._begin()
        self._error = None
        self.busy = True
        self._unsent = unsent
        self._due_at = deadline
        if deadline < self._timer_at:
            self._look_at(deadline)
        self._transport.write(request)

    def rest(self, for_s: float) -> bool:
        """Keep the connection for another call, for so many seconds. False where it cannot be kept: the reply did not come
        whole, or the upstream does not keep it.
        """
        self.busy = False
        if not (self._at_eof and self._stays) or self._error is not None or self._unsent or self._paused:
            # Whoever keeps the reply's failure keeps the connection, too.
            self._chunks.clear()
            return False
        if self._transport is None or self._transport.is_closing():
            return False
        self._idle_s = math.inf
        self._due_at = due_at = self._loop.time() + for_s
        if due_at < self._timer_at:
            self._look_at(due_at)
        return True

    def cut(self) -> None:
        """End the connection at once, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    # The caller's side.

    async def send_more(self, data: bytes) -> bool:
        """Send a further piece of the request, once there is room for it. False when the reply has begun or the connection
        failed, which reading the reply tells: the rest need not be sent.
        """
        while self._write_paused and not self._has_reply and self._error is None:
            await self._change()
        if self._has_reply or self._error is not None or self._transport is None:
            return False
        self._unsent -= len(data)
        self._transport.write(data)
        return True

    async def reply_begins(self) -> None:
        """Wait for the reply's head: its `status`, and its fields. Raises NotHttp, ReplyLost, ReplyTimeout."""
        while not self._has_reply:
            if self._error is not None:
                raise self._error
            await self._change()

    @property
    def headers(self) -> dict[str, str]:
        """The `fields` as text."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.fields.items()}

    def limit_silence(self, idle_s: float) -> None:
        """Limit the silence of the reply to so many seconds from now on."""
        self._idle_s = idle_s
        self._last_read_at = now = self._loop.time()
        if now + idle_s < self._timer_at:
            self._look_at(now + idle_s)

    async def read(self) -> bytes:
        """Return all that came since the last read, or b"" at the reply's end. Raises ReplyLost, ReplyTimeout, NotHttp."""
        while not self._chunks:
            if self._at_eof:
                return b""
            if self._error is not None:
                raise self._error
            await self._change()
        return self.take()

    def take(self) -> bytes:
        """Return all that came since the last read, without waiting."""
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else self._joined(chunks)
        chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._last_read_at = self._loop.time()
            self._transport.resume_reading()
        return data

    def _joined(self, chunks: list[bytes]) -> bytes:
        data = b"".join(chunks)
        self._read_bytes += len(data)
        self._read_chunks += len(chunks)
        if self._read_chunks > _FREE_CHUNKS + self._read_bytes // _BYTES_A_CHUNK:
            self._end(ReplyUnbounded("the upstream's reply comes in very many tiny chunks"))
        return data

    def gather(self) -> None:
        """Take nothing more from the socket for a moment, so that what comes meanwhile is one read."""
        if not self._at_eof and self._transport is not None:
            self._transport.pause_reading()
            self._gathering.add(self._loop, self._go_on)

    def _go_on(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def at_eof(self) -> bool:
        """True once the whole reply was read."""
        return self._at_eof and not self._chunks

    def _change(self) -> asyncio.Future[None]:
        """Wait until something has come, or ended."""
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None and not self._at_eof:
            self._error = error
        self._stays = False
        self._wake()

    def _end(self, error: Exception) -> None:
        """Fail the reply, and close the connection at once."""
        self._fail(error)
        self.cut()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface and not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        socket = transport.get_extra_info("socket")
        if socket is not None:
            self._from_peer = select.poll()
            self._from_peer.register(socket.fileno(), select.POLLIN | select.POLLRDHUP)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The two know each other, which only the collector would undo.
        self._transport = self._parser = None
        if self.busy:
            if self._has_reply and not self._is_bounded and exc is None:
                self._at_eof = True
                self._wake()
            else:
                self._fail(ReplyLost("the connection was lost"))
        self._gone(self)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None or self._at_eof or not self.busy:
            # Nothing was asked: whatever it is, it would be taken for the next call's reply.
            self.cut()
            return
        if not self._has_reply:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end(NotHttp("the upstream's bytes are no HTTP reply"))
            return
        if not self._has_reply:
            if self._head_bytes > MAX_HEAD_BYTES:
                self._end(NotHttp("the head of the upstream's reply is too large"))
            return
        self._buffered += len(data)
        if self._chunks:
            # What brings nothing of the body does not count as speaking.
            self._last_read_at = self._loop.time()
            if self._buffered > _PAUSE_BYTES and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        elif self._buffered > _PAUSE_BYTES or len(self._head) > MAX_TRAILERS:
            # The parser has no bounds of its own for fields behind the body, nor for the extensions of chunks.
            self._end(ReplyUnbounded("the upstream's reply goes on beside its body"))
            return
        self._wake()

    # httptools' side.

    def on_message_begin(self) -> None:
        """Begin a reply, or an interim one before it."""
        if self._at_eof:
            raise NotHttp("behind a whole reply comes nothing that was asked for")

    def on_headers_complete(self) -> None:
        """Keep the whole head; forget one of an interim reply."""
        assert self._parser is not None  # noqa: S101
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self._head.clear()
            return
        self.status = status
        if self._head_bytes > MAX_HEAD_BYTES:
            # It may have come in one read with much of the body.
            self._head_bytes = sum(len(name) + len(value) for name, value in self._head.items())
        # A copy, as trailers come to where the head did, and nobody reads them.
        self.fields = {name.lower(): value for name, value in self._head.items()}
        self._head.clear()
        self._has_reply = self._head_bytes <= MAX_HEAD_BYTES

    def on_message_complete(self) -> None:
        """End the reply, unless it was an interim one."""
        if self._has_reply and not self._at_eof and self._parser is not None:
            self._at_eof = True
            self._head.clear()
            # The parser knows it only now. What ends with its connection does not stay either.
            self._stays = bool(self._parser.should_keep_alive())

    @property
    def _is_bounded(self) -> bool:
        """Return True when the reply has an end of its own, without that of its connection."""
        return b"content-length" in self.fields or b"transfer-encoding" in self.fields or self.status in _NO_CONTENT

    # The timer.

    def _look_at(self, due_at: float) -> None:
        """Have the timer look at `due_at`, which is before it would."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due_at
        self._timer = self._loop.call_at(due_at, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        after_reading(self._loop, self._end_due)

    def _end_due(self) -> None:
        if self._transport is None:
            return
        now = self._loop.time()
        # While the caller does not read, the upstream cannot speak.
        silent_at = math.inf if self._paused else self._last_read_at + self._idle_s
        if now >= self._due_at:
            self._fail(ReplyTimeout("the reply took too long"))
            self.cut()
        elif now >= silent_at:
            self._fail(ReplySilent("the reply fell silent"))
            self.cut()
        else:
            again = min(self._due_at, silent_at if silent_at < math.inf else now + self._idle_s)
            if again < math.inf:
                self._look_at(again)
