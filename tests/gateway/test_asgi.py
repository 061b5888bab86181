"""An ASGI application behind the server: its start and end, and requests with bodies streamed both ways."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from gateway.asgi import AsgiBridge, StartFailed
from tests.cost.entries import until
from tests.proxy.http.callers import Caller, Served, chunked, post, serving


class Site:
    """A few routes, and what happened to them."""

    def __init__(self) -> None:
        self.ended = False
        self.left = asyncio.Event()
        self.app = FastAPI(lifespan=self._lifespan)
        self.app.add_api_route("/told", self.tell, methods=["GET", "POST"])
        self.app.add_api_route("/events", self.events, methods=["GET"])
        self.app.add_api_route("/count", self.count, methods=["POST"])
        self.app.add_api_route("/failed", self.fail, methods=["GET"])

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"site": self}
        self.ended = True

    async def tell(self, request: Request) -> Response:
        assert request.state.site is self
        assert request.client is not None
        told = {
            "path": request.url.path,
            "query": request.url.query,
            "body": (await request.body()).decode(),
            "client": request.client.host,
            "scheme": request.url.scheme,
        }
        return Response(json.dumps(told))

    async def count(self, request: Request) -> int:
        return sum([len(piece) async for piece in request.stream()])

    async def events(self) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                self.left.set()

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def fail(self) -> None:
        raise RuntimeError("made up")


@contextlib.asynccontextmanager
async def _site() -> AsyncIterator[tuple[Site, Served, Caller]]:
    site = Site()
    bridge = AsgiBridge(site.app)
    async with bridge.alive(), serving(bridge) as served:
        yield site, served, await served.call()
    assert site.ended


async def test_requests_reach_the_application() -> None:
    """With the state of its life, whatever their framing; replies name the request."""
    async with _site() as (_, _, caller):
        for framed in (post, chunked):
            await caller.send(framed(b"/told?x=1", b"body"))
            _, headers, body = await caller.whole_reply()
            assert json.loads(body) == {
                "path": "/told",
                "query": "x=1",
                "body": "body",
                "client": "127.0.0.1",
                "scheme": "http",
            }
            assert headers["x-request-id"].startswith("req_")
        await caller.send(post(b"/count", b"x" * 5_000_000))
        assert await caller.reply() == (200, b"5000000")


async def test_head_has_a_head_alone() -> None:
    """Also of a route that has GET alone, and of one that never ends."""
    async with _site() as (_, served, caller):
        await caller.send(b"HEAD /told HTTP/1.1\r\nHost: a\r\n\r\n")
        status, headers = await caller.head()
        assert (status, int(headers["content-length"]) > 0) == (200, True)
        await caller.send(b"HEAD /events HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await caller.head())[0] == 200
        await until(lambda: not served.server.tasks)
        await caller.send(post(b"/told", b""))
        assert (await caller.reply())[0] == 200


async def test_a_hang_up_ends_its_stream() -> None:
    async with _site() as (site, served, caller):
        await caller.send(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n")
        await caller.head()
        await caller.reader.readuntil(b"data: 1\n\n")
        caller.writer.transport.abort()
        await site.left.wait()
        await until(lambda: not served.server.tasks)


async def test_a_failure_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    """The application's own, once; the connection goes on."""
    async with _site() as (_, _, caller):
        await caller.send(b"GET /failed HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await caller.reply())[0] == 500
        await caller.send(post(b"/told", b""))
        assert (await caller.reply())[0] == 200


@pytest.mark.parametrize("kind", ["raised", "told"])
async def test_an_application_that_cannot_start_says_so(kind: str) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if kind == "raised":
            raise RuntimeError("made up")
        await send({"type": "lifespan.startup.failed", "message": "made up"})

    with pytest.raises(StartFailed):
        async with AsgiBridge(broken).alive():
            raise AssertionError("it cannot have started")
