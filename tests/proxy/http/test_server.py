"""Requests and replies as routes see them, what the server answers itself, and its end."""

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from pathlib import Path

import pytest

from proxy.errors import BadRequest, Draining
from proxy.http.exchange import Exchange
from proxy.http.server import TlsInvalid, tls_context
from tests.cost.entries import until
from tests.proxy.http.callers import Echo, post, serving
from tests.selfhosted.discovery.authorities import ONE

_GET = b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n"


@pytest.fixture
async def echo() -> Echo:
    return Echo()


async def test_what_a_request_says() -> None:
    """Method, path and query as they were sent, lower-case fields, version and peer."""
    seen: list[Exchange] = []

    async def answer(exchange: Exchange) -> None:
        seen.append(exchange)
        exchange.respond(200, [])

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(b"DELETE /a%20b/%C3%A9?x=%20&y HTTP/1.1\r\nHOST: a\r\nX-One:  1 \r\n\r\n")
        await caller.reply()
        await caller.send(b"GET http://else.where:80/abs?q HTTP/1.0\r\n\r\n")
        await caller.head()
        first, second = seen
        assert (first.method, first.path, first.query) == ("DELETE", "/a%20b/%C3%A9", b"x=%20&y")
        assert first.headers[0] == (b"host", b"a")
        assert (first.field(b"x-one") or b"").strip() == b"1"
        assert (first.version, second.version, first.tls) == ("1.1", "1.0", False)
        assert first.peer is not None
        assert first.peer[0] == "127.0.0.1"
        assert (second.path, second.query) == ("/abs", b"q")


async def _stream(exchange: Exchange) -> None:
    exchange.start(200, [(b"x-a", b"b")], waits=exchange.path == "/waits")
    exchange.write(b"one")
    exchange.write(b"")
    exchange.write(b"two")
    await exchange.drained()
    exchange.end(b"three")


async def test_a_stream_goes_in_chunks() -> None:
    async with serving(_stream) as served:
        caller = await served.call()
        for path in (b"/", b"/waits"):
            await caller.send(_GET % (path, b""))
            status, headers = await caller.head()
            assert (status, headers["transfer-encoding"], headers["x-a"]) == (200, "chunked", "b")
            assert "date" in headers
            expected = b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
            assert await caller.reader.readexactly(len(expected)) == expected


@pytest.mark.parametrize("path", [b"/", b"/waits"])
async def test_http_1_0_gets_no_chunks(path: bytes) -> None:
    """Its stream ends with the connection, whatever it says of keeping it."""
    async with serving(_stream) as served:
        caller = await served.call()
        await caller.send(b"GET %b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" % path)
        _, headers = await caller.head()
        assert "transfer-encoding" not in headers
        assert headers["connection"] == "close"
        assert await caller.rest() == b"onetwothree"


async def test_a_head_may_wait_for_its_first_piece() -> None:
    """They are one write then; where there is no piece it goes with the end."""

    async def answer(exchange: Exchange) -> None:
        exchange.start(200, [], waits=True)
        await asyncio.sleep(0.01)
        assert not caller.reader._buffer  # type: ignore[attr-defined]
        exchange.end(b"one" if exchange.path == "/one" else b"")

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(_GET % (b"/one", b""))
        await caller.head()
        assert await caller.reader.readexactly(13) == b"3\r\none\r\n0\r\n\r\n"
        await caller.send(_GET % (b"/", b""))
        await caller.head()
        assert await caller.reader.readexactly(5) == b"0\r\n\r\n"


async def test_among_streams_few_requests_begin_in_one_turn() -> None:
    """However many callers ask at once, the streams that are under way have their turns in between."""
    turns, begun = 0, []

    def count() -> None:
        nonlocal turns
        turns += 1
        counting[:] = [asyncio.get_running_loop().call_soon(count)]

    async def answer(exchange: Exchange) -> None:
        begun.append(turns)
        exchange.start(200, [(b"content-length", b"0")], probe=b":\n\n")
        exchange.end()

    async with serving(answer) as served:
        callers = [await served.call() for _ in range(9)]
        await callers[0].send(_GET % (b"/", b""))
        await callers[0].reply()
        counting = [asyncio.get_running_loop().call_soon(count)]
        for caller in callers:
            caller.writer.write(_GET % (b"/", b""))
        for caller in callers:
            assert (await caller.reply())[0] == 200
        counting[0].cancel()
    assert max(Counter(begun).values()) <= 4


