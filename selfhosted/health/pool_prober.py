"""Watches a pool: probes and scrapes each replica about every second, and tells everybody the findings.

Each replica has two tasks, one for probes and one for scrapes, so that a slow or hostile replica delays only itself,
and within the timeout.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.engines.dialects import (
    GpuReading,
    Reading,
    Slots,
    StatsUnreadable,
    ranks_on,
    read_gpus,
    read_page,
    read_slots,
)
from selfhosted.engines.fetching import Failure, Fetch, FetchFailed
from selfhosted.engines.shared_fetch import SharedFetch
from selfhosted.health.engine_rates import HitRate
from selfhosted.health.judge import UNREAD, JudgeObserver, PoolJudge
from selfhosted.health.judged_replica import is_same
from selfhosted.health.messages import NEVER, AdapterChanged, PoolMembers, Publisher, ReplicaDoubted
from selfhosted.health.probed_replica import ProbedReplica
from selfhosted.health.verdict import NO_DOUBT
from selfhosted.replica import Address, EngineStats, PoolSnapshot, ReplicaState

ScrapeResult = Literal["ok", "status", "unreadable"] | Failure


class WatchObserver:
    """An observer of the figures of a pool's dashboard; this base class ignores them. Implementations must be quick and
    never raise.
    """

    def set_replica_state(self, pool: str, replica: str, state: ReplicaState) -> None: ...

    def set_replica_load(self, pool: str, replica: str, stats: EngineStats | None) -> None:
        """Set a replica's load; `stats` is None when unknown."""

    def set_replica_version(self, pool: str, replica: str, version: str) -> None:
        """Set a replica's version; empty when nobody says it."""

    def count_scrape(self, pool: str, result: ScrapeResult) -> None: ...

    def set_prefix_hit_rate(self, pool: str, rate: float) -> None: ...

    def forget_replica(self, pool: str, replica: str) -> None: ...


_log = logging.getLogger("weighbridge.selfhosted")

_OK: Final = 200
_MAX_HEALTH_BYTES: Final = 65_536
# So that replicas which were adopted together are not asked together ever after.
_JITTER: Final = 0.1
_FIRST_WITHIN_S: Final = 0.2
# A round that took longer than its interval is followed by the next one after this part of it, not at once.
_LEAST_PAUSE: Final = 0.05
# Lateness of this process's own event loop beyond which a timed-out probe says nothing about the replica.
_LATE: Final = 1.5
_LATE_S: Final = 0.1


