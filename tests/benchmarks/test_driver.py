import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from benchmarks import mock_upstream
from benchmarks.driver import COUNTER, Load, drive
from benchmarks.figures import percentile
from benchmarks.run import PROMPT_TOKENS, chat_body
from classifier.tokens import estimate_tokens

_BODY = b'{"model":"auto","messages":[{"role":"user","content":"' + COUNTER + b' hello"}]}'
_STREAM = b'{"stream":true,"max_tokens":5,"seed":%d}'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def _mock() -> AsyncIterator[str]:
    server = await mock_upstream.listen(0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        # The other end's connections close when they read the end of ours.
        await asyncio.sleep(0.01)


@asynccontextmanager
async def _answering(
    pieces: list[bytes], bodies: list[bytes] | None = None, *, hang: bool = False
) -> AsyncIterator[str]:
    """A server that answers every request with the same pieces, then closes or hangs."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received = await reader.read(10_000)
        if bodies is not None:
            bodies.append(received)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.001)
        if hang:
            await reader.read()
        writer.close()
        closed.append(writer)

    closed: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.01)
        for writer in closed:
            await writer.wait_closed()


def _load(url: str, body: bytes, **changes: object) -> Load:
    load = Load(url=url, body=body, connections=1, seconds=0.05, warmup_s=0.0, once=True)
    return msgspec.structs.replace(load, **changes)


async def test_the_driver_keeps_its_connections_busy() -> None:
    """In a closed loop every connection sends again as soon as it is answered, and nothing fails."""
    async with _mock() as url:
        result = await drive(_load(url, _BODY, connections=4, once=False))
    assert result.requests > 4
    assert len(result.latencies_us) == result.requests
    assert result.errors == 0


@pytest.mark.parametrize("pace", [0, 500])
async def test_a_stream_has_its_events_and_its_end(pace: int) -> None:
    """At full speed and at a pace: a role, the wanted content, a finish reason and [DONE]."""
    async with _mock() as url:
        result = await drive(_load(url, _STREAM % pace, connections=3, expect_events=5 + mock_upstream.FRAMING_EVENTS))
    assert (result.requests, result.errors, result.events) == (3, 0, 21)
    assert len(result.ttfts_us) == 3
    assert 1 <= result.peak_streams <= 3


async def test_usage_is_one_more_event_when_asked_for() -> None:
    """The gateway asks for usage; the driver that did not must not see it."""
    body = b'{"stream":true,"max_tokens":1,"stream_options":{"include_usage":true}}'
    async with _mock() as url:
        result = await drive(_load(url, body, expect_events=4))
    assert result.errors == 0


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"], "status 503"),
        ([_HEAD, b"b\r\ndata: {}\n\n\r\n\r\n0\r\n\r\n"], "malformed"),
        ([_HEAD, b"a\r\ndata: {}\n\n\r\n0\r\n\r\n"], "no [DONE]"),
        ([_HEAD, b"18\r\ndata: {}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n"], "1 events"),
        ([_HEAD, b"a\r\ndata: {}\n\n\r\n"], "connection lost"),
    ],
)
async def test_a_wrong_reply_is_an_error(pieces: list[bytes], problem: str) -> None:
    """A bad status, a broken frame, a missing end, a missing event and a cut are told apart, and never counted as served."""
    async with _answering(pieces) as url:
        result = await drive(_load(url, _STREAM % 0, expect_events=2))
    assert (result.requests, result.error_kinds) == (0, {problem: 1})


async def test_an_event_split_anywhere_is_counted_once() -> None:
    """However the bytes are cut into pieces, the count is the same."""
    events = b"data: {}\n\ndata: {}\n\ndata: [DONE]\n\n"
    pieces = [_HEAD, *[b"1\r\n%c\r\n" % byte for byte in events], b"0\r\n\r\n"]
    async with _answering(pieces) as url:
        result = await drive(_load(url, _STREAM % 0, expect_events=2))
    assert (result.requests, result.errors, result.events) == (1, 0, 2)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    """A refused connection is counted and the load ends."""
    async with _mock() as url:
        pass
    result = await drive(_load(url, _BODY))
    assert result.errors == 1


async def test_a_reply_that_never_comes_ends_the_load() -> None:
    """The driver gives up and says so."""
    async with _answering([_HEAD], hang=True) as url:
        result = await drive(_load(url, _BODY, seconds=0.01), give_up_s=0.0)
    assert result.errors == 1


async def test_no_two_prompts_are_the_same() -> None:
    """Each request carries a number of its own, so that nothing is answered from a cache."""
    bodies: list[bytes] = []
    async with _answering([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"], bodies) as url:
        await drive(_load(url, _BODY, connections=3))
    assert len({bytes(body) for body in bodies}) == 3


def test_the_benchmark_prompt_has_800_tokens() -> None:
    """The body is valid JSON with a prompt of about the promised length, the number at its beginning."""
    body = msgspec.json.decode(chat_body(stream=True, tokens=7, pace=20))
    text = body["messages"][0]["content"]
    assert text.encode().startswith(COUNTER)
    assert PROMPT_TOKENS <= estimate_tokens(text) < PROMPT_TOKENS + 40
    assert (body["stream"], body["max_tokens"], body["seed"]) == (True, 7, 20)


@pytest.mark.parametrize(("share", "value"), [(0.5, 51), (0.99, 100), (0.0, 1)])
def test_a_percentile_is_a_measured_value(share: float, value: int) -> None:
    """Nothing is interpolated, and no values give 0."""
    assert percentile(list(range(100, 0, -1)), share) == value
    assert percentile([], share) == 0
