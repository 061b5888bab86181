"""A data-plane worker's process: `python -m gateway.process.worker --fd N --config FILE --runtime FOLDER`."""

import argparse
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.configuration.environment import read_environment
from gateway.configuration.file import ConfigError
from gateway.configuration.settings import load
from gateway.process.allocator import give_back_large_blocks
from gateway.process.data_plane import DataPlane
from gateway.process.life import Signals, ignore_early_signals, live, until_stopped
from gateway.process.open_files import allow_many_sockets
from gateway.process.parent_pipe import follow_parent
from gateway.process.public_server import open_server
from gateway.process.runtime_folder import RuntimeFolder
from gateway.process.start_report import StartReport
from proxy.http.server import HttpServer


def run_worker(arguments: list[str]) -> int:
    """Run one worker until a signal, or until the parent is gone. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.process.worker", description="One worker of `weighbridge serve`."
    )
    parser.add_argument("--fd", type=int, required=True, help="the listening socket's descriptor")
    parser.add_argument("--ready-fd", type=int, default=None, help="a pipe that is told when this worker serves")
    parser.add_argument(
        "--start",
        choices=("first", "alone", "beside"),
        default="beside",
        help="whether others serve: nobody ever did, nobody does now, or somebody does",
    )
    parser.add_argument("--config", type=Path, required=True, help="the configuration file")
    parser.add_argument("--runtime", type=Path, required=True, help="the folder in which the processes meet")
    given = parser.parse_args(arguments)
    ignore_early_signals()
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    report = StartReport(given.ready_fd)
    return report.run(lambda: _run(given, report))


def _run(given: argparse.Namespace, report: StartReport) -> int:
    allow_many_sockets()
    give_back_large_blocks()
    environment = read_environment(given.config)
    config = load(given.config, environment)
    folder = RuntimeFolder(given.runtime)
    plane = DataPlane(config, environment, given.config, folder, is_first=given.start == "first")

    @contextlib.asynccontextmanager
    async def opening() -> AsyncIterator[HttpServer]:
        with socket.socket(fileno=given.fd) as listener:
            async with open_server(plane, config, listener, at_once=given.start != "beside") as server:
                yield server

    async def serve(server: HttpServer, signals: Signals) -> None:
        plane.reloads.begin()
        report.serves()
        await until_stopped(server, plane, signals, config.server.drain_s, config.server.leave_s)

    return live(opening(), serve, reload=plane.reload)


if __name__ == "__main__":
    try:
        sys.exit(run_worker(sys.argv[1:]))
    except ConfigError as refused:
        sys.exit(str(refused))
