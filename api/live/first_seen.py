"""When what goes on now was first seen: for what does not know itself when it began."""

from collections.abc import Hashable, Mapping


class FirstSeen:
    """Remembers for this process's life. It holds no more than what goes on now."""

    def __init__(self) -> None:
        self._since_us: dict[Hashable, int] = {}

    def dated(self, began_us: Mapping[Hashable, int | None], now_us: int) -> dict[Hashable, int]:
        """When each began, by its key: its own time where that is known and earlier. What is over is forgotten."""
        self._since_us = {
            key: min(self._since_us.get(key, now_us), now_us if own_us is None else own_us)
            for key, own_us in began_us.items()
        }
        return self._since_us
