"""Messages within one process, as a socket carries them between two: a late subscriber gets the newest of each key."""

from collections.abc import Callable, Hashable
from typing import Any

import msgspec


class Bulletin:
    """Hands what is published to all subscribers at once, in their order."""

    def __init__(self) -> None:
        self._newest: dict[Hashable, msgspec.Struct] = {}
        self._subscribers: list[Callable[[Any], None]] = []

    def publish(self, key: Hashable, message: msgspec.Struct) -> None:
        """Tells all subscribers, and those that come later unless something newer is published under the key."""
        self._newest.pop(key, None)
        self._newest[key] = message
        for hear in self._subscribers:
            hear(message)

    def forget(self, key: Hashable) -> None:
        """Those who subscribe later are not told of this key any more."""
        self._newest.pop(key, None)

    def subscribe(self, hear: Callable[[Any], None]) -> None:
        """Tells `hear` the newest message of each key now, and all that come."""
        for message in tuple(self._newest.values()):
            hear(message)
        self._subscribers.append(hear)
