"""Consistent hashing: where a conversation is at home, which every process answers alike without asking another."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_POINTS: Final = 64
"""A replica: enough that the largest arc of 64 replicas is about a third above the mean."""
_MASK: Final = (1 << 64) - 1


@lru_cache(maxsize=2_048)
def _points(name: str) -> tuple[int, ...]:
    """Kept, so that one replica more or less does not cost all the others' hashes again."""
    return tuple(
        int.from_bytes(blake2b(f"{name}#{turn}".encode(), digest_size=8).digest(), "big") for turn in range(_POINTS)
    )


def _spread(root: int) -> int:
    """Roots need not be spread evenly, such as those counted upwards in a simulation (splitmix64's finish)."""
    value = (root + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Ring:
    """Names around a circle. One that comes or goes moves about one conversation in as many as there are names."""

    __slots__ = ("_at", "_of", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        points = sorted((at, name) for name in self.names for at in _points(name))
        self._at = [at for at, _ in points]
        self._of = [name for _, name in points]

    def walk(self, root: int) -> Iterator[str]:
        """Every name once, beginning with the one where the conversation is at home."""
        seen: set[str] = set()
        size = len(self._of)
        start = bisect_left(self._at, _spread(root))
        for step in range(size):
            name = self._of[(start + step) % size]
            if name not in seen:
                seen.add(name)
                yield name
            if len(seen) == len(self.names):
                return

    def home(self, root: int) -> str | None:
        return next(self.walk(root), None)
