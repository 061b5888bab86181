"""Equal requests at the same time: one asks, the others wait for its answer."""

import asyncio
from typing import Literal

from proxy.cache.kept_answer import KeptAnswer

Landing = Literal["kept", "not_kept", "gone"]
"""The end of a flight: its answer is there; it failed, or may not be given twice; or its caller hung up, so another one has to ask."""


class Flight:
    """One request that is being answered, and whoever waits for it."""

    def __init__(self) -> None:
        self.answer: KeptAnswer | None = None
        self._landed: asyncio.Future[Landing] | None = None
        self._landing: Landing | None = None

    @property
    def is_over(self) -> bool:
        return self._landing is not None

    def land(self, landing: Landing, answer: KeptAnswer | None = None) -> None:
        """End it. Only the first call counts."""
        if self._landing is None:
            self._landing, self.answer = landing, answer
            if self._landed is not None:
                self._landed.set_result(landing)

    async def landed(self, within_s: float) -> Landing | None:
        """Wait for its end; None where it is not there in time."""
        if self._landing is not None:
            return self._landing
        if self._landed is None:
            self._landed = asyncio.get_running_loop().create_future()
        # Who stops to wait must not end it for the others.
        await asyncio.wait({self._landed}, timeout=max(0.0, within_s))
        return self._landing
