"""One process that serves an application: its loop, its signals, and an end that drops nothing."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import uvloop
from starlette.types import ASGIApp

from gateway.asgi import AsgiBridge, StartFailed
from gateway.process.open_files import allow_many_sockets
from proxy.http.connection import ConnectionLimits
from proxy.http.server import HttpServer, Route, Routes

_log: Final = logging.getLogger("weighbridge.serve")

_FORCED: Final = 1
_NOT_STARTED: Final = 3


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the public socket is served."""

    limits: ConnectionLimits = ConnectionLimits()
    cors_origins: tuple[str, ...] = ()
    tls: ssl.SSLContext | None = None


def run_app(
    app: ASGIApp,
    listener: socket.socket,
    *,
    drain_s: float,
    started: Callable[[], None] | None = None,
    sharing: int = 1,
    options: HttpOptions | None = None,
) -> int:
    """Serves one app on the socket until a signal; running requests get `drain_s` to end. Returns the exit status.

    `started` is called once it serves, by a supervised worker, for which SIGUSR2 means that a new worker has taken its
    place. `sharing` is the number of processes that accept from the socket, which is closed at the end.
    """
    allow_many_sockets()
    process = _Process(app, drain_s, options or HttpOptions())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(process.serve(listener, started, sharing))


def _as_it_is(otherwise: Route) -> Route:
    return otherwise


class _Process:
    """What the signals ask for, and what is done about it."""

    def __init__(self, app: ASGIApp, drain_s: float, options: HttpOptions) -> None:
        self._app = app
        self._state: Any = getattr(app, "state", None)
        self._drain_s = drain_s
        self._options = options
        self._server: HttpServer | None = None
        self._is_supervised = False
        self._asked = asyncio.Event()
        """Set when this process is to go, for whatever reason."""
        self._is_replaced = False
        self._is_stopped = False
        self._is_forced = False
        self._until = 0.0

    async def serve(self, listener: socket.socket, started: Callable[[], None] | None, sharing: int) -> int:
        self._is_supervised = started is not None
        self._listen_for_signals()
        bridge = AsgiBridge(self._app)
        try:
            async with bridge.alive():
                await self._serve(bridge, listener, started, sharing)
        except StartFailed as failed:
            _log.error("the application did not start: %s", failed)
            return _NOT_STARTED
        return _FORCED if self._is_forced else 0

    async def _serve(
        self, bridge: AsgiBridge, listener: socket.socket, started: Callable[[], None] | None, sharing: int
    ) -> None:
        routes: Callable[[], Routes] | None = getattr(self._state, "hot_routes", None)
        server = self._server = HttpServer(
            {} if routes is None else routes(),
            getattr(self._state, "elsewhere", _as_it_is)(bridge),
            self._options.limits,
            cors_origins=self._options.cors_origins,
        )
        self._tell("adopt_server", server)
        watch = getattr(self._state, "watch_backlog", None)
        await server.listen(listener, tls=self._options.tls, sharing=sharing, watch=watch)
        # What start-up made stays: the collector need not walk all of it again and again while serving.
        gc.collect()
        gc.freeze()
        if started is not None:
            started()
        try:
            await self._asked.wait()
            if self._is_replaced:
                self._until = time.monotonic() + self._drain_s
                await server.move(self._until)
            self._begin_drain()
            await server.stop(self._until, lambda: self._tell("cut_off"))
        finally:
            await server.aclose()

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError):
            # Signals reach the main thread only.
            for stop in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(stop, self._stop)
            loop.add_signal_handler(signal.SIGUSR2, self._be_replaced)

    def _stop(self) -> None:
        if self._is_stopped:
            self._is_forced = True
            if self._server is not None:
                self._server.hurry()
            return
        self._is_stopped = True
        self._begin_drain()
        self._asked.set()
        if self._server is not None:
            self._server.stop_moving()

    def _be_replaced(self) -> None:
        if not self._is_supervised:
            _log.warning("SIGUSR2 replaces workers one by one; this is a single process (`server.workers` is 1)")
        elif not self._asked.is_set():
            self._is_replaced = True
            self._asked.set()

    def _begin_drain(self) -> None:
        """Tells the application. Also again: what came during the start-up found none."""
        until = time.monotonic() + self._drain_s
        self._until = min(self._until, until) if self._until else until
        self._tell("begin_drain")

    def _tell(self, name: str, *what: object) -> bool:
        told: Callable[..., None] | None = getattr(self._state, name, None)
        if told is not None:
            told(*what)
        return told is not None
