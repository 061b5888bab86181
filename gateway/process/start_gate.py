"""What a process tells on the public socket before anything serves, and the routes of health, which are there from the first moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from gateway.configuration.gateway_config import ServerConfig
from proxy.admin.health import Readiness, Starting
from proxy.errors import NotStarted
from proxy.http.connection import ConnectionLimits
from proxy.http.exchange import Exchange
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.http.server import HttpServer, Route, Routes

HOLD_S: Final = 8.0
"""Seconds that a request waits for the start's end; a page waits as long for a control plane."""
_AGAIN_S: Final = 2.0
_ALIVE: Final = b'{"status":"ok"}'
_JSON: Final = (b"content-type", b"application/json")


def connection_limits(server: ServerConfig) -> ConnectionLimits:
    """Return the limits on connections, of which a reload may change those in seconds."""
    return ConnectionLimits(
        body_timeout_s=server.body_timeout_s,
        slow_reader_s=server.slow_reader_s,
        ping_after_s=server.ping_after_s,
        keep_alive_s=server.keep_alive_s,
        max_bodies_bytes=server.max_bodies_bytes,
    )


class StartGate:
    """What a process answers while nothing serves yet: health at once, and all else as soon as that is over."""

    def __init__(self, look: Callable[[], Awaitable[Starting]], hold_s: float = HOLD_S) -> None:
        self.health = health_routes(look)
        self._hold_s = hold_s
        self._server: HttpServer | None = None
        self._opened = asyncio.Event()

    def open(self, server: HttpServer) -> None:
        """Let those go on who wait, by the routes that the server has now."""
        self._server = server
        self._opened.set()

    async def hold(self, exchange: Exchange) -> None:
        """Answer as soon as the plane is open. Raises NotStarted when that takes too long."""
        try:
            async with asyncio.timeout(self._hold_s):
                await self._opened.wait()
        except TimeoutError:
            raise NotStarted(
                "The gateway starts, and serves as soon as it can; /readyz says what it waits for.",
                retry_after_s=_AGAIN_S,
            ) from None
        assert self._server is not None  # noqa: S101 - it was set before the event
        await self._server.route_of(exchange)(exchange)


def health_routes(look: Callable[[], Awaitable[Readiness | Starting]]) -> Routes:
    """Return the routes of liveness, which checks nothing but that the process answers, and of readiness; each under
    several names, LiteLLM's among them. Readiness for pages and changes, which need more, has a route of its own.
    """

    async def alive(exchange: Exchange) -> None:
        _answer(exchange, 200, _ALIVE)

    async def ready(exchange: Exchange) -> None:
        found = await look()
        _answer(exchange, found.http_status, msgspec.json.encode(found))

    async def ready_for_pages(exchange: Exchange) -> None:
        found = await look()
        _answer(exchange, found.control_plane_status, msgspec.json.encode(found))

    routes = ((alive, _LIVE), (ready, _READY), (ready_for_pages, _READY_FOR_PAGES))
    return {path: _reads(route) for route, paths in routes for path in paths}


_LIVE: Final = ("/healthz", "/health", "/health/liveliness", "/health/liveness")
_READY: Final = ("/readyz", "/ready", "/health/readiness")
_READY_FOR_PAGES: Final = ("/readyz/control-plane",)


def _reads(route: Route) -> dict[str, Route]:
    return {"GET": route, "HEAD": route}


def _answer(exchange: Exchange, status: int, body: bytes) -> None:
    exchange.respond(status, (_JSON, (REQUEST_ID_HEADER, new_request_id().encode())), body)
