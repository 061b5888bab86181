"""What a connection may cost before and beside its requests; over real sockets, with time that the tests move."""

import asyncio
import contextlib
import socket
import struct
import tracemalloc
from typing import Any

import pytest

from proxy.http.connection import Connection
from proxy.http.exchange import Exchange
from tests.cost.entries import until
from tests.proxy.http.callers import Caller, Echo, Served, chunked, post, serving

_UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


@pytest.fixture
async def echo() -> Echo:
    return Echo()


def _connections(served: Served) -> list[Connection]:
    return list(served.server.connections)


async def test_a_connection_serves_many_requests(echo: Echo) -> None:
    """Bodies of any framing, in any pieces, and stray empty lines between requests."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/a", b"one"), b"\r\n")
        assert await caller.reply() == (200, b"/a one")
        await caller.send_slowly(chunked(b"/b", b"two"))
        assert await caller.reply() == (200, b"/b two")
        await caller.send(post(b"/c", b"x" * 300_000))
        assert await caller.reply() == (200, b"/c " + b"x" * 300_000)
        await caller.send_slowly(post(b"/d", b"four"))
        assert await caller.reply() == (200, b"/d four")
        assert len(_connections(served)) == 1


async def test_the_body_is_asked_for_when_it_is_read(echo: Echo) -> None:
    """`Expect: 100-continue` gets its answer before the body; one that nobody reads is not asked for, and is the last."""
    async with serving(echo) as served:
        caller = await served.call()
        head, body = post(b"/d", b"four", extra=b"Expect: 100-continue\r\n")[:-4], b"four"
        await caller.send(head)
        assert (await caller.head())[0] == 100
        await caller.send(body)
        assert await caller.reply() == (200, b"/d four")
        await caller.send(head.replace(b"/d", b"/unread"))
        status, headers, _ = await caller.whole_reply()
        assert (status, headers["connection"]) == (200, "close")
        assert await caller.rest() == b""


async def test_another_expectation_is_refused(echo: Echo) -> None:
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/a", b"one", extra=b"Expect: a-miracle\r\n"))
        assert (await caller.error())[:2] == (417, "unknown_expectation")


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("before", [b"", post(b"/first", b"x" * 3000), chunked(b"/first", b"x" * 3000)])
async def test_a_large_head_is_refused(echo: Echo, before: bytes, *, complete: bool) -> None:
    """Headers over the limit get 431 in OpenAI's shape and a close, whether or not they ever end."""
    async with serving(echo, max_head_bytes=2000) as served:
        caller = await served.call()
        if before:
            await caller.send(before)
            assert (await caller.reply())[0] == 200
        large = b"GET /large HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 2000
        await caller.send(large + (b"\r\n\r\n" if complete else b""))
        status, code, headers = await caller.error()
        assert (status, code, headers["connection"]) == (431, "request_header_fields_too_large", "close")
        assert await caller.rest() == b""
        assert echo.paths == (["/first"] if before else [])


