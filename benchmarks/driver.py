"""The load: keep-alive connections on a raw asyncio protocol, each sending its next request when the last is answered.

Every reply is checked. A stream counts only when it ends in [DONE] with the expected number of
events. Prints one JSON object; a key, when one is needed, comes in BENCH_KEY.

    python -m benchmarks.driver --url http://127.0.0.1:8000 --connections 32 --seconds 5 --body body.json
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

COUNTER: Final = b"########"
"""Stands in the body where each request has its own number, so that no two prompts are the same."""

ANY_NUMBER: Final = 0
"""Any number of events is expected in each stream."""
CHAT_PATH: Final = "/v1/chat/completions"
_EVENT: Final = b"data: {"
_DONE: Final = b"data: [DONE]"
_TAIL_BYTES: Final = len(_DONE) - 1
# A role comes first; the second event is the first that carries a token.
_FIRST_TOKEN_EVENT: Final = 2
_OK: Final = 200
_RECONNECT_S: Final = 0.05


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load to send. `once` sends a single request on each connection, spread over `ramp_s`."""

    url: str
    body: bytes
    connections: int
    seconds: float
    warmup_s: float = 0.5
    path: str = CHAT_PATH
    expect_events: int | None = None
    once: bool = False
    ramp_s: float = 0.0
    key: str | None = None
    headers: tuple[str, ...] = ()
    """More header fields, each as `name: value`."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The replies after the warm-up. Times are microseconds."""

    sent: int
    """Every request, those of the warm-up too."""
    requests: int
    errors: int
    error_kinds: dict[str, int]
    seconds: float
    events: int
    peak_streams: int
    latencies_us: list[int]
    ttfts_us: list[int]


