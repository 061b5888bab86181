"""Child processes of the demo: started in process groups of their own and always stopped together."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_START_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 15.0


class ChildFailed(Exception):
    """A child did not start. The message ends with the last lines of its log."""


class Child:
    """One child process. It also ends when this process is gone, by the end of its standard input."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, environ: Mapping[str, str], fds: Sequence[int] = ()
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as written:
            self._process = subprocess.Popen(  # noqa: S603 - our own command lines
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                env=dict(environ),
                pass_fds=fds,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def read_announcement(self) -> dict[str, str]:
        """Return the JSON line that a child prints when it is ready. Raises ChildFailed."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it was asked for above
        deadline = time.monotonic() + _START_TIMEOUT_S
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self.failure("did not start in time")
                read = os.read(stdout.fileno(), 4096)
                if not read:
                    raise self.failure("ended instead of starting")
                line += read
        announced: dict[str, str] = json.loads(line)
        return announced

    def failure(self, what: str) -> ChildFailed:
        """Build an error with the end of the child's log."""
        tail = self._log.read_text(errors="replace").splitlines()[-8:]
        return ChildFailed("\n".join([f"{self.name} {what}", *(f"  {line}" for line in tail)]))

    def stop(self) -> None:
        """Terminate the child, kill it when it does not stop, and kill the rest of its process group."""
        if not self.ended():
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def family() -> Iterator[list[Child]]:
    """Yield a list of children; those added are stopped at the end, last one first, whatever happens."""
    children: list[Child] = []
    try:
        yield children
    finally:
        # A second Ctrl-C must not leave half of them running.
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for child in reversed(children):
                child.stop()
        finally:
            signal.signal(signal.SIGINT, ignored)
