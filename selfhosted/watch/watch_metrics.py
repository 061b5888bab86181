"""Prometheus metrics of replicas."""

import math
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from selfhosted.replica import EngineStats, ReplicaState
from selfhosted.watch.observer import ScrapeResult, WatchObserver

MAX_REPLICAS: Final = 1_000
"""The most replicas with series of their own; those beyond are not exported."""
_STATES: Final[tuple[ReplicaState, ...]] = get_args(ReplicaState)


class WatchMetrics(WatchObserver):
    """Exports the states and loads of replicas. Every process watches the same ones, so the most recent value is the
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
        self._running, self._waiting, self._kv_usage = (
            Gauge(name, text, ("pool", "replica"), registry=registry, multiprocess_mode="livemostrecent")
            for name, text in (
                ("weighbridge_replica_running", "Requests that a replica's engine runs; NaN when that is unknown."),
                ("weighbridge_replica_waiting", "Requests in a replica's own queue; NaN when that is unknown."),
                (
                    "weighbridge_replica_kv_usage",
                    "The part of a replica's KV cache that requests occupy; NaN when that is unknown.",
                ),
            )
        )
        self._hit_rate = Gauge(
            "weighbridge_pool_prefix_hit_rate",
            "The part of prompt tokens that a pool's engines found in their caches in the last minute or so.",
            ("pool",),
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self._scrapes = Counter(
            "weighbridge_scrapes",
            "Readings of engines' statistics, by how they ended: ok, status, unreadable, unreachable, slow, too_large, "
            "encoded, cut.",
            ("pool", "result"),
            registry=registry,
        )

    def set_replica_state(self, pool: str, replica: str, state: ReplicaState) -> None:
        """Sets the state gauges. Ignored for replicas beyond `MAX_REPLICAS`, counted over the process's life where
        series cannot be removed.
        """
        if (pool, replica) not in self._exported:
            if len(self._exported) >= MAX_REPLICAS:
                return
            self._exported.add((pool, replica))
        for each in _STATES:
            self._state.labels(pool, replica, each).set(each == state)

    def set_replica_load(self, pool: str, replica: str, stats: EngineStats | None) -> None:
        """Sets the load gauges; NaN where unknown, as 0 would mean idle."""
        if (pool, replica) not in self._exported:
            return
        usage = None if stats is None else stats.kv_usage
        self._running.labels(pool, replica).set(math.nan if stats is None else stats.running)
        self._waiting.labels(pool, replica).set(math.nan if stats is None else stats.waiting)
        self._kv_usage.labels(pool, replica).set(math.nan if usage is None else usage)

    def forget_replica(self, pool: str, replica: str) -> None:
        if (pool, replica) not in self._exported:
            return
        loads = (self._running, self._waiting, self._kv_usage)
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

    def count_scrape(self, pool: str, result: ScrapeResult) -> None:
        self._scrapes.labels(pool, result).inc()

    def set_prefix_hit_rate(self, pool: str, rate: float) -> None:
        self._hit_rate.labels(pool).set(rate)