async def test_http_1_0_is_not_told_to_go_on(echo: Echo) -> None:
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")
        assert await caller.reply() == (200, b"/a x")


async def test_head_gets_no_body() -> None:
    """But the same head: of a whole reply, of a stream, and of one that says its length."""

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/whole":
            exchange.respond(200, [], b"12345")
        elif exchange.path == "/long":
            exchange.start(200, [(b"content-length", b"5")])
            exchange.write(b"123")
            exchange.end(b"45")
        else:
            await _stream(exchange)

    async with serving(answer) as served:
        caller = await served.call()
        for path, length in ((b"/whole", "5"), (b"/long", "5"), (b"/stream", None), (b"/waits", None)):
            await caller.send(b"HEAD %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            status, headers = await caller.head()
            assert (status, headers.get("content-length")) == (200, length)
        await caller.send(_GET % (b"/long", b""))
        assert await caller.reply() == (200, b"12345")


@pytest.mark.parametrize("status", [204, 304])
async def test_some_replies_have_no_body(status: int) -> None:
    async def answer(exchange: Exchange) -> None:
        exchange.respond(status, [(b"content-length", b"7")], b"nothing")

    async with serving(answer) as served:
        caller = await served.call()
        for _ in range(2):
            await caller.send(_GET % (b"/", b""))
            got, headers = await caller.head()
            assert got == status
            assert "content-length" not in headers


@pytest.mark.parametrize("pieces", [[b"1234"], [b"123", b"4567"]])
async def test_a_reply_that_breaks_its_word_is_cut_off(pieces: list[bytes]) -> None:
    """Shorter or longer than its content-length: its caller must not take it for whole, or the rest for another."""

    async def answer(exchange: Exchange) -> None:
        exchange.start(200, [(b"content-length", b"5")])
        for piece in pieces:
            exchange.write(piece)
        exchange.end()

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(_GET % (b"/", b""))
        assert len((await caller.rest()).partition(b"\r\n\r\n")[2]) < 5


async def test_a_field_cannot_leave_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """A value with a line end becomes a 500 instead of fields of somebody else's making."""

    async def answer(exchange: Exchange) -> None:
        exchange.respond(200, [(b"x-a", b"b\r\nset-cookie: c=d")])

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(_GET % (b"/", b""))
        status, code, headers = await caller.error()
        assert (status, code) == (500, "internal_error")
        assert "set-cookie" not in headers


async def test_failures_become_replies(caplog: pytest.LogCaptureFixture) -> None:
    """A refusal as it is, anything else as 500 without details; after the start of a reply the connection is cut."""

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/refused":
            raise BadRequest("Not so.", code="not_so")
        if exchange.path == "/draining":
            raise Draining("Soon.")
        if exchange.path == "/begun":
            exchange.start(200, [])
        if exchange.path != "/silent":
            raise RuntimeError("secret")

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(_GET % (b"/refused", b""))
        assert (await caller.error())[:2] == (400, "not_so")
        await caller.send(_GET % (b"/failed", b""))
        status, code, headers = await caller.error()
        assert (status, code) == (500, "internal_error")
        assert headers["x-request-id"].startswith("req_")
        await caller.send(_GET % (b"/draining", b""))
        assert (await caller.error())[2]["connection"] == "close"
        assert await caller.rest() == b""
        for path in (b"/begun", b"/silent"):
            caller = await served.call()
            await caller.send(_GET % (path, b""))
            assert not (await caller.rest()).endswith(b"0\r\n\r\n")
        await until(lambda: not served.server.tasks)


async def test_routes_have_methods(echo: Echo) -> None:
    """A hot path with another method is 405 and says which it has; other paths are somebody else's."""
    hot: list[str] = []

    async def chat(exchange: Exchange) -> None:
        hot.append(exchange.path)
        exchange.respond(200, [], await exchange.body(100))

    async with serving(echo, {"/v1/chat": {"POST": chat, "DELETE": chat}}) as served:
        caller = await served.call()
        await caller.send(post(b"/v1/chat?x=1", b"hot"))
        assert await caller.reply() == (200, b"hot")
        await caller.send(_GET % (b"/v1/chat", b""))
        status, code, headers = await caller.error()
        assert (status, code, headers["allow"]) == (405, "method_not_allowed", "POST, DELETE")
        await caller.send(post(b"/v1/other", b"x"))
        assert await caller.reply() == (200, b"/v1/other x")
        assert hot == ["/v1/chat"]


async def test_refusals_sent_for_ahead_take_turns(echo: Echo) -> None:
    """Thousands of refused requests in one write leave the loop to others between any two of them."""
    turns = 0
    async with serving(echo, {"/v1/chat": {"POST": echo}}) as served:
        caller = await served.call()

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        await caller.send(_GET % (b"/v1/chat", b"") * 500)
        for _ in range(500):
            assert (await caller.reply())[0] == 405
        counting.cancel()
        assert turns >= 500


async def test_a_body_that_is_too_large_is_refused(echo: Echo) -> None:
    """At once when it says so, and otherwise when it is; at the limit it is served."""

    async def answer(exchange: Exchange) -> None:
        exchange.respond(200, [], await exchange.body(1000))

    async with serving(answer) as served:
        caller = await served.call()
        await caller.send(post(b"/a", b"x" * 1000))
        assert (await caller.reply())[0] == 200
        await caller.send(post(b"/a", b"x" * 1001))
        assert (await caller.error())[:2] == (413, "request_too_large")
        head = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await caller.send(head + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n")
        assert (await caller.error())[:2] == (413, "request_too_large")


@pytest.mark.parametrize(("encoding", "status"), [(b"gzip", 415), (b"br", 415), (b"identity", 200)])
async def test_an_encoded_body_is_refused(echo: Echo, encoding: bytes, status: int) -> None:
    """At an address that is passed on to others."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/a", b"x", extra=b"Content-Encoding: %b\r\n" % encoding))
        assert (await caller.reply())[0] == status
        await caller.send(post(b"/b", b"y"))
        assert await caller.reply() == (200, b"/b y")


async def test_pages_elsewhere_are_told_nothing_unless_configured(echo: Echo) -> None:
    """Without `cors_origins` no reply and no preflight names any origin."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(_GET % (b"/v1/models", b"Origin: https://a.example\r\n"))
        assert not any(name.startswith("access-control") for name in (await caller.whole_reply())[1])


async def test_configured_pages_may_call_the_api(echo: Echo) -> None:
    """Of those origins, under /v1/ alone, without credentials; refusals can be read there too."""
    async with serving(echo, {"/v1/chat": {"POST": echo}}, cors=("https://a.example",)) as served:
        caller = await served.call()
        ask = b"OPTIONS /v1/chat HTTP/1.1\r\nHost: a\r\nOrigin: %b\r\nAccess-Control-Request-Method: POST\r\n%b\r\n"
        await caller.send(ask % (b"https://a.example", b"Access-Control-Request-Headers: authorization\r\n"))
        status, headers = await caller.head()
        assert (status, headers["access-control-allow-origin"]) == (204, "https://a.example")
        assert headers["access-control-allow-methods"] == "POST"
        assert headers["access-control-allow-headers"] == "authorization"
        assert "access-control-allow-credentials" not in headers
        await caller.send(_GET % (b"/v1/chat", b"Origin: https://a.example\r\n"))
        status, _, headers = await caller.error()
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (405, "https://a.example", "origin")
        for path, origin in ((b"/v1/models", b"https://b.example"), (b"/account", b"https://a.example")):
            await caller.send(_GET % (path, b"Origin: %b\r\n" % origin))
            assert "access-control-allow-origin" not in (await caller.whole_reply())[1]
        await caller.send(ask % (b"https://b.example", b""))
        assert (await caller.error())[0] == 405


async def test_any_page_may_be_allowed(echo: Echo) -> None:
    async with serving(echo, cors=("*",)) as served:
        caller = await served.call()
        await caller.send(_GET % (b"/v1/models", b"Origin: null\r\n"))
        assert (await caller.whole_reply())[1]["access-control-allow-origin"] == "null"


def _certificate(folder: Path) -> tuple[Path, Path]:
    (folder / "cert.pem").write_text(ONE.certificate)
    (folder / "key.pem").write_text(ONE.key)
    return folder / "cert.pem", folder / "key.pem"


async def test_a_tls_listener(echo: Echo, tmp_path: Path) -> None:
    """Requests come encrypted, verified by the caller, in any size."""
    certificate, key = _certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    async with serving(echo, tls=tls_context(certificate, key)) as served:
        caller = await served.call(ssl=trust, server_hostname="127.0.0.1")
        for size in (1, 500_000):
            await caller.send(post(b"/a", b"x" * size))
            assert await caller.reply() == (200, b"/a " + b"x" * size)
        assert echo.seen[0].tls
        plain = await served.call()
        await plain.send(_GET % (b"/", b""))
        assert b"HTTP" not in await plain.rest()


async def test_a_wrong_certificate_is_one_clear_line(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    with pytest.raises(TlsInvalid, match=r"absent\.pem"):
        tls_context(tmp_path / "absent.pem", key)
    with pytest.raises(TlsInvalid, match=r"cert\.pem"):
        tls_context(certificate, certificate)


# The end.


async def test_the_last_reply_says_so(echo: Echo) -> None:
    """A request under way when the end begins, and one that comes after it, are answered with `connection: close`."""
    async with serving(echo) as served:
        waiting, idle = await served.call(), await served.call()
        await idle.send(post(b"/a", b"one"))
        await idle.reply()
        await waiting.send(post(b"/held", b"two"))
        await echo.arrived.wait()
        served.server.leaving = True
        await idle.send(post(b"/b", b"three"))
        echo.gate.set()
        for caller in (waiting, idle):
            assert (await caller.head())[1]["connection"] == "close"
            await caller.rest()


async def test_requests_sent_ahead_of_the_end_are_all_answered(echo: Echo) -> None:
    """Only the reply to the last of them says `close`."""
    async with serving(echo) as served:
        caller = await served.call()
        await caller.send(post(b"/held", b"one"))
        await echo.arrived.wait()
        served.server.leaving = True
        await caller.send(post(b"/b", b"two"))
        await until(lambda: any(each._pending for each in served.server.connections))
        echo.gate.set()
        assert await caller.reply() == (200, b"/held one")
        status, headers = await caller.head()
        assert (status, headers["connection"]) == (200, "close")
        assert b"/b two" in await caller.rest()


@pytest.mark.parametrize("ahead", [b"", post(b"/never", b"x")])
async def test_an_early_last_reply_waits_for_the_body(echo: Echo, ahead: bytes) -> None:
    """A caller that still sends when it is refused gets its answer rather than a reset; nothing after it is served."""
    async with serving(echo) as served:
        served.server.leaving = True
        caller = await served.call()
        request = post(b"/unread", b"x" * 3_000_000)
        await caller.send(request[:1_000])
        status, headers = await caller.head()
        assert (status, headers["connection"]) == (200, "close")
        await caller.send(request[1_000:] + ahead)
        assert await caller.rest() == b"/unread "
        assert echo.paths == ["/unread"]


async def test_a_body_that_never_comes_is_not_waited_for(echo: Echo) -> None:
    """A last reply that was early closes its connection in a second or two, also if its caller stays."""
    async with serving(echo) as served:
        served.server.leaving = True
        caller = await served.call()
        await caller.send(post(b"/unread", b"x" * 1_000)[:500])
        await caller.rest()
        served.later(1.1)
        await until(lambda: not served.server.connections)


async def test_a_stop_lets_requests_end(echo: Echo) -> None:
    """New callers are told for a moment and may ask a moment later, idle ones are closed, what runs is answered, and then it is over."""
    async with serving(echo) as served:
        waiting, idle = await served.call(), await served.call()
        await waiting.send(post(b"/held", b"one"))
        await idle.send(post(b"/a", b"x"))
        await idle.reply()
        await echo.arrived.wait()
        stopping = asyncio.ensure_future(served.server.stop(served.time_s + 30, cut_off=lambda: True))
        await until(lambda: served.server.leaving)
        late = await served.call()
        await late.send(post(b"/late", b"x"))
        assert (await late.whole_reply())[1]["connection"] == "close"
        last, silent = await served.call(), await served.call()
        served.later(0.6)
        assert await idle.rest() == b""
        with pytest.raises(ConnectionError):
            await served.call()
        await last.send(post(b"/last", b"x"))
        assert (await last.whole_reply())[1]["connection"] == "close"
        served.later(0.6)
        assert await silent.rest() == b""
        assert not stopping.done()
        echo.gate.set()
        assert (await waiting.whole_reply())[1]["connection"] == "close"
        await waiting.leave()
        await stopping


async def test_whoever_comes_while_it_leaves_is_served(echo: Echo) -> None:
    """New connections too, each told with its answer to go elsewhere, until the time is over."""
    async with serving(echo) as served:
        leaving = asyncio.ensure_future(served.server.leave(3))
        await until(lambda: served.server.leaving)
        late = await served.call()
        await late.send(post(b"/late", b"x"))
        status, fields, _ = await late.whole_reply()
        assert (status, fields["connection"]) == (200, "close")
        assert not leaving.done()
        served.later(3.1)
        await leaving


async def test_what_outlasts_the_stop_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """Its route is told first, so that it can say why; what says nothing is cancelled and told 503."""
    told = asyncio.Event()

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/deaf":
            await asyncio.Event().wait()
        await told.wait()
        exchange.respond(503, [], b"over")

    def cut_off() -> bool:
        told.set()
        return False

    async with serving(answer) as served:
        first, deaf = await served.call(), await served.call()
        await first.send(_GET % (b"/", b""))
        await deaf.send(_GET % (b"/deaf", b""))
        await until(lambda: len(served.server.tasks) == 2)
        stopping = asyncio.ensure_future(served.server.stop(served.time_s + 5, cut_off))
        await until(lambda: served.server.leaving)
        served.later(0.6)
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(0.1)
            served.later(5)
            assert b"draining" in await deaf.rest()
        assert "2 requests" in caplog.text
        await first.rest()
        await stopping


async def test_a_replaced_server_refuses_nobody(echo: Echo) -> None:
    """Its idle connections get one more reply, which says that it is the last; nobody new is accepted."""
    async with serving(echo) as served:
        kept, waiting, silent = [await served.call() for _ in range(3)]
        for caller in (kept, silent):
            await caller.send(post(b"/a", b"x"))
            await caller.reply()
        await waiting.send(post(b"/held", b"x"))
        await echo.arrived.wait()
        moving = asyncio.ensure_future(served.server.move(served.time_s + 30))
        await until(lambda: served.server.leaving)
        with pytest.raises(ConnectionError):
            await served.call()
        await kept.send(post(b"/b", b"y"))
        status, headers, _ = await kept.whole_reply()
        assert (status, headers["connection"]) == (200, "close")
        served.later(2.1)
        assert await silent.rest() == b""
        echo.gate.set()
        assert (await waiting.whole_reply())[1]["connection"] == "close"
        for caller in (kept, waiting):
            with contextlib.suppress(ConnectionError):
                await caller.leave()
        await moving
