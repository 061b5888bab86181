"""A process that the supervisor started, and how long it waits before it starts a dead one again."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gateway.process.start_report import CANNOT_SERVE, SERVES, TRY_AGAIN

_MOST_BYTES: Final = 65_536


class RestartBackoff(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on restarts: the lifetime below which a worker died young, and how often in a row that may happen."""

    young_s: float = 5.0
    max_young_deaths: int = 8
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    again_s: float = 2.0
    """Seconds after which a process is started again that said that waiting may help."""

    def delay_s(self, young_deaths: int) -> float | None:
        """Return seconds until a dead process is replaced; None to give up."""
        if young_deaths >= self.max_young_deaths:
            return None
        if young_deaths == 0:
            return 0.0
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (young_deaths - 1))


class RunningChild:
    """One process that the supervisor started."""

    def __init__(self, process: subprocess.Popen[bytes], ready_fd: int, started_at: float) -> None:
        self.process = process
        self.started_at = started_at
        self.serves = False
        self.refusal = ""
        """Why it could not serve, in its own words; empty where it said nothing."""
        self.end_by = 0.0
        self._ready_fd: int | None = ready_fd
        os.set_blocking(ready_fd, False)

    def look(self) -> None:
        """Check whether the process has reported that it serves, or why it cannot."""
        if self._ready_fd is None:
            return
        try:
            said = os.read(self._ready_fd, _MOST_BYTES)
        except BlockingIOError:
            return
        self.serves = said == SERVES
        self.refusal = "" if self.serves else said.decode(errors="replace")
        self.forget()

    def forget(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def died_young(self, now: float, young_s: float) -> bool:
        """Return True when it ended before it served or soon after; one that waits for what comes back is no death."""
        return self.process.returncode != TRY_AGAIN and (not self.serves or now - self.started_at < young_s)

    @property
    def cannot_serve(self) -> bool:
        """True when it ended because of what no waiting mends."""
        return self.process.returncode == CANNOT_SERVE and bool(self.refusal)

    def ended_well(self) -> bool:
        """Return True when it stopped as it was told to."""
        return self.process.returncode in {0, -signal.SIGTERM}

    def close(self) -> None:
        """Hear the last word of a process that has ended, and close the pipes to it."""
        self.look()
        self.forget()
        if self.process.stdin is not None:
            self.process.stdin.close()


def spawn(command: Sequence[str], environ: Mapping[str, str], now: float, fds: Sequence[int] = ()) -> RunningChild:
    """Start a process with `--ready-fd N`, a pipe that it writes to as soon as it serves, and with a lifeline as its input."""
    ready_fd, told_fd = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [*command, "--ready-fd", str(told_fd)],
            stdin=subprocess.PIPE,
            pass_fds=(*fds, told_fd),
            env=dict(environ),
            # A Ctrl-C reaches the whole terminal group; workers hear of it from here only, once.
            process_group=0,
        )
    finally:
        os.close(told_fd)
    return RunningChild(process, ready_fd, now)
