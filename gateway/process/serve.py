"""Runs the gateway: in this process, or in several workers under a supervisor.

`python -m gateway.process.serve --fd N --config FILE` is one such worker; people use `weighbridge serve`.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from dashboards.webhooks.sender import destinations_of
from gateway.configuration.file import ConfigError
from gateway.configuration.settings import (
    Environment,
    GatewayConfig,
    load,
    peppers,
    read_environment,
    resolve_secret,
    without_effect,
)
from gateway.process.open_files import allow_many_sockets
from gateway.process.parent_pipe import follow_parent
from gateway.process.protocol import BoundedProtocol, ServerConnections
from gateway.process.supervisor import Supervisor
from proxy.http.accept_queue import AcceptQueue
from proxy.observers.logs import configure_logging
from proxy.observers.metrics import forget_worker

_log = logging.getLogger("weighbridge.serve")

_BACKLOG = 8192
_KEEP_ALIVE_S = 75
_TELL_S = 0.5
_MOVE_S = 2.0
"""Seconds for which a replaced worker keeps idle connections; each next reply tells them to leave."""
_CUT_OFF_S = 2.0
"""Seconds after the drain for the last bytes of requests that are cut off."""
_POLL_S = 0.05
_FORCED = 1


class PortTaken(Exception):
    """Raised when the address cannot be listened on; the message says why."""


def serve(
    config: GatewayConfig,
    environment: Environment,
    config_path: Path,
    *,
    listening: Callable[[str], None] = lambda url: _log.info("listening on %s", url),
) -> int:
    """Serves until a signal, and returns the exit status: 0 after a clean stop.

    Clean means that everything is settled, requests cut off after `drain_s` included; 1 means that a second signal or a
    hung worker ended it by force. `listening` is called with the address once connections are at least queued.
    """
    # Until the app or the supervisor listens for it, a reload must not end this process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    # Nothing has been admitted before somebody else listens for these, so there is nothing to wait for.
    signal.signal(signal.SIGTERM, _end_at_once)
    signal.signal(signal.SIGINT, _end_at_once)
    # Found wanting here, it is one line; found wanting by a worker, it is a crash in its log.
    peppers(config, environment)
    destinations_of(config.webhooks.destinations, resolve_secret)
    with (
        _logging(),
        contextlib.closing(bind(config.server.host, config.server.port)) as listener,
    ):
        for warning in without_effect(config_path):
            _log.warning("%s", warning)
        asyncio.run(_migrate(environment))
        listening(_url(listener))
        if config.server.workers == 1:
            return run_app(_gateway(config, environment, config_path), listener, drain_s=config.server.drain_s)
        return _supervise(config, environment, config_path, listener)


def _end_at_once(_signum: int, _frame: FrameType | None) -> None:
    # An exception would be lost where the interpreter ignores those, as in a callback of the garbage collector, and the
    # process would go on to serve. A migration that is under way is rolled back with its connection.
    os._exit(0)


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    # What a migration does is told when it fails; its progress is noise in a server's log.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with contextlib.closing(configure_logging()):
        yield


def _url(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """Binds a listening socket; port 0 lets the system choose. Raises PortTaken."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hint = "; another server is already there, choose another --port" if error.errno in _IN_USE else ""
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    listener.setblocking(False)
    return listener


_IN_USE = {98, 48}
"""The errno of EADDRINUSE on Linux and on macOS."""


