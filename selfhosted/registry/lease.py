"""Leader election for duties that one process does for all: counting a pool's hours, and deciding how many replicas it
should have.

The holder prolongs its lease long before it runs out, and any process may take one that has. A holder that could not
prolong in time knows so by its own monotonic clock before anybody else can have taken it. What is written under a lease
is fenced all the same, because a process may sleep between looking and writing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from selfhosted.registry.registry import Registry
from selfhosted.registry.store import DATABASE_FAILS, RegistryStore, ScaleTarget

_log: Final = logging.getLogger(__name__)
_PATIENCE_S: Final = 3.0
_RELEASE_S: Final = 1.0
_TRUSTED_PART: Final = 0.8
"""Fraction of a lease's length that its holder relies on: clocks run at slightly different speeds."""
_RENEW_AFTER: Final = 0.3
"""Fraction of its length after which a lease is prolonged."""


class Lease:
    """The leases of one process, one for each pool."""

    def __init__(
        self,
        store: RegistryStore,
        registry: Registry,
        boot_id: str,
        pools: Sequence[str],
        *,
        lease_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.holder: Final = boot_id
        self._store = store
        self._registry = registry
        self._pools = tuple(pools)
        self._lease_s = lease_s
        self._clock = clock
        self._until: dict[str, float] = {}

    def held(self, pool: str) -> bool:
        """Return whether this process holds the pool's lease."""
        return self._clock() < self._until.get(pool, float("-inf"))

    async def run(self) -> None:
        """Take and prolong leases until it is cancelled."""
        while True:
            try:
                await self.step()
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("prolonging the fleet's leases failed; the next try follows")
            await asyncio.sleep(self._lease_s / 10)

    async def step(self) -> None:
        """Take or prolong the due leases of all pools. Database errors are swallowed: the leases then run out."""
        for pool in self._pools:
            if not self._is_due(pool):
                continue
            asked = self._clock()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    mine = await self._store.hold(pool, self.holder, int(self._lease_s * 1_000_000))
            except DATABASE_FAILS:
                # The registry tells of it.
                return
            if mine and not self.held(pool):
                _log.info("this process leads the pool %s", pool)
            self._until[pool] = asked + _TRUSTED_PART * self._lease_s if mine else float("-inf")

    async def release(self) -> None:
        """Release all leases at shutdown, so that another process takes over at once."""
        held = [pool for pool in self._pools if self.held(pool)]
        self._until.clear()
        if held:
            with contextlib.suppress(*DATABASE_FAILS):
                async with asyncio.timeout(_RELEASE_S):
                    await self._store.release(self.holder, held)

    def _is_due(self, pool: str) -> bool:
        if self.held(pool):
            return self._clock() > self._until[pool] - (_TRUSTED_PART - _RENEW_AFTER) * self._lease_s
        return not self._is_held_elsewhere(self._registry.target(pool))

    def _is_held_elsewhere(self, wish: ScaleTarget | None) -> bool:
        """Return whether another process held the lease at the registry's last read; asking the database each time would
        make every process write.
        """
        if wish is None or wish.holder == self.holder:
            return False
        left_us = wish.lease_until_us - self._registry.now_us
        return 0 < left_us <= 10 * self._lease_s * 1_000_000
