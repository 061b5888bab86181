"""How a reload is asked for and what came of it: files by which `weighbridge reload` hears a gateway's processes.

In the folder in which they meet each keeps the outcome of its last reload. Signals go one way only; without these files nobody but the log
would know what they did.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

import msgspec

from gateway.configuration.settings import Outcome
from gateway.process.announced import Gateway
from settings.decoding import DECODE_ERRORS

_POLL_S: Final = 0.02


class Told(msgspec.Struct, frozen=True):
    """An outcome, and how many reloads the process has seen with it."""

    number: int
    outcome: Outcome


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
