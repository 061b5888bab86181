"""The loop of pools that share GPUs: observe, decide (pure, `model_swap/turns.py`), store, act.

Only the holder of the group's lease decides and acts. What it decided is stored before anything is done, so that every gateway
stops sending to a pool before its engines sleep, and whoever takes the lease over goes on from there.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import msgspec

from selfhosted.config import SharedGpusConfig
from selfhosted.engines.fetching import FetchFailed
from selfhosted.model_swap.swap_state import read, written
from selfhosted.model_swap.turns import Moves, PoolNow, Turns, decide, is_step
from selfhosted.registry.store import DATABASE_FAILS
from selfhosted.replica import PoolSnapshot
from selfhosted.scale.engine_sleep import Fetch, SleepUnknown, is_sleeping, put_to_sleep, wake
from selfhosted.scale.loop import LeaseCheck
from selfhosted.scale.target import Targets

_log: Final = logging.getLogger(__name__)
_PATIENCE_S: Final = 3.0
_MOST_PASSED_S: Final = 10.0
"""A longer pause between two decisions says nothing of who waited in it."""


class TurnObserver:
    """An observer of the loop's actions; this base class ignores them. Names come from the configuration, so they can
    be labels.
    """

    def set_awake(self, group: str, pools: Mapping[str, bool]) -> None: ...

    def switched(self, group: str, pool: str, seconds: float) -> None: ...


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The demand for a pool."""

    waiting: int = 0
    """Requests that wait at the gateways; all of the tier `batch` count as one."""
    turned_away: int = 0
    """Requests turned away since the last question."""
    running_batch: int = 0
    """Requests of the tier `batch` that the pool has."""


class Demand(Protocol):
    """A source of the present demand for a pool."""

    def __call__(self, pool: str) -> Wanted: ...


class SharedPool(msgspec.Struct, frozen=True):
    """A pool of the group: its replicas, and how its engines are asked."""

    snapshot: Callable[[], PoolSnapshot]
    answered: Callable[[str], bool]
    """True for a name whose replica ever answered."""
    fetch: Fetch


class _Engines(msgspec.Struct):
    """A pool's engines as they were found."""

    up: list[str] = msgspec.field(default_factory=list)
    asleep: list[str] = msgspec.field(default_factory=list)
    starting: int = 0


class _Move(msgspec.Struct, frozen=True):
    """An engine on its way to sleep, or awake."""

    task: asyncio.Task[None]
    asleep: bool


