"""Wiring of each process's part of the fleet; the prober, once a host, is in prober.py. The two exchange messages
alone.
"""

import contextlib
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.metrics import AllMetrics
from providers.key_files import KeyFiles
from proxy.admit.gate import Gate
from proxy.dispatch.upstream_fields import cache_salt
from proxy.shared.background_tasks import background
from selfhosted.balance.balancer import Balancer
from selfhosted.balance.policies import policy_of
from selfhosted.config import PoolConfig
from selfhosted.engines.fetching import EngineKey, no_key
from selfhosted.health.host_messages import ToHost
from selfhosted.health.judge import PoolJudge
from selfhosted.kv_events.kv_metrics import KvMetrics
from selfhosted.kv_events.listening import KvEvents
from selfhosted.kv_events.sampling import Tokenize
from selfhosted.lora.adapters import Adapters
from selfhosted.pools.fleet import Fleet
from selfhosted.pools.pool import Pool
from selfhosted.pools.prefill_replicas import Readers
from selfhosted.scale.process_reports import AtGate

if TYPE_CHECKING:
    from gateway.wiring.engine_client import EngineClient

FIRST_LOOK_S: Final = 3.0
"""The most seconds that a start waits for the replicas' states."""


async def open_fleet(
    config: GatewayConfig,
    metrics: AllMetrics,
    tell: Callable[[ToHost], object],
    changed: Callable[[], None],
    keys: KeyFiles,
    stack: contextlib.AsyncExitStack,
    *,
    hears_engines: bool = True,
) -> Fleet:
    """Open a process's fleet, which knows of no replica yet: the caller hands on the prober's messages. `changed` is
    called whenever the replicas or their states change. With `hears_engines` it follows the engines' KV events.
    """
    configs = config.selfhosted.pools
    if not configs:
        return Fleet({}, clock=time.monotonic, observer=metrics.fleet, salt_of=cache_salt)
    hears = hears_engines and any(each.watch.kv_events_port for each in configs)
    client = _engine_client(stack) if hears or any(each.adapters for each in configs) else None
    pools = {each.name: _pool(each, client, metrics, tell, changed, keys, stack, hears=hears) for each in configs}
    fleet = Fleet(pools, clock=time.monotonic, observer=metrics.fleet, salt_of=cache_salt, tell=tell)
    for loop in fleet.loops():
        background(stack, loop)
    return fleet


def engine_key(config: PoolConfig, keys: KeyFiles) -> EngineKey:
    """Return what tells the pool's key as it is now. Raises LookupError or OSError where there is none."""
    reference = config.api_key
    if reference is None:
        return no_key
    if not reference.startswith("file:"):
        key = keys.read(reference)
        return lambda: key
    keys.read(reference)
    return lambda: keys.current(reference)


def _engine_client(stack: contextlib.AsyncExitStack) -> "EngineClient":
    # It brings aiohttp, seven megabytes of each worker, for which few have a use.
    from gateway.wiring.engine_client import EngineClient  # noqa: PLC0415

    return EngineClient(stack)


def _pool(
    config: PoolConfig,
    client: "EngineClient | None",
    metrics: AllMetrics,
    tell: Callable[[ToHost], object],
    changed: Callable[[], None],
    keys: KeyFiles,
    stack: contextlib.AsyncExitStack,
    *,
    hears: bool,
) -> Pool:
    api_key = engine_key(config, keys)
    rng = random.Random()  # noqa: S311 - it spreads load, it guards nothing
    balancer = policy_of(config.balance.policy, config.balance, config.room, rng)
    judge = PoolJudge(config, clock=time.monotonic, tell=tell)
    adapters = None
    if config.adapters and client is not None:
        adapters = Adapters(config, fetch=client.fetch(api_key), residency=judge, observer=metrics.adapters)
        stack.push_async_callback(adapters.aclose)
    return Pool(
        config,
        judge,
        balancer,
        api_key=api_key,
        adapters=adapters,
        kv_events=_kv_events(config, balancer, client.tokenize(api_key), metrics.kv_events)
        if hears and client is not None
        else None,
        readers=None
        if config.prefill is None
        else Readers(config.prefill, policy_of(config.balance.policy, config.balance, config.room, rng)),
        changed=changed,
    )


def _kv_events(config: PoolConfig, balancer: Balancer, tokenize: Tokenize, metrics: KvMetrics) -> KvEvents | None:
    if config.watch.kv_events_port is None:
        return None
    return KvEvents(
        config.name,
        port=config.watch.kv_events_port,
        replay_port=config.watch.kv_replay_port,
        index=balancer.index,
        tokenize=tokenize,
        observer=metrics,
    )


def at_gate(pool: PoolConfig, gate: Gate) -> AtGate:
    """Return the requests of this process in the queues before the pool."""
    names = {gate.queues.queue_of(target) for target in pool.served}
    found = [gate.queues.snapshot(name) for name in names if name is not None]
    return AtGate(
        waiting=sum(each.state.waiting for each in found),
        waiting_batch=sum(each.waiting_batch for each in found),
        running_batch=sum(each.in_flight_batch for each in found),
    )
