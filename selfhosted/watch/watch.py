"""Watches a pool: probes and scrapes each replica about every second, and keeps the result as one frozen snapshot.

Each replica has two tasks, one for probes and one for scrapes, so that a slow or hostile replica delays only itself,
and within the timeout.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.engines.dialects import Reading, Slots, StatsUnreadable, gpu_memory, read_page, read_slots
from selfhosted.engines.scrape import Fetch, FetchFailed
from selfhosted.replica import Address, EngineStats, PoolSnapshot, ReplicaState
from selfhosted.watch import health as judge
from selfhosted.watch.health import Health
from selfhosted.watch.hit_rate import HitRate
from selfhosted.watch.observer import ScrapeResult, WatchObserver
from selfhosted.watch.watched import Watched

_log = logging.getLogger("weighbridge.selfhosted")

_OK: Final = 200
_NOT_SCRAPED: Final[tuple[ReplicaState, ...]] = ("starting", "down")
_MAX_HEALTH_BYTES: Final = 65_536
# So that replicas which were adopted together are not asked together ever after.
_JITTER: Final = 0.1
_FIRST_WITHIN_S: Final = 0.2
# A round that took longer than its interval is followed by the next one after this part of it, not at once.
_LEAST_PAUSE: Final = 0.05
# Lateness of this process's own event loop beyond which a timed-out probe says nothing about the replica.
_LATE: Final = 1.5
_LATE_S: Final = 0.1


class PoolWatch:
    """The watch of one pool's replicas. Not thread-safe: its methods are for the event loop that `run` runs on."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        fetch: Fetch,
        changed: Callable[[], None],
        restarted: Callable[[str], None] | None = None,
        observer: WatchObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._pool = config.name
        self._config = config.watch
        self._limits = judge.limits_of(config)
        self._fetch = fetch
        self._changed = changed
        self._restarted = restarted or (lambda _name: None)
        self._observer = observer or WatchObserver()
        self._clock = clock
        # Staggers probes, so it need not be unpredictable.
        self._rng = rng or random.Random()  # noqa: S311
        self._watched: dict[str, Watched] = {}
        self._snapshot: PoolSnapshot | None = None
        self._hit_rate = HitRate()
        self._running = False
        self.turned: Callable[[str, ReplicaState], None] = lambda _name, _state: None
        """Callback with the name and the new state of each replica whose state changed."""

    @property
    def snapshot(self) -> PoolSnapshot:
        """The current snapshot; the same object until something changed."""
        if self._snapshot is None:
            self._snapshot = PoolSnapshot(
                pool=self._pool,
                at=self._clock(),
                replicas=tuple(self._watched[name].replica for name in sorted(self._watched)),
            )
        return self._snapshot

    @property
    def prefix_hit_rate(self) -> float | None:
        """Prefix hit rate of the last minute or so, 0 to 1, by the engines' counters; None when unknown."""
        return self._hit_rate.rate

    def adopt(self, addresses: Iterable[Address]) -> None:
        """Replaces the pool's members. A replica whose URL or engine changed is dropped and added anew."""
        wanted: dict[str, Address] = {}
        for address in addresses:
            wanted.setdefault(address.name, address)
        before = {name: watched.address for name, watched in self._watched.items()}
        if before == wanted:
            return
        for name in before.keys() - wanted.keys():
            self._drop(name)
        for name, address in wanted.items():
            self._adopt_one(name, address)
        self._snapshot = None
        self._changed()

    def failed(self, name: str, began_at: float | None = None) -> None:
        """Records a failed request: the replica gets no other until a probe, sent now, was answered."""
        watched = self._watched.get(name)
        if watched is None:
            return
        now = self._clock()
        self._set_health(watched, judge.request_failed(watched.health, now=now, began_at=began_at, limits=self._limits))
        watched.probe_wanted.set()

    def began(self, name: str) -> None:
        """Records a request sent to the replica. After repeated failures it is a trial, and the only request there."""
        watched = self._watched.get(name)
        if watched is not None and watched.health.suspicions:
            self._set_health(watched, judge.request_began(watched.health, now=self._clock(), limits=self._limits))

    def succeeded(self, name: str) -> None:
        """Records a request that was answered."""
        watched = self._watched.get(name)
        if watched is None:
            return
        watched.answered_at = now = self._clock()
        if watched.health.suspicions:
            self._set_health(watched, judge.request_succeeded(watched.health, now=now))

    def answered_since(self, name: str, at: float) -> bool:
        """True when a request was answered there after `at`, of the monotonic clock."""
        watched = self._watched.get(name)
        return watched is not None and watched.answered_at > at

    def left(self, name: str, began_at: float) -> None:
        """Records a request that ended without evidence for or against the replica."""
        watched = self._watched.get(name)
        if watched is not None and watched.health.trial_until is not None:
            self._set_health(watched, judge.request_left(watched.health, began_at=began_at))

    def set_adapters(self, name: str, adapters: frozenset[str]) -> None:
        """Sets the LoRA adapters that are loaded there."""
        watched = self._watched.get(name)
        if watched is not None and watched.adapters != adapters:
            watched.adapters = adapters
            self._invalidate(watched)

    async def run(self) -> None:
        """Probes and scrapes until it is cancelled."""
        self._running = True
        for watched in self._watched.values():
            self._start_tasks(watched)
        try:
            await asyncio.Event().wait()
        finally:
            self._running = False
            tasks = [task for watched in self._watched.values() for task in watched.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- membership

    def _adopt_one(self, name: str, address: Address) -> None:
        watched = self._watched.get(name)
        if watched is None:
            self._add(address)
        elif (address.url, address.kind) != (watched.address.url, watched.address.kind):
            self._drop(name)
            self._add(address)
            self._restarted(name)
        elif address != watched.address:
            watched.adopt(address, self._clock())
            self._observer.set_replica_state(self._pool, name, watched.state)

    def _add(self, address: Address) -> None:
        watched = self._watched[address.name] = Watched(address, self._config, self._clock())
        self._observer.set_replica_state(self._pool, address.name, watched.state)
        if self._running:
            self._start_tasks(watched)

    def _drop(self, name: str) -> None:
        watched = self._watched.pop(name)
        for task in watched.tasks:
            task.cancel()
        self._observer.forget_replica(self._pool, name)

    def _start_tasks(self, watched: Watched) -> None:
        watched.tasks = (
            asyncio.create_task(self._repeat(watched.probe_wanted, self._probe, watched)),
            asyncio.create_task(self._repeat(watched.scrape_wanted, self._update_stats, watched)),
        )

    async def _repeat(self, wanted: asyncio.Event, act: Callable[[Watched], Awaitable[None]], watched: Watched) -> None:
        """Calls `act` about once in an interval, and at once when `wanted` is set; never twice at the same time."""
        pause_s = self._rng.uniform(0, min(_FIRST_WITHIN_S, self._config.every_s))
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wanted.wait()
            wanted.clear()
            began = self._clock()
            try:
                await act(watched)
            except Exception:  # noqa: BLE001 - watching must outlive any one round
                _log.exception("a round of watching %s of pool %s failed", watched.address.name, self._pool)
            pause_s = self._pause_s(watched, self._clock() - began)

    def _pause_s(self, watched: Watched, took_s: float) -> float:
        every_s = self._config.every_s
        pause_s = every_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER) - took_s
        until_cleared_s = watched.health.suspect_until - self._clock()
        if until_cleared_s > 0:
            pause_s = min(pause_s, until_cleared_s)
        return max(pause_s, every_s * _LEAST_PAUSE)

    # --- health

    async def _probe(self, watched: Watched) -> None:
        sent_at = self._clock()
        why = ""
        try:
            answer = await self._fetch(
                watched.urls.health, timeout_s=self._config.timeout_s, max_bytes=_MAX_HEALTH_BYTES
            )
            if answer.status != _OK:
                why = f"it answers a probe with {answer.status}"
        except FetchFailed as failure:
            # Where this process stood still, the replica's answer may lie there unread.
            took_s = self._clock() - sent_at
            if failure.result == "slow" and took_s > self._config.timeout_s * _LATE + _LATE_S:
                return
            why = f"a probe failed: {failure}"
        now = self._clock()
        if why:
            self._set_health(watched, judge.missed(watched.health, why, now=now, limits=self._limits))
        else:
            self._set_health(watched, judge.answered(watched.health, sent_at=sent_at, now=now, asleep=watched.asleep))

    def _set_health(self, watched: Watched, health: Health) -> None:
        """Takes over the decided health, and publishes what changed by it."""
        before, state = watched.health, watched.state
        watched.health = health
        if (before.state, before.why) == (health.state, health.why):
            return
        if health.state in _NOT_SCRAPED:
            self._drop_stats(watched, health.why)
        elif before.state in _NOT_SCRAPED:
            watched.scrape_wanted.set()
        self._invalidate(watched)
        if watched.state != state:
            self._log_state(watched, state)
            self._observer.set_replica_state(self._pool, watched.address.name, watched.state)
            self.turned(watched.address.name, watched.state)
            self._changed()

    def _log_state(self, watched: Watched, before: ReplicaState) -> None:
        if watched.state == "down":
            _log.warning("replica %s of pool %s is down: %s", watched.address.name, self._pool, watched.health.why)
        elif before in _NOT_SCRAPED:
            _log.info("replica %s of pool %s is %s", watched.address.name, self._pool, watched.state)

    def _invalidate(self, watched: Watched) -> None:
        watched.touch()
        self._snapshot = None

    # --- statistics

    async def _update_stats(self, watched: Watched) -> None:
        """Scrapes one replica, unless it does not answer probes."""
        if watched.health.state in _NOT_SCRAPED:
            return
        result, why, reading = await self._scrape(watched)
        self._observer.count_scrape(self._pool, result)
        if reading is not None:
            await self._take_reading(watched, reading)
        elif watched.stats is not None and self._clock() - watched.stats.at > self._config.stale_s:
            self._drop_stats(watched, why)
        elif watched.stats is None and watched.stats_why != why:
            watched.stats_why = why
            self._invalidate(watched)
        await self._read_gpus(watched)

    async def _scrape(self, watched: Watched) -> tuple[ScrapeResult, str, Reading | None]:
        try:
            page = await self._fetch(
                watched.urls.metrics, timeout_s=self._config.timeout_s, max_bytes=self._config.max_bytes
            )
        except FetchFailed as failure:
            return failure.result, f"its statistics cannot be read: {failure}", None
        if page.status != _OK:
            return "status", f"its statistics cannot be read: the page's status is {page.status}", None
        try:
            return "ok", "", read_page(watched.address.kind, page.body, self._clock())
        except StatsUnreadable as error:
            return "unreadable", f"its statistics cannot be read: {error}", None

    async def _take_reading(self, watched: Watched, reading: Reading) -> None:
        restarted, before = watched.note(reading)
        if restarted:
            watched.forget_process()
            _log.info("replica %s of pool %s is another process now", watched.address.name, self._pool)
            self._restarted(watched.address.name)
        elif before is not None:
            self._count_hits(before.stats, reading.stats)
        if watched.address.kind == "llama.cpp" and watched.slots is None:
            watched.slots = await self._read_slots(watched)
        # It may have gone down meanwhile, and then nothing is known of it.
        if watched.health.state in _NOT_SCRAPED:
            return
        watched.stats = self._with_extras(watched, reading.stats)
        self._observer.set_replica_load(self._pool, watched.address.name, watched.stats)
        self._invalidate(watched)
        if reading.asleep != watched.asleep:
            watched.asleep = reading.asleep
            watched.probe_wanted.set()

    def _with_extras(self, watched: Watched, stats: EngineStats) -> EngineStats:
        """Adds the statistics that other pages than the metrics show."""
        slots = watched.slots
        if slots is not None:
            stats = msgspec.structs.replace(stats, max_running=slots.max_running, kv_tokens=slots.kv_tokens)
        if watched.gpu_memory is not None and stats.at - watched.gpu_memory_at <= self._config.stale_s:
            stats = msgspec.structs.replace(stats, gpu_memory=watched.gpu_memory)
        return stats

    def _count_hits(self, before: EngineStats, after: EngineStats) -> None:
        """Adds the look-ups and hits between two readings of one process to the hit rate."""
        if None in (before.prefix_queries, before.prefix_hits, after.prefix_queries, after.prefix_hits):
            return
        queries = (after.prefix_queries or 0.0) - (before.prefix_queries or 0.0)
        hits = (after.prefix_hits or 0.0) - (before.prefix_hits or 0.0)
        if 0 <= hits <= queries and queries > 0:
            self._hit_rate.add(queries, hits, after.at)
            self._observer.set_prefix_hit_rate(self._pool, self._hit_rate.rate or 0.0)

    async def _read_slots(self, watched: Watched) -> Slots | None:
        """The engine's slots; None when they could not be read and should be asked for again."""
        try:
            answer = await self._fetch(
                watched.urls.props, timeout_s=self._config.timeout_s, max_bytes=self._config.max_bytes
            )
        except FetchFailed:
            return None
        return read_slots(answer.body) if answer.status == _OK else Slots()

    async def _read_gpus(self, watched: Watched) -> None:
        if watched.urls.gpu is None:
            return
        try:
            # The exporter is another program: the engine's key is not for it.
            page = await self._fetch(
                watched.urls.gpu,
                timeout_s=self._config.timeout_s,
                max_bytes=self._config.max_bytes,
                with_key=False,
            )
        except FetchFailed:
            return
        used = gpu_memory(page.body, watched.address.name) if page.status == _OK else None
        watched.gpu_memory, watched.gpu_memory_at = used, self._clock()
        if watched.stats is not None and watched.stats.gpu_memory != used:
            watched.stats = msgspec.structs.replace(watched.stats, gpu_memory=used)
            self._invalidate(watched)

    def _drop_stats(self, watched: Watched, why: str) -> None:
        """Drops the replica's statistics, and with them what they said of its sleep."""
        watched.stats_why = why
        watched.asleep = False
        if watched.stats is not None:
            watched.stats = None
            self._observer.set_replica_load(self._pool, watched.address.name, None)
        self._invalidate(watched)
