"""The control plane's process: `python -m gateway.process.control --config FILE --runtime FOLDER`."""

import argparse
import os
import signal
import sys
from pathlib import Path

from api.web.gateway import Gateway
from gateway.configuration.environment import read_environment
from gateway.configuration.file import ConfigError
from gateway.configuration.settings import load
from gateway.process.allocator import give_back_freed_memory
from gateway.process.control_plane import ControlPlane
from gateway.process.life import Signals, ignore_early_signals, live
from gateway.process.parent_pipe import follow_parent
from gateway.process.runtime_folder import RuntimeFolder
from gateway.process.start_report import StartReport
from gateway.sqlite_driver import count_no_memory


def run_control(arguments: list[str]) -> int:
    """Run the control plane until a signal, or until the parent is gone. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.process.control", description="The control plane of `weighbridge serve`."
    )
    parser.add_argument("--ready-fd", type=int, default=None, help="a pipe that is told when this process serves")
    parser.add_argument("--config", type=Path, required=True, help="the configuration file")
    parser.add_argument("--runtime", type=Path, required=True, help="the folder in which the processes meet")
    given = parser.parse_args(arguments)
    ignore_early_signals()
    follow_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    report = StartReport(given.ready_fd)
    return report.run(lambda: _run(given, report))


def _run(given: argparse.Namespace, report: StartReport) -> int:
    give_back_freed_memory()
    count_no_memory()
    environment = read_environment(given.config)
    control = ControlPlane(load(given.config, environment), environment, given.config, RuntimeFolder(given.runtime))

    async def serve(_gateway: Gateway, signals: Signals) -> None:
        control.reloads.begin()
        report.serves()
        await signals.stopped.wait()
        control.begin_drain()

    return live(control.serving(), serve, reload=control.reload)


if __name__ == "__main__":
    try:
        sys.exit(run_control(sys.argv[1:]))
    except ConfigError as refused:
        sys.exit(str(refused))
