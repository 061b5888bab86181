"""Wiring of the fleet: discovers and watches the pools' replicas, and runs the duties of the lease holder."""

import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import aiohttp
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.hours import HoursStore
from gateway.configuration.settings import GatewayConfig, resolve_secret
from gateway.wiring.metrics import AllMetrics
from proxy.background import background
from proxy.engine_fields import cache_salt
from selfhosted.adapters import Adapters
from selfhosted.balance.balancer import Balancer
from selfhosted.balance.policies import policy_of
from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery, sources_of
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.fleet import Fleet
from selfhosted.fleet_metrics import FleetMetrics
from selfhosted.fleet_view import FleetView, WatchedPool
from selfhosted.kv_events.kv_metrics import KvMetrics
from selfhosted.kv_events.listening import KvEvents
from selfhosted.kv_events.sampling import HttpTokenize
from selfhosted.pool import Pool
from selfhosted.registry.hours import Hours
from selfhosted.registry.lease import Lease
from selfhosted.registry.registry import Registry
from selfhosted.registry.registry_metrics import RegistryMetrics
from selfhosted.registry.store import RegistryStore
from selfhosted.replica import Address
from selfhosted.watch.watch import PoolWatch

_FIRST_LOOK_S: Final = 3.0
"""The most seconds that a start waits for the replicas' states."""


class OpenFleet(NamedTuple):
    """The opened fleet. `view` is what the API and pages show of it."""

    fleet: Fleet
    view: FleetView
    database: AsyncEngine
    lease: Lease | None
    """The lease on the pools' duties; None without pools."""


async def open_fleet(
    engine: AsyncEngine,
    config: GatewayConfig,
    boot_id: str,
    metrics: AllMetrics,
    changed: Callable[[], None],
    stack: contextlib.AsyncExitStack,
) -> OpenFleet:
    """Opens the fleet; the replicas and most of their states are known on return. `changed` is called whenever either
    changes.
    """
    configs = config.selfhosted.pools
    store = RegistryStore(engine)
    registry = Registry(store, configs)
    if not configs:
        return OpenFleet(_fleet({}, metrics.fleet), FleetView({}, registry, store), engine, None)
    await registry.refresh()
    session = await stack.enter_async_context(engine_session())
    pools = {each.name: _pool(each, registry, session, metrics, changed) for each in configs}
    fleet = _fleet(pools, metrics.fleet)
    for pool in pools.values():
        await pool.discovery.refresh()
    background(stack, registry.run())
    for loop in fleet.loops():
        background(stack, loop)
    lease = _lead(engine, store, registry, boot_id, pools, metrics.registry, stack)
    await fleet.known(_FIRST_LOOK_S)
    view = FleetView({name: _watched(pool) for name, pool in pools.items()}, registry, store)
    return OpenFleet(fleet, view, engine, lease)


def _fleet(pools: dict[str, Pool], metrics: FleetMetrics) -> Fleet:
    return Fleet(pools, clock=time.monotonic, observer=metrics, salt_of=cache_salt)


def _pool(
    config: PoolConfig,
    registry: Registry,
    session: aiohttp.ClientSession,
    metrics: AllMetrics,
    changed: Callable[[], None],
) -> Pool:
    api_key = None if config.api_key is None else resolve_secret(config.api_key)
    rng = random.Random()  # noqa: S311 - it spreads load, it guards nothing
    balancer = policy_of(config.balance.policy, config.balance, config.room, rng)
    kv_events = _kv_events(config, balancer, session, api_key, metrics.kv_events)

    def restarted(replica: str) -> None:
        balancer.forget(replica)
        if kv_events is not None:
            kv_events.restarted(replica)

    watch = PoolWatch(
        config,
        fetch=HttpFetch(session, api_key),
        changed=changed,
        restarted=restarted,
        observer=metrics.watch,
        clock=time.monotonic,
        rng=rng,
    )

    def adopt(addresses: Sequence[Address]) -> None:
        watch.adopt(addresses)
        if kv_events is not None:
            kv_events.adopt(addresses)

    discovery = Discovery(
        config,
        registry=registry,
        sources=sources_of(config, session=session, secrets=resolve_secret, environment=os.environ),
        changed=lambda: adopt(discovery.addresses),
        observer=metrics.discovery,
    )
    adopt(discovery.addresses)
    adapters = None
    if config.adapters:
        adapters = Adapters(config, session=session, api_key=api_key, watch=watch, observer=metrics.adapters)
    return Pool(config, discovery, watch, balancer, api_key=api_key, adapters=adapters, kv_events=kv_events)


def _kv_events(
    config: PoolConfig, balancer: Balancer, session: aiohttp.ClientSession, api_key: str | None, metrics: KvMetrics
) -> KvEvents | None:
    if config.watch.kv_events_port is None:
        return None
    return KvEvents(
        config.name,
        port=config.watch.kv_events_port,
        replay_port=config.watch.kv_replay_port,
        index=balancer.index,
        tokenize=HttpTokenize(session, api_key),
        observer=metrics,
    )


def _watched(pool: Pool) -> WatchedPool:
    registration = pool.config.registration
    return WatchedPool(
        config=pool.config,
        snapshot=lambda: pool.snapshot,
        discovery=pool.discovery,
        token=None if registration is None else resolve_secret(registration.token),
        kv_events=None if pool.kv_events is None else pool.kv_events.states,
    )


def _lead(
    engine: AsyncEngine,
    store: RegistryStore,
    registry: Registry,
    boot_id: str,
    pools: dict[str, Pool],
    metrics: RegistryMetrics,
    stack: contextlib.AsyncExitStack,
) -> Lease:
    """Starts the lease, and the duties of the process that holds it: recording replicas' hours."""
    lease = Lease(store, registry, boot_id, tuple(pools))
    stack.push_async_callback(lease.release)
    background(stack, lease.run())
    hours = Hours(
        engine,
        hours=HoursStore(engine),
        lease=lease,
        snapshots=lambda: [pool.snapshot for pool in pools.values()],
        observer=metrics,
        complete=lambda name: pools[name].discovery.complete,
    )
    background(stack, hours.run())
    return lease
