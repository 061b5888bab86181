"""The time that replicas were up, counted once into the hours that finance is billed by.

What counts: a replica that starts (for at most an hour: later nothing is there that could cost), is ready, suspect or
drains holds its GPUs, whether it works or not. One that is down or gone holds none that we know of. The process that
leads a pool counts every few seconds, from when it was counted up to the last time until now, as far as it, or whoever
led before, saw the replica up. So a start or an end is off by one such step at most, in the pool's favour.

Once: one transaction moves the pool's clock from the value that was read to now, and books the time up beside it. Two
that lead at the same moment, or one that does not know whether its last transaction was written, cannot book a time twice.

What nobody watched: each process watches all pools, so a leader that ends, or a database that does not answer for a while,
loses nothing; the next leader, or the same one, counts what it saw itself. When no process watched, up to a minute (a
restart) is counted for replicas that were up before and after. A longer gap is not counted, because nobody can know; it is
told in the log with what to enter, and in a counter. For finance: an hour that nobody watched at all has no record, so
`cost.pools[].replicas` counts for it. An hour that was watched in part has the part as its record; who knows better
enters it (`weighbridge pools hours`), and what is entered comes first. An hour in which the pool was watched and nobody
was up is recorded as such, so that a pool that was scaled to zero is not billed as configured.

Durations are of the monotonic clock, and only the hour that they fall into is of the database's: a clock that is set
forward or back makes no time and loses none, as long as the next one to count watched before. No hour of a replica ever has
more than an hour.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from sqlalchemy import delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlmodel import col

from cost.database_clock import DATABASE_US
from cost.fleet.hours import HoursStore
from cost.times import DAY_US, HOUR_US, iso, wall_us
from selfhosted.registry.store import DATABASE_FAILS
from selfhosted.replica import PoolSnapshot, Replica
from selfhosted.tables import ReplicaClock


class HoursObserver:
    """An observer of gaps in watching; this base class ignores them."""

    def hours_unwatched(self, pool: str, seconds: float) -> None: ...


_log: Final = logging.getLogger(__name__)
EVERY_S: Final = 10.0
BRIDGE_S: Final = 60.0
"""Longest gap in watching that is counted as uptime for replicas that were up before and after it."""
STARTING_MOST_S: Final = 3_600.0
_POOL: Final = "-"
"""Name of the pool's own clock, which no replica can have."""
_PATIENCE_S: Final = 5.0
_KEPT_COUNTS: Final = 8
_OLD_US: Final = 7 * DAY_US
_US: Final = 1_000_000


class LeaseCheck(Protocol):
    """Knowledge of whether this process leads a pool."""

    def held(self, pool: str) -> bool: ...


class Run(msgspec.Struct, frozen=True):
    """An unbroken time for which this process has seen a replica up."""

    since: float
    blind: bool
    """True when this process did not watch before it, so that the replica may have been up earlier."""


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs for counting a pool's hours; everything from here on is pure."""

    now: float
    now_us: int
    watched_since: float
    """Monotonic clock: start of this process's unbroken watching of the pool."""
    counted_us: int | None
    """Value of the pool's clock in microseconds; None before the first count."""
    counted_at: float | None
    """Monotonic clock at that count; None when it lies in the future, as the database's clock was set back."""
    clocks: Mapping[str, int]
    """Clocks of the replicas in microseconds: equal to the pool's when the replica was up at the last count."""
    runs: Mapping[str, Run]
    """The replicas that are up now."""


class CountedHours(msgspec.Struct, frozen=True, kw_only=True):
    """The uptime to book."""

    up_us: Mapping[str, int]
    """Uptime by replica, in microseconds, ending now."""
    watched_us: int = 0
    """Time until now in which the pool was watched and that was not counted yet."""
    unwatched_us: int = 0
    """Time in which no process watched the pool, where that was not bridged."""
    missed: tuple[str, ...] = ()
    """Replicas that were up before and after the unwatched time."""


