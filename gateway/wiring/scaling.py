"""Wiring of the autoscalers: each pool's signals in this process, and the loop that decides."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from cost.fleet.pool_config import PoolSection
from gateway.configuration.settings import GatewayConfig
from gateway.wiring.fleet import OpenFleet
from proxy.background import background
from proxy.gate import Gate
from selfhosted.config import PoolConfig, ScaleConfig
from selfhosted.pool import Pool
from selfhosted.registry.lease import Lease
from selfhosted.scale.loop import ScaleLoop
from selfhosted.scale.policy import ScalePolicy
from selfhosted.scale.scale_metrics import ScaleMetrics
from selfhosted.scale.signals import SignalReader, Signals
from selfhosted.scale.target import Targets

_OUTPUT_WEIGHT: Final = 4.0
"""The cost of a generated token relative to a prompt token, where `cost.pools` has not measured it."""


def keep_scaling(
    config: GatewayConfig, fleet: OpenFleet, gate: Gate, metrics: ScaleMetrics, stack: contextlib.AsyncExitStack
) -> None:
    """Starts the autoscaler loops. Every process observes; the one that holds a pool's lease decides."""
    costs = {pool.name: pool for pool in config.cost.pools}
    for name, pool in fleet.fleet.pools.items():
        if pool.config.scale is not None and fleet.lease is not None:
            loop = _loop(pool, pool.config.scale, costs.get(name), fleet, fleet.lease, gate, metrics)
            background(stack, loop.run())


def _loop(
    pool: Pool,
    scale: ScaleConfig,
    cost: PoolSection | None,
    fleet: OpenFleet,
    lease: Lease,
    gate: Gate,
    metrics: ScaleMetrics,
) -> ScaleLoop:
    name = pool.config.name
    return ScaleLoop(
        name,
        targets=Targets(fleet.database),
        lease=lease,
        wished=lambda: _desired_replicas(fleet, name),
        observe=_PoolSignals(pool, scale, lambda: _waiting_at_gate(pool.config, gate)),
        policy=lambda state: _policy(scale, cost, state),
        observer=metrics,
    )


class _PoolSignals:
    """Reads the signals of one pool, as changes since the last read."""

    def __init__(self, pool: Pool, scale: ScaleConfig, waiting_at_gate: Callable[[], int]) -> None:
        self._pool = pool
        self._reader = SignalReader(scale.ttft_target_s)
        self._waiting_at_gate = waiting_at_gate
        self._turned_away = (time.monotonic(), pool.turned_away_tokens)

    def __call__(self) -> Signals:
        now, tokens = time.monotonic(), self._pool.turned_away_tokens
        before, counted = self._turned_away
        self._turned_away = (now, tokens)
        return self._reader.read(
            self._pool.snapshot,
            at_s=now,
            wall_s=time.time(),
            waiting_at_gate=self._waiting_at_gate(),
            spilled_tokens_per_s=(tokens - counted) / max(now - before, 0.001),
            first_tokens=self._pool.first_tokens,
        )


def _desired_replicas(fleet: OpenFleet, name: str) -> int | None:
    wish = fleet.view.registry.target(name)
    return None if wish is None else wish.desired


def _waiting_at_gate(pool: PoolConfig, gate: Gate) -> int:
    """The requests waiting at the gate in all processes, extrapolated from this one."""
    queues = {gate.queues.queue_of(target) for target in pool.served}
    here = sum(gate.queues.state(name).waiting for name in queues if name is not None)
    return here * gate.sharers()


def _policy(scale: ScaleConfig, cost: PoolSection | None, state: str) -> ScalePolicy:
    if cost is None:
        return ScalePolicy(scale, output_weight=_OUTPUT_WEIGHT, state=state)
    per_hour = float(cost.usd_per_gpu_hour * cost.gpus_per_replica * cost.overhead)
    weights = cost.seconds_per_million
    weight = float(weights.output / weights.input) if weights.input else _OUTPUT_WEIGHT
    return ScalePolicy(scale, usd_per_replica_hour=per_hour, output_weight=weight, state=state)
