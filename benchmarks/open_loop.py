"""Requests that are sent when they are due, whatever became of those before them, in one process.

    python -m benchmarks.open_loop --plan load.plan --result load.result

Connections are kept and used again; a request that finds none free opens one. A caller hangs up when its patience is
at its end. Beside the load, probes ask plain paths on connections of their own, as monitoring does.
"""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

from benchmarks.arrivals import Arrival
from benchmarks.driver import COUNTER
from benchmarks.load_test import plan_of

TOKENS: Final = b"999999"
"""Stands in the body where each request has its own `max_tokens`."""
NO_REPLY: Final = 0
GAVE_UP: Final = -1

_EVENT: Final = b"data: {"
_DONE: Final = b"data: [DONE]"
_TAIL_BYTES: Final = len(_DONE) - 1
_FIRST_TOKEN_EVENT: Final = 2
_OK: Final = 200
_MOST_CONNECTIONS: Final = 12_000
_MOST_ERROR_BYTES: Final = 64 * 1024
_PROBE_WITHIN_S: Final = 10.0
_TELL_S: Final = 2.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    keys: tuple[str, ...]
    """Keys by caller, as arrivals name callers."""
    body: str
    headers: tuple[str, ...] = ()
    """Header lines of every request."""
    arrivals: tuple[Arrival, ...]
    patience_s: float
    """Seconds after sending at which the caller hangs up."""
    probes: tuple[str, ...] = ()
    probe_every_s: float = 0.5


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The reply to one arrival."""

    caller: int
    at_s: float
    tokens: int
    late_us: int
    """Lateness of the driver itself against the plan."""
    status: int
    """Or NO_REPLY, when the connection broke, or GAVE_UP."""
    whole: bool
    """A stream to its [DONE], or another reply to its end."""
    latency_us: int
    ttft_us: int
    """0 without a first token."""
    code: str
    """Code of a refusal."""
    why: str
    """A queue did not take it, where one refused."""
    retry_after: bool
    """True if both headers told a time to retry."""
    target: str


class Probe(msgspec.Struct, frozen=True, array_like=True):
    path: str
    status: int
    latency_us: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The replies of a whole load."""

    replies: list[Reply]
    probes: list[Probe]
    most_connections: int
    began_s: float
    """On the monotonic clock."""


class _Queue(msgspec.Struct):
    why: str = ""


class _Refusal(msgspec.Struct):
    code: str | None = None
    queue: _Queue | None = None


class _Refused(msgspec.Struct):
    error: _Refusal


class Requests:
    """The bytes of one caller's requests."""

    def __init__(self, plan: Plan, key: str) -> None:
        lines = ["POST /v1/chat/completions HTTP/1.1", f"host: {urlsplit(plan.url).netloc}"]
        lines += ["content-type: application/json", f"authorization: Bearer {key}", *plan.headers]
        self._head = "\r\n".join(lines).encode()
        self._body = plan.body.encode()
        self._made: dict[int, tuple[bytes, bytes]] = {}

    def bytes_of(self, tokens: int, number: int) -> bytes:
        if tokens not in self._made:
            body = self._body.replace(TOKENS, b"%d" % tokens)
            before, _, after = body.partition(COUNTER)
            head = self._head + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
            self._made[tokens] = (head + before, after)
        before, after = self._made[tokens]
        return before + b"%08d" % number + after


class Exchange:
    """One request under way."""

    __slots__ = ("arrival", "late_us", "patience", "sent_at")

    def __init__(self, arrival: Arrival, late_us: int, sent_at: float) -> None:
        self.arrival = arrival
        self.late_us = late_us
        self.sent_at = sent_at
        self.patience: asyncio.TimerHandle | None = None