def count(standing: PoolFacts) -> CountedHours | None:
    """Count the uptime since the last count; None when the database's clock went back by at most `BRIDGE_S`, until it
    has passed the last count again.
    """
    if standing.counted_us is None:
        return CountedHours(up_us={name: _micros_since(standing, run.since) for name, run in standing.runs.items()})
    if standing.counted_at is None:
        back_us = standing.counted_us - standing.now_us
        return None if back_us <= BRIDGE_S * _US else CountedHours(up_us=dict.fromkeys(standing.runs, 0))
    elapsed_us = _micros_since(standing, standing.counted_at)
    unwatched_us = max(0, elapsed_us - _micros_since(standing, standing.watched_since))
    bridged = unwatched_us <= BRIDGE_S * _US
    up_us: dict[str, int] = {}
    missed: list[str] = []
    for name, run in standing.runs.items():
        seen_us = _micros_since(standing, run.since)
        clock_us = standing.clocks.get(name)
        if clock_us is None:
            up_us[name] = seen_us
            continue
        was_up = run.blind and clock_us >= standing.counted_us
        most_us = elapsed_us + max(0, standing.counted_us - clock_us)
        up_us[name] = most_us if was_up and bridged else min(most_us, seen_us)
        if was_up and not bridged:
            missed.append(name)
    return CountedHours(
        up_us=up_us,
        watched_us=elapsed_us if bridged else elapsed_us - unwatched_us,
        unwatched_us=0 if bridged else unwatched_us,
        missed=tuple(sorted(missed)),
    )


def _micros_since(standing: PoolFacts, at: float) -> int:
    return max(0, int((standing.now - at) * _US))


def by_hours(end_us: int, up_us: int) -> dict[int, int]:
    """Split a time that ends at `end_us` by hours: start of the hour → microseconds in it."""
    spans: dict[int, int] = {}
    at = max(0, end_us - up_us)
    while at < end_us:
        hour = at - at % HOUR_US
        until = min(end_us, hour + HOUR_US)
        spans[hour] = until - at
        at = until
    return spans


def is_up(replica: Replica, now: float) -> bool:
    """Return whether the replica is believed to hold GPUs: in any state but `down`, and `starting` for at most an hour."""
    if replica.state == "starting":
        return now - replica.since <= STARTING_MOST_S
    return replica.state != "down"


class _PoolObservation:
    """Observations of one pool by this process."""

    def __init__(self) -> None:
        self.seen_at = float("-inf")
        self.read_at: float | None = None
        self.since = float("-inf")
        self.runs: dict[str, Run] = {}
        self.counted_at: dict[int, float] = {}
        """Recent values of the pool's clock → monotonic time of that count."""
        self.zero_hour = -1

    def observe(self, up: Iterable[str], now: float, most_pause_s: float) -> None:
        """Note the replicas that are up now. A pause longer than `most_pause_s` begins all runs anew."""
        blind = now - self.seen_at > most_pause_s
        if blind:
            self.since = now
            self.runs = {}
        self.runs = {name: self.runs.get(name) or Run(now, blind) for name in up}
        self.seen_at = now

    def read(self, counted_us: int | None, now: float, now_us: int) -> None:
        """Learn when a count of another process was made, from its age by the database's clock. It was made since the
        previous read; a clock that says otherwise was set.
        """
        # Values before the current one never come back: the clock only moves on, unless it was set.
        while self.counted_at and next(iter(self.counted_at)) != counted_us:
            del self.counted_at[next(iter(self.counted_at))]
        if counted_us is not None and counted_us not in self.counted_at and now_us >= counted_us:
            age_s = (now_us - counted_us) / _US
            self.count(counted_us, now - (age_s if self.read_at is None else min(age_s, now - self.read_at)))
        self.read_at = now

    def count(self, counted_us: int, at: float) -> None:
        """Note a count, and keep the newest few, as one of them is what the database holds."""
        self.counted_at[counted_us] = at
        for old in list(self.counted_at)[:-_KEPT_COUNTS]:
            del self.counted_at[old]


