"""Messages within one process, as a socket carries them between two: a late subscriber gets the newest of each key."""

from collections.abc import Callable, Hashable
from typing import Any

import msgspec


class Bulletin:
    """A board of messages, handed to all subscribers at once, in their order."""

    def __init__(self) -> None:
        self._newest: dict[Hashable, msgspec.Struct] = {}
        self._subscribers: list[Callable[[Any], None]] = []

    def publish(self, key: Hashable, message: msgspec.Struct) -> None:
        """Publish a message to all subscribers, and to later ones unless a newer one is published under its key."""
        self._newest.pop(key, None)
        self._newest[key] = message
        for hear in self._subscribers:
            hear(message)

    def forget(self, key: Hashable) -> None:
        """Forget a key: later subscribers are not told of it."""
        self._newest.pop(key, None)

    def subscribe(self, hear: Callable[[Any], None]) -> None:
        """Subscribe `hear`: it gets the newest message of each key now, and all later ones."""
        for message in tuple(self._newest.values()):
            hear(message)
        self._subscribers.append(hear)
