"""Wiring of the fleet: what happens once a host (discovery, probes, the duties of the lease holder), and what every
process has. The two meet in messages alone: a publisher down, a function up.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import aiohttp
from sqlalchemy.ext.asyncio import AsyncEngine

from cost.fleet.bill import bill_of
from cost.fleet.hours import HoursStore
from cost.fleet.pool_config import PoolSection
from cost.times import HOUR_US
from gateway.configuration.settings import GatewayConfig, resolve_secret
from gateway.wiring.metrics import AllMetrics
from proxy.background import background
from proxy.engine_fields import cache_salt
from proxy.gate import Gate
from selfhosted.adapter_look import AdapterLook
from selfhosted.adapters import Adapters
from selfhosted.balance.balancer import Balancer
from selfhosted.balance.policies import policy_of
from selfhosted.config import PoolConfig
from selfhosted.discovery.discovery import Discovery, sources_of
from selfhosted.engines.scrape import HttpFetch, engine_session
from selfhosted.fleet import Fleet
from selfhosted.fleet_view import FleetView, WatchedPool
from selfhosted.hardware import PoolHardware
from selfhosted.kv_events.kv_metrics import KvMetrics
from selfhosted.kv_events.listening import KvEvents
from selfhosted.kv_events.sampling import HttpTokenize
from selfhosted.messages import ToHost
from selfhosted.pool import Pool
from selfhosted.prober import ProbedPool, Prober
from selfhosted.registry.hours import Hours
from selfhosted.registry.lease import Lease
from selfhosted.registry.registry import Registry
from selfhosted.registry.registry_metrics import RegistryMetrics
from selfhosted.registry.store import RegistryStore
from selfhosted.watch.judging import PoolJudge
from selfhosted.watch.messages import Publisher
from selfhosted.watch.watch import PoolWatch

FIRST_LOOK_S: Final = 3.0
"""The most seconds that a start waits for the replicas' states."""


class OpenProber(NamedTuple):
    """What happens once a host. `view` is what the API and pages show of it."""

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
    stack: contextlib.AsyncExitStack,
) -> OpenProber:
    """Opens discovery, probes and the lease's duties; the members of all pools are published on return."""
    configs = config.selfhosted.pools
    store = RegistryStore(engine)
    registry = Registry(store, configs)
    if not configs:
        return OpenProber(Prober({}, time.monotonic), FleetView({}, registry, store), engine, None)
    await registry.refresh()
    session = await stack.enter_async_context(engine_session())
    pools = {each.name: _probed(each, registry, session, metrics, publisher) for each in configs}
    prober = Prober(pools, time.monotonic)
    for pool in pools.values():
        await pool.discovery.refresh()
    background(stack, registry.run())
    for loop in prober.loops():
        background(stack, loop)
    lease = _lead(engine, store, registry, boot_id, prober, metrics.registry, stack)
    bills = {each.name: each for each in config.cost.pools}
    view = FleetView({name: _watched(pool, prober, bills.get(name)) for name, pool in pools.items()}, registry, store)
    for name, watched in view.pools.items():
        metrics.watch.set_pool_hardware(name, watched.hardware)
    return OpenProber(prober, view, engine, lease)


def _probed(
    config: PoolConfig, registry: Registry, session: aiohttp.ClientSession, metrics: AllMetrics, publisher: Publisher
) -> ProbedPool:
    api_key = None if config.api_key is None else resolve_secret(config.api_key)
    watch = PoolWatch(config, fetch=HttpFetch(session, api_key), publisher=publisher, observer=metrics.watch)
    discovery = Discovery(
        config,
        registry=registry,
        sources=sources_of(config, session=session, secrets=resolve_secret, environment=os.environ),
        changed=lambda: watch.adopt(discovery.addresses, complete=discovery.complete),
        observer=metrics.discovery,
    )
    watch.adopt(discovery.addresses, complete=discovery.complete)
    look = AdapterLook(config, session=session, api_key=api_key, watch=watch) if config.adapters else None
    return ProbedPool(config=config, discovery=discovery, watch=watch, look=look)


