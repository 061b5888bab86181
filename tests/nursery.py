"""Processes that have imported the program already: a start takes tenths of a second, many seconds of three processes otherwise.

`python -m tests.nursery` imports what a gateway imports, and forks for each order that it reads. A child has the
environment, the folder and the log that it was ordered with and runs `weighbridge` with its arguments, and a supervisor among them
forks its processes likewise; that they were not executed anew is all that is different. `tests/gateway/process`, `tests/gateway/test_cli.py`
and the demo start the commands themselves.
"""

import atexit
import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

import msgspec

_MODULES: Final = (
    "gateway.cli",
    "gateway.process.control_plane",
    "gateway.process.data_plane",
    "gateway.process.control",
    "gateway.process.serve",
    "gateway.process.worker",
    "classifier.onnx_classifier",
    "onnxruntime",
)


# The first waits for all that is imported. Whoever gives up would leave its child to the next.
_BORN_WITHIN_S: Final = 240
_HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)


class Order(msgspec.Struct):
    """What to run."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str
    log: str
    errors: str
    """Where standard error goes; the log's file, mostly."""


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

    def start(
        self, arguments: Sequence[str], *, environ: Mapping[str, str], cwd: Path, log: Path, errors: Path | None = None
    ) -> Child:
        """Runs `weighbridge` with these arguments."""
        order = Order(list(arguments), dict(environ), str(cwd), str(log), str(errors or log))
        assert self._process.stdin is not None
        with self._changed:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(
                lambda: self._born or self._process.poll() is not None, timeout=_BORN_WITHIN_S
            )
            return self._born.pop()

    def run(
        self, arguments: Sequence[str], *, environ: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> "subprocess.CompletedProcess[str]":
        """Runs `weighbridge` with these arguments to its end, without a terminal."""
        with tempfile.TemporaryDirectory(prefix="weighbridge-command-") as folder:
            out, errors = Path(folder, "out"), Path(folder, "errors")
            child = self.start(arguments, environ=environ, cwd=cwd, log=out, errors=errors)
            try:
                status = child.wait(timeout_s)
            finally:
                child.kill()
            return subprocess.CompletedProcess(list(arguments), status, out.read_text(), errors.read_text())

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
    errors = log if order.errors == order.log else os.open(order.errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for there, here in ((nothing, 0), (log, 1), (errors, 2)):
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


class _Forked:
    """What a supervisor uses of `subprocess.Popen`, of a process that it forked."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _fork(command: Sequence[str], environ: Mapping[str, str], now: float, fds: Sequence[int] = ()) -> Any:
    """Starts a plane's process as `gateway.process.running_child.spawn` does."""
    from gateway.process.running_child import RunningChild
    from weighbridge._own import module as module_of

    ready_fd, told_fd = os.pipe()
    input_fd, lifeline_fd = os.pipe()
    # A signal that comes before the child has let go of the supervisor's handlers would be lost in them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            os.dup2(input_fd, 0)
            _let_go({0, 1, 2, told_fd, *fds})
            _forget_the_log()
            os.setpgid(0, 0)
            os.environ.clear()
            os.environ.update(environ)
            status = _run_plane([*command[len(module_of("")) :], "--ready-fd", str(told_fd)])
        sys.stderr.flush()
        os._exit(status)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    for each in (told_fd, input_fd):
        os.close(each)
    return RunningChild(_Forked(pid, os.fdopen(lifeline_fd, "wb")), ready_fd, now)  # type: ignore[arg-type]


def _let_go(kept: set[int]) -> None:
    """Closes what the supervisor has open, and forgets what it does at signals."""
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    for each in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        if each not in kept:
            with contextlib.suppress(OSError):
                os.close(each)


def _forget_the_log() -> None:
    """The supervisor's thread that writes it may have held its queue, or the stream, at the moment of the fork: for ever, here."""
    logging.getLogger().handlers.clear()
    sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115 - open to the end


def _run_plane(command: Sequence[str]) -> int:
    """Runs a module of `gateway.process` with its arguments. Returns its exit status."""
    from prometheus_client import values

    from gateway.configuration.file import ConfigError

    module, *arguments = command
    _name(module)
    # Decided when it was imported, in a process that counted for itself alone.
    values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
    run = getattr(importlib.import_module(module), _RUNS[module])
    try:
        return int(run(arguments))
    except ConfigError as refused:
        sys.stderr.write(f"{refused}\n")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception:  # noqa: BLE001 - as the interpreter would at its end
        traceback.print_exc()
    return 1


_RUNS: Final = {"gateway.process.worker": "run_worker", "gateway.process.control": "run_control"}


def _name(module: str) -> None:
    """Names the process after the module, for whoever looks for it in /proc."""
    Path("/proc/self/comm").write_text(module.rpartition(".")[2])


def _read_the_shipped_model() -> None:
    """Read it here, for the children have it then."""
    from classifier.onnx_classifier import open_classifier
    from tests.made_alike import share_the_shipped_model

    share_the_shipped_model()
    open_classifier()


def main() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    _read_the_shipped_model()
    # What is there already is never looked at again, so its pages stay shared with the children.
    gc.freeze()
    if _work():
        from gateway.cli import app
        from gateway.process import supervisor

        supervisor.spawn = _fork  # type: ignore[attr-defined]
        app()


if __name__ == "__main__":
    main()