class Load:
    """The sender of due requests, which gathers the replies."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self.loop = loop
        self.idle: list[Connection] = []
        self.replies: list[Reply] = []
        self.probes: list[Probe] = []
        self.connections = 0
        self.most_connections = 0
        self.under_way: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._requests = [Requests(plan, key) for key in plan.keys]
        self._all_done = asyncio.Event()

    async def run(self) -> None:
        began = self.loop.time()
        for arrival in self.plan.arrivals:
            if (early_s := began + arrival.at_s - self.loop.time()) > 0:
                await asyncio.sleep(early_s)
            self._send(arrival, round((self.loop.time() - began - arrival.at_s) * 1e6))
        if len(self.replies) < len(self.plan.arrivals):
            async with asyncio.timeout(self.plan.patience_s + 10):
                await self._all_done.wait()

    def _send(self, arrival: Arrival, late_us: int) -> None:
        self._sent += 1
        data = self._requests[arrival.caller].bytes_of(arrival.tokens, self._sent)
        exchange = Exchange(arrival, late_us, time.perf_counter())
        while self.idle:
            connection = self.idle.pop()
            if connection.usable:
                connection.ask(exchange, data)
                return
        if self.connections >= _MOST_CONNECTIONS:
            self.over(exchange, NO_REPLY, code="the driver has no connection left")
            return
        task = self.loop.create_task(self._connect(exchange, data))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _connect(self, exchange: Exchange, data: bytes) -> None:
        address = urlsplit(self.plan.url)
        self.connections += 1
        self.most_connections = max(self.most_connections, self.connections)
        try:
            _, connection = await self.loop.create_connection(
                lambda: Connection(self), address.hostname or "", address.port or 80
            )
        except OSError as error:
            self.connections -= 1
            self.over(exchange, NO_REPLY, code=f"connect: {error.strerror}")
            return
        connection.ask(exchange, data)

    def over(
        self,
        exchange: Exchange,
        status: int,
        *,
        whole: bool = False,
        ttft_us: int = 0,
        code: str = "",
        why: str = "",
        retry_after: bool = False,
        target: str = "",
    ) -> None:
        if exchange.patience is not None:
            exchange.patience.cancel()
        latency_us = round((time.perf_counter() - exchange.sent_at) * 1e6)
        arrival = exchange.arrival
        self.replies.append(
            Reply(
                arrival.caller, arrival.at_s, arrival.tokens, exchange.late_us, status, whole, latency_us, ttft_us,
                code, why, retry_after, target,
            )
        )  # fmt: skip
        if len(self.replies) == len(self.plan.arrivals):
            self._all_done.set()


class Connection(asyncio.Protocol):
    """A kept connection, one exchange at a time. httptools calls `on_…` as a reply is parsed."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._exchange: Exchange | None = None

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)

    def ask(self, exchange: Exchange, data: bytes) -> None:
        self._exchange = exchange
        self._events = 0
        self._tail = b""
        self._done = False
        self._ttft_us = 0
        self._headers: dict[bytes, bytes] = {}
        self._refusal = b""
        if self._transport.is_closing():
            self._end(NO_REPLY, code="connection lost")
            return
        exchange.patience = self._load.loop.call_later(self._load.plan.patience_s, self._give_up)
        self._transport.write(data)

    def close(self) -> None:
        self._transport.abort()

    def _give_up(self) -> None:
        self._end(GAVE_UP)
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(NO_REPLY, code="malformed")
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        if self._exchange is None:
            return
        if self._parser.get_status_code() != _OK:
            self._refusal = (self._refusal + body)[:_MOST_ERROR_BYTES]
            return
        # An event may be split over two pieces; the tail is too short to hold one twice.
        seen = self._tail + body
        before = self._events
        self._events += seen.count(_EVENT) - self._tail.count(_EVENT)
        self._done = self._done or _DONE in seen
        self._tail = seen[-_TAIL_BYTES:]
        if before < _FIRST_TOKEN_EVENT <= self._events:
            self._ttft_us = round((time.perf_counter() - self._exchange.sent_at) * 1e6)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        streamed = b"event-stream" in self._headers.get(b"content-type", b"")
        error = _error_of(self._refusal)
        self._end(
            status,
            whole=self._done or not streamed,
            code=error.code or "",
            why=error.queue.why if error.queue else "",
            retry_after=b"retry-after" in self._headers and b"retry-after-ms" in self._headers,
            target=self._headers.get(b"x-weighbridge-target", b"").decode("latin-1"),
        )
        if self._parser.should_keep_alive():
            self._load.idle.append(self)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._load.connections -= 1
        self._end(NO_REPLY, code="connection lost")

    def _end(
        self,
        status: int,
        *,
        whole: bool = False,
        code: str = "",
        why: str = "",
        retry_after: bool = False,
        target: str = "",
    ) -> None:
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            self._load.over(
                exchange, status, whole=whole, ttft_us=self._ttft_us, code=code, why=why, retry_after=retry_after,
                target=target,
            )  # fmt: skip


def _error_of(body: bytes) -> _Refusal:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(body, type=_Refused).error
    return _Refusal()


async def probe(load: Load, path: str) -> None:
    """Ask one path again and again until it is cancelled, each time on a connection of its own."""
    address = urlsplit(load.plan.url)
    request = f"GET {path} HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n\r\n".encode()
    while True:
        began, status = time.perf_counter(), NO_REPLY
        with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
            async with asyncio.timeout(_PROBE_WITHIN_S):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                try:
                    writer.write(request)
                    status = int((await reader.read()).split(b" ", 2)[1])
                finally:
                    writer.transport.abort()
        took_s = time.perf_counter() - began
        load.probes.append(Probe(path, status, round(took_s * 1e6)))
        await asyncio.sleep(max(0.0, load.plan.probe_every_s - took_s))


async def _tell(load: Load) -> None:
    while True:
        await asyncio.sleep(_TELL_S)
        statuses = Counter(reply.status for reply in load.replies)
        said = ", ".join(f"{_word(status)}: {count:,}" for status, count in sorted(statuses.items()))
        sys.stderr.write(f"{len(load.replies):,} of {len(load.plan.arrivals):,} over: {said}\n")
        sys.stderr.flush()


def _word(status: int) -> str:
    return {NO_REPLY: "no reply", GAVE_UP: "gave up"}.get(status, str(status))


async def drive(plan: Plan) -> Loaded:
    """Drive the whole plan."""
    load = Load(plan, asyncio.get_running_loop())
    began_s = time.monotonic()
    beside = [asyncio.ensure_future(probe(load, path)) for path in plan.probes]
    beside.append(asyncio.ensure_future(_tell(load)))
    try:
        await load.run()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for connection in load.idle:
            connection.close()
    return Loaded(replies=load.replies, probes=load.probes, most_connections=load.most_connections, began_s=began_s)


def main() -> None:
    plan, result = plan_of(Plan, __doc__)
    Path(result).write_bytes(msgspec.json.encode(uvloop.run(drive(plan))))


if __name__ == "__main__":
    main()