def _hardware(config: PoolConfig, bill: PoolSection | None) -> PoolHardware:
    """What is known of a pool's hardware: its price from the books, its data sheet from the pool."""
    sheet = config.hardware
    return PoolHardware(
        gpus=None if bill is None else bill.gpus_per_replica,
        nanousd_per_hour=None if bill is None else bill_of(bill, HOUR_US).nanousd,
        flops_per_token=None if sheet is None else sheet.flops_per_token,
        peak_flops=None if sheet is None else sheet.peak_flops,
    )


def _watched(pool: ProbedPool, prober: Prober, bill: PoolSection | None) -> WatchedPool:
    config = pool.config
    return WatchedPool(
        config=config,
        snapshot=pool.snapshot,
        discovery=pool.discovery,
        hardware=_hardware(config, bill),
        token=None if config.registration is None else resolve_secret(config.registration.token),
        kv_events=None if config.watch.kv_events_port is None else lambda: prober.kv_states(config.name),
    )


def _lead(
    engine: AsyncEngine,
    store: RegistryStore,
    registry: Registry,
    boot_id: str,
    prober: Prober,
    metrics: RegistryMetrics,
    stack: contextlib.AsyncExitStack,
) -> Lease:
    """Starts the lease, and the duties of the process that holds it: recording replicas' hours."""
    lease = Lease(store, registry, boot_id, tuple(prober.pools))
    stack.push_async_callback(lease.release)
    background(stack, lease.run())
    hours = Hours(
        engine,
        hours=HoursStore(engine),
        lease=lease,
        snapshots=lambda: [pool.snapshot() for pool in prober.pools.values()],
        observer=metrics,
        complete=lambda name: prober.pools[name].discovery.complete,
    )
    background(stack, hours.run())
    return lease


async def open_fleet(
    config: GatewayConfig,
    metrics: AllMetrics,
    tell: Callable[[ToHost], object],
    changed: Callable[[], None],
    stack: contextlib.AsyncExitStack,
    *,
    hears_engines: bool = True,
) -> Fleet:
    """Opens a process's fleet, which knows of no replica yet: who opens it hands on what the prober tells. `changed` is
    called whenever the replicas or their states change. With `hears_engines` it follows the engines' KV events.
    """
    configs = config.selfhosted.pools
    if not configs:
        return Fleet({}, clock=time.monotonic, observer=metrics.fleet, salt_of=cache_salt)
    session = await stack.enter_async_context(engine_session())
    pools = {
        each.name: _pool(each, session, metrics, tell, changed, stack, hears_engines=hears_engines) for each in configs
    }
    fleet = Fleet(pools, clock=time.monotonic, observer=metrics.fleet, salt_of=cache_salt, tell=tell)
    for loop in fleet.loops():
        background(stack, loop)
    return fleet


def _pool(
    config: PoolConfig,
    session: aiohttp.ClientSession,
    metrics: AllMetrics,
    tell: Callable[[ToHost], object],
    changed: Callable[[], None],
    stack: contextlib.AsyncExitStack,
    *,
    hears_engines: bool,
) -> Pool:
    api_key = None if config.api_key is None else resolve_secret(config.api_key)
    rng = random.Random()  # noqa: S311 - it spreads load, it guards nothing
    balancer = policy_of(config.balance.policy, config.balance, config.room, rng)
    judge = PoolJudge(config, clock=time.monotonic, tell=tell)
    adapters = None
    if config.adapters:
        adapters = Adapters(config, session=session, api_key=api_key, residency=judge, observer=metrics.adapters)
        stack.push_async_callback(adapters.aclose)
    return Pool(
        config,
        judge,
        balancer,
        api_key=api_key,
        adapters=adapters,
        kv_events=_kv_events(config, balancer, session, api_key, metrics.kv_events) if hears_engines else None,
        changed=changed,
    )


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


def waiting_at_gate(pool: PoolConfig, gate: Gate) -> int:
    """The requests of this process that wait at the gate for the pool."""
    queues = {gate.queues.queue_of(target) for target in pool.served}
    return sum(gate.queues.state(name).waiting for name in queues if name is not None)
