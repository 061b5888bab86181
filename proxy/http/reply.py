"""The pipeline's side of one reply: the bytes sent, those recorded, and the reply's progress."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from providers.wire import EVENTS_TYPE
from proxy.errors import ErrorReply
from proxy.http.exchange import COMMENT, Exchange, probe_behind
from proxy.http.reply_head import fields_of

Header = tuple[bytes, bytes]

_JSON = b"content-type: application/json\r\n"
# Reverse proxies buffer by default, which would hold tokens back.
_AS_IT_COMES = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
_SSE = b"content-type: text/event-stream; charset=utf-8\r\n" + _AS_IT_COMES


class Recorder(Protocol):
    """A recording that sees all of a reply before it is sent, even when the caller is gone."""

    def began(self, status: int, headers: Iterable[Header]) -> None: ...

    async def wrote(self, data: bytes, *, last: bool) -> None: ...

    async def close(self) -> None: ...


class Reply:
    """A writer of one reply. `started`: the status line is out. `waits`: it is, and nothing but signs of life is behind it.
    `done`: the end is being sent. `aborted`: the connection was cut.
    """

    __slots__ = (
        "_clock",
        "_exchange",
        "_passes",
        "_probe",
        "aborted",
        "done",
        "lines",
        "recording",
        "started",
        "status",
        "waits",
    )

    def __init__(self, exchange: Exchange, clock: Callable[[], float], probe: bytes = COMMENT) -> None:
        """`probe` may stand between any two events, and means nothing."""
        self._exchange = exchange
        self._clock = clock
        self._probe = probe
        self._passes = False
        """True for a stream whose pieces need not be whole events."""
        self.lines = b""
        """Fields of every kind of reply, as lines of the head."""
        self.started = False
        self.waits = False
        self.done = False
        self.aborted = False
        self.status = 0
        self.recording: Recorder | None = None

    @property
    def now(self) -> float:
        return self._clock()

    async def whole(self, status: int, body: bytes, headers: Sequence[Header] = (), lines: bytes = b"") -> None:
        """Send a complete JSON reply. `lines` are further fields, as lines of the head."""
        lines = self._start(status, headers, _JSON + self.lines + lines)
        self.done = True
        if self.recording is not None:
            await self.recording.wrote(body, last=True)
        self._exchange.respond(status, headers, body, lines)

    async def taken(self) -> None:
        """Wait until the caller has taken nearly all of the bytes sent: until then they are held for it."""
        if self._exchange.blocked_since is not None:
            await self._exchange.drained()

    async def error(self, error: ErrorReply, event: bytes = b"") -> None:
        """Send an error in place of an answer: as a reply, or as the one event of a stream that has begun early."""
        if not self.waits:
            await self.whole(error.status, error.body, error.headers)
            return
        self.waits = False
        if self.recording is not None:
            self.recording.began(error.status, fields_of(_SSE + self.lines))
        await self.end(event)

    def may_begin_early(self) -> None:
        """Let a stream begin before anything of it is known, once its caller has heard nothing for long."""
        self._exchange.on_quiet = self._begin_early

    def _begin_early(self) -> None:
        if not self.started:
            self.begin_events()
            self.waits = True
            self._exchange.write(self._probe)

    def begin_events(self, headers: Sequence[Header] = (), lines: bytes = b"", *, waits: bool = False) -> None:
        """Begin a stream, unless it has begun early. `waits`: its head goes out with the first events, which have to follow at
        once.
        """
        began, self.waits = self.waits, False
        lines = self._start(200, headers, _SSE + self.lines + lines)
        if not began:
            self._exchange.start(200, headers, lines, probe=self._probe, waits=waits)

    def begin_pieces(self, media_type: str, lines: bytes = b"") -> None:
        """Begin a reply of another type than JSON, whose pieces `events` sends."""
        if media_type.startswith(EVENTS_TYPE):
            self.begin_events(lines=lines)
            self._passes = True
            return
        headers = ((b"content-type", media_type.encode()),)
        self._exchange.start(200, headers, self._start(200, headers, _AS_IT_COMES + self.lines + lines))

    async def events(self, data: bytes) -> None:
        """Send whole events, or any piece of another reply, and wait while the caller does not take them."""
        if self.recording is not None:
            await self.recording.wrote(data, last=False)
        self._exchange.write(data)
        if self._passes:
            self._exchange.probe = probe_behind(data)
        if self._exchange.blocked_since is not None:
            await self._exchange.drained()

    async def end(self, data: bytes = b"") -> None:
        self.done = True
        if self.recording is not None:
            await self.recording.wrote(data, last=True)
        self._exchange.end(data)

    def abort(self) -> None:
        """Cut the connection of a caller that must not take its partial reply for whole."""
        self.done = self.aborted = True
        self._exchange.abort()

    def _start(self, status: int, headers: Sequence[Header], lines: bytes) -> bytes:
        self.started = True
        self.status = status
        if self.recording is not None:
            self.recording.began(status, [*headers, *fields_of(lines)])
        return lines
