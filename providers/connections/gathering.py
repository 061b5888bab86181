"""Connections whose upstream speaks faster than it is listened to: what comes within a moment is taken in one read."""

import asyncio
from collections.abc import Callable
from typing import Final

GATHER_S: Final = 0.002
"""Seconds: far below what a reader notices, and several turns of a busy event loop."""


class Gathering:
    """The connections of one pool that take nothing from their sockets until the moment is over.

    One timer for all, so that they are read, and passed on, in one turn of the loop.
    """

    __slots__ = ("_for_s", "_then")

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._then: list[Callable[[], None]] = []

    def add(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        """Have `then` called at the end of the moment that runs, or else of one that begins."""
        if not self._then:
            loop.call_later(self._for_s, self._over)
        self._then.append(then)

    def _over(self) -> None:
        over, self._then = self._then, []
        for then in over:
            then()