class Hours:
    """The watch over all pools, which counts the hours of those that this process leads."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        hours: HoursStore,
        lease: LeaseCheck,
        snapshots: Callable[[], Sequence[PoolSnapshot]],
        complete: Callable[[str], bool] = lambda _pool: True,
        pays: Callable[[str], bool] = lambda _pool: True,
        observer: HoursObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] | None = None,
        every_s: float = EVERY_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`complete` returns True when all replicas of a pool are known: only then does an empty pool count as zero. `pays` returns
        False while the GPUs of a pool's replicas are another pool's: they count for that one.
        """
        self._engine = engine
        self._hours = hours
        self._lease = lease
        self._snapshots = snapshots
        self._complete = complete
        self._pays = pays
        self._paying: dict[str, bool] = {}
        """The holder of the GPUs at the last step, up to which they are still counted so."""
        self._wanted = asyncio.Event()
        self._observer = observer or HoursObserver()
        self._clock = clock
        self._now_us = now_us
        self._every_s = every_s
        self._patience_s = patience_s
        self._insert: Any = sqlite.insert if engine.dialect.name == "sqlite" else postgresql.insert
        self._watching: dict[str, _PoolObservation] = {}

    async def run(self) -> None:
        """Step every `every_s` seconds until it is cancelled."""
        while True:
            try:
                await self.step()
            except DATABASE_FAILS as error:
                # Observations are kept, and counted when the database is back.
                _log.info("the fleet's hours wait for the database: %s", type(error).__name__)
            except Exception:  # noqa: BLE001 - the loop must outlive any one step
                _log.exception("counting the fleet's hours failed; the next step follows")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._wanted.wait()
            self._wanted.clear()

    def look_now(self) -> None:
        """Count again, as whose GPUs are which may have changed: until now they are counted for who had them."""
        if any(self._pays(pool) != paying for pool, paying in self._paying.items()):
            self._wanted.set()

    async def step(self) -> None:
        """Observe all pools, and count those that this process leads. Raises what the database raises."""
        now, snapshots = self._clock(), self._snapshots()
        self._observe(snapshots, now)
        await self._count_all(snapshots, now)
        changed = {snapshot.pool: self._pays(snapshot.pool) for snapshot in snapshots}
        if changed != self._paying:
            # One ends and the other begins at the same moment.
            self._paying = changed
            self._observe(snapshots, now)

    def _observe(self, snapshots: Sequence[PoolSnapshot], now: float) -> None:
        for snapshot in snapshots:
            watching = self._watching.setdefault(snapshot.pool, _PoolObservation())
            pays = self._paying.setdefault(snapshot.pool, self._pays(snapshot.pool))
            # Ranks of one process are up together, on GPUs that are counted once.
            up = list(dict.fromkeys(each.address.process for each in snapshot.replicas if pays and is_up(each, now)))
            watching.observe(up, now, 3 * self._every_s)

    async def _count_all(self, snapshots: Sequence[PoolSnapshot], now: float) -> None:
        pools = [snapshot.pool for snapshot in snapshots]
        if not pools:
            return
        async with asyncio.timeout(self._patience_s):
            clocks, now_us = await self._read(pools)
        for pool in pools:
            own = clocks.get(pool, {})
            counted_us = own.pop(_POOL, None)
            self._watching[pool].read(counted_us, now, now_us)
            if self._lease.held(pool):
                async with asyncio.timeout(self._patience_s):
                    await self._count(pool, counted_us, own, now, now_us)

    async def _count(self, pool: str, counted_us: int | None, clocks: dict[str, int], now: float, now_us: int) -> None:
        watching = self._watching[pool]
        standing = PoolFacts(
            now=now,
            now_us=now_us,
            watched_since=watching.since,
            counted_us=counted_us,
            counted_at=None if counted_us is None else watching.counted_at.get(counted_us),
            clocks=clocks,
            runs=watching.runs,
        )
        found = count(standing)
        if found is None or counted_us == now_us:
            return
        # Before the transaction: whether it was written may stay unknown.
        watching.count(now_us, now)
        hour = now_us - now_us % HOUR_US
        fresh_hour, complete = watching.zero_hour != hour, self._complete(pool)
        async with self._engine.begin() as connection:
            if not await self._advance_clock(connection, pool, counted_us, now_us):
                return
            await self._write_clocks(connection, pool, found.up_us, now_us)
            up = {name: by_hours(now_us, up_us) for name, up_us in found.up_us.items()}
            if fresh_hour:
                if complete:
                    up[_POOL] = dict.fromkeys((*by_hours(now_us, min(found.watched_us, _OLD_US)), hour), 0)
                await self._prune_clocks(connection, pool, now_us)
            await self._hours.add(connection, pool, up)
        if complete:
            watching.zero_hour = hour
        self._report_gap(pool, found, now_us)

    async def _read(self, pools: Sequence[str]) -> tuple[dict[str, dict[str, int]], int]:
        query = select(col(ReplicaClock.pool), col(ReplicaClock.name), col(ReplicaClock.counted_us))
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query.where(col(ReplicaClock.pool).in_(pools)))).all()
            found: dict[str, dict[str, int]] = {}
            for pool, name, counted_us in rows:
                found.setdefault(pool, {})[name] = counted_us
            if self._now_us is None and self._engine.dialect.name == "postgresql":
                return found, int(await connection.scalar(select(DATABASE_US)) or 0)
        return found, (self._now_us or wall_us)()

    async def _advance_clock(self, connection: AsyncConnection, pool: str, counted_us: int | None, now_us: int) -> bool:
        """Move the pool's clock by compare-and-set. False when another process moved it first; serialises all
        counting.
        """
        place = {"pool": pool, "name": _POOL}
        if counted_us is None:
            row = self._insert(ReplicaClock).values(**place, counted_us=now_us).on_conflict_do_nothing()
            return bool((await connection.execute(row)).rowcount)
        still = (col(ReplicaClock.pool) == pool, col(ReplicaClock.name) == _POOL)
        moved = update(ReplicaClock).where(*still, col(ReplicaClock.counted_us) == counted_us)
        return bool((await connection.execute(moved.values(counted_us=now_us))).rowcount)

    async def _write_clocks(self, connection: AsyncConnection, pool: str, names: Iterable[str], now_us: int) -> None:
        rows = [{"pool": pool, "name": name, "counted_us": now_us} for name in names]
        if rows:
            insertion = self._insert(ReplicaClock)
            kept = {"counted_us": insertion.excluded.counted_us}
            await connection.execute(insertion.on_conflict_do_update(index_elements=("pool", "name"), set_=kept), rows)

    async def _prune_clocks(self, connection: AsyncConnection, pool: str, now_us: int) -> None:
        """Delete clocks of replicas older than a week, or in a future that a wrong clock wrote."""
        clock = col(ReplicaClock.counted_us)
        old = or_(clock < now_us - _OLD_US, clock > now_us + _OLD_US)
        await connection.execute(
            delete(ReplicaClock).where(col(ReplicaClock.pool) == pool, col(ReplicaClock.name) != _POOL, old)
        )

    def _report_gap(self, pool: str, found: CountedHours, now_us: int) -> None:
        if not found.unwatched_us:
            return
        self._observer.hours_unwatched(pool, found.unwatched_us / _US)
        _log.warning(
            "pool %s: nobody watched it for %d s until %s, and %d of its replicas that were up before and after are not "
            "billed for that time; hours without any record are billed as configured, others can be entered: "
            "`weighbridge pools hours %s --from ... --to ... --replicas ...`",
            pool,
            found.unwatched_us // _US,
            iso(now_us),
            len(found.missed),
            pool,
        )