class TurnLoop:
    """The loop of one group of pools."""

    def __init__(
        self,
        group: SharedGpusConfig,
        pools: Mapping[str, SharedPool],
        *,
        targets: Targets,
        lease: LeaseCheck,
        demand: Demand,
        stored: Callable[[], Awaitable[object]],
        observer: TurnObserver | None = None,
        every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pools` has each pool of the group. `stored` is called once new turns are stored, so that they are read at once."""
        self._group = group
        self._pools = pools
        self._targets = targets
        self._lease = lease
        self._demand = demand
        self._stored = stored
        self._observer = observer or TurnObserver()
        self._every_s = every_s
        self._clock = clock
        self._turns: Turns | None = None
        self._decided_at: float | None = None
        self._moving: dict[str, _Move] = {}
        """The running step of each engine, by its address."""
        self._began_at: float | None = None
        """Start of the switch that is under way."""
        self.problems: dict[str, str] = {}
        """The problem of an engine, for people, by its pool."""

    async def run(self) -> None:
        """Step every `every_s` seconds until it is cancelled."""
        try:
            while True:
                try:
                    await self.step()
                except Exception:  # noqa: BLE001 - the loop must outlive any one step
                    _log.exception("deciding which pool of %s is awake failed; the next try follows", self._group.name)
                await asyncio.sleep(self._every_s)
        finally:
            for moving in self._moving.values():
                moving.task.cancel()

    async def step(self) -> None:
        """Observe, decide, store and begin to act, if this process leads. On a database error nothing is done."""
        if not self._lease.held(self._group.name):
            self._turns = self._decided_at = None
            return
        engines = dict(zip(self._pools, await asyncio.gather(*map(self._look, self._pools)), strict=True))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                moves = await self._decide(engines)
        except DATABASE_FAILS as error:
            _log.warning("whose turn it is on %s could not be stored (%s)", self._group.name, type(error).__name__)
            return
        if moves is not None:
            self._act(moves, engines)

    async def _decide(self, engines: Mapping[str, _Engines]) -> Moves | None:
        at = self._clock()
        before = self._turns
        if before is None:
            before = read(await self._targets.state(self._group.name), at) or Turns(since=at)
        passed_s = 0.0 if self._decided_at is None else min(_MOST_PASSED_S, at - self._decided_at)
        now_of = {pool: self._now(pool, found) for pool, found in engines.items()}
        turns, moves = decide(self._group.rules, before, now_of, at, passed_s)
        if self._turns is None or written(turns) != written(before):
            why = _why(turns)
            if not await self._targets.store_turns(self._group.name, self._lease.holder, why, written(turns)):
                # Another process leads by now.
                self._turns = None
                return None
            if is_step(before, turns):
                _log.info("%s: %s", self._group.name, why)
            await self._stored()
        self._turns, self._decided_at = turns, at
        self._note(before, turns, at)
        return moves

    def _now(self, pool: str, found: _Engines) -> PoolNow:
        wanted = self._demand(pool)
        stats = {each.address.url: each.stats for each in self._pools[pool].snapshot().replicas}
        loads = [None if (told := stats.get(url)) is None else told.running + told.waiting for url in found.up]
        known = [load for load in loads if load is not None]
        return PoolNow(
            waiting=wanted.waiting,
            turned_away=wanted.turned_away,
            batch=wanted.running_batch,
            running=sum(known) if len(known) == len(loads) else None,
            up=len(found.up),
            asleep=len(found.asleep),
            starting=found.starting,
        )

    async def _look(self, pool: str) -> _Engines:
        """Ask each engine of the pool whether it sleeps."""
        shared, found, problem = self._pools[pool], _Engines(), ""
        replicas = shared.snapshot().replicas

        async def ask(name: str, url: str) -> None:
            nonlocal problem
            moving = self._moving.get(url)
            if moving is not None:
                # Until it is done it is as it was: one that falls asleep has not let go yet.
                (found.up if moving.asleep else found.asleep).append(url)
                return
            try:
                sleeps = await is_sleeping(shared.fetch, url)
            except FetchFailed as error:
                if error.result == "slow":
                    # It is there, and does something, such as moving by the word of whoever led before.
                    found.up.append(url)
                else:
                    found.starting += not shared.answered(name)
            except SleepUnknown as error:
                problem = str(error)
                # It holds the GPUs for as long as it is there.
                found.up.append(url)
            else:
                (found.asleep if sleeps else found.up).append(url)

        await asyncio.gather(*(ask(each.name, each.address.url) for each in replicas))
        if problem and problem != self.problems.get(pool):
            _log.warning("pool %s shares its GPUs: %s", pool, problem)
        self.problems[pool] = problem
        return found

    # Acting.

    def _act(self, moves: Moves, engines: Mapping[str, _Engines]) -> None:
        for pool in moves.sleep:
            for url in engines[pool].up:
                self._move(pool, url, asleep=True)
        if moves.wake is not None:
            for url in engines[moves.wake].asleep:
                self._move(moves.wake, url, asleep=False)

    def _move(self, pool: str, url: str, *, asleep: bool) -> None:
        """Begin to put an engine to sleep or to wake it, unless something is under way there. A failure is retried with
        the next step.
        """
        if url in self._moving:
            return
        fetch, level = self._pools[pool].fetch, self._group.level

        async def move() -> None:
            try:
                await (put_to_sleep if asleep else wake)(fetch, url, level)
            except FetchFailed as error:
                _log.warning("%s of pool %s %s: %s", url, pool, "does not sleep" if asleep else "does not wake", error)
            finally:
                del self._moving[url]

        self._moving[url] = _Move(asyncio.get_running_loop().create_task(move()), asleep)

    def _note(self, before: Turns, turns: Turns, at: float) -> None:
        name = self._group.name
        awake = turns.awake if turns.phase in ("awake", "draining") else ""
        self._observer.set_awake(name, {pool: pool == awake for pool in self._group.pools})
        if turns.phase != "awake" and self._began_at is None:
            self._began_at = at
        elif turns.phase == "awake" and self._began_at is not None:
            if before.phase == "waking":
                self._observer.switched(name, turns.awake, at - self._began_at)
            self._began_at = None


def _why(turns: Turns) -> str:
    """Return the present state, for people."""
    match turns.phase:
        case "awake":
            return f"{turns.awake} is awake"
        case "draining":
            return f"{turns.awake} finishes its work, then {turns.next} wakes"
        case "sleeping":
            return f"the others fall asleep, then {turns.next} wakes"
        case "waking":
            return f"{turns.next} wakes"
