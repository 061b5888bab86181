"""Runs the gateway: in this process, or in several workers under a supervisor.

`python -m proxy.process.serve --fd N --config FILE` is one such worker; people use `weighbridge serve`.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from proxy.configuration.file import ConfigError
from proxy.configuration.settings import Environment, GatewayConfig, load, peppers, read_environment, resolve_secret
from proxy.observers.logs import configure_logging
from proxy.observers.metrics import forget_worker
from proxy.process.lifeline import follow_parent
from proxy.process.open_files import allow_many_sockets
from proxy.process.protocol import BoundedProtocol
from proxy.process.supervisor import Supervisor
from proxy.webhooks.sender import destinations_of

_log = logging.getLogger("weighbridge.serve")

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_TELL_S = 0.5
_FORCED = 1


class PortTaken(Exception):
    """The address cannot be listened on; the message says why."""


def serve(
    config: GatewayConfig,
    environment: Environment,
    config_path: Path,
    *,
    listening: Callable[[str], None] = lambda url: _log.info("listening on %s", url),
) -> int:
    """Serves until a signal, and returns the exit status: 0 after a clean stop.

    `listening` is told the address as soon as connections to it are accepted, or at least queued.
    """
    # Until the app or the supervisor listens for it, a reload must not end this process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Found wanting here, it is one line; found wanting by a worker, it is a crash in its log.
    peppers(config, environment)
    destinations_of(config.webhooks.destinations, resolve_secret)
    with (
        _logging(),
        contextlib.closing(bind(config.server.host, config.server.port)) as listener,
    ):
        asyncio.run(_migrate(environment))
        listening(_url(listener))
        if config.server.workers == 1:
            return run_app(_gateway(config, environment, config_path), listener, drain_s=config.server.drain_s)
        return _supervise(config, environment, config_path, listener)


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
    """A listening socket; port 0 lets the system choose. Raises PortTaken."""
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
"""EADDRINUSE on Linux and on macOS."""


class Uvicorn(uvicorn.Server):
    """Uvicorn that tells the app when it begins to drain, and that obeys a second signal at once."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What start-up made stays: the collector need not walk all of it again and again while serving.
        gc.collect()
        gc.freeze()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        if self.should_exit:
            self.force_exit = True
            return
        self.should_exit = True
        begin_drain: Callable[[], None] | None = getattr(getattr(self.config.app, "state", None), "begin_drain", None)
        if begin_drain is not None:
            begin_drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Balancers and callers with a kept connection are told "draining" for a moment; a closed socket tells nothing.
        for _ in range(10):
            if not self.force_exit:
                await asyncio.sleep(_TELL_S / 10)
        await super().shutdown(sockets)


def run_app(app: ASGIApp, listener: socket.socket, *, drain_s: float) -> int:
    """Runs one app on the socket until a signal; requests under way get `drain_s` to end."""
    allow_many_sockets()
    server = Uvicorn(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=BoundedProtocol,
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(drain_s)),
            log_config=None,
            log_level="warning",
        )
    )
    try:
        server.run(sockets=[listener])
    except SystemExit as failed:
        # Uvicorn ends the process itself when the app's start-up fails; the reason is in the log.
        return int(failed.code) if isinstance(failed.code, int) else _FORCED
    return _FORCED if server.force_exit else 0


def _gateway(config: GatewayConfig, environment: Environment, config_path: Path | None) -> ASGIApp:
    from proxy.app import create_app  # noqa: PLC0415 - the supervisor's parent never needs the app

    return create_app(config, environment, config_path)


async def _migrate(environment: Environment) -> None:
    from proxy.db import make_engine, migrate  # noqa: PLC0415 - workers find the schema in place

    environment.data_dir.mkdir(parents=True, exist_ok=True)
    engine = make_engine(environment.database())
    try:
        await migrate(engine)
    finally:
        await engine.dispose()


def _supervise(config: GatewayConfig, environment: Environment, config_path: Path, listener: socket.socket) -> int:
    with _metrics_folder() as folder:
        return Supervisor(
            [sys.executable, "-m", "proxy.process.serve", "--fd", str(listener.fileno()), "--config", str(config_path)],
            count=config.server.workers,
            inherited_fd=listener.fileno(),
            environ={**os.environ, **environment.variables(), "PROMETHEUS_MULTIPROC_DIR": folder},
            drain_s=config.server.drain_s,
            worker_gone=lambda pid: forget_worker(pid, folder),
        ).run()


@contextlib.contextmanager
def _metrics_folder() -> Iterator[str]:
    """Where the workers share their counters; fresh, because figures of an earlier run would be added."""
    folder = tempfile.mkdtemp(prefix="weighbridge-metrics-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_worker(arguments: list[str]) -> int:
    """One worker: the inherited socket, the app, and an end when the parent is gone."""
    parser = argparse.ArgumentParser(
        prog="python -m proxy.process.serve", description="One worker of `weighbridge serve`."
    )
    parser.add_argument("--fd", type=int, required=True, help="the listening socket's descriptor")
    parser.add_argument("--config", type=Path, default=None, help="the configuration file")
    parser.add_argument("--app", default=None, help="module:name of another ASGI app to run")
    parser.add_argument("--drain-s", type=float, default=30.0, help="seconds for requests under way, with --app")
    given = parser.parse_args(arguments)
    # Until uvicorn listens for signals, a stop must end this process and a reload must not.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with _logging(), socket.socket(fileno=given.fd) as listener:
        if given.app is not None:
            return run_app(_named_app(given.app), listener, drain_s=given.drain_s)
        environment = read_environment()
        config = load(given.config, environment)
        return run_app(_gateway(config, environment, given.config), listener, drain_s=config.server.drain_s)


def _named_app(spelled: str) -> ASGIApp:
    module, _, name = spelled.partition(":")
    app: ASGIApp = getattr(importlib.import_module(module), name)
    return app


if __name__ == "__main__":
    try:
        sys.exit(run_worker(sys.argv[1:]))
    except ConfigError as refused:
        sys.exit(str(refused))
