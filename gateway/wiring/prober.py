"""Wiring of what happens once a host for the pools: discovery, probes, and the duties of the lease."""

import contextlib
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.bill import bill_of
from cost.fleet.hours import HoursStore
from cost.fleet.pool_config import PoolSection
from cost.times import HOUR_US
from gateway.configuration.environment import resolve_secret
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.fleet import engine_key
from gateway.wiring.metrics import AllMetrics
from providers.key_files import KeyFiles
from proxy.shared.background_tasks import background
from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery, sources_of
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.health.fleet_view import FleetView, WatchedPool
from selfhosted.health.hardware import PoolHardware
from selfhosted.health.messages import Publisher
from selfhosted.health.pool_prober import PoolProber
from selfhosted.health.prober import ProbedPool, Prober
from selfhosted.lora.lora_poll import LoraPoll
from selfhosted.registry.lease import Lease
from selfhosted.registry.registry import Registry
from selfhosted.registry.registry_metrics import RegistryMetrics
from selfhosted.registry.store import RegistryStore
from selfhosted.registry.uptime import Hours
from selfhosted.rollouts.versions import Rollout, RolloutTold


class OpenProber(NamedTuple):
    """The prober and its parts, once a host. `view` is what the API and pages show of it."""

    prober: Prober
    view: FleetView
    database: AsyncEngine
    lease: Lease | None
    """The lease on the pools' duties; None without pools."""


async def open_prober(
    engine: AsyncEngine,
    config: GatewayConfig,
    boot_id: str,
    metrics: AllMetrics,
    publisher: Publisher,
    keys: KeyFiles,
    stack: contextlib.AsyncExitStack,
) -> OpenProber:
    """Open discovery, probes and the lease's duties; the members of all pools are published on return."""
    configs = config.selfhosted.pools
    store = RegistryStore(engine)
    registry = Registry(store, configs, shared=config.selfhosted.shared_gpus)
    if not configs:
        return OpenProber(Prober({}, time.monotonic), FleetView({}, registry, store), engine, None)
    await registry.refresh()
    session = await stack.enter_async_context(engine_session())
    _tell_of_rollouts(registry, configs, publisher)
    _tell_of_sleep(registry, configs, publisher)
    pools = {each.name: _probed(each, registry, session, metrics, publisher, keys) for each in configs}
    prober = Prober(pools, time.monotonic)
    for pool in pools.values():
        await pool.discovery.refresh()
    background(stack, registry.run())
    for loop in prober.loops():
        background(stack, loop)
    shared = [group.name for group in config.selfhosted.shared_gpus]
    reading = [part.name for pool in configs for part in pool.parts if part.does == "reads" and part.scale is not None]
    lease = _lead(engine, store, registry, boot_id, prober, [*shared, *reading], metrics.registry, stack)
    watched_pools = {name: _watched(pool, prober) for name, pool in pools.items()}
    view = FleetView(watched_pools, registry, store, config.selfhosted.shared_gpus)
    adopt_costs(view, config, metrics)
    return OpenProber(prober, view, engine, lease)


def adopt_costs(view: FleetView, config: GatewayConfig, metrics: AllMetrics) -> None:
    """Tell from now on what the pools' hardware costs by this configuration."""
    bills = {each.name: each for each in config.cost.pools}
    for name, watched in view.pools.items():
        watched.hardware = _hardware(watched.config, bills.get(name))
        metrics.watch.set_pool_hardware(name, watched.hardware)


def _tell_of_rollouts(registry: Registry, pools: Sequence[PoolConfig], publisher: Publisher) -> None:
    """Tell every process of each pool's rollout, now and whenever one changes."""
    told: dict[str, Rollout | None] = {}

    def tell() -> None:
        for pool in pools:
            rollout = registry.rollout(pool.name)
            # A pool whose rollout is not known, as the database did not answer yet, is not told to have none.
            if registry.read and (pool.name not in told or told[pool.name] != rollout):
                told[pool.name] = rollout
                publisher.publish(("rollout", pool.name), RolloutTold(pool=pool.name, rollout=rollout))

    registry.subscribe(tell)
    tell()


def _tell_of_sleep(registry: Registry, pools: Sequence[PoolConfig], publisher: Publisher) -> None:
    """Tell every process which of the pools that share GPUs take requests, now and whenever that changes."""

    def tell() -> None:
        for pool in pools:
            told = registry.sleep_told(pool.name)
            if told is not None:
                publisher.publish(("sleep", pool.name), told)

    registry.subscribe(tell)
    tell()


def _probed(
    config: PoolConfig,
    registry: Registry,
    session: aiohttp.ClientSession,
    metrics: AllMetrics,
    publisher: Publisher,
    keys: KeyFiles,
) -> ProbedPool:
    api_key = engine_key(config, keys)
    fetch = HttpFetch(session, api_key)
    watch = PoolProber(config, fetch=fetch, publisher=publisher, observer=metrics.watch)
    discovery = Discovery(
        config,
        registry=registry,
        sources=sources_of(config, session=session, secrets=resolve_secret, environment=os.environ),
        changed=lambda: watch.adopt(discovery.addresses, complete=discovery.complete),
        observer=metrics.discovery,
    )
    watch.adopt(discovery.addresses, complete=discovery.complete)
    look = LoraPoll(config, session=session, api_key=api_key, watch=watch) if config.adapters else None
    return ProbedPool(config=config, discovery=discovery, watch=watch, fetch=fetch, look=look)


def _hardware(config: PoolConfig, bill: PoolSection | None) -> PoolHardware:
    """Build a pool's hardware: its price from the books, its data sheet from the pool."""
    sheet = config.hardware
    return PoolHardware(
        gpus=None if bill is None else bill.gpus_per_replica,
        nanousd_per_hour=None if bill is None else bill_of(bill, HOUR_US).nanousd,
        flops_per_token=None if sheet is None else sheet.flops_per_token,
        peak_flops=None if sheet is None else sheet.peak_flops,
    )


def _watched(pool: ProbedPool, prober: Prober) -> WatchedPool:
    config = pool.config
    return WatchedPool(
        config=config,
        snapshot=pool.snapshot,
        discovery=pool.discovery,
        token=None if config.registration is None else resolve_secret(config.registration.token),
        kv_events=None if config.watch.kv_events_port is None else lambda: prober.kv_states(config.name),
    )


def _lead(
    engine: AsyncEngine,
    store: RegistryStore,
    registry: Registry,
    boot_id: str,
    prober: Prober,
    more: Sequence[str],
    metrics: RegistryMetrics,
    stack: contextlib.AsyncExitStack,
) -> Lease:
    """Start the lease, and the duties of the process that holds it: recording replicas' hours."""
    lease = Lease(store, registry, boot_id, (*prober.pools, *more))
    stack.push_async_callback(lease.release)
    background(stack, lease.run())
    hours = Hours(
        engine,
        hours=HoursStore(engine),
        lease=lease,
        snapshots=lambda: [pool.snapshot() for pool in prober.pools.values()],
        observer=metrics,
        complete=lambda name: prober.pools[name].discovery.complete,
        pays=registry.pays,
    )
    if more:
        registry.subscribe(hours.look_now)
    background(stack, hours.run())
    return lease