class PoolProber(JudgeObserver):
    """The watch of one pool's replicas, one a host. Not thread-safe: its methods are for the event loop that `run` runs
    on.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        fetch: Fetch,
        publisher: Publisher,
        observer: WatchObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._pool = config.name
        self._config = config.watch
        # Ranks behind one address have its pages in common.
        self._fetch = fetch if config.data_parallel_ranks == 1 else SharedFetch(fetch, config.watch.every_s / 2, clock)
        self._publisher = publisher
        self._observer = observer or WatchObserver()
        self._clock = clock
        # Staggers probes, so it need not be unpredictable.
        self._rng = rng or random.Random()  # noqa: S311
        self._judge = PoolJudge(config, clock=clock, observer=self)
        self._watched: dict[str, ProbedReplica] = {}
        self._hit_rate = HitRate()
        self._told_of_ranks = False
        self._running = False

    @property
    def snapshot(self) -> PoolSnapshot:
        """The replicas as probes and all processes' requests show them; the same object until something changed."""
        return self._judge.snapshot

    @property
    def prefix_hit_rate(self) -> float | None:
        """Prefix hit rate of the last minute or so, 0 to 1, by the engines' counters; None when unknown."""
        return self._hit_rate.rate

    def answered(self, name: str) -> bool:
        """Return whether a probe of the replica was answered."""
        watched = self._watched.get(name)
        return watched is not None and watched.probe is not None and watched.probe.answered_at != NEVER

    def adopt(self, addresses: Iterable[Address], *, complete: bool = True) -> None:
        """Replace the pool's members. A replica whose URL or engine changed is dropped and added anew. While the list is
        not `complete`, members that others know from before stay theirs.
        """
        wanted: dict[str, Address] = {}
        for address in addresses:
            wanted.setdefault(address.name, address)
        for name in self._watched.keys() - wanted.keys():
            self._drop(name)
        for name, address in wanted.items():
            self._adopt_one(name, address)
        members = tuple(wanted.values())
        self._judge.adopt(PoolMembers(pool=self._pool, addresses=members))
        for address in members:
            self._observer.set_replica_version(self._pool, address.name, address.version)
        self._publisher.publish(self._key(), PoolMembers(pool=self._pool, addresses=members, complete=complete))

    def doubt(self, doubted: ReplicaDoubted) -> None:
        """Take over a process's evidence against a replica, tell the others, and probe at once."""
        watched = self._watched.get(doubted.replica)
        if watched is None or not self._judge.doubt(doubted):
            return
        self._tell(watched)
        health = self._judge.health(doubted.replica)
        if health is not None and health.is_unproved:
            watched.probe_wanted.set()

    def adapter_changed(self, change: AdapterChanged) -> None:
        """Take over that a process loaded or unloaded an adapter, and tell the others."""
        watched = self._watched.get(change.replica)
        if (
            watched is not None
            and watched.address.url == change.url
            and watched.take_change(change.adapter, change.at, loaded=change.loaded)
        ):
            self._tell(watched)

    def set_adapters(self, name: str, adapters: frozenset[str], at: float) -> None:
        """Set the LoRA adapters that were loaded there at a moment, unless something newer is known."""
        watched = self._watched.get(name)
        if watched is not None and watched.take_adapters(adapters, at):
            self._tell(watched)

    async def run(self) -> None:
        """Probe and scrape until it is cancelled."""
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
        if watched is not None and is_same(address, watched.address):
            if address != watched.address:
                watched.address = address
                self._tell(watched)
            return
        if watched is not None:
            self._drop(name)
        watched = self._watched[name] = ProbedReplica(address, self._config, self._clock())
        if self._running:
            self._start_tasks(watched)

    def _drop(self, name: str) -> None:
        watched = self._watched.pop(name)
        for task in watched.tasks:
            task.cancel()
        self._publisher.forget(self._key(name))

    def _key(self, *replica: str) -> tuple[str, ...]:
        return ("pool", self._pool, *replica)

    def _start_tasks(self, watched: ProbedReplica) -> None:
        watched.tasks = (
            asyncio.create_task(self._repeat(watched.probe_wanted, self._probe, watched)),
            asyncio.create_task(self._repeat(watched.scrape_wanted, self._update_stats, watched)),
        )

    async def _repeat(
        self, wanted: asyncio.Event, act: Callable[[ProbedReplica], Awaitable[None]], watched: ProbedReplica
    ) -> None:
        """Call `act` about once in an interval, and at once when `wanted` is set; never twice at the same time."""
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

    def _pause_s(self, watched: ProbedReplica, took_s: float) -> float:
        every_s = self._config.every_s
        pause_s = every_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER) - took_s
        health = self._judge.health(watched.address.name)
        if health is not None and (until_cleared_s := health.doubt.suspect_until - self._clock()) > 0:
            pause_s = min(pause_s, until_cleared_s)
        return max(pause_s, every_s * _LEAST_PAUSE)

    # --- what is found

    def _tell(self, watched: ProbedReplica) -> None:
        """Judge the replica by its present facts, and tell everybody."""
        name = watched.address.name
        if self._watched.get(name) is not watched:
            return
        health = self._judge.health(name)
        doubt = NO_DOUBT if health is None else health.doubt
        self._judge.observe(watched.observed(doubt))
        if watched.stats is not None and not self._is_read(watched):
            # By this it went down.
            watched.take_stats(None, "it does not answer", self._clock())
        self._publisher.publish(self._key(name), watched.observed(doubt))

    def state_changed(self, name: str, before: ReplicaState | None, state: ReplicaState) -> None:
        self._observer.set_replica_state(self._pool, name, state)
        watched, health = self._watched.get(name), self._judge.health(name)
        if watched is None or health is None or before is None:
            return
        if state == "down":
            _log.warning("replica %s of pool %s is down: %s", name, self._pool, health.why)
        elif before in UNREAD:
            _log.info("replica %s of pool %s is %s", name, self._pool, state)

    def stats_changed(self, name: str, stats: EngineStats | None) -> None:
        self._observer.set_replica_load(self._pool, name, stats)

    def removed(self, name: str) -> None:
        self._observer.forget_replica(self._pool, name)

    async def _probe(self, watched: ProbedReplica) -> None:
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
        was_read = self._is_read(watched)
        watched.take_probe(sent_at, why)
        self._tell(watched)
        if not was_read and self._is_read(watched):
            watched.scrape_wanted.set()

    def _is_read(self, watched: ProbedReplica) -> bool:
        """Return whether the replica's statistics are worth a look."""
        health = self._judge.health(watched.address.name)
        return health is not None and health.state not in UNREAD

    # --- statistics

    async def _update_stats(self, watched: ProbedReplica) -> None:
        """Scrape one replica, unless it does not answer probes."""
        if not self._is_read(watched):
            return
        result, why, reading = await self._scrape(watched)
        self._observer.count_scrape(self._pool, result)
        now = self._clock()
        if reading is not None:
            await self._take_reading(watched, reading)
        elif watched.stats is None or now - watched.stats.at > self._config.stale_s:
            watched.take_stats(None, why, now)
            self._tell(watched)
        await self._read_gpus(watched)

    async def _scrape(self, watched: ProbedReplica) -> tuple[ScrapeResult, str, Reading | None]:
        try:
            page = await self._fetch(
                watched.urls.metrics, timeout_s=self._config.timeout_s, max_bytes=self._config.max_bytes
            )
        except FetchFailed as failure:
            return failure.result, f"its statistics cannot be read: {failure}", None
        if page.status != _OK:
            return "status", f"its statistics cannot be read: the page's status is {page.status}", None
        try:
            address = watched.address
            if watched.stats is None and address.rank is None:
                self._note_ranks(address, page.body)
            return "ok", "", read_page(address.kind, page.body, self._clock(), rank=address.engine_rank)
        except StatsUnreadable as error:
            return "unreadable", f"its statistics cannot be read: {error}", None

    def _note_ranks(self, address: Address, page: bytes) -> None:
        """Tell operators, once, of an engine whose ranks are balanced as one: a prompt's cache lies at one of them."""
        ranks = ranks_on(address.kind, page)
        if ranks > 1 and not self._told_of_ranks:
            self._told_of_ranks = True
            _log.warning(
                "replica %s of pool %s has %d data-parallel ranks, each with a cache of its own; with "
                "`data_parallel_ranks: %d` each gets the requests whose beginning it has cached",
                address.name, self._pool, ranks, ranks,
            )  # fmt: skip

    async def _take_reading(self, watched: ProbedReplica, reading: Reading) -> None:
        restarted, before = watched.note(reading)
        if restarted:
            watched.forget_process(self._clock())
            _log.info("replica %s of pool %s is another process now", watched.address.name, self._pool)
        elif before is not None:
            self._count_hits(before.stats, reading.stats)
            watched.rates.add(before.stats, reading.stats)
        if watched.address.kind == "llama.cpp" and watched.slots is None:
            watched.slots = await self._read_slots(watched)
        # It may have gone down meanwhile, and then nothing is known of it.
        if not self._is_read(watched):
            return
        watched.take_stats(self._with_extras(watched, reading.stats), "", self._clock())
        self._tell(watched)
        if reading.asleep != watched.asleep:
            watched.asleep = reading.asleep
            watched.probe_wanted.set()

    def _with_extras(self, watched: ProbedReplica, stats: EngineStats) -> EngineStats:
        """Add the statistics that other pages than the metrics show."""
        slots = watched.slots
        if slots is not None:
            stats = msgspec.structs.replace(stats, max_running=slots.max_running, kv_tokens=slots.kv_tokens)
        if stats.at - watched.gpus_at <= self._config.stale_s:
            stats = msgspec.structs.replace(
                stats, gpu_memory=watched.gpus.memory, gpu_utilisation=watched.gpus.utilisation
            )
        return watched.rates.put_into(stats)

    def _count_hits(self, before: EngineStats, after: EngineStats) -> None:
        """Add the look-ups and hits between two readings of one process to the hit rate."""
        if None in (before.prefix_queries, before.prefix_hits, after.prefix_queries, after.prefix_hits):
            return
        queries = (after.prefix_queries or 0.0) - (before.prefix_queries or 0.0)
        hits = (after.prefix_hits or 0.0) - (before.prefix_hits or 0.0)
        if 0 <= hits <= queries and queries > 0:
            self._hit_rate.add(queries, hits, after.at)
            self._observer.set_prefix_hit_rate(self._pool, self._hit_rate.rate or 0.0)

    async def _read_slots(self, watched: ProbedReplica) -> Slots | None:
        """Return the engine's slots; None when they could not be read and should be asked for again."""
        try:
            answer = await self._fetch(
                watched.urls.props, timeout_s=self._config.timeout_s, max_bytes=self._config.max_bytes
            )
        except FetchFailed:
            return None
        return read_slots(answer.body) if answer.status == _OK else Slots()

    async def _read_gpus(self, watched: ProbedReplica) -> None:
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
        found = read_gpus(page.body, watched.address.process) if page.status == _OK else GpuReading()
        watched.gpus, watched.gpus_at = found, self._clock()
        stats = watched.stats
        if stats is not None and (stats.gpu_memory, stats.gpu_utilisation) != (found.memory, found.utilisation):
            stats = msgspec.structs.replace(stats, gpu_memory=found.memory, gpu_utilisation=found.utilisation)
            watched.take_stats(stats, "", self._clock())
            self._tell(watched)