class Uvicorn(uvicorn.Server):
    """A uvicorn server that reports the start and end of draining to the app, and obeys a second signal at once."""

    def __init__(
        self, config: uvicorn.Config, *, drain_s: float, started: Callable[[], None] | None, sharing: int
    ) -> None:
        super().__init__(config)
        self._sharing = sharing
        self.server_state: ServerConnections = ServerConnections()
        self._drain_s = drain_s
        self._started = started
        self._being_replaced = False
        self._stop_requested = False
        self._drain_until = math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watch_backlogs(sockets or [])
        # What start-up made stays: the collector need not walk all of it again and again while serving.
        gc.collect()
        gc.freeze()
        with contextlib.suppress(ValueError, RuntimeError):
            # Signals reach the main thread only.
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._be_replaced)
        if self._started is not None:
            self._started()

    def _watch_backlogs(self, sockets: list[socket.socket]) -> None:
        """Connects the accept queues to the app's overload guard."""
        watch: Callable[[AcceptQueue], None] | None = getattr(
            getattr(self.config.app, "state", None), "watch_backlog", None
        )
        if watch is None:
            return
        for listener in sockets:
            door = AcceptQueue(listener, self._make_protocol, lambda: self.server_state.accepted, self._sharing)
            # Uvicorn closes its servers, and so this one with them.
            self.servers.append(cast("asyncio.Server", door))
            watch(door)

    def _make_protocol(self) -> asyncio.Protocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        if self._stop_requested:
            self.force_exit = True
            return
        self._stop_requested = self.should_exit = True
        self._being_replaced = False
        self._begin_drain()

    def _be_replaced(self) -> None:
        if self._started is None:
            _log.warning("SIGUSR2 replaces workers one by one; this is a single process (`server.workers` is 1)")
        elif not self.should_exit:
            self.should_exit = self._being_replaced = True

    def _begin_drain(self) -> None:
        self._drain_until = min(self._drain_until, time.monotonic() + self._drain_s)
        self.server_state.stopping = True
        self._tell_app("begin_drain")

    def _tell_app(self, name: str) -> bool:
        told: Callable[[], None] | None = getattr(getattr(self.config.app, "state", None), name, None)
        if told is not None:
            told()
        return told is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._being_replaced:
            # Others have the socket, too: who is not accepted here is accepted there, and who is here moves over.
            for server in self.servers:
                server.close()
            self._drain_until = time.monotonic() + self._drain_s
            self._say_close()
            # Nobody is refused meanwhile: each connection has one more reply, and its next request goes elsewhere.
            await self._move(min(_MOVE_S, self._drain_s / 4))
            for connection in list(self.server_state.connections):
                connection.shutdown()
            await self._move(self._drain_s / 2)
            self._begin_drain()
        else:
            # Again: a signal that came during the start-up found no app to tell.
            self._begin_drain()
            # Balancers and callers with a kept connection are told "draining" for a moment; a closed socket tells
            # nothing.
            for connection in self.server_state.connections:
                connection.end_with_this()
            await self._wait(_TELL_S, lambda: False)
            self._say_close()
        over = asyncio.get_running_loop().call_later(max(0.0, self._drain_until - time.monotonic()), self._cut_off)
        try:
            await super().shutdown(sockets)
        finally:
            over.cancel()

    async def _move(self, seconds: float) -> None:
        await self._wait(seconds, lambda: not self._being_replaced or not self.server_state.connections)

    def _say_close(self) -> None:
        self.server_state.stopping = self.server_state.leaving = True
        for connection in self.server_state.connections:
            connection.end_with_this()

    async def _wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        for _ in range(round(seconds / _POLL_S)):
            if self.force_exit or enough():
                return
            await asyncio.sleep(_POLL_S)

    def _cut_off(self) -> None:
        if not self.server_state.tasks:
            # No request is left; the delay is the ledger's closing.
            return
        _log.warning("%d requests still ran after %g s and are cut off", len(self.server_state.tasks), self._drain_s)
        if not self._tell_app("cut_off"):
            for task in self.server_state.tasks:
                task.cancel()