@pytest.mark.parametrize("complete", [True, False])
async def test_many_header_fields_are_refused(echo: Echo, *, complete: bool) -> None:
    """The number of fields is bounded and not only their bytes; as many as allowed are served."""
    async with serving(echo, max_head_fields=50) as served:
        caller = await served.call()
        await caller.send(b"GET /a HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 49 + b"\r\n")
        assert (await caller.reply())[0] == 200
        await caller.send(b"GET /b HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 50 + (b"\r\n" if complete else b"b: "))
        assert (await caller.error())[0] == 431
        assert echo.paths == ["/a"]


async def test_an_unfinished_head_costs_its_bytes(echo: Echo) -> None:
    """What is kept of a head without an end is one block of bytes, so many small fields make it no dearer."""
    async with serving(echo, max_head_fields=20_000) as served:
        caller = await served.call()
        head = b"GET /a HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 10_000
        await caller.send(head)
        await until(lambda: any(len(each._pending) == len(head) for each in _connections(served)))
        assert not echo.seen


async def test_a_head_as_large_as_allowed_is_served(echo: Echo) -> None:
    """The limit counts headers only: a body beside them, of any size, is not held against them."""
    async with serving(echo, max_head_bytes=2000) as served:
        caller = await served.call()
        for _ in range(3):
            await caller.send(post(b"/a", b"b" * 100_000, extra=b"X: " + b"y" * 1800 + b"\r\n"))
            assert (await caller.reply())[0] == 200
        chunk = chunked(b"/a", b"b" * 50_000)
        for at in range(0, len(chunk), 9000):
            await caller.send(chunk[at : at + 9000])
            await asyncio.sleep(0.002)
        assert (await caller.reply())[0] == 200
        await caller.send(post(b"/a", b"b" * 1000, extra=b"X: " + b"y" * 1800 + b"\r\n") * 2)
        assert [(await caller.reply())[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    ("trailer", "times"), [(b"X-%d: yyyyyyyyyyyyyyyyyyyy\r\n", 2000), (b"a%d:\r\n", 200), (b"x%d" + b"y" * 100, 400)]
)
async def test_trailers_are_bounded(echo: Echo, trailer: bytes, times: int) -> None:
    """Header fields behind a body end the request like those before it when they are too many or too long."""
    async with serving(echo, max_head_bytes=2000, max_head_fields=100) as served:
        caller = await served.call()
        await caller.send(chunked(b"/a", b"body")[:-2])
        with contextlib.suppress(ConnectionError):
            for number in range(times):
                await caller.send(trailer % number)
                await asyncio.sleep(0)
        assert (await caller.error())[0] == 431


async def test_very_small_chunks_are_bounded(echo: Echo) -> None:
    """Each chunk costs the same work, so a long body of one-byte chunks is refused."""
    async with serving(echo) as served:
        caller = await served.call()
        sending = asyncio.ensure_future(caller.send(chunked(b"/a", b"x")[:-5] + b"1\r\nx\r\n" * 30_000))
        assert (await caller.error())[:2] == (400, "invalid_http")
        sending.cancel()


@pytest.mark.parametrize("first", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: a\r\nX", b"\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(echo: Echo, first: bytes) -> None:
    """A connection without a complete request is closed in time, however it begins and however slowly it goes on."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(first)
        await until(lambda: bool(_connections(served)))
        served.later(6)
        await caller.send(b"X" if first.strip() else b"\r\n")
        await asyncio.sleep(0.01)
        served.later(5)
        assert await caller.rest() == b""
        assert not echo.seen


async def test_a_later_head_that_does_not_come_is_not_waited_for(echo: Echo) -> None:
    """Also a kept connection has only so long once its next request begins; before that it may be idle."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/a", b"one"))
        await caller.reply()
        served.later(60)
        await caller.send(post(b"/b", b"two"))
        assert await caller.reply() == (200, b"/b two")
        await caller.send(b"GET /c")
        await until(lambda: any(each._pending for each in _connections(served)))
        served.later(11)
        assert await caller.rest() == b""


@pytest.mark.parametrize("kept", [b"", b"\r\n"])
async def test_an_idle_connection_is_closed(echo: Echo, kept: bytes) -> None:
    """Nothing but a request keeps a connection, empty lines neither."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/a", b"one"))
        await caller.reply()
        served.later(50)
        await caller.send(kept)
        await asyncio.sleep(0.01)
        served.later(26)
        assert await caller.rest() == b""


async def test_a_slow_body_is_refused(echo: Echo) -> None:
    """A body that somebody waits for has its time, and its caller gets 408; before that it may take it."""
    async with serving(echo) as served:
        caller = await served.call()
        request = post(b"/a", b"four")
        await caller.send(request[:-2])
        await until(lambda: any(exchange._waiter for exchange in echo.seen))
        served.later(20)
        await caller.send(request[-2:-1])
        await until(lambda: echo.seen[0].arrived == 3)
        served.later(11)
        status, code, headers = await caller.error()
        assert (status, code, headers["connection"]) == (408, "request_timeout", "close")
        assert await caller.rest() == b""


async def test_a_chunk_that_only_begins_is_not_waited_for_long() -> None:
    """Whoever reads piece by piece waits on when a read brings no byte of the body, and so does the clock."""
    reading = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        reading.set()
        while await exchange.read():
            pass
        exchange.respond(204, [])

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(b"POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        await reading.wait()
        await caller.send(b"4\r\n")
        await until(lambda: any(each._chunks is not None and each._chunks._left for each in _connections(served)))
        served.later(31)
        assert (await caller.error())[:2] == (408, "request_timeout")


async def test_a_request_under_way_may_take_its_time(echo: Echo) -> None:
    """No limit of the connection's is for the answer, and an empty line behind the request changes nothing."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"four") + b"\r\n")
        await echo.arrived.wait()
        served.later(1000)
        echo.gate.set()
        assert await caller.reply() == (200, b"/held four")


@pytest.mark.parametrize("framed", [post, chunked])
@pytest.mark.parametrize("size", [1, 5_000_000])
async def test_an_answer_before_the_requests_end_ends_the_connection(echo: Echo, framed: Any, size: int) -> None:
    """However little is left: it is told with the answer, which is not lost though the caller still sends."""
    async with serving(echo) as served:
        caller = await served.call()
        request = framed(b"/unread", b"x" * size)
        sent = request.index(b"\r\n\r\n") + 4 + min(10_000, size // 2)
        await caller.send(request[:sent])
        status, headers, body = await caller.whole_reply()
        assert (status, headers["connection"], body) == (200, "close", b"/unread ")
        with contextlib.suppress(ConnectionError):
            await caller.send(request[sent:], post(b"/never", b"x"))
        assert await caller.rest() == b""
        assert echo.paths == ["/unread"]


async def test_a_begun_reply_is_cut_when_its_request_is_overdue(echo: Echo) -> None:
    """Whoever answers for longer than the rest of the request may take goes on for nobody."""
    gone = asyncio.Event()

    async def begin(exchange: Exchange) -> None:
        exchange.on_gone = gone.set
        exchange.start(200, [])
        exchange.write(b"begun")
        await gone.wait()

    async with serving(begin) as served:
        caller = await served.call()
        await caller.send(post(b"/", b"x" * 50)[:-1])
        status, headers = await caller.head()
        assert (status, headers["connection"]) == (200, "close")
        served.later(29)
        assert not gone.is_set()
        served.later(2)
        assert await caller.rest() == b"5\r\nbegun\r\n"
        assert gone.is_set()
        await until(lambda: not served.server.tasks)


async def test_a_begun_reply_whose_request_ends_goes_on(echo: Echo) -> None:
    """What came in time is waited for no more."""
    goes_on = asyncio.Event()

    async def begin(exchange: Exchange) -> None:
        exchange.start(200, [])
        exchange.write(b"begun")
        await goes_on.wait()
        exchange.end(b"ended")

    async with serving(begin) as served:
        caller = await served.call()
        await caller.send(post(b"/", b"x" * 50)[:-1])
        await caller.head()
        await caller.send(b"x")
        await until(lambda: all(each._exchange is not None and each._exchange.whole for each in _connections(served)))
        served.later(31)
        goes_on.set()
        assert (await caller.rest()).endswith(b"5\r\nended\r\n0\r\n\r\n")


async def test_the_rest_of_an_answered_request_is_not_waited_for_long(echo: Echo) -> None:
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/unread", b"x" * 50_000)[:1000])
        assert (await caller.reply())[0] == 200
        served.later(31)
        assert await caller.rest() == b""


async def test_connections_are_bounded(echo: Echo) -> None:
    """One connection too many is told so and closed; when another ends there is a place again."""
    async with serving(echo, max_connections=2) as served:
        first, second = await served.call(), await served.call()
        await second.send(post(b"/a", b"one"))
        assert (await second.reply())[0] == 200
        third = await served.call()
        status, code, headers = await third.error()
        assert (status, code) == (503, "overloaded")
        assert (headers["retry-after"], headers["connection"]) == ("1", "close")
        await first.leave()
        await until(lambda: len(_connections(served)) == 1)
        fourth = await served.call()
        await fourth.send(post(b"/b", b"two"))
        assert (await fourth.reply())[0] == 200


@pytest.mark.parametrize("slowly", [True, False])
@pytest.mark.parametrize("framed", [post, chunked])
async def test_an_upgrade_is_ignored_and_the_body_is_kept(echo: Echo, framed: Any, *, slowly: bool) -> None:
    """A request that asks for HTTP/2 is served as HTTP/1.1 with its whole body, and so are those after it."""
    async with serving(echo) as served:
        caller = await served.call()
        data = framed(b"/a", b"one", extra=_UPGRADE) + framed(b"/b", b"two", extra=_UPGRADE) + framed(b"/c", b"three")
        await (caller.send_slowly(data) if slowly else caller.send(data))
        assert [await caller.reply() for _ in range(3)] == [(200, b"/a one"), (200, b"/b two"), (200, b"/c three")]
        assert [exchange.field(b"upgrade") for exchange in echo.seen] == [None] * 3


@pytest.mark.parametrize(
    "request_line",
    [
        b"CONNECT a:1 HTTP/1.1",
        b"CONNECT / HTTP/1.1",
        b"nonsense",
        b"PRI * HTTP/2.0\r\n\r\nSM",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1111 80",
        b"PROXY UNKNOWN",
        b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x02\x04\x57\x00\x50",
        b"\x16\x03\x01",
        b"GET / HTTP/1.1\n",
    ],
)
async def test_what_is_no_request_is_refused(echo: Echo, request_line: bytes) -> None:
    """A tunnel, nonsense, TLS, HTTP/2, the PROXY protocol of either version or bare line feeds get 400 in OpenAI's shape and a close."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(request_line + b"\r\nHost: a\r\n\r\n")
        assert (await caller.error())[:2] == (400, "invalid_http")
        assert await caller.rest() == b""
        assert not echo.seen


async def test_nonsense_behind_a_request_is_answered_after_it(echo: Echo) -> None:
    """The request gets its reply undisturbed, and only then what cannot be read ends the connection."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"one"))
        await echo.arrived.wait()
        await caller.send(b"nonsense\r\n\r\n")
        await asyncio.sleep(0.01)
        echo.gate.set()
        assert await caller.reply() == (200, b"/held one")
        assert (await caller.error())[:2] == (400, "invalid_http")
        assert await caller.rest() == b""


@pytest.mark.parametrize("rest", [b"zz\r\n", b"3\r\nabcd\r\n", b"3\nabc\r\n", b"-1\r\n", b"3 \r\nabc\r\n"])
async def test_a_broken_chunk_ends_the_request_at_once(echo: Echo, rest: bytes) -> None:
    """Its caller is told, and nothing behind it is read."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(chunked(b"/a", b"one")[:-5] + rest + post(b"/b", b"two"))
        status, code, headers = await caller.error()
        assert (status, code, headers["connection"]) == (400, "invalid_http", "close")
        assert await caller.rest() == b""
        assert echo.paths == ["/a"]


async def test_a_broken_chunk_cuts_a_reply_that_has_begun() -> None:
    """The stream ends at once, without its end, and not after a timeout."""
    ended = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        exchange.on_gone = ended.set
        exchange.start(200, [])
        exchange.write(b"begun")
        await ended.wait()

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(chunked(b"/a", b"one")[:-5])
        await caller.head()
        await caller.send(b"zz\r\n")
        assert not (await caller.rest()).endswith(b"0\r\n\r\n")
        assert ended.is_set()


async def test_a_hang_up_is_noticed_behind_a_waiting_request(echo: Echo) -> None:
    """The running request learns that its caller is gone though another request was sent behind it."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"one"))
        await echo.arrived.wait()
        await caller.send(post(b"/next", b"two"))
        await until(lambda: any(each._pending for each in _connections(served)))
        await caller.leave()
        await echo.hung_up.wait()
        assert echo.paths == ["/held"]


async def test_a_reset_is_noticed(echo: Echo) -> None:
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"one"))
        await echo.arrived.wait()
        caller.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await caller.leave()
        await echo.hung_up.wait()


async def test_a_caller_that_only_sends_no_more_gets_its_answers(echo: Echo) -> None:
    """Also those to requests that it sent ahead; then the connection ends."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"one") + post(b"/b", b"two"))
        await echo.arrived.wait()
        caller.end_sending()
        assert (await caller.head())[0] == 100
        await asyncio.sleep(0.1)
        served.later(1)
        echo.gate.set()
        assert await caller.reply() == (200, b"/held one")
        assert await caller.reply() == (200, b"/b two")
        assert await caller.rest() == b""
        assert not echo.hung_up.is_set()


async def test_a_quiet_stream_gets_its_probe_and_only_when_it_is_quiet() -> None:
    """Before its head its answerer is told instead; what was said in between puts the next probe off."""
    begun, over = asyncio.Event(), asyncio.Event()
    told: list[Exchange] = []

    async def answer(exchange: Exchange) -> None:
        exchange.on_quiet = lambda: told.append(exchange)
        begun.set()
        await over.wait()
        exchange.end()

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await begun.wait()
        served.later(14)
        assert not told
        served.later(2)
        (exchange,) = told
        exchange.start(200, [], probe=b": x\n")
        served.later(14)
        exchange.write(b"data: 1\n\n")
        served.later(14)
        served.later(2)
        served.later(10)
        over.set()
        assert (await caller.reply())[1] == b"data: 1\n\n: x\n"
        # A connection that only rests is not spoken to.
        served.later(40)
        assert told == [exchange]


@pytest.mark.parametrize("gone", [True, False])
async def test_a_stream_finds_out_whether_its_caller_is_gone(*, gone: bool) -> None:
    """By what may stand in it without a meaning: one that hung up is noticed, one that still reads is not disturbed."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        exchange.on_gone = ended.set
        exchange.start(200, [], probe=b":\n\n")
        exchange.write(b"data: 1\n\n")
        begun.set()
        await ended.wait()
        exchange.end(b"data: 2\n\n")

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await begun.wait()
        await caller.reader.readuntil(b"data: 1\n\n\r\n")
        if gone:
            await caller.leave()
            await ended.wait()
        else:
            caller.end_sending()
            await asyncio.sleep(0.1)
            assert not ended.is_set()
            ended.set()
            assert await caller.rest() == b"3\r\n:\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("framed", [post, chunked])
async def test_requests_sent_ahead_are_answered_in_order(echo: Echo, framed: Any) -> None:
    """However many come in one write, all are answered, one after the other."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(b"".join(framed(b"/%d" % number, b"x") for number in range(300)))
        assert [await caller.reply() for _ in range(300)] == [(200, b"/%d x" % number) for number in range(300)]


async def test_requests_sent_ahead_wait_outside(echo: Echo) -> None:
    """While one is answered, those behind it are bytes, few of them, and the rest stays in the socket."""
    async with serving(echo, max_ahead_bytes=10_000) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"x"))
        await echo.arrived.wait()
        ahead = post(b"/a", b"x" * 1000)
        sending = asyncio.ensure_future(caller.send(*[ahead] * 4_000))
        await until(lambda: any(len(each._pending) > 10_000 for each in _connections(served)))
        await asyncio.sleep(0.05)
        assert sum(len(each._pending) for each in _connections(served)) < 1_000_000
        assert len(echo.seen) == 1
        echo.gate.set()
        for _ in range(4_000):
            await caller.reply()
        await sending


async def test_who_does_not_read_its_replies_gets_no_more(echo: Echo) -> None:
    """Requests sent ahead are not answered into a buffer without end, and the caller is cut off in time."""

    async def answer(exchange: Exchange) -> None:
        echo.seen.append(exchange)
        exchange.respond(200, [], b"x" * 500_000)

    async with serving(answer) as served:
        caller = await served.call(limit=1)
        sending = asyncio.ensure_future(caller.send(*[post(b"/a", b"x" * 1000)] * 10_000))
        await until(lambda: any(each.blocked_since is not None for each in _connections(served)))
        await asyncio.sleep(0.05)
        assert len(echo.seen) < 60
        served.later(31)
        await until(lambda: not _connections(served))
        with contextlib.suppress(ConnectionError):
            await sending


async def test_a_slow_reader_of_a_stream_is_cut_off() -> None:
    """What writes waits for it, and learns why it is gone."""
    why: list[str | None] = []

    async def answer(exchange: Exchange) -> None:
        exchange.start(200, [])
        while exchange.gone is None:
            exchange.write(b"x" * 100_000)
            await exchange.drained()
        why.append(exchange.gone)

    async with serving(answer) as served:
        caller = await served.call(limit=1)
        await caller.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: any(each.blocked_since is not None for each in _connections(served)))
        served.later(29)
        assert _connections(served)
        served.later(2)
        await until(lambda: why == ["slow_reader"])


async def test_bodies_are_bounded_all_together() -> None:
    """What does not fit into the memory for bodies is refused until there is room; who waits for nothing holds nothing."""
    gate = asyncio.Event()

    async def hold(exchange: Exchange) -> None:
        await exchange.body(1_000_000)
        await gate.wait()
        exchange.respond(200, [])

    async with serving(hold, max_bodies_bytes=250_000) as served:
        callers: list[Caller] = [await served.call() for _ in range(3)]
        for caller in callers[:2]:
            await caller.send(post(b"/a", b"x" * 100_000))
        await until(lambda: served.server.held.held == 200_000)
        await callers[2].send(post(b"/a", b"x" * 100_000))
        status, code, headers = await callers[2].error()
        assert (status, code, headers["retry-after"]) == (503, "overloaded", "1")
        gate.set()
        assert [(await caller.reply())[0] for caller in callers[:2]] == [200, 200]
        await until(lambda: served.server.held.held == 0)
        again = await served.call()
        await again.send(post(b"/a", b"x" * 100_000))
        assert (await again.reply())[0] == 200


async def test_a_body_that_nobody_asks_for_stays_outside(echo: Echo) -> None:
    """Little of it is taken from the socket before somebody reads."""
    read = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        await read.wait()
        exchange.respond(200, [], b"%d" % len(await exchange.body(10_000_000)))

    async with serving(answer) as served:
        caller = await served.call()
        sending = asyncio.ensure_future(caller.send(post(b"/a", b"x" * 8_000_000)))
        await until(lambda: served.server.held.held > 64 * 1024)
        await asyncio.sleep(0.05)
        assert served.server.held.held < 1_000_000
        read.set()
        assert await caller.reply() == (200, b"8000000")
        await sending


async def test_a_body_is_read_piece_by_piece() -> None:
    """Each piece is given back to the caller before the next is taken, so that a large body holds little memory."""
    most = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal most
        size = 0
        while piece := await exchange.read():
            size += len(piece)
            most = max(most, served.server.held.held, len(piece))
        exchange.respond(200, [], b"%d" % size)

    async with serving(answer, max_bodies_bytes=1_000_000) as served:
        caller = await served.call()
        for framed in (post, chunked):
            await caller.send(framed(b"/a", b"x" * 8_000_000))
            assert await caller.reply() == (200, b"8000000")
        assert most < 1_000_000


@pytest.mark.parametrize(("fields", "kept_bytes"), [(20_000, 50_000), (128, 0)])
async def test_a_flood_of_unfinished_heads_costs_little(echo: Echo, fields: int, kept_bytes: int) -> None:
    """Many connections with thousands of tiny fields each: what is kept is their bytes, and with the usual bound not even
    those.
    """
    head = b"GET /a HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 10_000

    def is_read() -> bool:
        waiting = [each for each in _connections(served) if len(each._pending) == len(head)]
        return len(waiting) + served.server._not_http == len(callers)

    async with serving(echo, max_head_fields=fields) as served:
        callers = [await served.call() for _ in range(50)]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for caller in callers:
                with contextlib.suppress(ConnectionError):
                    await caller.send(head)
            await until(is_read)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # The callers and their buffers are in it.
        assert grown < len(callers) * (kept_bytes + 20_000)
        assert not echo.seen
