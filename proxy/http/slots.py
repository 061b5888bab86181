"""Places with two limits: on all holders together, and on each one."""


class Slots:
    """A count of holders against two limits: of all, and of each one, so that nobody can hold all of them."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._held: dict[str, int] = {}
        self._all = 0

    def take(self, whose: str) -> bool:
        """Take a place. Return False when all are taken, or as many as one may have."""
        held = self._held.get(whose, 0)
        if self._all >= self._most or held >= self._most_each:
            return False
        self._held[whose] = held + 1
        self._all += 1
        return True

    def give_back(self, whose: str) -> None:
        """Give back a place that was taken."""
        self._all -= 1
        left = self._held[whose] - 1
        if left:
            self._held[whose] = left
        else:
            del self._held[whose]
