"""Times of first observation of present states, for states that do not record their own beginning."""

from collections.abc import Hashable, Mapping


class FirstSeen:
    """Memory of first observations for this process's life. It holds present states alone."""

    def __init__(self) -> None:
        self._since_us: dict[Hashable, int] = {}

    def dated(self, began_us: Mapping[Hashable, int | None], now_us: int) -> dict[Hashable, int]:
        """Return the beginning of each, by key: its own time where that is known and earlier. Those that are over are forgotten."""
        self._since_us = {
            key: min(self._since_us.get(key, now_us), now_us if own_us is None else own_us)
            for key, own_us in began_us.items()
        }
        return self._since_us
