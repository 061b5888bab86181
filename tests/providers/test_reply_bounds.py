"""Replies that never end, over real sockets: what surrounds a body is bounded, and what is held of all bodies together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from providers.errors import MalformedReply, StreamCut
from providers.held_bytes import HeldBytes, HeldTooMuch, Share
from providers.http_client import HttpLimits, HttpUpstream
from providers.upstream import NoRoomForReply, UpstreamStream
from tests.providers.calls import chat_request, deployment, read_all, talk, tokens_of, upstream_call

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENTS, _JSON = _HEAD % b"text/event-stream", _HEAD % b"application/json"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
_FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
_WHOLE = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}]}'
_PIECE = 64 * 1024
_MOST = 64 * 1024 * 1024
"""What an endless server writes at most, so that a failed test ends."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def endless(piece: Callable[[int], bytes]) -> Iterator[bytes]:
    number = 0
    while True:
        yield piece(number)
        number += 1


class Talker:
    """A server that answers each call with the pieces that it is given, as fast as they are taken."""

    def __init__(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        self._pieces = pieces
        self.url = ""
        self.written = 0
        self.cut = asyncio.Event()
        """Set once the other side has ended a connection before all was written."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(length)
                for piece in self._pieces():
                    writer.write(piece)
                    await writer.drain()
                    self.written += len(piece)
                    assert self.written < _MOST
        except (ConnectionError, asyncio.IncompleteReadError):
            self.cut.set()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def talking(pieces: Callable[[], Iterator[bytes]]) -> AsyncIterator[Talker]:
    talker = Talker(pieces)
    server = await asyncio.start_server(talker.answer, "127.0.0.1", 0)
    async with server:
        talker.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield talker


@contextlib.asynccontextmanager
async def direct(**limits: int) -> AsyncIterator[HttpUpstream]:
    upstream = HttpUpstream(HttpLimits(**limits))
    try:
        yield upstream
    finally:
        await upstream.aclose()


_ENDLESS = {
    "trailers": (b"0\r\n", lambda at: b"".join(b"x-%d: %b\r\n" % (at * 100 + each, b"v" * 40) for each in range(100))),
    "one trailer": (b"0\r\nx: ", lambda _: b"v" * _PIECE),
    "one extension": (b"5;", lambda _: b"a" * _PIECE),
    "a chunk's size": (b"", lambda _: b"0" * _PIECE),
    "tiny chunks": (b"", lambda _: b"1\r\n \r\n" * 10_000),
}


@pytest.mark.parametrize("kind", _ENDLESS)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_endless_beside_a_body_ends_the_reply(kind: str, stream: bool) -> None:
    """It fails as malformed after a few hundred kilobytes, its connection is cut, and nothing of it is held."""
    first, more = _ENDLESS[kind]

    def pieces() -> Iterator[bytes]:
        yield _EVENTS + chunk(_EVENT) if stream else _JSON + chunk(b"{")
        yield first
        yield from endless(more)

    async with talking(pieces) as talker, direct() as upstream:
        with pytest.raises(MalformedReply):
            await talk(upstream, upstream_call(deployment(base_url=talker.url), chat_request(stream=stream)))
        await talker.cut.wait()
        assert upstream.held.held == 0


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\nx: "])
async def test_an_endless_head_ends_the_reply(begin: bytes) -> None:
    """A reason or a field without an end is malformed."""

    def pieces() -> Iterator[bytes]:
        yield begin
        yield from endless(lambda _: b"O" * _PIECE)

    async with talking(pieces) as talker, direct() as upstream:
        with pytest.raises(MalformedReply):
            await talk(upstream, upstream_call(deployment(base_url=talker.url)))


async def test_interim_replies_without_end_end_the_reply() -> None:
    """Each is forgotten, but all of them together are no larger than a head may be."""
    async with (
        talking(lambda: endless(lambda _: b"HTTP/1.1 100 Continue\r\n\r\n" * 100)) as talker,
        direct() as upstream,
    ):
        with pytest.raises(MalformedReply):
            await talk(upstream, upstream_call(deployment(base_url=talker.url)))


async def test_what_usual_servers_put_beside_a_body_is_taken() -> None:
    """Some trailers, extensions, and a token in three writes: the reply is whole, and its connection is used again."""

    def pieces() -> Iterator[bytes]:
        yield _EVENTS
        for _ in range(2_000):
            yield b"%x;a=b\r\n" % len(_EVENT)
            yield _EVENT
            yield b"\r\n"
        yield chunk(_FINISH + b"data: [DONE]\n\n") + b"0\r\nserver-timing: a\r\nx-sum: b\r\n\r\n"

    async with talking(pieces) as talker, direct() as upstream:
        call = upstream_call(deployment(base_url=talker.url))
        for _ in range(2):
            assert tokens_of(await talk(upstream, call)) == 2_000
        assert not talker.cut.is_set()


async def test_endless_answers_share_what_there_is() -> None:
    """However many are read, each gets no more than what is left for the others, and all of it is given back."""

    def pieces() -> Iterator[bytes]:
        yield _JSON
        yield from endless(lambda _: chunk(b"a" * _PIECE))

    limit = 4 * 1024 * 1024
    async with talking(pieces) as talker, direct(max_replies_bytes=limit) as upstream:
        call = upstream_call(deployment(base_url=talker.url), chat_request())
        most = 0

        async def ask() -> str:
            nonlocal most
            stream = await upstream.open(call)
            try:
                while True:
                    await stream.read()
            except NoRoomForReply as error:
                most = max(most, upstream.held.held)
                return error.public
            finally:
                await stream.aclose()

        said = await asyncio.gather(*(ask() for _ in range(12)))
        assert most < limit
        assert all("server.max_replies_bytes" in each for each in said)
        assert upstream.held.held == 0


def _held_by(error: BaseException | None) -> int:
    """The bytes that the frames hold in which an error and its causes came up."""
    size = 0
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            held = trace.tb_frame.f_locals.values()
            size += sum(len(each) for each in held if isinstance(each, bytes | bytearray))
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return size


async def test_whoever_keeps_a_failure_keeps_no_answer() -> None:
    """An error may be held for long, by what tells and counts it; what was read of the answer is free at once."""
    pieces = [_JSON, *(chunk(b"a" * _PIECE) for _ in range(40))]
    async with talking(lambda: iter(pieces)) as talker, direct(max_replies_bytes=4_000_000) as upstream:
        stream = await _opened(upstream, talker.url)
        with pytest.raises(NoRoomForReply) as refused:
            await stream.read()
        await stream.aclose()
        assert _held_by(refused.value) < 10 * _PIECE


async def _read_on(stream: UpstreamStream) -> None:
    """Reads to the end, and keeps nothing."""
    while await stream.read():
        pass


async def _opened(upstream: HttpUpstream, url: str, *, stream: bool = False) -> UpstreamStream:
    return await upstream.open(upstream_call(deployment(base_url=url), chat_request(stream=stream)))


async def test_a_whole_answer_is_held_until_it_is_closed() -> None:
    """What was read counts as long as its reader has it, whether it was read to the end or given up in its middle."""
    body = _WHOLE % (b"a" * 500_000)
    async with talking(lambda: iter([_JSON + chunk(body) + b"0\r\n\r\n"])) as talker, direct() as upstream:
        stream = await _opened(upstream, talker.url)
        assert await stream.read()
        assert upstream.held.held == len(body)
        await stream.aclose()
        await stream.aclose()
        assert upstream.held.held == 0
        assert await read_all(await _opened(upstream, talker.url))

    async with talking(lambda: iter([_JSON + chunk(b"a" * 500_000)])) as talker, direct() as upstream:
        stream = await _opened(upstream, talker.url)
        reading = asyncio.create_task(stream.read())
        while not upstream.held.held:  # noqa: ASYNC110 - the count tells nobody
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await stream.aclose()
        assert upstream.held.held == 0


async def test_an_event_without_an_end_counts() -> None:
    """What a stream holds back of an event shares the room with all others."""
    async with (
        talking(lambda: iter([_EVENTS, *(chunk(b"data: " + b"a" * _PIECE) for _ in range(10))])) as talker,
        direct(max_replies_bytes=1_000_000) as upstream,
    ):
        stream = await _opened(upstream, talker.url, stream=True)
        with pytest.raises(NoRoomForReply):
            await stream.read()
        await stream.aclose()
        assert upstream.held.held == 0


@pytest.mark.parametrize("choices", [b"", b'{"index":0,"delta":{"content":""},"finish_reason":null}'])
async def test_what_comes_before_the_first_token_counts(choices: bytes) -> None:
    """Events that say nothing are held until one does, so they share the room with all other replies; later ones are not."""
    silent = b'data: {"choices":[%b]}\n\n' % choices

    def without_end() -> Iterator[bytes]:
        yield _EVENTS
        yield from endless(lambda _: chunk(silent * 100))

    async with talking(without_end) as talker, direct(max_replies_bytes=8_000_000) as upstream:
        stream = await _opened(upstream, talker.url, stream=True)
        with pytest.raises(NoRoomForReply):
            await _read_on(stream)
        await stream.aclose()
        await talker.cut.wait()
        assert upstream.held.held == 0

    async with (
        talking(lambda: iter([_EVENTS, chunk(_EVENT), *([chunk(silent * 1_000)] * 300), b"0\r\n\r\n"])) as talker,
        direct(max_replies_bytes=1_000_000) as upstream,
    ):
        stream = await _opened(upstream, talker.url, stream=True)
        with pytest.raises(StreamCut):
            await _read_on(stream)
        await stream.aclose()


@pytest.mark.parametrize("nothing", [b": keep\n\n", b"event: ping\n\n", b"data: {}\n\n", b"\n" * 9], ids=repr)
async def test_a_stream_that_says_nothing_ends(nothing: bytes) -> None:
    """It would keep the loop busy for as long as its caller stays, and is never silent."""

    def without_end() -> Iterator[bytes]:
        yield _EVENTS + chunk(_EVENT)
        yield from endless(lambda _: chunk(nothing * 4096))

    async with talking(without_end) as talker, direct() as upstream:
        stream = await _opened(upstream, talker.url, stream=True)
        with pytest.raises(MalformedReply, match="says nothing"):
            await _read_on(stream)
        await stream.aclose()


async def test_small_answers_are_never_refused() -> None:
    """Where nothing is left, an answer of the usual size is still taken."""
    body = _WHOLE % (b"a" * 50_000)
    async with talking(lambda: iter([_JSON + chunk(body) + b"0\r\n\r\n"])) as talker, direct() as upstream:
        assert upstream.held.take(upstream.held.limit)
        assert await read_all(await _opened(upstream, talker.url))


def test_a_share_leaves_as_much_as_it_has() -> None:
    """One may have half, and then others still have room; giving back twice gives back once."""
    held = HeldBytes(10_000_000)
    one, other = Share(held), Share(held)
    one.grow(5_000_000)
    with pytest.raises(HeldTooMuch):
        one.grow(5_000_001)
    other.grow(2_000_000)
    with pytest.raises(HeldTooMuch):
        other.grow(2_600_000)
    assert held.held == 7_000_000
    one.give_back()
    one.give_back()
    assert held.held == 2_000_000
