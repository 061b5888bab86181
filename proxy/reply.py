"""The HTTP side of one request: reads the body within its limit and writes the reply."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from starlette.types import Message, Receive, Scope, Send

from proxy.errors import BodyTooLarge, ErrorReply

Header = tuple[bytes, bytes]

_JSON = (b"content-type", b"application/json")
_SSE: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Reverse proxies buffer by default, which would hold tokens back.
    (b"x-accel-buffering", b"no"),
)


class Recorder(Protocol):
    """Sees each message before it is sent, even when the caller is gone."""

    async def saw(self, message: Message) -> None: ...


class Reply:
    """Writes one reply over ASGI. `started`: the status line is out. `done`: the end is being sent. `aborted`: the
    connection was cut.
    """

    __slots__ = (
        "_clock",
        "_send",
        "aborted",
        "done",
        "headers",
        "recording",
        "sending_since",
        "started",
        "status",
    )

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self.headers: list[Header] = []
        self.started = False
        self.done = False
        self.aborted = False
        self.status = 0
        self.sending_since: float | None = None
        self.recording: Recorder | None = None

    @property
    def now(self) -> float:
        return self._clock()

    async def whole(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Sends a complete JSON reply."""
        await self._start(status, [_JSON, (b"content-length", str(len(body)).encode()), *self.headers, *headers])
        self.done = True
        await self._write(body, more=False)

    async def error(self, error: ErrorReply) -> None:
        await self.whole(error.status, error.body, error.headers)

    async def begin_events(self, headers: Iterable[Header] = ()) -> None:
        await self._start(200, [*_SSE, *self.headers, *headers])

    async def events(self, data: bytes) -> None:
        await self._write(data, more=True)

    async def end(self, data: bytes = b"") -> None:
        self.done = True
        await self._write(data, more=False)

    def abort(self) -> None:
        """Cuts the connection of a caller that does not read. ASGI cannot, so uvicorn's transport is used where there
        is one.
        """
        self.done = self.aborted = True
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is not None:
            transport.abort()

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.started = True
        self.status = status
        await self._sent({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, data: bytes, *, more: bool) -> None:
        await self._sent({"type": "http.response.body", "body": data, "more_body": more})

    async def _sent(self, message: Message) -> None:
        if self.recording is not None:
            await self.recording.saw(message)
        # The server lets a full buffer suspend us here; the watch over slow readers looks at since when.
        self.sending_since = self._clock()
        try:
            await self._send(message)
        finally:
            self.sending_since = None


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """Reads the whole request body. Raises BodyTooLarge, or CancelledError when the caller hung up."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {max_bytes} bytes, the limit of this gateway.")
