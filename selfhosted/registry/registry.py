"""One process's view of the fleet's shared state, read every second and kept through an outage of the database.

Who registered is gone when nothing was heard of it for its time to live. That time is measured here, by this process's
monotonic clock, from the look that found the last sign of life: a database whose clock jumps takes nobody away, and time
in which nobody could look does not count.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.registry.origin import OriginRefused, checked_origin
from selfhosted.registry.store import DATABASE_FAILS, Registration, RegistryStore, ScaleTarget, SharedState

_log: Final = logging.getLogger(__name__)
_PATIENCE_S: Final = 5.0
_BLIND_LOOKS: Final = 3


class _Registration(msgspec.Struct, frozen=True):
    """A registration, and when this process heard of it last."""

    registration: Registration
    at: float


class Registry:
    """What discovery, the lease and the pages read. Nothing here fails when the database is down: it stays as it was."""

    def __init__(
        self,
        store: RegistryStore,
        pools: Sequence[PoolConfig],
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 1.0,
    ) -> None:
        self._store = store
        self._pools = {pool.name: pool for pool in pools}
        self._clock = clock
        self._every_s = every_s
        self._heard: dict[tuple[str, str], _Registration] = {}
        self._looked_at: float | None = None
        self._registered: Mapping[str, tuple[Registration, ...]] = {}
        self._ordered: Mapping[str, frozenset[str]] = {}
        self._wishes: Mapping[str, ScaleTarget] = {}
        self._refused: Mapping[str, tuple[str, ...]] = {}
        self._changed: list[Callable[[], None]] = []
        self.now_us = 0
        """The database's clock at the last look."""
        self.problem = ""
        """Why the database was not read at the last look; empty when it was."""

    @property
    def read(self) -> bool:
        """Whether the database was ever read."""
        return self._looked_at is not None

    def subscribe(self, changed: Callable[[], None]) -> None:
        """`changed` is called after registrations or orders changed."""
        self._changed.append(changed)

    def registered(self, pool: str) -> tuple[Registration, ...]:
        """Who lives, in the order of names."""
        return self._registered.get(pool, ())

    def ordered(self, pool: str) -> frozenset[str]:
        """The names of replicas that take nothing new, wherever they come from."""
        return self._ordered.get(pool, frozenset())

    def refused(self, pool: str) -> tuple[str, ...]:
        """Registrations whose address is not allowed any more, in words."""
        return self._refused.get(pool, ())

    def target(self, pool: str) -> ScaleTarget | None:
        """How many replicas it should have and who leads; None when nobody ever led."""
        return self._wishes.get(pool)

    async def run(self) -> None:
        """Looks for ever."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("looking for registrations failed; the next look follows")

    async def refresh(self) -> None:
        """Reads once."""
        began = self._clock()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                state = await self._store.read(self._pools)
        except DATABASE_FAILS as error:
            # The driver's message may hold the address.
            self._tell(f"the database does not answer ({type(error).__name__}); what was known last counts")
            return
        self._tell("")
        self._take(state, began)

    def _take(self, state: SharedState, now: float) -> None:
        blind = self._looked_at is not None and now - self._looked_at > _BLIND_LOOKS * max(self._every_s, 1.0)
        self._looked_at, self.now_us = now, state.now_us
        self._heard = {
            (each.pool, each.name): _Registration(each, self._heard_at(each, state.now_us, now, blind=blind))
            for each in state.registrations
        }
        before = (self._registered, self._ordered, self._refused)
        self._registered, self._refused = self._living(now)
        self._ordered = {pool: frozenset(name for of, name in state.orders if of == pool) for pool in self._pools}
        self._wishes = {wish.pool: wish for wish in state.wishes}
        if before != (self._registered, self._ordered, self._refused):
            for changed in self._changed:
                changed()

    def _heard_at(self, row: Registration, now_us: int, now: float, *, blind: bool) -> float:
        kept = self._heard.get((row.pool, row.name))
        if kept is None:
            return now - abs(now_us - row.seen_us) / 1_000_000
        # Where nobody could look, nobody could show itself either: each gets its time anew.
        same = (kept.registration.seen_us, kept.registration.instance) == (row.seen_us, row.instance)
        return kept.at if same and not blind else now

    def _living(self, now: float) -> tuple[dict[str, tuple[Registration, ...]], dict[str, tuple[str, ...]]]:
        living: dict[str, list[Registration]] = {}
        refused: dict[str, list[str]] = {}
        for (pool, name), heard in sorted(self._heard.items()):
            rules = self._pools[pool].registration
            if rules is None or now - heard.at > rules.ttl_s:
                continue
            try:
                checked_origin(heard.registration.url, rules.networks)
            except OriginRefused as error:
                refused.setdefault(pool, []).append(f"{name}: {error}")
            else:
                # When it was seen is nobody's business but ours, and would make every look a change.
                living.setdefault(pool, []).append(msgspec.structs.replace(heard.registration, seen_us=0))
        return {pool: tuple(each) for pool, each in living.items()}, {pool: tuple(e) for pool, e in refused.items()}

    def _tell(self, problem: str) -> None:
        """Once, not every second."""
        if problem and not self.problem:
            _log.warning("the fleet's shared state cannot be read: %s", problem)
        elif self.problem and not problem:
            _log.warning("the fleet's shared state is read again")
        self.problem = problem
