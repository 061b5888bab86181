"""The machine below the product: its clocks, chance and system calls, which a simulation has its seed answer.

This is the one place where the product's surroundings are replaced. It is imported before anything of the product, because
defaults such as `clock=time.monotonic` are bound when a class is made. Until `begin` everything is the real machine's.
"""

import contextlib
import errno
import os
import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

NODE: Final[ContextVar["Node | None"]] = ContextVar("node", default=None)
"""The simulated process on whose behalf code runs; None for the world outside."""

_REAL_RANDOM: Final = random.Random
_real: dict[str, Callable[..., Any]] = {
    name: getattr(os, name) for name in ("open", "close", "write", "pwrite", "fdatasync", "urandom")
}
_real |= {name: getattr(time, name) for name in ("time", "time_ns", "monotonic", "perf_counter", "sleep")}


class Injected(Exception):
    """An error that the seed wanted; mixed into the real ones."""


class IllDisk(OSError, Injected):
    """A disk that does not take what is written."""


def is_wanted(error: BaseException | None) -> bool:
    """Return True where an error, or one that it came of, was the seed's."""
    while error is not None:
        if isinstance(error, Injected):
            return True
        error = error.__cause__ or error.__context__
    return False


class Node:
    """A simulated process: what is gone with it when it is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.descriptors: dict[int, Path] = {}
        self.transports: list[Any] = []
        self.databases: list[Any] = []
        self.steps_left = -1
        """Steps of its code after which it is killed; negative for never."""

    def close_files(self) -> None:
        """Close what it had open, as the kernel does; its locks go with that."""
        for descriptor, path in list(self.descriptors.items()):
            with contextlib.suppress(OSError):
                # A number that was closed by no `close` of ours may be another file's by now.
                if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
                    os.close(descriptor)


class Machine:
    """Time, chance and disk of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 1_000.0
        """The monotonic clock, in seconds."""
        self.wall = 1_800_000_000.0
        """What the wall clock is ahead of the monotonic one; stepped by the seed."""
        self.disk: Callable[[int, Path, int], int] | None = None
        """Asked before each write into a journal: how many of so many bytes are taken. May raise OSError."""
        self.flushed: dict[Path, int] = {}
        """Bytes of each file that would outlast a loss of power."""
        self.flush: Callable[[Path], None] = lambda _path: None
        """Asked before each flush. May raise OSError."""
        self._drawn = 0
        self.product = self.chance("product")

    def chance(self, what: str) -> random.Random:
        """Return a source of chance of its own, so that one part's draws do not change another's."""
        return _REAL_RANDOM(f"{self.seed}/{what}")

    def another(self) -> random.Random:
        """Return chance for a generator that the product makes for itself."""
        self._drawn += 1
        return self.chance(f"product {self._drawn}")


_machine: Machine | None = None


def begin(machine: Machine) -> None:
    """Have this machine answer from now on."""
    global _machine  # noqa: PLW0603 - there is one machine to a process, as outside a simulation
    _machine = machine
    random.seed(f"{machine.seed}/module")


def _clock(name: str, simulated: Callable[[Machine], Any]) -> Callable[[], Any]:
    real = _real[name]
    return lambda: real() if _machine is None else simulated(_machine)


def _sleep(seconds: float) -> None:
    if _machine is None:
        _real["sleep"](seconds)
    else:
        _machine.now += seconds


def _urandom(size: int) -> bytes:
    drawn: bytes = _real["urandom"](size) if _machine is None else _machine.product.randbytes(size)
    return drawn


class _Random(random.Random):
    """A generator that is seeded by the machine where its maker gives it no seed."""

    def __init__(self, seed: Any = None) -> None:
        if seed is None and _machine is not None:
            seed = _machine.another().getrandbits(64)
        super().__init__(seed)


def _open(path: Any, *arguments: Any, **named: Any) -> int:
    descriptor: int = _real["open"](path, *arguments, **named)
    node = NODE.get()
    if node is not None:
        node.descriptors[descriptor] = Path(path)
    return descriptor


def _close(descriptor: int) -> None:
    _real["close"](descriptor)
    node = NODE.get()
    if node is not None:
        node.descriptors.pop(descriptor, None)


def _path(descriptor: int) -> Path | None:
    node = NODE.get()
    return None if node is None else node.descriptors.get(descriptor)


def _write(descriptor: int, data: Any) -> int:
    path = _path(descriptor)
    if _machine is None or _machine.disk is None or path is None:
        return int(_real["write"](descriptor, data))
    taken = _machine.disk(descriptor, path, len(data))
    return int(_real["write"](descriptor, data[:taken]))


def _pwrite(descriptor: int, data: Any, offset: int) -> int:
    path = _path(descriptor)
    disk = None if _machine is None or path is None else _machine.disk
    if disk is not None and path is not None and disk(descriptor, path, len(data)) < len(data):
        raise IllDisk(errno.EIO, os.strerror(errno.EIO))
    return int(_real["pwrite"](descriptor, data, offset))


def _fdatasync(descriptor: int) -> None:
    if _machine is None:
        _real["fdatasync"](descriptor)
        return
    # A copy of a descriptor was made by no `open`.
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    _machine.flush(path)
    _machine.flushed[path] = os.fstat(descriptor).st_size


def replace() -> None:
    """Put the machine's answers in the place of the real ones."""
    clocks: Any = time
    clocks.time = _clock("time", lambda machine: machine.now + machine.wall)
    clocks.time_ns = _clock("time_ns", lambda machine: int((machine.now + machine.wall) * 1e6) * 1_000)
    clocks.monotonic = _clock("monotonic", lambda machine: machine.now)
    clocks.perf_counter = _clock("perf_counter", lambda machine: machine.now)
    clocks.sleep = _sleep
    chance: Any = random
    chance._urandom, chance.Random = _urandom, _Random
    calls: Any = os
    calls.urandom = _urandom
    calls.open, calls.close, calls.write, calls.pwrite, calls.fdatasync = _open, _close, _write, _pwrite, _fdatasync
