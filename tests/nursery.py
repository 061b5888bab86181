"""Processes that have imported the program already: a start takes tenths of a second, most of two seconds otherwise.

`python -m tests.nursery` imports what a gateway imports, and forks for each order that it reads. A child has the
environment, the folder and the log that it was ordered with and runs `weighbridge` with its arguments; that it was not
executed anew is all that is different. `tests/gateway/process` and the demo start the command itself.
"""

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

_MODULES: Final = (
    "gateway.cli",
    "gateway.control_plane",
    "gateway.data_plane",
    "gateway.process.serve",
    "classifier.onnx_classifier",
    "onnxruntime",
    "gateway.process.app_process",
)


class Order(msgspec.Struct):
    """What to run."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str
    log: str


class News(msgspec.Struct):
    """A child was born, or (with a status) has ended."""

    pid: int
    status: int | None = None


class Child:
    """What the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.over = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.over.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, and who listens to it."""

    def __init__(self) -> None:
        environ = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
        )
        self._children: dict[int, Child] = {}
        self._born: list[Child] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._process.kill)

    def start(self, arguments: Sequence[str], *, environ: Mapping[str, str], cwd: Path, log: Path) -> Child:
        """Runs `weighbridge` with these arguments."""
        order = Order(list(arguments), dict(environ), str(cwd), str(log))
        assert self._process.stdin is not None
        with self._changed:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: self._born or self._process.poll() is not None, timeout=60)
            return self._born.pop()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = msgspec.json.decode(line, type=News)
            with self._changed:
                if news.status is None:
                    child = self._children[news.pid] = Child(news.pid)
                    self._born.append(child)
                    self._changed.notify_all()
                else:
                    child = self._children.pop(news.pid)
                    child.returncode = news.status
                    child.over.set()


@cache
def nursery() -> Nursery:
    """One for the tests of a process, started when it is first needed."""
    return Nursery()


def _tell(news: News) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(news) + b"\n")


def _reap() -> None:
    """Tells of all that have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _tell(News(pid, os.waitstatus_to_exitcode(status)))


def _become(order: Order) -> None:
    """The child's side of the fork: what `execve` would have set up."""
    for each in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL if each != signal.SIGINT else signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for there, here in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(there, here)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(order.environ)
    os.chdir(order.cwd)
    sys.argv = ["weighbridge", *order.arguments]


def _work() -> bool:
    """Forks for each order. Returns True in a child, and False at the end."""
    told, tells = os.pipe()
    os.set_blocking(tells, False)
    os.set_blocking(told, False)
    signal.set_wakeup_fd(tells)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    buffer = b""
    while True:
        ready, _, _ = select.select([0, told], [], [])
        if told in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(told, 4_096)
        _reap()
        if 0 not in ready:
            continue
        piece = os.read(0, 1_048_576)
        if not piece:
            return False
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=Order)
            pid = os.fork()
            if pid == 0:
                _become(order)
                return True
            _tell(News(pid))


def main() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    # What is there already is never looked at again, so its pages stay shared with the children.
    gc.freeze()
    if _work():
        from gateway.cli import app

        app()


if __name__ == "__main__":
    main()
