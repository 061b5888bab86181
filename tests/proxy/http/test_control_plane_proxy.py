"""Requests handed over a Unix socket to a real application on a real server, and what happens when it is away."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from gateway.wiring.web_app import serving_web
from proxy.http.control_plane_proxy import ControlPlaneProxy, Sender
from tests.cost.entries import until
from tests.proxy.http.callers import Caller, chunked, post, serving

_GET = b"GET %b HTTP/1.1\r\nHost: a\r\n%b\r\n"


class Control:
    """The application, and the gates that its streams wait at."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.gate = asyncio.Event()
        self.taken = 0
        self.left = asyncio.Event()
        self.app.add_api_route("/told", self.tell, methods=["GET", "POST", "DELETE"])
        self.app.add_api_route("/count", self.count, methods=["POST"])
        self.app.add_api_route("/early", self.early, methods=["POST"])
        self.app.add_api_route("/large", self.large, methods=["GET"])
        self.app.add_api_route("/events", self.events, methods=["GET"])
        self.app.add_api_route("/held", self.held, methods=["GET", "POST"])
        self.app.add_api_route("/cut", self.cut, methods=["GET"])

    async def tell(self, request: Request) -> Response:
        body = {
            "method": request.method,
            "path": request.url.path,
            "query": request.url.query,
            "client": request.client,
            "scheme": request.url.scheme,
            "headers": request.headers.items(),
            "body": (await request.body()).decode("latin-1"),
        }
        response = Response(json.dumps(body), media_type="application/json")
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    async def count(self, request: Request) -> int:
        async for piece in request.stream():
            self.taken += len(piece)
            if self.taken > 500_000:
                await self.gate.wait()
        return self.taken

    async def early(self) -> Response:
        return Response("no", 413)

    async def large(self) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(1000):
                self.taken += 10_000
                yield b"x" * 10_000

        return StreamingResponse(pieces())

    async def events(self, request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                yield b"data: 1\n\n"
                await self.gate.wait()
                yield b"data: 2\n\n"
            finally:
                self.left.set()

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def held(self) -> str:
        try:
            await self.gate.wait()
        finally:
            self.left.set()
        return "held"

    async def cut(self) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begun"
            raise RuntimeError("made up")

        return StreamingResponse(pieces())


class Planes:
    """Both planes, and one caller."""

    def __init__(self, control: Control, control_proxy: ControlPlaneProxy, caller: Caller, served: Any) -> None:
        self.control = control
        self.control_proxy = control_proxy
        self.caller = caller
        self.served = served


@contextlib.asynccontextmanager
async def both(folder: Path, **options: Any) -> AsyncIterator[Planes]:
    control = Control()
    control_proxy = ControlPlaneProxy(folder / "web", **options)
    async with serving_web(control.app, folder / "web"), serving(control_proxy) as served:
        try:
            yield Planes(control, control_proxy, await served.call(), served)
        finally:
            control.gate.set()
            await control_proxy.aclose()


async def _told(caller: Caller) -> tuple[dict[str, str], Any]:
    _, headers, body = await caller.whole_reply()
    return headers, json.loads(body)


async def test_a_request_arrives_as_it_was_sent(tmp_path: Path) -> None:
    """Method, target, fields and body, of any framing; the reply comes back with each of its fields."""
    async with both(tmp_path) as planes:
        for framed in (post, chunked):
            await planes.caller.send(framed(b"/told?x=%20y", b"body", extra=b"X-A: b\r\nCookie: c=d\r\n"))
            head = await planes.caller.reader.readuntil(b"\r\n\r\n")
            assert head.count(b"set-cookie: ") == 2
            assert head.count(b"date: ") == 1
            length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            told = json.loads(await planes.caller.reader.readexactly(length))
            assert (told["method"], told["path"], told["query"], told["body"]) == ("POST", "/told", "x=%20y", "body")
            assert {"x-a": "b", "cookie": "c=d", "host": "a"}.items() <= dict(told["headers"]).items()
        await planes.caller.send(b"DELETE /told HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await _told(planes.caller))[1]["method"] == "DELETE"
        # Each had a connection of its own, which is gone.
        await until(lambda: not planes.control_proxy._open)


async def test_who_asked_is_said_by_us_alone(tmp_path: Path) -> None:
    """The peer is the caller's connection's, whatever a request says of it, and without one for whoever says nothing."""
    async with both(tmp_path) as planes:
        for head in (
            b"X-Weighbridge-Peer: 10.0.0.1 1\r\n",
            b"X-Forwarded-For: 10.0.0.2\r\n",
            b"Forwarded: for=10.0.0.2\r\n",
        ):
            await planes.caller.send(_GET % (b"/told", head))
            told = (await _told(planes.caller))[1]
            assert (tuple(told["client"]), told["scheme"]) == (
                planes.caller.writer.get_extra_info("sockname")[:2],
                "http",
            )


_KEPT = (
    *("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded", "via", "x-real-ip"),
    *("authorization", "x-api-key", "api-key", "cookie", "origin", "referer", "host"),
    *("sec-fetch-site", "sec-fetch-mode", "content-type", "x-hop"),
)


async def test_connection_has_no_field_left_out(tmp_path: Path) -> None:
    """Whatever `Connection` names arrives: who forwarded it, who asks and whence. What is about a connection alone does not."""
    async with both(tmp_path) as planes:
        fields = dict.fromkeys(_KEPT, "a")
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        named = "keep-alive, " + ", ".join(_KEPT)
        alone = "te: trailers\r\nkeep-alive: timeout=5\r\nproxy-connection: close\r\n"
        await planes.caller.send(f"GET /told HTTP/1.1\r\n{lines}{alone}connection: {named}\r\n\r\n".encode())
        arrived = dict((await _told(planes.caller))[1]["headers"])
        assert arrived == fields


async def test_replies_without_bodies(tmp_path: Path) -> None:
    """Of HEAD, also where routes have GET alone or never end, and of a missing page; the connection goes on."""
    async with both(tmp_path) as planes:
        for path in (b"/told", b"/events", b"/large"):
            await planes.caller.send(b"HEAD %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
            status, headers = await planes.caller.head()
            assert status == 200
            assert (int(headers.get("content-length", 0)) > 0) == (path == b"/told")
        await planes.control.left.wait()
        await planes.caller.send(_GET % (b"/nowhere", b""))
        assert (await planes.caller.reply())[0] == 404
        await planes.caller.send(b"GET /told HTTP/1.0\r\n\r\n")
        assert (await planes.caller.head())[0] == 200


async def test_a_large_body_waits_for_its_reader(tmp_path: Path) -> None:
    """While the control plane takes nothing, little is taken from the caller."""
    async with both(tmp_path) as planes:
        sending = asyncio.ensure_future(planes.caller.send(post(b"/count", b"x" * 20_000_000)))
        await until(lambda: planes.control.taken > 500_000)
        await asyncio.sleep(0.1)
        assert not sending.done()
        assert planes.served.server.held.held < 1_000_000
        planes.control.gate.set()
        assert await planes.caller.reply() == (200, b"20000000")
        await sending


async def test_a_large_reply_waits_for_its_reader(tmp_path: Path) -> None:
    """While the caller takes nothing, little is taken from the control plane."""
    async with both(tmp_path) as planes:
        caller = await planes.served.call(limit=1024)
        await caller.send(_GET % (b"/large", b""))
        await until(lambda: planes.control.taken > 1_000_000)
        await asyncio.sleep(0.1)
        assert planes.control.taken < 9_000_000
        assert len(await caller.rest_of(10_000_000)) == 10_000_000


async def test_an_early_answer_is_given(tmp_path: Path) -> None:
    """The control plane refuses a body that it has not read: its caller is told, whatever it still sends."""
    async with both(tmp_path) as planes:
        await planes.caller.send(post(b"/early", b"x" * 5_000_000)[:100_000])
        assert (await planes.caller.reply())[0] == 413


@pytest.mark.parametrize(("size", "taken"), [(1_000, 0), (1_000_000, 999_990)])
async def test_a_body_that_breaks_off_is_not_answered(tmp_path: Path, size: int, taken: int) -> None:
    """Of a small one the control plane hears nothing; of another it sees the end of its connection, not a shorter body."""
    async with both(tmp_path) as planes:
        planes.control.gate.set()
        await planes.caller.send(post(b"/count", b"x" * size)[:-10])
        await until(lambda: planes.served.server.tasks and planes.control.taken == taken)
        await until(lambda: all(each.arrived == size - 10 for each in _under_way(planes)))
        assert len(planes.control_proxy._open) == (taken > 0)
        planes.served.later(120)
        assert (await planes.caller.error())[:2] == (408, "request_timeout")
        await until(lambda: not planes.control_proxy._open)


def _under_way(planes: Planes) -> list[Any]:
    return [each._exchange for each in planes.served.server.connections]


@pytest.mark.parametrize("framed", [post, chunked])
async def test_small_bodies_take_nothing_until_they_are_whole(tmp_path: Path, framed: Any) -> None:
    """A hundred that never end leave the control plane alone; the one that has waited longest makes way for the next."""
    async with both(tmp_path, max_coming=100) as planes:
        slow = [await planes.served.call() for _ in range(101)]
        for caller in slow:
            await caller.send(framed(b"/told", b"x" * 1_000)[:-10])
        assert (await slow[0].error())[:2] == (503, "overloaded")
        await planes.caller.send(framed(b"/told", b"whole"))
        assert (await _told(planes.caller))[1]["body"] == "whole"
        assert not planes.control_proxy._open
        await slow[100].send(framed(b"/told", b"x" * 1_000)[-10:])
        assert (await _told(slow[100]))[1]["body"] == "x" * 1_000


async def test_long_bodies_are_bounded_for_each(tmp_path: Path) -> None:
    """Whoever has as many under way as one may have is refused; others are answered, and so is it when one has ended."""

    async def whose(exchange: Any) -> Sender:
        return Sender(str(exchange.field(b"x-team")), is_known=True)

    async with both(tmp_path, whose=whose) as planes:
        planes.control.gate.set()
        request = post(b"/count", b"x" * 100_000, extra=b"x-team: a\r\n")
        slow = [await planes.served.call() for _ in range(32)]
        for caller in slow:
            await caller.send(request[:-1])
        await until(lambda: len(planes.control_proxy._open) == 32)
        await planes.caller.send(request[:-1])
        assert (await planes.caller.error())[:2] == (503, "overloaded")
        other = await planes.served.call()
        await other.send(request.replace(b"x-team: a", b"x-team: b"))
        assert (await other.reply())[0] == 200
        await slow[0].send(b"x")
        assert (await slow[0].reply())[0] == 200
        await other.send(request)
        assert (await other.reply())[0] == 200


async def test_many_addresses_without_a_key_keep_no_team_from_uploading(tmp_path: Path) -> None:
    """Those without a key share their own places, however many addresses they have."""

    async def whose(exchange: Any) -> Sender:
        team, address = exchange.field(b"x-team"), exchange.field(b"x-address")
        return Sender(str(team or address), is_known=team is not None)

    async with both(tmp_path, whose=whose) as planes:
        planes.control.gate.set()
        slow = [await planes.served.call() for _ in range(66)]
        for number, caller in enumerate(slow):
            await caller.send(post(b"/count", b"x" * 100_000, extra=b"x-address: %d\r\n" % (number // 3))[:-1])
        told = [await caller.error() for caller in slow[64:]]
        assert [each[:2] for each in told] == [(503, "overloaded")] * 2
        await planes.caller.send(post(b"/count", b"x" * 100_000, extra=b"x-team: a\r\n"))
        assert (await planes.caller.reply())[0] == 200
        await slow[0].send(b"x")
        assert (await slow[0].reply())[0] == 200


async def test_what_comes_while_a_long_body_is_admitted_is_not_lost(tmp_path: Path) -> None:
    """All of it may be here before the connection to the control plane is."""
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def whose(_exchange: Any) -> Sender:
        asked.set()
        await goes_on.wait()
        return Sender("a", is_known=True)

    async with both(tmp_path, whose=whose) as planes:
        planes.control.gate.set()
        request = post(b"/count", b"x" * 66_000)
        await planes.caller.send(request[:-1_000])
        await asked.wait()
        await planes.caller.send(request[-1_000:])
        await until(lambda: all(each.whole for each in _under_way(planes)))
        goes_on.set()
        assert await planes.caller.reply() == (200, b"66000")


@pytest.mark.parametrize("early", [True, False])
async def test_nothing_is_sent_behind_a_body_that_failed(tmp_path: Path, *, early: bool) -> None:
    """A body that breaks in the turn in which its reply comes leaves its connection to nobody: each has the bytes of one
    request.
    """
    arrived: list[bytes] = []
    caller: Any = None

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.readuntil(b"\r\n\r\n"))
        if len(arrived) == 1:
            # Both are read in one turn.
            caller.writer.write(b"no chunk\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno" if early or len(arrived) > 1 else b"")
        arrived[-1] += await reader.read()
        writer.close()

    control_proxy = ControlPlaneProxy(tmp_path / "web")
    async with serving(control_proxy) as served:
        server = await asyncio.start_unix_server(answer, tmp_path / "web")
        caller, other = await served.call(), await served.call()
        await caller.send(b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % 70_000)
        await caller.send(b"x" * 70_000 + b"\r\n")
        assert (await caller.head())[0] == (404 if early else 400)
        for _ in range(3):
            await other.send(_GET % (b"/b", b""))
            assert await other.reply() == (404, b"no")
        server.close()
        await control_proxy.aclose()
    assert [each.count(b"HTTP/1.1") for each in arrived] == [1] * 4
    assert [each.startswith(b"weighbridge/1 tcp 127.0.0.1 ") for each in arrived] == [True] * 4


@pytest.mark.parametrize("path", [b"/held", b"/events"])
async def test_a_caller_that_hangs_up_is_gone_there_too(tmp_path: Path, path: bytes) -> None:
    async with both(tmp_path) as planes:
        await planes.caller.send(_GET % (path, b""))
        await until(lambda: len(planes.control_proxy._open) == 1)
        if path == b"/events":
            await planes.caller.head()
            await planes.caller.reader.readuntil(b"data: 1\n\n")
        await planes.caller.leave()
        await until(lambda: not planes.control_proxy._open)
        await until(lambda: not planes.served.server.tasks)


async def test_streams_end_when_they_are_to(tmp_path: Path) -> None:
    """Replies of events end whole, those that begin later at once; other replies go on."""
    async with both(tmp_path) as planes:
        await planes.caller.send(_GET % (b"/events", b""))
        await planes.caller.head()
        await planes.caller.reader.readuntil(b"data: 1\n\n\r\n")
        other = await planes.served.call()
        await other.send(_GET % (b"/held", b""))
        await until(lambda: len(planes.control_proxy._open) == 2)
        planes.control_proxy.end_streams()
        assert await planes.caller.reader.readexactly(5) == b"0\r\n\r\n"
        await planes.caller.send(_GET % (b"/events", b""))
        await planes.caller.reply()
        planes.control.gate.set()
        assert await other.reply() == (200, b'"held"')


async def test_a_reply_that_breaks_off_is_cut(tmp_path: Path) -> None:
    """Its caller must not take it for whole."""
    async with both(tmp_path) as planes:
        await planes.caller.send(_GET % (b"/cut", b""))
        told = await planes.caller.rest()
        assert b"begun" in told
        assert not told.endswith(b"0\r\n\r\n")


async def test_a_restart_is_waited_for(tmp_path: Path) -> None:
    """A request that finds nobody is answered by the control plane that comes up meanwhile, its body whole."""
    control = Control()
    control_proxy = ControlPlaneProxy(tmp_path / "web")
    async with serving(control_proxy) as served:
        caller = await served.call()
        await caller.send(post(b"/told", b"body"))
        await until(lambda: bool(served.server.tasks))
        await asyncio.sleep(0.05)
        async with serving_web(control.app, tmp_path / "web"):
            assert (await _told(caller))[1]["body"] == "body"
            await control_proxy.aclose()


async def test_kept_connections_outlive_no_restart(tmp_path: Path) -> None:
    """What was kept with the one before is not used with the one after."""
    control = Control()
    control_proxy = ControlPlaneProxy(tmp_path / "web")
    async with serving(control_proxy) as served:
        caller = await served.call()
        for _ in range(2):
            async with serving_web(control.app, tmp_path / "web"):
                await caller.send(post(b"/told", b"body"))
                assert (await _told(caller))[1]["body"] == "body"
        await control_proxy.aclose()


async def test_a_control_plane_that_stays_away_is_said_to_be(tmp_path: Path) -> None:
    """503 with a time to come again, and what still works."""
    async with serving(ControlPlaneProxy(tmp_path / "web", restart_s=0.0)) as served:
        caller = await served.call()
        await caller.send(post(b"/told", b"body"))
        status, headers, body = await caller.whole_reply()
        error = json.loads(body)["error"]
        assert (status, error["code"], headers["retry-after"]) == (503, "control_plane_away", "1")
        assert "models are served" in error["message"]


@pytest.mark.parametrize(("method", "repeated"), [("GET", True), ("POST", False)])
async def test_a_control_plane_that_dies_amid_a_request(tmp_path: Path, method: str, *, repeated: bool) -> None:
    """What changes nothing is asked again of the next one; of anything else its caller has to look whether it is done."""
    asked = 0

    async def die_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        if asked > 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    control_proxy = ControlPlaneProxy(tmp_path / "web")
    async with serving(control_proxy) as served:
        server = await asyncio.start_unix_server(die_once, tmp_path / "web")
        caller = await served.call()
        await caller.send(b"%b /told HTTP/1.1\r\nHost: a\r\n\r\n" % method.encode())
        status, _, body = await caller.whole_reply()
        assert ((status, body) == (200, b"ok")) == repeated
        assert (status == 503) != repeated
        assert asked == 1 + repeated
        server.close()
        await control_proxy.aclose()


@pytest.mark.parametrize(
    "reply", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, b"HTTP/1.1 200 OK\r\nx: y"]
)
async def test_no_reply_is_no_reply(tmp_path: Path, reply: bytes) -> None:
    """Nonsense, a head without bound or without end is 503 and not believed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            writer.write(reply)
            await writer.drain()
        writer.close()

    control_proxy = ControlPlaneProxy(tmp_path / "web")
    async with serving(control_proxy) as served:
        server = await asyncio.start_unix_server(answer, tmp_path / "web")
        caller = await served.call()
        await caller.send(b"POST /told HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await caller.error())[:2] == (503, "control_plane_away")
        server.close()
        await control_proxy.aclose()


async def test_requests_at_once_are_bounded(tmp_path: Path) -> None:
    """As many as there may be connections; one more is told to come again."""
    async with both(tmp_path, max_connections=2) as planes:
        callers = [planes.caller, await planes.served.call()]
        for caller in callers:
            await caller.send(_GET % (b"/held", b""))
        await until(lambda: len(planes.control_proxy._open) == 2)
        third = await planes.served.call()
        await third.send(_GET % (b"/told", b""))
        assert (await third.error())[:2] == (503, "overloaded")
        planes.control.gate.set()
        for caller in callers:
            assert (await caller.reply())[0] == 200
        await third.send(_GET % (b"/told", b""))
        assert (await third.reply())[0] == 200
