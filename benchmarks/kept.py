"""What a long simulated benchmark has measured so far, so that one that was broken off goes on where it was.

A figure counts as long as nothing that it follows from has changed: the simulator, the balancer, the scaler, the queue and the benchmark
itself. In simulated time the same sources give the same figures, on any machine.
"""

import functools
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

_ROOT: Final = Path(__file__).resolve().parents[1]
_SIMULATED: Final = (
    "planner/simulate",
    "planner/plans",
    "selfhosted",
    "proxy/admit/queues",
    "benchmarks/made_up_traces.py",
)


def fingerprint(*more: Path) -> str:
    """Return a digest of the sources of what is simulated, and of further files; those that are not there count as empty."""
    found = hashlib.sha256()
    for path in _files([*(_ROOT / name for name in _SIMULATED), *more]):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from (each for each in sorted(path.rglob("*")) if each.is_file() and "__pycache__" not in each.parts)
        elif path.exists():
            yield path


class _Known(msgspec.Struct, frozen=True):
    sources: str
    found: Any


class Kept(Generic[T]):
    """Figures by name, in a file. `clock` is in seconds."""

    def __init__(self, file: Path, kind: type[T], sources: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._kind, self._sources, self._clock = file, kind, sources, clock
        self._known: dict[str, _Known] = {}
        self._measured, self._spent_s = 0, 0.0
        if file.exists():
            try:
                self._known = msgspec.json.decode(file.read_bytes(), type=dict[str, _Known])
            except msgspec.DecodeError:
                self._say(f"{file} cannot be read, and is begun anew")

    def get(self, name: str) -> T | None:
        """Return what was measured under the name with the present sources; None if nothing was."""
        known = self._known.get(name)
        if known is None or known.sources != self._sources:
            return None
        try:
            return msgspec.convert(known.found, self._kind)
        except msgspec.ValidationError:
            return None

    def of(self, name: str, measure: Callable[[], T]) -> T:
        """Return what is known under the name, or measure it and write it down."""
        known = self.get(name)
        if known is not None:
            return known
        began_s = self._clock()
        found = measure()
        self._measured, self._spent_s = self._measured + 1, self._spent_s + self._clock() - began_s
        self._known[name] = _Known(self._sources, msgspec.to_builtins(found))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".part")
        beside.write_bytes(msgspec.json.encode(self._known))
        beside.replace(self._file)
        return found

    def each(self, names: Sequence[str], measure: Callable[[str], T]) -> Iterator[tuple[str, T]]:
        """Measure one after the other, and tell on standard error how many are done and how many minutes the rest may take."""
        left = {name for name in names if self.get(name) is None}
        if len(left) < len(names):
            self._say(f"{len(names) - len(left)} of {len(names)} are known, in {self._file}")
        for name in names:
            yield name, self.of(name, functools.partial(measure, name))
            if name in left:
                left.discard(name)
                minutes = self._spent_s / max(1, self._measured) * len(left) / 60
                self._say(f"{len(names) - len(left)} of {len(names)}; about {minutes:.0f} min more")

    def _say(self, words: str) -> None:
        print(words, file=sys.stderr, flush=True)
