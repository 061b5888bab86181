"""How a reload is asked for and what came of it: files by which `weighbridge reload` finds a gateway of this machine and hears its processes.

In the data folder stands a file for each gateway that runs, locked by its supervisor for as long. In the folder in which its processes meet
each keeps the outcome of its last reload. Signals go one way only; without these files nobody but the log would know what they did.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gateway.configuration.settings import Outcome
from settings.decoding import DECODE_ERRORS

SERVING: Final = Path("var/serving")
"""The folder of those files, as `cost.journal_dir` is written."""
_POLL_S: Final = 0.02


class Told(msgspec.Struct, frozen=True):
    """An outcome, and how many reloads the process has seen with it."""

    number: int
    outcome: Outcome


class Gateway(msgspec.Struct, frozen=True):
    """A gateway that runs on this machine."""

    pid: int
    """Of its supervisor."""
    config: str
    runtime: str
    """The folder in which its processes meet."""


class ReloadTeller:
    """Keeps a process's outcomes where they are looked for."""

    def __init__(self, folder: Path, plane: str) -> None:
        self._path = folder / f"{plane}-{os.getpid()}"
        self._number = 0

    def begin(self) -> None:
        """Tell that this process takes reloads from now on."""
        self._write(Outcome())

    def tell(self, outcome: Outcome) -> None:
        """Tell what came of a reload."""
        self._number += 1
        self._write(outcome)

    def _write(self, outcome: Outcome) -> None:
        # A full disk is no reason to fail what was reloaded.
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            written = self._path.with_name(f".{self._path.name}")
            written.write_bytes(msgspec.json.encode(Told(self._number, outcome)))
            written.replace(self._path)


@contextlib.contextmanager
def announced(folder: Path, gateway: Gateway) -> Iterator[None]:
    """Let commands find the gateway while the block runs. Where the folder cannot be written, they do not find it."""
    path = folder / str(gateway.pid)
    begun = path.with_name(f".{path.name}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = begun.open("wb")
    except OSError:
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(msgspec.json.encode(gateway))
        file.flush()
        # In its place only once it is whole and locked: who finds it without a lock deletes it.
        begun.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(folder: Path, config: Path) -> list[Gateway]:
    """Return the gateways that run with this configuration; files that killed ones left behind are deleted."""
    found = []
    for path in sorted(folder.glob("[0-9]*")):
        with contextlib.suppress(OSError, *DECODE_ERRORS), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                gateway = msgspec.json.decode(file.read(), type=Gateway)
                if gateway.config == str(config.absolute()):
                    found.append(gateway)
            else:
                path.unlink()
    return found


def reload(gateway: Gateway, timeout_s: float) -> dict[str, Outcome] | None:
    """Have all processes of a gateway read their configuration. Return what came of it by process; None when one does not answer in time."""
    before = _told(gateway)
    os.kill(gateway.pid, signal.SIGHUP)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = _told(gateway)
        answered = {name: each.outcome for name, each in now.items() if each.number > before.get(name, each).number}
        # One that began meanwhile has read the new file; one that is gone is asked for nothing.
        if before and answered.keys() >= before.keys() & now.keys():
            return answered
        time.sleep(_POLL_S)
    return None


def _told(gateway: Gateway) -> dict[str, Told]:
    found = {}
    for path in (Path(gateway.runtime) / "reloads").glob("[a-z]*-[0-9]*"):
        with contextlib.suppress(OSError, *DECODE_ERRORS):
            if _lives(int(path.name.rpartition("-")[2])):
                found[path.name] = msgspec.json.decode(path.read_bytes(), type=Told)
    return found


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
