"""Requests that are under way in the same turn of the event loop go down the line in step: a part of it is done for all of
them before the next is begun for any.

A part of the line that runs for many in a row finds its code in the processor's caches; for one request from end to end the
same takes up to twice as long.
"""

import asyncio
import time
import types
from collections.abc import Callable, Generator
from typing import Final

_LONG_TURN_S: Final = 0.002
"""Where a turn of the loop takes so long, a turn that a request waits costs its caller more than it saves."""


class InStep:
    """Tells whether requests come alone, and lets those that do not go in step. One a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beside = False
        self._came = 0
        self._turn_began_at = 0.0

    def came(self, *, stream: bool) -> None:
        """Counts a request that can go on: it is new, or its answer has come. One for a stream has its own pace: the turns that it
        would wait are long, as other streams are in them.
        """
        if stream:
            return
        self._came += 1
        if self._came == 1:
            self._turn_began_at = self._clock()
            asyncio.get_running_loop().call_soon(self._turned)

    @types.coroutine
    def step(self, *, stream: bool) -> Generator[None, None, None]:
        """Lets those beside come to the same place, for one turn of the loop; returns at once where there were none."""
        if self._beside and not stream:
            yield

    def _turned(self) -> None:
        # The next turn's requests go by what this one's were: those who come do not know who comes after them.
        self._beside = self._came > 1 and self._clock() - self._turn_began_at < _LONG_TURN_S
        self._came = 0
