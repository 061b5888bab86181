"""Runs the gateway: in this process, or in several workers under a supervisor.

`python -m gateway.process.serve --fd N --config FILE` is one such worker; people use `weighbridge serve`.
"""

import argparse
import asyncio
import contextlib
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
from gateway.process.app_process import HttpOptions, run_app
from gateway.process.parent_pipe import follow_parent
from gateway.process.supervisor import Supervisor
from gateway.wiring.http import connection_limits
from proxy.http.server import BACKLOG
from proxy.http.tls import tls_context
from proxy.observers.logs import configure_logging
from proxy.observers.metrics import forget_worker
from settings.private import private_folder

_log = logging.getLogger("weighbridge.serve")


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
    _options(config)
    with (
        _logging(),
        contextlib.closing(bind(config.server.host, config.server.port)) as listener,
    ):
        for warning in without_effect(config_path):
            _log.warning("%s", warning)
        asyncio.run(_migrate(environment))
        listening(_url(listener, "http" if config.server.tls is None else "https"))
        if config.server.workers == 1:
            return run_app(
                _gateway(config, environment, config_path),
                listener,
                drain_s=config.server.drain_s,
                options=_options(config),
            )
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


def _url(listener: socket.socket, scheme: str) -> str:
    host, port, *_ = listener.getsockname()
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


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
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = "; another server is already there, choose another --port" if error.errno in _IN_USE else ""
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    listener.setblocking(False)
    return listener


_IN_USE = {98, 48}
"""The errno of EADDRINUSE on Linux and on macOS."""


def _options(config: GatewayConfig) -> HttpOptions:
    """Raises TlsInvalid."""
    server = config.server
    return HttpOptions(
        limits=connection_limits(server),
        cors_origins=tuple(server.cors_origins),
        tls=None if server.tls is None else tls_context(server.tls.certificate, server.tls.key),
    )


def _gateway(config: GatewayConfig, environment: Environment, config_path: Path | None) -> ASGIApp:
    from gateway.app import create_app  # noqa: PLC0415 - the supervisor's parent never needs the app

    return create_app(config, environment, config_path)


async def _migrate(environment: Environment) -> None:
    from gateway.database import make_engine, migrate  # noqa: PLC0415 - workers find the schema in place

    private_folder(environment.data_dir)
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
    # Until the server listens for signals, a stop must end this process and a reload must not.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started = _teller(given.ready_fd)
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    with _logging(), socket.socket(fileno=given.fd) as listener:
        if given.app is not None:
            return run_app(_named_app(given.app), listener, drain_s=given.drain_s, started=started)
        environment = read_environment()
        config = load(given.config, environment)
        app = _gateway(config, environment, given.config)
        return run_app(
            app,
            listener,
            drain_s=config.server.drain_s,
            started=started,
            sharing=config.server.workers,
            options=_options(config),
        )


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
