"""Runs the gateway: the control plane and the workers, under a supervisor in this process.

`python -m gateway.process.serve --fd N --config FILE` does so on a socket that is inherited; people use `weighbridge serve`.
"""

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from api.webhooks.sender import destinations_of
from gateway.configuration.environment import Environment, read_environment, resolve_secret
from gateway.configuration.file import ConfigError
from gateway.configuration.gateway_config import GatewayConfig
from gateway.configuration.peppers import pepper_to_make, peppers
from gateway.configuration.places import FILES, sqlite_path, unwritable
from gateway.configuration.settings import load, without_effect
from gateway.expected_errors import expected
from gateway.process.announced import SERVING, Gateway, announced
from gateway.process.first_words import Missing, first_missing, first_words, says_on_terminal
from gateway.process.hash_key import hash_key
from gateway.process.life import ignore_early_signals
from gateway.process.listener import bind
from gateway.process.parent_pipe import follow_parent
from gateway.process.prepare_database import prepare_database
from gateway.process.runtime_folder import runtime_folder
from gateway.process.supervisor import Supervisor
from proxy.http.server import tls_context
from proxy.settle.observers.logs import LogForm, configure_logging
from proxy.settle.observers.metrics import forget_worker
from weighbridge._own import module

_log = logging.getLogger("weighbridge.serve")

_PATIENCE_S = 2.0
"""Seconds that an address which is in use is waited for: a gateway that is being stopped leaves its own within half a second."""


def serve(
    config: GatewayConfig,
    environment: Environment,
    config_path: Path,
    *,
    listening: Callable[[str], None] | None = None,
    option: Path | None = None,
) -> int:
    """Serve until a signal, and return the exit status: 0 after a clean stop. Raises CannotServe.

    Clean means that everything is settled, requests cut off after `drain_s` included; 1 means that a second signal or a
    hung process ended it by force. `listening` is called with the address once all processes serve; without it, a terminal is
    told the address, the dashboard and the command that comes next, with `option` as its `--config`.
    """
    check_places(config, environment)
    with contextlib.closing(bind(config.server.host, config.server.port, patience_s=_PATIENCE_S)) as listener:
        return serve_on(listener, config, environment, config_path, listening=listening, option=option)


def check_places(config: GatewayConfig, environment: Environment) -> None:
    """Make the folders of everything that is kept. Raises ConfigError, which names all to which this process cannot write."""
    folders = {"cost.journal_dir": config.cost.journal_dir}
    database = sqlite_path(environment.database())
    if database is not None:
        folders["the database"] = database.parent
    if config.batch.enabled and config.batch.s3 is None:
        folders["batch.folder"] = config.batch.folder or environment.places.kept(FILES)
    if config.cost.report is not None and config.cost.report.folder is not None:
        folders["cost.report.folder"] = config.cost.report.folder
    pepper = pepper_to_make(config, environment)
    if pepper is not None:
        folders["accounts.pepper_file"] = pepper.parent
    problems = unwritable(folders, () if database is None else (database,))
    if problems:
        raise ConfigError(problems)


def serve_on(
    listener: socket.socket,
    config: GatewayConfig,
    environment: Environment,
    config_path: Path,
    *,
    listening: Callable[[str], None] | None = None,
    option: Path | None = None,
) -> int:
    """Serve, as `serve` does, on a socket that is bound already.

    It is closed at a stop. Where another process holds a copy, connections that come then wait in the socket's queue for that process.
    """
    # Until the supervisor listens for them, a reload must not end this process.
    ignore_early_signals()
    # Nothing has been admitted before somebody else listens for these, so there is nothing to wait for.
    signal.signal(signal.SIGTERM, _end_at_once)
    signal.signal(signal.SIGINT, _end_at_once)
    # Found wanting here, it is one line; found wanting by a worker, it is a crash in its log.
    if pepper_to_make(config, environment) is None:
        peppers(config, environment)
    destinations_of(config.webhooks.destinations, resolve_secret, config.webhooks.mail)
    if config.server.tls is not None:
        tls_context(config.server.tls.certificate, config.server.tls.key)
    with _logging(environment.logs):
        for warning in without_effect(config_path):
            _log.warning("%s", warning)
        url = _url(listener, "http" if config.server.tls is None else "https")
        speaks = says_on_terminal(environment.logs)
        if not speaks:
            _log.info("starting at %s", url)
        asyncio.run(prepare_database(listener, config.server, lambda: _prepare(config, environment)))
        missing = asyncio.run(_missing(environment)) if speaks and listening is None else None

        def serving() -> None:
            if not speaks:
                _log.info("listening on %s", url)
            if listening is not None:
                listening(url)
            elif missing is not None:
                sys.stdout.write(f"\n{first_words(config, url, missing, option)}\n\n")
                sys.stdout.flush()

        return _supervise(config, environment, config_path, listener, url, serving)


