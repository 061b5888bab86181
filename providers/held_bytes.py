"""The bytes that one process holds of one kind, all together: of request bodies, of upstreams' replies."""

from typing import Final

_FREE_BYTES: Final = 64 * 1024


class HeldTooMuch(Exception):
    """The error of bytes that there is no room for."""


class HeldBytes:
    """A count of held bytes with a limit."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, count: int) -> bool:
        """Count so many more, unless they would be too many."""
        if self.held + count > self.limit:
            return False
        self.held += count
        return True

    def give_back(self, count: int) -> None:
        self.held -= count


class Share:
    """One holder's part of a HeldBytes: at most as much as is left for all others, so that endless holders, however many,
    always leave room for one more. Small holders are not counted, and never refused: their number is bounded elsewhere.
    """

    __slots__ = ("_all", "_count")

    def __init__(self, held: HeldBytes) -> None:
        self._all = held
        self._count = 0

    def grow(self, size: int) -> None:
        """Hold `size` bytes from now on, if that is more than before. Raises HeldTooMuch."""
        more = size - self._count
        if size <= _FREE_BYTES or more <= 0:
            return
        if size > self._all.limit - self._all.held - more or not self._all.take(more):
            raise HeldTooMuch
        self._count = size

    def give_back(self) -> None:
        """Hold nothing any more. Idempotent."""
        self._all.give_back(self._count)
        self._count = 0
