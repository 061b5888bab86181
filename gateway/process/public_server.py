"""Wiring of a worker's HTTP server: the hot routes, its health, and everything else handed to the control plane."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from gateway.configuration.gateway_config import GatewayConfig, ServerConfig
from gateway.process.data_plane import DataPlane
from proxy.admin.health import Readiness, Starting
from proxy.errors import NotStarted
from proxy.http.accept_queue import AcceptQueue
from proxy.http.connection import ConnectionLimits
from proxy.http.exchange import Exchange
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.http.server import HttpServer, Route, Routes, tls_context
from proxy.routes import fallback_route, model_routes

_HOLD_S: Final = 8.0
"""Seconds that a request waits for the start's end; a page waits as long for a control plane."""
_AGAIN_S: Final = 2.0
_ALIVE: Final = b'{"status":"ok"}'
_JSON: Final = (b"content-type", b"application/json")


def connection_limits(server: ServerConfig) -> ConnectionLimits:
    """Return the limits on connections, of which a reload may change those in seconds."""
    return ConnectionLimits(
        body_timeout_s=server.body_timeout_s,
        slow_reader_s=server.slow_reader_s,
        max_bodies_bytes=server.max_bodies_bytes,
    )


@contextlib.asynccontextmanager
async def open_server(
    plane: DataPlane, config: GatewayConfig, listener: socket.socket, *, at_once: bool = False
) -> AsyncIterator[HttpServer]:
    """Open the plane and serve it on the socket; leaving cuts what is left, and closes the plane.

    With `at_once`, where nobody else serves on the socket, it is served while the plane opens, too: health is told, and all
    other requests wait for that.
    """
    gate = _StartGate(plane)
    server = HttpServer(
        gate.health, gate.hold, connection_limits(config.server), cors_origins=config.server.cors_origins
    )

    def adopt(reloaded: GatewayConfig) -> None:
        server.limits = connection_limits(reloaded.server)

    plane.reloaded.append(adopt)
    tls = None if config.server.tls is None else tls_context(config.server.tls.certificate, config.server.tls.key)
    queues: list[AcceptQueue] = []
    listen = partial(server.listen, listener, tls=tls, sharing=config.server.workers, watch=queues.append)
    async with contextlib.AsyncExitStack() as stack:
        if at_once:
            # A start that fails ends those who wait for it.
            stack.push_async_callback(server.aclose)
            await listen()
        health = await stack.enter_async_context(plane.serving())
        stack.push_async_callback(server.aclose)
        server.serve_instead(
            {**model_routes(plane.live.line), **health_routes(health.look)},
            fallback_route(plane.live.line, plane.others),
        )
        gate.open(server)
        if not at_once:
            await listen()
        for queue in queues:
            plane.watch_backlog(queue)
        yield server


class _StartGate:
    """What a process answers while its plane opens."""

    def __init__(self, plane: DataPlane) -> None:
        self.health = health_routes(plane.starting)
        self._server: HttpServer | None = None
        self._opened = asyncio.Event()

    def open(self, server: HttpServer) -> None:
        """Let those go on who wait."""
        self._server = server
        self._opened.set()

    async def hold(self, exchange: Exchange) -> None:
        """Answer as soon as the plane is open. Raises NotStarted when that takes too long."""
        try:
            async with asyncio.timeout(_HOLD_S):
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
    two names.
    """

    async def alive(exchange: Exchange) -> None:
        _answer(exchange, 200, _ALIVE)

    async def ready(exchange: Exchange) -> None:
        found = await look()
        _answer(exchange, found.http_status, msgspec.json.encode(found))

    return {path: _reads(route) for route, paths in ((alive, _LIVE), (ready, _READY)) for path in paths}


_LIVE: Final = ("/healthz", "/health")
_READY: Final = ("/readyz", "/ready")


def _reads(route: Route) -> dict[str, Route]:
    return {"GET": route, "HEAD": route}


def _answer(exchange: Exchange, status: int, body: bytes) -> None:
    exchange.respond(status, (_JSON, (REQUEST_ID_HEADER, new_request_id().encode())), body)
