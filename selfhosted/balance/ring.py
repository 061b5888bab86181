"""Consistent hashing of conversations to replicas, the same in every process without communication."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Final

_POINTS: Final = 64
"""Points on the ring for each replica: the largest arc of 64 replicas is about a third above the mean."""
_FIRST: Final = 16
_MOST_FIRSTS: Final = 8_192
"""Places of the ring whose first names are remembered, 300 bytes each at most."""
_MASK: Final = (1 << 64) - 1


@lru_cache(maxsize=2_048)
def _points(name: str) -> tuple[int, ...]:
    """Return the points of one replica, cached so that a replica that comes or goes does not cost hashing all the
    others again.
    """
    return tuple(
        int.from_bytes(blake2b(f"{name}#{turn}".encode(), digest_size=8).digest(), "big") for turn in range(_POINTS)
    )


def _mix(root: int) -> int:
    """Mix a root's bits (splitmix64's finalizer): roots need not be evenly spread, such as a simulation's counters."""
    value = (root + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Ring:
    """Replica names on a hash ring. Adding or removing one of n moves about 1/n of the conversations."""

    __slots__ = ("_firsts", "_owners", "_positions", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        points = sorted((at, name) for name in self.names for at in _points(name))
        self._positions = [at for at, _ in points]
        self._owners = [name for _, name in points]
        self._firsts: dict[int, tuple[str, ...]] = {}

    def first(self, root: int) -> tuple[str, ...]:
        """Return the first names of `walk`, at most 16. Remembered for each place of a small ring, as it is asked for every
        request.
        """
        start = bisect_left(self._positions, _mix(root))
        found = self._firsts.get(start)
        if found is None:
            found = tuple(islice(self._walk_from(start), _FIRST))
            if len(self._firsts) < _MOST_FIRSTS:
                self._firsts[start] = found
        return found

    def walk(self, root: int) -> Iterator[str]:
        """Yield every name once, in ring order from the conversation's home."""
        return self._walk_from(bisect_left(self._positions, _mix(root)))

    def _walk_from(self, start: int) -> Iterator[str]:
        seen: set[str] = set()
        size = len(self._owners)
        for step in range(size):
            name = self._owners[(start + step) % size]
            if name not in seen:
                seen.add(name)
                yield name
            if len(seen) == len(self.names):
                return

    def home(self, root: int) -> str | None:
        return next(self.walk(root), None)
