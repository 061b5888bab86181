"""The bytes of request bodies that one process holds, all together."""


class HeldBytes:
    """Counts them against a limit."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, count: int) -> bool:
        """Counts so many more, unless they would be too many."""
        if self.held + count > self.limit:
            return False
        self.held += count
        return True

    def give_back(self, count: int) -> None:
        self.held -= count
