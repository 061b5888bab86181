"""The part of a host's journals that the database does not have yet, counted now and then."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cost.ledger.segments import Waiting, waiting

_EVERY_S: Final = 1.0
_TIMES_THE_COUNT: Final = 20
"""A count that takes long, because the database was away for long, is made so much less often."""


class Backlog:
    """The counts of the folder's journals, those of dead processes included, on a thread and at most once a second."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._counting = asyncio.Lock()
        self._due_at = -math.inf
        self._found: list[Waiting] = []

    async def waiting(self) -> list[Waiting]:
        """Return one figure for each journal, as of a moment ago."""
        async with self._counting:
            began = self._clock()
            if began >= self._due_at:
                self._found = await asyncio.to_thread(waiting, self._directory)
                ended = self._clock()
                self._due_at = ended + max(_EVERY_S, _TIMES_THE_COUNT * (ended - began))
            return self._found
