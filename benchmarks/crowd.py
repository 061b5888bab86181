"""Thousands of callers of several teams, each holding one stream at a time, in one process.

    python -m benchmarks.crowd --plan crowd.plan --result crowd.result

Callers come evenly over the ramp, in an order that mixes the teams. Each sends its next request when its stream has
ended, on the same connection. A stream counts only when it has exactly the expected events and its [DONE].
"""

import asyncio
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

from benchmarks.driver import COUNTER
from benchmarks.load_test import plan_of

_EVENT: Final = b"data: {"
_DONE: Final = b"data: [DONE]"
_TAIL_BYTES: Final = len(_DONE) - 1
# A role comes first; the second event is the first that carries a token.
_FIRST_TOKEN_EVENT: Final = 2
_OK: Final = 200
_SAMPLE_S: Final = 0.25
_TELL_EVERY: Final = 8
_KINDS_TOLD: Final = 10
_MOST_ERROR_BYTES: Final = 4_096
_CODE: Final = re.compile(rb'"code":\s*"([a-z_]{1,64})"')


class Callers(msgspec.Struct, frozen=True):
    """So many callers of one team."""

    team_id: str
    key: str
    count: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    body: str
    """The request, the same for all but for its number."""
    callers: tuple[Callers, ...]
    streams_each: int
    ramp_s: float
    events: int
    """Events of a whole stream."""
    give_up_s: float
    """Seconds after the beginning at which open streams count as errors."""
    seed: int = 1


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The state of a crowd at a moment of the monotonic clock."""

    at_s: float
    open_streams: int
    events: int
    """So far."""
    cpu_s: float
    """This driver's own processor time."""


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """One whole stream."""

    caller: int
    round: int
    ttft_us: int
    flow_us: int
    """Time from the first token to the end."""


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a crowd."""

    ended: list[Ended]
    error_kinds: dict[str, int]
    peak_streams: int
    peak_by_team: dict[str, int]
    """Open streams by team at the moment of the peak of all."""
    connects_us: list[int]
    samples: list[Sample]


class Tally:
    """The sums over all callers."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events = 0
        self.open = Counter[str]()
        self.open_streams = 0
        self.peak_streams = 0
        self.peak_by_team: dict[str, int] = {}
        self.errors: Counter[str] = Counter()
        self.ended: list[Ended] = []
        self.connects_us: list[int] = []
        self.samples: list[Sample] = []
        self.sent = 0

    def opened(self, team_id: str) -> None:
        self.open[team_id] += 1
        self.open_streams += 1
        if self.open_streams > self.peak_streams:
            self.peak_streams = self.open_streams
            self.peak_by_team = dict(self.open)

    def closed(self, team_id: str) -> None:
        self.open[team_id] -= 1
        self.open_streams -= 1

    def sample(self) -> None:
        self.samples.append(Sample(time.monotonic(), self.open_streams, self.events, time.process_time()))

    def result(self) -> Crowd:
        return Crowd(
            ended=self.ended,
            error_kinds=dict(self.errors.most_common(_KINDS_TOLD)),
            peak_streams=self.peak_streams,
            peak_by_team=self.peak_by_team,
            connects_us=self.connects_us,
            samples=self.samples,
        )


class Requests:
    """The bytes of a team's requests, each with a number of its own."""

    def __init__(self, plan: Plan, key: str, tally: Tally) -> None:
        body = plan.body.encode()
        before, counter, self._after = body.partition(COUNTER)
        self._numbered = bool(counter)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {urlsplit(plan.url).netloc}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nauthorization: Bearer {key}\r\n\r\n"
        )
        self._before = head.encode() + before
        self._tally = tally

    def next(self) -> bytes:
        self._tally.sent += 1
        number = b"%08d" % self._tally.sent if self._numbered else b""
        return self._before + number + self._after