def _end_at_once(_signum: int, _frame: FrameType | None) -> None:
    # An exception would be lost where the interpreter ignores those, as in a callback of the garbage collector, and the
    # process would go on to serve. A migration that is under way is rolled back with its connection.
    os._exit(0)


@contextlib.contextmanager
def _logging(form: LogForm | None) -> Iterator[None]:
    # What a migration does is told when it fails; its progress is noise in a server's log.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with contextlib.closing(configure_logging(form=form)):
        yield


def _url(listener: socket.socket, scheme: str) -> str:
    host, port, *_ = listener.getsockname()
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"


async def _prepare(config: GatewayConfig, environment: Environment) -> None:
    from gateway.database import make_engine, require_writes  # noqa: PLC0415 - workers find the schema in place
    from gateway.process.prepare_pepper import prepare_pepper  # noqa: PLC0415 - with the database's modules
    from gateway.schema import prepare_for_serving  # noqa: PLC0415

    engine = make_engine(environment.database())
    try:
        await prepare_for_serving(engine, may_migrate=environment.migrate, say=functools.partial(_log.warning, "%s"))
        await require_writes(engine)
        await prepare_pepper(engine, config, environment)
    finally:
        await engine.dispose()


async def _missing(environment: Environment) -> Missing:
    from gateway.database import make_engine  # noqa: PLC0415 - workers find the schema in place

    engine = make_engine(environment.database())
    try:
        return await first_missing(engine)
    finally:
        await engine.dispose()


def _supervise(
    config: GatewayConfig,
    environment: Environment,
    config_path: Path,
    listener: socket.socket,
    url: str,
    serving: Callable[[], None],
) -> int:
    with (
        runtime_folder() as folder,
        announced(
            environment.places.kept(SERVING),
            Gateway(os.getpid(), str(config_path.absolute()), str(folder.path), url),
        ),
    ):
        shared = ["--config", str(config_path), "--runtime", str(folder.path)]
        return Supervisor(
            [sys.executable, *module("gateway.process.worker"), "--fd", str(listener.fileno()), *shared],
            control=[sys.executable, *module("gateway.process.control"), *shared],
            count=config.server.workers,
            listener=listener,
            environ={
                **os.environ,
                **environment.variables(),
                "PROMETHEUS_MULTIPROC_DIR": str(folder.metrics),
                "PYTHONHASHSEED": str(hash_key(config, environment)),
            },
            drain_s=config.server.drain_s,
            gone=lambda pid: forget_worker(pid, str(folder.metrics)),
            serving=serving,
        ).run()


def run(arguments: list[str]) -> int:
    """Serve on an inherited socket, until a signal or until the parent is gone. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.process.serve", description="`weighbridge serve` on a socket that is bound already."
    )
    parser.add_argument("--fd", type=int, required=True, help="the listening socket's descriptor")
    parser.add_argument("--config", type=Path, default=None, help="the configuration file")
    given = parser.parse_args(arguments)
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    environment = read_environment(given.config)
    config = load(given.config, environment)
    check_places(config, environment)
    with socket.socket(fileno=given.fd) as listener:
        return serve_on(listener, config, environment, given.config)


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except Exception as refused:
        told = expected(refused)
        if told is None:
            raise
        sys.exit(told)
