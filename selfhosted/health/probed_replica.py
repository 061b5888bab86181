"""One replica under watch: the findings of probes and readings."""

import asyncio
import math
from urllib.parse import urlsplit

import msgspec

from selfhosted.config import WatchConfig
from selfhosted.engines.dialects import GpuReading, Reading, Slots, usual_metrics_path
from selfhosted.health.engine_rates import EngineRates
from selfhosted.health.messages import NEVER, ReplicaObserved
from selfhosted.health.verdict import Doubt, Probe
from selfhosted.replica import NOT_READ_YET, Address, EngineStats

# Start times closer than this are the same start, rounded differently.
_SAME_START_S = 0.5


class Urls(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of a replica that are polled."""

    health: str
    metrics: str
    props: str
    gpu: str | None


def urls_of(address: Address, config: WatchConfig) -> Urls:
    """Return the URLs to poll at an address. A malformed address gives URLs that cannot be reached, so that the probe reports
    it.
    """
    origin = address.url.rstrip("/")
    path = config.metrics_path or usual_metrics_path(address.kind)
    try:
        parts = urlsplit(origin)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        scheme, host = "http", ""
    host = f"[{host}]" if ":" in host else host
    metrics = origin if config.metrics_port is None else f"{scheme}://{host}:{config.metrics_port}"
    return Urls(
        health=f"{origin}{config.health_path}",
        metrics=f"{metrics}{path}",
        props=f"{origin}/props",
        gpu=None if config.gpu_metrics_url is None else config.gpu_metrics_url.replace("{host}", host),
    )


class ProbedReplica:
    """The mutable record of one replica. Owned by one PoolProber, and used on its event loop only."""

    def __init__(self, address: Address, config: WatchConfig, now: float) -> None:
        self.address = address
        self.urls = urls_of(address, config)
        self.since = now
        self.probe: Probe | None = None
        self.stats: EngineStats | None = None
        self.stats_why = NOT_READ_YET
        self.scraped_at = NEVER
        self.asleep = False
        self.restarted_at = NEVER
        self.adapters: frozenset[str] = frozenset()
        self.adapters_at = NEVER
        self._adapters_seen_at = NEVER
        self.slots: Slots | None = None
        self.gpus = GpuReading()
        self.gpus_at = NEVER
        self.rates = EngineRates()
        self.probe_wanted = asyncio.Event()
        self.scrape_wanted = asyncio.Event()
        self.tasks: tuple[asyncio.Task[None], ...] = ()
        self._last: Reading | None = None

    def observed(self, doubt: Doubt) -> ReplicaObserved:
        """Return all known facts of it, those from requests included."""
        return ReplicaObserved(
            address=self.address,
            probe=self.probe,
            doubt=doubt,
            stats=self.stats,
            stats_why=self.stats_why,
            scraped_at=self.scraped_at,
            restarted_at=self.restarted_at,
            adapters=self.adapters,
            adapters_at=self.adapters_at,
        )

    def take_probe(self, sent_at: float, why: str) -> None:
        """Note a probe; `why` is empty when it was answered well."""
        before = self.probe
        misses = 0 if before is None else before.misses
        self.probe = Probe(
            sent_at=sent_at,
            first_at=self.since,
            misses=misses + 1 if why else 0,
            why=why,
            answered_at=(NEVER if before is None else before.answered_at) if why else sent_at,
            asleep=self.asleep,
        )

    def take_stats(self, stats: EngineStats | None, why: str, now: float) -> None:
        """Note the statistics and the engine's sleep, or the reason why there are none."""
        self.stats, self.stats_why, self.scraped_at = stats, why, now
        if stats is None:
            self.asleep = False

    def take_adapters(self, adapters: frozenset[str], at: float) -> bool:
        """Note all adapters of a moment. False when something newer is known."""
        if at <= self.adapters_at:
            return False
        self.adapters, self.adapters_at, self._adapters_seen_at = adapters, at, at
        return True

    def take_change(self, adapter: str, at: float, *, loaded: bool) -> bool:
        """Note that one was loaded or unloaded. False when all were seen since."""
        if at <= self._adapters_seen_at:
            return False
        self.adapters = self.adapters | {adapter} if loaded else self.adapters - {adapter}
        # Changes of several processes come in any order, and each has to count for those who know of the others.
        self.adapters_at = max(at, math.nextafter(self.adapters_at, math.inf))
        return True

    def note(self, reading: Reading) -> tuple[bool, Reading | None]:
        """Keep the reading. Returns whether the engine restarted since the last one and, if not, the last one."""
        last, self._last = self._last, reading
        if last is None:
            return False, None
        restarted = is_restart(last, reading)
        return restarted, None if restarted else last

    def forget_process(self, now: float) -> None:
        """Drop the adapters and slots of the previous process."""
        self.restarted_at = now
        self.slots = None
        self.rates = EngineRates()
        self.take_adapters(frozenset(), now)


def is_restart(before: Reading, after: Reading) -> bool:
    """Return whether the process's start time changed or a counter went down."""
    if before.started is not None and after.started is not None:
        return abs(after.started - before.started) > _SAME_START_S
    return any(
        old is not None and new is not None and new < old
        for old, new in (
            (before.stats.prompt_tokens, after.stats.prompt_tokens),
            (before.stats.output_tokens, after.stats.output_tokens),
            (before.stats.prefix_queries, after.stats.prefix_queries),
        )
    )
