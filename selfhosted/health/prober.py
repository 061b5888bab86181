"""The prober, once a host for all pools: their members, their health, and the processes' messages about them."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery
from selfhosted.engines.scrape import HttpFetch
from selfhosted.health.host_messages import FromProcess
from selfhosted.health.messages import AdapterChanged, ReplicaDoubted
from selfhosted.health.pool_prober import PoolProber
from selfhosted.kv_events.subscriber import KvState, KvStates
from selfhosted.lora.lora_poll import LoraPoll
from selfhosted.replica import PoolSnapshot
from selfhosted.scale.process_reports import FleetReport, ProcessReports, aims_of


class ProbedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with its discovery, prober and adapters."""

    config: PoolConfig
    discovery: Discovery
    watch: PoolProber
    fetch: HttpFetch | None = None
    """Client with the engines' key; None where only the prober asks them."""
    look: LoraPoll | None = None
    """Poll of the loaded adapters; None where the pool has none."""

    def snapshot(self) -> PoolSnapshot:
        """Return the replicas now."""
        return self.watch.snapshot


class Prober:
    """All pools of a host. Starts no task itself: the caller runs `loops`."""

    def __init__(self, pools: Mapping[str, ProbedPool], clock: Callable[[], float]) -> None:
        self.pools = pools
        self.reports = ProcessReports({name: aims_of(pool.config) for name, pool in pools.items()}, clock)
        self._kv_states: dict[str, dict[str, KvStates]] = {name: {} for name in pools}
        """Subscriptions by pool and process, in the order of the processes' first messages."""

    def hear(self, process: str, message: FromProcess) -> None:
        """Take over a process's message; `process` is its boot id. A pool that is not known here is ignored."""
        if isinstance(message, FleetReport):
            self.reports.hear(process, message)
            return
        pool = self.pools.get(message.pool)
        if pool is None:
            return
        if isinstance(message, ReplicaDoubted):
            pool.watch.doubt(message)
        elif isinstance(message, AdapterChanged):
            pool.watch.adapter_changed(message)
        else:
            self._kv_states[message.pool][process] = message

    def forget(self, process: str) -> None:
        """Forget a process that is gone."""
        self.reports.forget(process)
        for states in self._kv_states.values():
            states.pop(process, None)

    def kv_states(self, pool: str) -> Mapping[str, KvState]:
        """Return the subscriptions to the pool's KV events of one of the processes; empty where none told of any."""
        told = next(iter(self._kv_states[pool].values()), None)
        return {} if told is None else told.states

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background coroutines of all pools (discovery, watch, adapters), each to be run until it is cancelled."""
        found: list[Coroutine[Any, Any, None]] = []
        for pool in self.pools.values():
            found += [pool.discovery.run(), pool.watch.run()]
            if pool.look is not None:
                found.append(pool.look.run())
        return found
