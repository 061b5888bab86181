"""Wiring of a worker's HTTP server: the hot routes, its health, and everything else handed to the control plane."""

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from gateway.configuration.gateway_config import GatewayConfig, ServerConfig
from gateway.process.data_plane import DataPlane
from proxy.admin.health import Health
from proxy.http.connection import ConnectionLimits
from proxy.http.exchange import Exchange
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.http.server import HttpServer, Route, Routes, tls_context
from proxy.routes import fallback_route, model_routes

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
    plane: DataPlane, health: Health, config: GatewayConfig, listener: socket.socket
) -> AsyncIterator[HttpServer]:
    """Serve on the socket; leaving cuts what is left."""
    server = HttpServer(
        {**model_routes(plane.live.line), **health_routes(health)},
        fallback_route(plane.live.line, plane.others),
        connection_limits(config.server),
        cors_origins=config.server.cors_origins,
    )

    def adopt(reloaded: GatewayConfig) -> None:
        server.limits = connection_limits(reloaded.server)

    plane.reloaded.append(adopt)
    tls = None if config.server.tls is None else tls_context(config.server.tls.certificate, config.server.tls.key)
    try:
        await server.listen(listener, tls=tls, sharing=config.server.workers, watch=plane.watch_backlog)
        yield server
    finally:
        await server.aclose()


def health_routes(health: Health) -> Routes:
    """Return the routes of liveness, which checks nothing but that the process answers, and of readiness; each under
    two names.
    """

    async def alive(exchange: Exchange) -> None:
        _answer(exchange, 200, _ALIVE)

    async def ready(exchange: Exchange) -> None:
        found = await health.look()
        _answer(exchange, found.http_status, msgspec.json.encode(found))

    return {path: _reads(route) for route, paths in ((alive, _LIVE), (ready, _READY)) for path in paths}


_LIVE: Final = ("/healthz", "/health")
_READY: Final = ("/readyz", "/ready")


def _reads(route: Route) -> dict[str, Route]:
    return {"GET": route, "HEAD": route}


def _answer(exchange: Exchange, status: int, body: bytes) -> None:
    exchange.respond(status, (_JSON, (REQUEST_ID_HEADER, new_request_id().encode())), body)
