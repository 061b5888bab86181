"""The control plane's web application: its routes, its error replies, and the HTTP server behind the workers."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.admin_routers import ROUTERS as ADMIN
from api.litellm.routes import router as LITELLM  # noqa: N812 - routers are constants here
from api.metrics.routes import router as METRICS  # noqa: N812 - routers are constants here
from api.openapi.document import Described, api_routes
from api.routers import ROUTERS as API
from dashboards.page_routers import ROUTERS as PAGES
from dashboards.web.error_replies import add_error_replies
from proxy.http.preamble import MOST_BYTES, parse_preamble
from proxy.http.request_id import REQUEST_ID_HEADER, new_request_id
from proxy.parse.wires.azure import plain_path

_BACKLOG: Final = 1_024
_KEEP_ALIVE_S: Final = 120
"""Seconds for which whoever reads metrics keeps a connection."""
_STOP_S: Final = 2
_POLL_S: Final = 0.01
_SCRAPES_AT_ONCE: Final = 64
_log = logging.getLogger("weighbridge.web")


def web_app(*, litellm: bool = False) -> Described:
    """Return every page and every route of the admin, finance and usage APIs; `litellm`: LiteLLM's admin routes, too."""
    app = Described(
        title="Weighbridge",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # It would send people to whatever host they say that this is.
        redirect_slashes=False,
    )
    for router in (*API, *ADMIN, *((LITELLM,) if litellm else ()), *PAGES):
        app.include_router(router)
    add_error_replies(app)
    return app


def metrics_app() -> Described:
    """Return the route of metrics alone, for a listener of its own."""
    app = Described(
        title="Weighbridge metrics", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.include_router(METRICS)
    add_error_replies(app)
    return app


class ControlApp:
    """An application whose routes have their state, and whose replies have a request id."""

    def __init__(self, app: Described, state: Mapping[str, Any]) -> None:
        self._app = app
        self._state = state
        self._routes = tuple(api_routes(app.routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = dict(self._state)
        if scope["type"] == "http":
            scope["path"] = self._path(scope)
            send = _named(send)
        await self._app(scope, receive, send)

    def _path(self, scope: Scope) -> str:
        """Return the path to be routed: decoded, unless that leads elsewhere than the path as it was sent. An encoded
        letter or slash could otherwise lead around a rule on paths of a proxy before the gateway.
        """
        # Clients of Azure and of LiteLLM have paths of their own for what is at /v1 everywhere else.
        path, sent = plain_path(scope["path"]), plain_path(scope["raw_path"].decode("ascii"))
        if path == sent or self._route_at(path, scope["method"]) == self._route_at(sent, scope["method"]):
            return path
        return sent

    def _route_at(self, path: str, method: str) -> str | None:
        """Return the route that answers there, as it is written; None for none."""
        found = (route for route in self._routes if method in (route.methods or ()) and route.path_regex.match(path))
        return next((route.path for route in found), None)


def _named(send: Send) -> Send:
    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID_HEADER, new_request_id().encode())]
        await send(message)

    return send_named


@contextlib.asynccontextmanager
async def serving_web(app: ASGIApp, path: Path) -> AsyncIterator[None]:
    """Serve the application on a Unix socket that nobody else may open; on leaving, what runs has a moment to end."""
    with contextlib.closing(_bound(path)) as listener:
        async with _serving(app, listener, http=OneRequest):
            yield


@contextlib.asynccontextmanager
async def serving_metrics(app: ASGIApp, address: str) -> AsyncIterator[None]:
    """Serve the application at `host:port`. An address that cannot be had is logged, and all else goes on without it."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            listener = stack.enter_context(contextlib.closing(_bound_to(address)))
        except (OSError, OverflowError) as refused:
            _log.error("telemetry.metrics_listen: %s cannot be opened (%s): choose another", address, refused)
        else:
            await stack.enter_async_context(_serving(app, listener, at_once=_SCRAPES_AT_ONCE))
        yield


@contextlib.asynccontextmanager
async def _serving(
    app: ASGIApp,
    listener: socket.socket,
    *,
    http: type[HttpToolsProtocol] = HttpToolsProtocol,
    at_once: int | None = None,
) -> AsyncIterator[None]:
    server = _WebServer(
        uvicorn.Config(
            app,
            http=http,
            ws="none",
            lifespan="off",
            backlog=_BACKLOG,
            limit_concurrency=at_once,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
            log_config=None,
            log_level="warning",
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="web")
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise RuntimeError("the control plane's HTTP server did not start")
            # Its socket is bound already, so this is a turn or two of the loop.
            await asyncio.sleep(0)
        yield
    finally:
        server.leave()
        await serving


class OneRequest(HttpToolsProtocol):
    """A worker's connection: a line that says who asks, then one request, and nothing else."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._begun: bytes | None = b""
        """The preamble's bytes so far; None behind it."""
        self._has_request = False

    def data_received(self, data: bytes) -> None:
        """Take bytes of the connection."""
        if self._begun is not None:
            line, end, data = (self._begun + data).partition(b"\n")
            if not end and len(line) <= MOST_BYTES:
                self._begun = line
                return
            try:
                asker = parse_preamble(line if len(line) <= MOST_BYTES else b"")
            except ValueError:
                _log.error("somebody who is no worker of this gateway opened the control plane's socket")
                self.transport.abort()
                return
            self._begun = None
            self.client = asker.peer
            self.scheme = "https" if asker.tls else "http"
        if data:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Note that a request begins; a second one ends the connection."""
        if self._has_request:
            self.transport.abort()
            raise httptools.HttpParserError("a connection has one request")
        self._has_request = True
        super().on_message_begin()


class _WebServer(uvicorn.Server):
    """A server of uvicorn's that is told when to end.

    The original looks ten times a second whether it should, and then waits a tenth of a second whether or not anything runs.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._left = asyncio.Event()
        # Signals are the process's own business.
        self.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]

    def leave(self) -> None:
        """Take nothing new; what runs has `timeout_graceful_shutdown` to end."""
        self.should_exit = True
        self._left.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._left.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for closed in (*self.servers, *(sockets or ())):
            closed.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                # A connection is gone one turn of the loop after it was closed.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn's own sets
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            _log.error("%d requests for pages took too long to end and are cut", len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()


def _bound(path: Path) -> socket.socket:
    # A control plane that was killed leaves its socket behind.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _bound_to(address: str) -> socket.socket:
    """Return a listening socket at `host:port`. Raises OSError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    # Sockets that name their protocol get TCP_NODELAY from asyncio.
    family, kind, protocol, _, at = socket.getaddrinfo(
        host, int(port), type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # While a successor starts, both processes have it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(at)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