class Tally:
    """The sums over all connections."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.sent = 0
        self.requests = 0
        self.events = 0
        self.errors: Counter[str] = Counter()
        self.latencies_us: list[int] = []
        self.ttfts_us: list[int] = []
        self.open_streams = 0
        self.peak_streams = 0
        self.measure_from = time.perf_counter() + load.warmup_s
        self.stop_at = self.measure_from + load.seconds
        head, _, tail = load.body.partition(COUNTER)
        self._numbered = COUNTER in load.body
        self._before = _request_head(load) + head
        self._after = tail

    def next_request(self) -> bytes:
        self.sent += 1
        number = b"%08d" % self.sent if self._numbered else b""
        return self._before + number + self._after

    def result(self) -> Result:
        return Result(
            sent=self.sent,
            requests=self.requests,
            errors=self.errors.total(),
            error_kinds=dict(self.errors.most_common(10)),
            seconds=max(time.perf_counter(), self.measure_from) - self.measure_from,
            events=self.events,
            peak_streams=self.peak_streams,
            latencies_us=self.latencies_us,
            ttfts_us=self.ttfts_us,
        )


def _request_head(load: Load) -> bytes:
    lines = [
        f"POST {load.path} HTTP/1.1",
        f"host: {urlsplit(load.url).netloc}",
        "content-type: application/json",
        f"content-length: {len(load.body)}",
    ]
    if load.key is not None:
        lines.append(f"authorization: Bearer {load.key}")
    lines += load.headers
    return "\r\n".join([*lines, "", ""]).encode()


class Connection(asyncio.Protocol):
    """One caller. httptools calls `on_…` as the reply is parsed."""

    def __init__(self, tally: Tally, finished: "asyncio.Future[None]") -> None:
        self._tally = tally
        self._finished = finished
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._send()

    def _send(self) -> None:
        self._waiting = True
        self._events = 0
        self._tail = b""
        self._done = False
        self._ttft_s = 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(self._tally.next_request())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail("malformed")
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        if self._tally.load.expect_events is None:
            return
        # An event may be split over two pieces; the tail is too short to hold one twice.
        seen = self._tail + body
        before = self._events
        self._events += seen.count(_EVENT) - self._tail.count(_EVENT)
        self._done = self._done or _DONE in seen
        self._tail = seen[-_TAIL_BYTES:]
        if before < _FIRST_TOKEN_EVENT <= self._events:
            self._ttft_s = time.perf_counter() - self._sent_at
            self._tally.open_streams += 1
            self._tally.peak_streams = max(self._tally.peak_streams, self._tally.open_streams)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self._waiting = False
        self._close_stream()
        if self._sent_at >= self._tally.measure_from or self._tally.load.once:
            self._record(now)
        elif (problem := self._problem()) is not None:
            self._tally.errors[problem] += 1
        if self._tally.load.once or now >= self._tally.stop_at:
            self._transport.close()
        elif self._parser.should_keep_alive():
            self._send()
        else:
            self._transport.close()

    def _record(self, now: float) -> None:
        problem = self._problem()
        if problem is not None:
            self._tally.errors[problem] += 1
            return
        self._tally.requests += 1
        self._tally.events += self._events
        self._tally.latencies_us.append(round((now - self._sent_at) * 1e6))
        if self._ttft_s:
            self._tally.ttfts_us.append(round(self._ttft_s * 1e6))

    def _problem(self) -> str | None:
        status = self._parser.get_status_code()
        if status != _OK:
            return f"status {status}"
        if self._tally.load.expect_events is None:
            return None
        if not self._done:
            return "no [DONE]"
        if self._tally.load.expect_events not in {ANY_NUMBER, self._events}:
            return f"{self._events} events"
        return None

    def _close_stream(self) -> None:
        if self._ttft_s:
            self._tally.open_streams -= 1

    def fail(self, kind: str) -> None:
        if self._waiting:
            self._waiting = False
            self._close_stream()
            self._tally.errors[kind] += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.fail("connection lost")
        if not self._finished.done():
            self._finished.set_result(None)


async def _caller(tally: Tally, delay_s: float) -> None:
    """Keep one connection open until the load ends."""
    await asyncio.sleep(delay_s)
    while True:
        try:
            await _converse(tally)
        except OSError as error:
            tally.errors[f"connect: {error.strerror}"] += 1
        if tally.load.once or time.perf_counter() >= tally.stop_at:
            return
        await asyncio.sleep(_RECONNECT_S)


async def _converse(tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    address = urlsplit(tally.load.url)
    finished: asyncio.Future[None] = loop.create_future()
    host, port = address.hostname or "", address.port or 80
    transport, connection = await loop.create_connection(lambda: Connection(tally, finished), host, port)
    try:
        await finished
    except asyncio.CancelledError:
        connection.fail("no reply")
        raise
    finally:
        transport.abort()


async def drive(load: Load, *, give_up_s: float = 60.0) -> Result:
    """Run the load; a reply that has not come back `give_up_s` after its end counts as an error."""
    tally = Tally(load)
    step_s = load.ramp_s / load.connections
    callers = [asyncio.ensure_future(_caller(tally, number * step_s)) for number in range(load.connections)]
    _, pending = await asyncio.wait(callers, timeout=load.warmup_s + load.seconds + load.ramp_s + give_up_s)
    for caller in pending:
        caller.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return tally.result()


def _arguments() -> Load:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--path", default=CHAT_PATH, help="the route that is asked")
    parser.add_argument("--body", type=Path, required=True)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=0.5)
    parser.add_argument("--expect-events", type=int, help=f"how many a stream must have; {ANY_NUMBER} for any number")
    parser.add_argument("--once", action="store_true", help="one request on each connection")
    parser.add_argument("--ramp", type=float, default=0.0, help="seconds over which the connections start")
    parser.add_argument("--header", action="append", default=[], help="a header field more, as `name: value`")
    given = parser.parse_args()
    return Load(
        url=given.url,
        path=given.path,
        body=given.body.read_bytes(),
        connections=given.connections,
        seconds=given.seconds,
        warmup_s=given.warmup,
        expect_events=given.expect_events,
        once=given.once,
        ramp_s=given.ramp,
        key=os.environ.get("BENCH_KEY"),
        headers=tuple(given.header),
    )


def main() -> None:
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(drive(_arguments()))) + b"\n")


if __name__ == "__main__":
    main()