class Caller(asyncio.Protocol):
    """One caller. httptools calls `on_…` as a reply is parsed."""

    __slots__ = (
        "_done", "_events", "_finished", "_first_at", "_number", "_parser", "_refusal", "_requests", "_round", "_sent_at", "_tail",
        "_tally", "_team_id", "_transport", "_waiting",
    )  # fmt: skip

    def __init__(
        self, tally: Tally, requests: Requests, team_id: str, number: int, finished: "asyncio.Future[None]"
    ) -> None:
        self._tally = tally
        self._requests = requests
        self._team_id = team_id
        self._number = number
        self._finished = finished
        self._round = 0
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
        self._refusal = b""
        self._first_at = 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests.next())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail("malformed")
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        if self._parser.get_status_code() != _OK:
            self._refusal += body[:_MOST_ERROR_BYTES]
            return
        # An event may be split over two pieces; the tail is too short to hold one twice.
        seen = self._tail + body
        before = self._events
        came = seen.count(_EVENT) - self._tail.count(_EVENT)
        self._events += came
        self._tally.events += came
        self._done = self._done or _DONE in seen
        self._tail = seen[-_TAIL_BYTES:]
        if before < _FIRST_TOKEN_EVENT <= self._events:
            self._first_at = time.perf_counter()
            self._tally.opened(self._team_id)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self._waiting = False
        self._close_stream()
        if (problem := self._problem()) is not None:
            self._tally.errors[problem] += 1
            self._transport.close()
            return
        ttft_us, flow_us = round((self._first_at - self._sent_at) * 1e6), round((now - self._first_at) * 1e6)
        self._tally.ended.append(Ended(self._number, self._round, ttft_us, flow_us))
        self._round += 1
        if self._round >= self._tally.plan.streams_each:
            self._transport.close()
        elif self._parser.should_keep_alive():
            self._send()
        else:
            self._tally.errors["the connection was not kept"] += 1
            self._transport.close()

    def _problem(self) -> str | None:
        status = self._parser.get_status_code()
        if status != _OK:
            code = _CODE.search(self._refusal)
            return f"status {status}" + (f" {code[1].decode()}" if code else "")
        if not self._done:
            return "no [DONE]"
        return None if self._events == self._tally.plan.events else f"{self._events} events"

    def _close_stream(self) -> None:
        if self._first_at:
            self._tally.closed(self._team_id)

    def fail(self, kind: str) -> None:
        if self._waiting:
            self._waiting = False
            self._close_stream()
            self._tally.errors[kind] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail("connection lost" if exc is None else f"connection lost: {type(exc).__name__}")
        if not self._finished.done():
            self._finished.set_result(None)


async def _call(tally: Tally, requests: Requests, team_id: str, number: int, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    loop = asyncio.get_running_loop()
    address = urlsplit(tally.plan.url)
    finished: asyncio.Future[None] = loop.create_future()
    began = time.perf_counter()

    def connected() -> Caller:
        return Caller(tally, requests, team_id, number, finished)

    try:
        transport, caller = await loop.create_connection(connected, address.hostname or "", address.port or 80)
    except OSError as error:
        tally.errors[f"connect: {error.strerror}"] += 1
        return
    tally.connects_us.append(round((time.perf_counter() - began) * 1e6))
    try:
        await finished
    except asyncio.CancelledError:
        caller.fail("not ended in time")
        raise
    finally:
        transport.abort()


def places(callers: tuple[Callers, ...], seed: int) -> list[int]:
    """Return the order of turns, caller by caller, as indices into `callers`: mixed, and the same for the same seed."""
    order = [index for index, each in enumerate(callers) for _ in range(each.count)]
    random.Random(seed).shuffle(order)
    return order


async def drive(plan: Plan) -> Crowd:
    """Drive every caller to its end, or to the time limit."""
    tally = Tally(plan)
    requests = [Requests(plan, each.key, tally) for each in plan.callers]
    order = places(plan.callers, plan.seed)
    step_s = plan.ramp_s / max(1, len(order))
    calls = [
        asyncio.ensure_future(_call(tally, requests[place], plan.callers[place].team_id, number, number * step_s))
        for number, place in enumerate(order)
    ]
    sampling = asyncio.ensure_future(_sample(tally))
    _, pending = await asyncio.wait(calls, timeout=plan.give_up_s)
    for call in pending:
        call.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    sampling.cancel()
    tally.sample()
    return tally.result()


async def _sample(tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        tally.sample()
        if len(tally.samples) % _TELL_EVERY == 0:
            before, now = tally.samples[-_TELL_EVERY], tally.samples[-1]
            rate = (now.events - before.events) / max(1e-9, now.at_s - before.at_s)
            said = f"{now.open_streams:,} open, {rate:,.0f} events/s, {len(tally.ended):,} ended, {tally.errors.total()} errors"
            sys.stderr.write(said + "\n")
            sys.stderr.flush()
        due += _SAMPLE_S
        await asyncio.sleep(max(0.0, due - loop.time()))


def main() -> None:
    plan, result = plan_of(Plan, __doc__)
    Path(result).write_bytes(msgspec.json.encode(uvloop.run(drive(plan))))


if __name__ == "__main__":
    main()
