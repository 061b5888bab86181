"""One replica under watch: its observations, and the `Replica` value of the snapshot."""

import asyncio
from urllib.parse import urlsplit

import msgspec

from selfhosted.config import WatchConfig
from selfhosted.engines.dialects import Reading, Slots, usual_metrics_path
from selfhosted.replica import Address, EngineStats, Replica, ReplicaState
from selfhosted.watch.health import Health, unknown

# Start times closer than this are the same start, rounded differently.
_SAME_START_S = 0.5


class Urls(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of a replica that are polled."""

    health: str
    metrics: str
    props: str
    gpu: str | None


def urls_of(address: Address, config: WatchConfig) -> Urls:
    """The URLs to poll at an address. A malformed address gives URLs that cannot be reached, so that the probe reports
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


class Watched:
    """The mutable record of one replica. Owned by one PoolWatch, and used on its event loop only."""

    def __init__(self, address: Address, config: WatchConfig, now: float) -> None:
        self.address = address
        self.drains_since = now
        self.urls = urls_of(address, config)
        self.health: Health = unknown(now)
        self.stats: EngineStats | None = None
        self.stats_why = "its statistics were not read yet"
        self.asleep = False
        self.answered_at = float("-inf")
        self.adapters: frozenset[str] = frozenset()
        self.slots: Slots | None = None
        self.gpu_memory: float | None = None
        self.gpu_memory_at = float("-inf")
        self.probe_wanted = asyncio.Event()
        self.scrape_wanted = asyncio.Event()
        self.tasks: tuple[asyncio.Task[None], ...] = ()
        self._last: Reading | None = None
        self._replica: Replica | None = None

    @property
    def state(self) -> ReplicaState:
        """The replica's state. Draining overrides every other but `down`: a draining replica takes nothing new,
        whatever its health.
        """
        return "draining" if self.address.draining and self.health.state != "down" else self.health.state

    @property
    def replica(self) -> Replica:
        """The snapshot's value, rebuilt after a change and cached."""
        if self._replica is None:
            self._replica = Replica(
                address=self.address,
                state=self.state,
                since=self.drains_since if self.state == "draining" else self.health.since,
                why=self.health.why or ("" if self.stats is not None else self.stats_why),
                stats=self.stats,
                adapters=self.adapters,
            )
        return self._replica

    def adopt(self, address: Address, now: float) -> None:
        """Takes over a new address of the same replica, which may have begun or stopped draining or come from another
        source.
        """
        if address.draining and not self.address.draining:
            self.drains_since = now
        self.address = address
        self.touch()

    def touch(self) -> None:
        """Discards the cached value after a change."""
        self._replica = None

    def note(self, reading: Reading) -> tuple[bool, Reading | None]:
        """Keeps the reading. Returns whether the engine restarted since the last one and, if not, the last one."""
        last, self._last = self._last, reading
        if last is None:
            return False, None
        restarted = is_restart(last, reading)
        return restarted, None if restarted else last

    def forget_process(self) -> None:
        """Drops what was known of the previous process: its adapters and slots."""
        self.slots = None
        self.adapters = frozenset()


def is_restart(before: Reading, after: Reading) -> bool:
    """True when the process's start time changed or a counter went down."""
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
