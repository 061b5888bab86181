"""Prometheus metrics of replicas."""

import contextlib
import math
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from selfhosted.health.hardware import PoolHardware
from selfhosted.health.pool_prober import ScrapeResult, WatchObserver
from selfhosted.replica import EngineStats, ReplicaState

MAX_REPLICAS: Final = 1_000
"""The most replicas with series of their own; those beyond are not exported."""
_REPLICA: Final = "weighbridge_replica"
_UNKNOWN: Final = "NaN when that is unknown."
_STATES: Final[tuple[ReplicaState, ...]] = get_args(ReplicaState)


class WatchMetrics(WatchObserver):
    """The states and loads of replicas as metrics. Every process watches the same ones, so the most recent value is the
    right one.
    """

    def __init__(self, registry: CollectorRegistry, *, forgets: bool = True) -> None:
        """`forgets`: whether series can be removed from the page, which workers that share one cannot do."""
        self._forgets = forgets
        self._exported: set[tuple[str, str]] = set()
        self._state = Gauge(
            "weighbridge_replica_state",
            "1 for the state that a replica is in, 0 for the others: starting, ready, suspect, draining, down.",
            ("pool", "replica", "state"),
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._loads = {
            field: Gauge(name, text, ("pool", "replica"), registry=registry, multiprocess_mode="livemostrecent")
            for field, name, text in (
                ("running", f"{_REPLICA}_running", f"Requests that a replica's engine runs; {_UNKNOWN}"),
                ("waiting", f"{_REPLICA}_waiting", f"Requests in a replica's own queue; {_UNKNOWN}"),
                (
                    "kv_usage",
                    f"{_REPLICA}_kv_usage",
                    f"The part of a replica's KV cache that requests occupy; {_UNKNOWN}",
                ),
                ("gpu_memory", f"{_REPLICA}_gpu_memory", f"The part of its GPUs' memory in use; {_UNKNOWN}"),
                (
                    "gpu_utilisation",
                    f"{_REPLICA}_gpu_utilisation",
                    f"The part of the time in which a kernel ran on its GPUs; {_UNKNOWN}",
                ),
                (
                    "tokens_per_s",
                    f"{_REPLICA}_tokens_per_second",
                    f"Prompt and completion tokens a second, a mean of the last minute; {_UNKNOWN}",
                ),
                (
                    "computed_per_s",
                    f"{_REPLICA}_computed_tokens_per_second",
                    f"Those that its cache did not have; {_UNKNOWN}",
                ),
                (
                    "preemptions_per_s",
                    f"{_REPLICA}_preemptions_per_second",
                    f"Requests that lost their cache to others, a mean of the last minute; {_UNKNOWN}",
                ),
            )
        }
        self._version = Gauge(
            f"{_REPLICA}_version",
            "1 for the version of its model that a replica is said to run; no series where nobody says.",
            ("pool", "replica", "version"),
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._versions: dict[tuple[str, str], str] = {}
        self._hit_rate = Gauge(
            "weighbridge_pool_prefix_hit_rate",
            "The part of prompt tokens that a pool's engines found in their caches in the last minute or so.",
            ("pool",),
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._hardware = {
            field: Gauge(name, text, ("pool",), registry=registry, multiprocess_mode="livemostrecent")
            for field, name, text in (
                ("gpus", "weighbridge_pool_gpus_per_replica", "GPUs of one replica, by cost.pools."),
                (
                    "usd_per_hour",
                    "weighbridge_pool_usd_per_replica_hour",
                    "Dollars for an hour that one replica is up, by cost.pools, overhead included.",
                ),
                ("flops_per_token", "weighbridge_pool_flops_per_token", "Operations that one token takes."),
                (
                    "peak_flops",
                    "weighbridge_pool_peak_flops",
                    "Operations a second of one replica's GPUs by their data sheet.",
                ),
            )
        }
        self._scrapes = Counter(
            "weighbridge_scrapes",
            "Readings of engines' statistics, by how they ended: ok, status, unreadable, unreachable, slow, too_large, "
            "encoded, cut.",
            ("pool", "result"),
            registry=registry,
        )

    def set_replica_state(self, pool: str, replica: str, state: ReplicaState) -> None:
        """Set the state gauges. Ignored for replicas beyond `MAX_REPLICAS`, counted over the process's life where
        series cannot be removed.
        """
        if (pool, replica) not in self._exported:
            if len(self._exported) >= MAX_REPLICAS:
                return
            self._exported.add((pool, replica))
        for each in _STATES:
            self._state.labels(pool, replica, each).set(each == state)

    def set_replica_load(self, pool: str, replica: str, stats: EngineStats | None) -> None:
        """Set the load gauges; NaN where unknown, as 0 would mean idle."""
        if (pool, replica) not in self._exported:
            return
        for field, gauge in self._loads.items():
            value = None if stats is None else getattr(stats, field)
            gauge.labels(pool, replica).set(math.nan if value is None else value)

    def set_replica_version(self, pool: str, replica: str, version: str) -> None:
        """Set the version's gauge in place of an earlier version's."""
        before = self._versions.get((pool, replica), "")
        if version == before or (pool, replica) not in self._exported:
            return
        self._forget_version(pool, replica)
        if version:
            self._versions[pool, replica] = version
            self._version.labels(pool, replica, version).set(1)

    def _forget_version(self, pool: str, replica: str) -> None:
        version = self._versions.pop((pool, replica), "")
        if version and self._forgets:
            self._version.remove(pool, replica, version)
        elif version:
            self._version.labels(pool, replica, version).set(0)

    def forget_replica(self, pool: str, replica: str) -> None:
        if (pool, replica) not in self._exported:
            return
        self._forget_version(pool, replica)
        loads = self._loads.values()
        if not self._forgets:
            for each in _STATES:
                self._state.labels(pool, replica, each).set(0)
            for gauge in loads:
                gauge.labels(pool, replica).set(math.nan)
            return
        self._exported.discard((pool, replica))
        for each in _STATES:
            self._state.remove(pool, replica, each)
        for gauge in loads:
            gauge.remove(pool, replica)

    def set_pool_hardware(self, pool: str, hardware: PoolHardware) -> None:
        """Set the known figures of a pool's hardware; an unknown one has no series."""
        hour = hardware.nanousd_per_hour
        known = {
            "gpus": hardware.gpus,
            "usd_per_hour": None if hour is None else hour / 1e9,
            "flops_per_token": hardware.flops_per_token,
            "peak_flops": hardware.peak_flops,
        }
        for field, value in known.items():
            if value is not None:
                self._hardware[field].labels(pool).set(value)
            else:
                with contextlib.suppress(KeyError):
                    self._hardware[field].remove(pool)

    def count_scrape(self, pool: str, result: ScrapeResult) -> None:
        self._scrapes.labels(pool, result).inc()

    def set_prefix_hit_rate(self, pool: str, rate: float) -> None:
        self._hit_rate.labels(pool).set(rate)
