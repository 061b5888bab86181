"""The order in which engines that share GPUs start on one machine: one after the other, while nobody there is awake.

An engine takes the memory for its weights and its cache when it starts, which does not fit beside an engine that is awake. So each
is put to sleep once it answers, and the gateway is told of the first ones when all pools have theirs: whoever is woken before
that would keep the others from starting.
"""

import asyncio
from collections.abc import Collection

from selfhosted.engines.fetching import FetchFailed
from selfhosted.scale.engine_sleep import Fetch, SleepUnknown, is_sleeping


class StartTurns:
    """The permission to start, on the GPUs of one group of pools."""

    def __init__(self, pools: Collection[str]) -> None:
        self._waiting = set(pools)
        """Pools that have not started an engine yet."""
        self._starting: str | None = None
        self._engines: dict[str, tuple[Fetch, frozenset[str]]] = {}

    @property
    def may_register(self) -> bool:
        """True once every pool has started its engines."""
        return not self._waiting

    def know(self, pool: str, fetch: Fetch, origins: Collection[str]) -> None:
        """Take note of the addresses of a pool's engines."""
        self._engines[pool] = (fetch, frozenset(origins))

    async def take(self, pool: str) -> bool:
        """Return whether an engine of the pool may start now. If so, nobody else may until it has `ended`."""
        if self._starting not in (None, pool):
            return False
        others = [
            (fetch, origin) for name, (fetch, all_of) in self._engines.items() if name != pool for origin in all_of
        ]
        if any(await asyncio.gather(*(_awake(fetch, origin) for fetch, origin in others))):
            return False
        if self._starting not in (None, pool):
            return False
        self._starting = pool
        return True

    def ended(self, pool: str, *, started: bool) -> None:
        """Note that the pool starts none any more: all of its engines sleep, or one crashed and is started again in its turn."""
        if self._starting == pool:
            self._starting = None
        if started:
            self._waiting.discard(pool)


async def _awake(fetch: Fetch, origin: str) -> bool:
    try:
        return not await is_sleeping(fetch, origin)
    except FetchFailed as error:
        # One that does not answer in time is there.
        return error.result == "slow"
    except SleepUnknown:
        return True
