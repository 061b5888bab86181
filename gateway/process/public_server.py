"""Wiring of a worker's HTTP server: the hot routes, its health, and everything else handed to the control plane."""

import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial

from gateway.configuration.gateway_config import GatewayConfig
from gateway.process.data_plane import DataPlane
from gateway.process.start_gate import StartGate, connection_limits, health_routes
from proxy.http.accept_queue import AcceptQueue
from proxy.http.server import HttpServer, tls_context
from proxy.routes import fallback_route, model_routes


@contextlib.asynccontextmanager
async def open_server(
    plane: DataPlane, config: GatewayConfig, listener: socket.socket, *, at_once: bool = False
) -> AsyncIterator[HttpServer]:
    """Open the plane and serve it on the socket; leaving cuts what is left, and closes the plane.

    With `at_once`, where nobody else serves on the socket, it is served while the plane opens, too: health is told, and all
    other requests wait for that.
    """
    gate = StartGate(plane.starting)
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
