"""Consistent hashing of conversations to replicas, the same in every process without communication."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_POINTS: Final = 64
"""Points on the ring for each replica: the largest arc of 64 replicas is about a third above the mean."""
_MASK: Final = (1 << 64) - 1


@lru_cache(maxsize=2_048)
def _points(name: str) -> tuple[int, ...]:
    """Points of one replica, cached so that a replica that comes or goes does not cost hashing all the others again."""
    return tuple(
        int.from_bytes(blake2b(f"{name}#{turn}".encode(), digest_size=8).digest(), "big") for turn in range(_POINTS)
    )


def _mix(root: int) -> int:
    """Mixes a root's bits (splitmix64's finalizer): roots need not be evenly spread, such as a simulation's counters."""
    value = (root + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Ring:
    """Replica names on a hash ring. Adding or removing one of n moves about 1/n of the conversations."""

    __slots__ = ("_owners", "_positions", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        points = sorted((at, name) for name in self.names for at in _points(name))
        self._positions = [at for at, _ in points]
        self._owners = [name for _, name in points]

    def walk(self, root: int) -> Iterator[str]:
        """Yields every name once, in ring order from the conversation's home."""
        seen: set[str] = set()
        size = len(self._owners)
        start = bisect_left(self._positions, _mix(root))
        for step in range(size):
            name = self._owners[(start + step) % size]
            if name not in seen:
                seen.add(name)
                yield name
            if len(seen) == len(self.names):
                return

    def home(self, root: int) -> str | None:
        return next(self.walk(root), None)
