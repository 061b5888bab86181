"""A small process beside each engine, which ends the engine when the process that started it is gone, even by kill -9.

It runs as a script of its own, with the standard library alone. Its standard input is a pipe to the process that
started it; the pipe's end, which comes even after kill -9, means that the engine is to end. The engine has a process
group of its own, so that its workers end with it; its output goes to a file that is rotated once when it is full.
"""

import contextlib
import os
import selectors
import signal
import subprocess  # the command comes from the operator's configuration, and no shell sees it
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

CHUNK: Final = 65_536
_CHUNKS: Final = 64
_POLL_S: Final = 0.05
_PROC: Final = Path("/proc/self/stat").exists()
# A shell's exit status for a program that cannot be started.
NOT_STARTED: Final = 127


class BoundedLog:
    """A log file with one rotated predecessor, each of at most half of `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._most = max(1, max_bytes // 2)
        self._file: BinaryIO = path.open("ab")
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        if self._size + len(data) > self._most:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("wb")
            self._size = 0
        # A full disk must not stop the engine: its pipe has to be drained all the same.
        with contextlib.suppress(OSError):
            self._file.write(data)
            self._file.flush()
        self._size += len(data)


def keep(command: list[str], log: Path, max_bytes: int, grace_s: float) -> int:
    """Run the engine until it ends, or until the pipe or a signal ends it. Returns its exit status; `NOT_STARTED` when
    it could not be started.
    """
    output = BoundedLog(log, max_bytes)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: asked.append(got))
    source, sink = os.pipe()
    try:
        engine = subprocess.Popen(  # noqa: S603 - see above
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
    except OSError as error:
        output.write(f"{command[0]}: {error.strerror}\n".encode())
        return NOT_STARTED
    os.close(sink)
    # The parent reads the process group from here, to end it should this process be killed.
    sys.stdout.write(f"{engine.pid}\n")
    sys.stdout.flush()
    try:
        _watch(engine, source, output, asked)
    finally:
        _end(engine, source, output, grace_s)
    return engine.returncode if engine.returncode is not None else 1


def _watch(engine: "subprocess.Popen[bytes]", source: int, output: BoundedLog, asked: list[int]) -> None:
    """Copy output to the log until the engine ends, the pipe closes, or a signal comes."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ, "pipe")
        selector.register(source, selectors.EVENT_READ, "output")
        while not asked and engine.poll() is None:
            for key, _ in selector.select(_POLL_S * 10):
                data = os.read(key.fd, CHUNK)
                if key.data == "pipe" and not data:
                    return
                if key.data == "output":
                    if data:
                        output.write(data)
                    else:
                        selector.unregister(key.fd)


def _end(engine: "subprocess.Popen[bytes]", source: int, output: BoundedLog, grace_s: float) -> None:
    """End the engine's process group: SIGTERM, then SIGKILL after `grace_s`. A leader that is dead may have left
    workers.
    """
    os.set_blocking(source, False)
    _signal(engine.pid, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and (engine.poll() is None or alive(engine.pid)):
        _copy_output(source, output)
        time.sleep(_POLL_S)
    _signal(engine.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        engine.wait(timeout=max(1.0, grace_s))
    _copy_output(source, output)


def _copy_output(source: int, output: BoundedLog) -> None:
    with contextlib.suppress(BlockingIOError):
        # Bounded: an engine that is told to end may write without end.
        for _ in range(_CHUNKS):
            data = os.read(source, CHUNK)
            if not data:
                return
            output.write(data)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def alive(group: int) -> bool:
    """Return whether a process of the group runs. Zombies do not count: a container may have no init that reaps them."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    told = [_state_of(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()] if _PROC else []
    return not told or any(pgrp == group and state not in "ZX" for state, pgrp in told)


def _state_of(pid: str) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[2])


if __name__ == "__main__":
    code = keep(sys.argv[4:], Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    # Death by a signal is reported as a shell does.
    sys.exit(code if code >= 0 else 128 - code)
