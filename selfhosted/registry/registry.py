"""One process's view of the fleet's shared state, read every second and kept through an outage of the database.

A registration expires when nothing was heard of it for its time to live. That time is measured here, by this process's
monotonic clock, from the read that found the last sign of life: a database whose clock jumps expires nothing, and time
in which the database could not be read does not count.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from selfhosted.config import PoolConfig, SharedGpusConfig
from selfhosted.model_swap.swap_state import SharedTold, SleepTold, read
from selfhosted.model_swap.turns import Turns, is_step, opens_in_s, pays, rests, takes_s
from selfhosted.registry.origin import OriginRefused, checked_origin
from selfhosted.registry.store import DATABASE_FAILS, Registration, RegistryStore, ScaleTarget, SharedState
from selfhosted.rollouts.versions import Rollout

_log: Final = logging.getLogger(__name__)
_PATIENCE_S: Final = 5.0
_BLIND_READS: Final = 3


class _Renewal(msgspec.Struct, frozen=True):
    """A registration, and the monotonic time at which this process last saw it renewed."""

    registration: Registration
    at: float


class Registry:
    """The shared state, read by discovery, the lease and the pages. Keeps its last values through an outage."""

    def __init__(
        self,
        store: RegistryStore,
        pools: Sequence[PoolConfig],
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 1.0,
        shared: Sequence[SharedGpusConfig] = (),
    ) -> None:
        """`shared` are the groups of pools that share GPUs."""
        self._store = store
        self._pools = {pool.name: pool for pool in pools}
        parts = [part for pool in pools for part in pool.parts]
        self._scaled = frozenset(part.name for part in parts if part.scale is not None)
        self._more_rows = (*(group.name for group in shared), *(part.name for part in parts if part.does == "reads"))
        """Rows of decisions under other names than a pool's."""
        self._shared = {group.name: group for group in shared}
        self._group_of = {pool: group.name for group in shared for pool in group.pools}
        self._stored_turns: Mapping[str, str] = {}
        self._turns: dict[str, Turns | None] = {}
        self._clock = clock
        self._every_s = every_s
        self._registrations: dict[tuple[str, str], _Renewal] = {}
        self._read_at: float | None = None
        self._registered: Mapping[str, tuple[Registration, ...]] = {}
        self._ordered: Mapping[str, frozenset[str]] = {}
        self._targets: Mapping[str, ScaleTarget] = {}
        self._rollouts: Mapping[str, Rollout] = {}
        self._refused: Mapping[str, tuple[str, ...]] = {}
        self._changed: list[Callable[[], None]] = []
        self.now_us = 0
        """The database's clock at the last read, in microseconds."""
        self.problem = ""
        """Reason why the last read failed; empty when it did not."""

    @property
    def read(self) -> bool:
        """True once the database has been read."""
        return self._read_at is not None

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Add a callback that is called after the first read, and after registrations, drain orders or rollouts
        changed.
        """
        self._changed.append(changed)

    def registered(self, pool: str) -> tuple[Registration, ...]:
        """Return the pool's registrations that have not expired, sorted by name."""
        return self._registered.get(pool, ())

    def ordered(self, pool: str) -> frozenset[str]:
        """Return the names of the pool's replicas that were ordered to drain, whatever their source."""
        return self._ordered.get(pool, frozenset())

    def refused(self, pool: str) -> tuple[str, ...]:
        """Return the messages about registrations whose address is no longer allowed."""
        return self._refused.get(pool, ())

    def target(self, pool: str) -> ScaleTarget | None:
        """Return the pool's desired size and lease; None when no process has ever held the lease."""
        return self._targets.get(pool)

    def wish(self, part: str) -> ScaleTarget | None:
        """Return the autoscaler's decision for a pool, or a part of one; None where nothing scales it any more, whatever was decided before."""
        return self.target(part) if part in self._scaled else None

    def rollout(self, pool: str) -> Rollout | None:
        """Return the rollout of the pool's model; None when no step was ever taken."""
        return self._rollouts.get(pool)

    def turns(self, group: str) -> Turns | None:
        """Return whose turn it is on GPUs that pools share, as read last; None before it was ever decided."""
        return self._turns.get(group)

    def rests(self, pool: str) -> bool:
        """Return whether the pool takes nothing new, because another one has the GPUs that they share. While the database was never read
        nobody knows, and whoever is awake serves.
        """
        group = self._group_of.get(pool)
        return group is not None and self.read and rests(self._turns.get(group), pool)

    def pays(self, pool: str) -> bool:
        """Return False while the GPUs of the pool's engines are another pool's."""
        group = self._group_of.get(pool)
        return group is None or pays(self._turns.get(group)) == pool

    def shared(self, pool: str) -> SharedTold | None:
        """Return the GPUs that the pool shares, and whose turn it is there; None where it shares none."""
        group = self._group_of.get(pool)
        if group is None:
            return None
        turns = self._turns.get(group) or Turns()
        awake = turns.awake if turns.phase in ("awake", "draining") else ""
        others = tuple(name for name in self._shared[group].pools if name != pool)
        return SharedTold(name=group, others=others, phase=turns.phase, awake=awake or None, next=turns.next or None)

    def sleep_told(self, pool: str) -> SleepTold | None:
        """Return the message to processes about the pool's sleep; None where its GPUs are its own, or the state is
        unknown.
        """
        group = self._group_of.get(pool)
        if group is None or not self.read:
            return None
        turns, rules, now = self._turns.get(group), self._shared[group].rules, self._clock()
        if turns is None:
            return SleepTold(
                pool=pool, rests=True, since=now, opens_at=now + rules.switch_s, takes_s=rules.switch_s / 2
            )
        if not rests(turns, pool):
            return SleepTold(pool=pool, rests=False, since=turns.since)
        least_s = 0.5 if turns.next == pool else takes_s(rules, turns, pool)
        return SleepTold(
            pool=pool,
            rests=True,
            since=turns.since,
            opens_at=turns.since + opens_in_s(rules, turns, pool, turns.since),
            takes_s=least_s,
        )

    async def run(self) -> None:
        """Read every `every_s` seconds until it is cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("looking for registrations failed; the next look follows")

    async def refresh(self) -> None:
        """Read the shared state once. On a database error the last state is kept, and `problem` is set."""
        began = self._clock()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                state = await self._store.read(self._pools, self._more_rows)
        except DATABASE_FAILS as error:
            # The driver's message may hold the address.
            self._set_problem(f"the database does not answer ({type(error).__name__}); what was known last counts")
            return
        self._set_problem("")
        self._adopt(state, began)

    def _adopt(self, state: SharedState, now: float) -> None:
        first = self._read_at is None
        blind = self._read_at is not None and now - self._read_at > _BLIND_READS * max(self._every_s, 1.0)
        self._read_at, self.now_us = now, state.now_us
        self._registrations = {
            (each.pool, each.name): _Renewal(each, self._renewed_at(each, state.now_us, now, blind=blind))
            for each in state.registrations
        }
        before = (self._registered, self._ordered, self._refused, self._rollouts, self._stored_turns)
        self._registered, self._refused = self._unexpired(now)
        self._ordered = {pool: frozenset(name for of, name in state.orders if of == pool) for pool in self._pools}
        self._targets = {wish.pool: wish for wish in state.wishes}
        # One of a model that the pool had under another configuration stays in the table, and means nothing now.
        self._rollouts = {each.pool: each for each in state.rollouts if each.model == self._pools[each.pool].targets[0]}
        self._adopt_turns(state.turns, now)
        if first or before != (self._registered, self._ordered, self._refused, self._rollouts, self._stored_turns):
            for changed in self._changed:
                changed()

    def _adopt_turns(self, stored: Mapping[str, str], now: float) -> None:
        """Take over the stored turns. A phase begins for this process when it reads of it."""
        for group in self._shared:
            text, known = stored.get(group, ""), self._turns.get(group)
            if known is None or text != self._stored_turns.get(group, ""):
                turns = read(text, now)
                if known is not None and turns is not None and not is_step(known, turns):
                    turns = msgspec.structs.replace(turns, since=known.since)
                self._turns[group] = turns
        self._stored_turns = dict(stored)

    def _renewed_at(self, row: Registration, now_us: int, now: float, *, blind: bool) -> float:
        kept = self._registrations.get((row.pool, row.name))
        if kept is None:
            return now - abs(now_us - row.seen_us) / 1_000_000
        # While the database was away no registration could be renewed either, so each gets its full time anew.
        same = (kept.registration.seen_us, kept.registration.instance) == (row.seen_us, row.instance)
        return kept.at if same and not blind else now

    def _unexpired(self, now: float) -> tuple[dict[str, tuple[Registration, ...]], dict[str, tuple[str, ...]]]:
        living: dict[str, list[Registration]] = {}
        refused: dict[str, list[str]] = {}
        for (pool, name), heard in sorted(self._registrations.items()):
            rules = self._pools[pool].registration
            if rules is None or now - heard.at > rules.ttl_s:
                continue
            try:
                checked_origin(heard.registration.url, rules.networks)
            except OriginRefused as error:
                refused.setdefault(pool, []).append(f"{name}: {error}")
            else:
                # Without `seen_us`, whose renewal would count as a change at every read.
                living.setdefault(pool, []).append(msgspec.structs.replace(heard.registration, seen_us=0))
        return {pool: tuple(each) for pool, each in living.items()}, {pool: tuple(e) for pool, e in refused.items()}

    def _set_problem(self, problem: str) -> None:
        """Set `problem`, and log changes of it only."""
        if problem and not self.problem:
            _log.warning("the fleet's shared state cannot be read: %s", problem)
        elif self.problem and not problem:
            _log.warning("the fleet's shared state is read again")
        self.problem = problem