def run_app(
    app: ASGIApp,
    listener: socket.socket,
    *,
    drain_s: float,
    started: Callable[[], None] | None = None,
    sharing: int = 1,
) -> int:
    """Serves one app on the socket until a signal; running requests get `drain_s` to end. Returns the exit status.

    `started` is called once it serves, by a supervised worker, for which SIGUSR2 means that a new worker has taken its
    place. `sharing` is the number of processes that accept from the socket.
    """
    allow_many_sockets()
    server = Uvicorn(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            # The loop calls `listen` again, which would otherwise shrink the backlog.
            backlog=_BACKLOG,
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            # For what is left when the app has cut off what it knows of.
            timeout_graceful_shutdown=math.ceil(drain_s + _CUT_OFF_S),
            log_config=None,
            log_level="warning",
        ),
        drain_s=drain_s,
        started=started,
        sharing=sharing,
    )
    try:
        server.run(sockets=[listener])
    except SystemExit as failed:
        # Uvicorn ends the process itself when the app's start-up fails; the reason is in the log.
        return int(failed.code) if isinstance(failed.code, int) else _FORCED
    return _FORCED if server.force_exit else 0


def _gateway(config: GatewayConfig, environment: Environment, config_path: Path | None) -> ASGIApp:
    from gateway.app import create_app  # noqa: PLC0415 - the supervisor's parent never needs the app

    return create_app(config, environment, config_path)


async def _migrate(environment: Environment) -> None:
    from gateway.database import make_engine, migrate  # noqa: PLC0415 - workers find the schema in place

    environment.data_dir.mkdir(parents=True, exist_ok=True)
    engine = make_engine(environment.database())
    try:
        await migrate(engine)
    finally:
        await engine.dispose()


def _supervise(config: GatewayConfig, environment: Environment, config_path: Path, listener: socket.socket) -> int:
    with _metrics_folder() as folder:
        return Supervisor(
            [
                sys.executable,
                "-m",
                "gateway.process.serve",
                "--fd",
                str(listener.fileno()),
                "--config",
                str(config_path),
            ],
            count=config.server.workers,
            inherited_fd=listener.fileno(),
            environ={**os.environ, **environment.variables(), "PROMETHEUS_MULTIPROC_DIR": folder},
            drain_s=config.server.drain_s,
            worker_gone=lambda pid: forget_worker(pid, folder),
        ).run()


@contextlib.contextmanager
def _metrics_folder() -> Iterator[str]:
    """Yields an empty folder for the workers' shared metrics, as figures of an earlier run would be added."""
    folder = tempfile.mkdtemp(prefix="weighbridge-metrics-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_worker(arguments: list[str]) -> int:
    """Runs one worker: the inherited socket, the app, and the end when the parent is gone. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.process.serve", description="One worker of `weighbridge serve`."
    )
    parser.add_argument("--fd", type=int, required=True, help="the listening socket's descriptor")
    parser.add_argument("--ready-fd", type=int, default=None, help="a pipe that is told when this worker serves")
    parser.add_argument("--config", type=Path, default=None, help="the configuration file")
    parser.add_argument("--app", default=None, help="module:name of another ASGI app to run")
    parser.add_argument("--drain-s", type=float, default=30.0, help="seconds for requests under way, with --app")
    given = parser.parse_args(arguments)
    # Until uvicorn listens for signals, a stop must end this process and a reload must not.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started = _teller(given.ready_fd)
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with _logging(), socket.socket(fileno=given.fd) as listener:
        if given.app is not None:
            return run_app(_named_app(given.app), listener, drain_s=given.drain_s, started=started)
        environment = read_environment()
        config = load(given.config, environment)
        app = _gateway(config, environment, given.config)
        return run_app(app, listener, drain_s=config.server.drain_s, started=started, sharing=config.server.workers)


def _teller(ready_fd: int | None) -> Callable[[], None] | None:
    if ready_fd is None:
        return None

    def tell() -> None:
        # A supervisor that is gone is noticed elsewhere.
        with contextlib.suppress(OSError):
            os.write(ready_fd, b"\n")
        os.close(ready_fd)

    return tell


def _named_app(spelled: str) -> ASGIApp:
    module, _, name = spelled.partition(":")
    app: ASGIApp = getattr(importlib.import_module(module), name)
    return app


if __name__ == "__main__":
    try:
        sys.exit(run_worker(sys.argv[1:]))
    except ConfigError as refused:
        sys.exit(str(refused))
