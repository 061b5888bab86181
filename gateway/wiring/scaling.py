"""Wiring of the autoscalers: each pool's signals and prices in this process, and the loop that decides."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cost.fleet.earnings import EarningsReader
from cost.fleet.pool_config import PoolSection
from cost.times import DAY_US, HOUR_US, wall_us
from gateway.configuration.settings import GatewayConfig
from gateway.wiring.fleet import OpenFleet
from proxy.background import background, every
from proxy.gate import Gate
from selfhosted.config import PoolConfig, ScaleConfig
from selfhosted.pool import Pool
from selfhosted.registry.lease import Lease
from selfhosted.scale.loop import ScaleLoop
from selfhosted.scale.policy import ScalePolicy
from selfhosted.scale.scale_metrics import ScaleMetrics
from selfhosted.scale.signals import SignalReader, Signals
from selfhosted.scale.target import Targets

_PRICES_S: Final = 60.0
_LOOK_BACK_DAYS: Final = (1, 7, 31)
_OUTPUT_WEIGHT: Final = 4.0
"""The cost of a generated token relative to a prompt token, where `cost.pools` has not measured it."""


def keep_scaling(
    config: GatewayConfig, fleet: OpenFleet, gate: Gate, metrics: ScaleMetrics, stack: contextlib.AsyncExitStack
) -> None:
    """Starts the autoscaler loops. Every process observes; the one that holds a pool's lease decides."""
    costs = {pool.name: pool for pool in config.cost.pools}
    sold = _sold_elsewhere(config)
    for name, pool in fleet.fleet.pools.items():
        if pool.config.scale is not None and fleet.lease is not None:
            cost = costs.get(name)
            economic = cost is not None and is_economic(pool.config.scale, sold=sold)
            prices = PriceElsewhere(EarningsReader(fleet.database), cost) if cost is not None and economic else None
            if prices is not None:
                background(stack, every(_PRICES_S, prices.refresh))
            loop = _loop(pool, pool.config.scale, cost, fleet, fleet.lease, gate, metrics, prices)
            background(stack, loop.run())


def is_economic(scale: ScaleConfig, *, sold: bool) -> bool:
    """Whether a pool with a price is scaled by what its hours are worth."""
    return scale.objective == "economic" or (scale.objective is None and sold)


def _sold_elsewhere(config: GatewayConfig) -> bool:
    """True when `auto` may choose a model that is not our own, so that a pool's overflow has somewhere to go."""
    own = {target for pool in config.cost.pools for target in pool.targets} | set(config.selfhosted.pool_of_target())
    names = (
        config.policy.auto if config.policy.auto is not None else [each.model_id for each in config.providers.models]
    )
    return any(name not in own for name in names)


class PriceElsewhere:
    """What the pool's work has cost elsewhere in the last days, by the books."""

    def __init__(self, reader: EarningsReader, pool: PoolSection, now_us: Callable[[], int] = wall_us) -> None:
        self._reader = reader
        self._pool = pool
        self._now_us = now_us
        self._usd: float | None = None

    async def refresh(self) -> None:
        """Reads the newest day that has the figure; what was known before counts while there is none."""
        now = self._now_us()
        for days in _LOOK_BACK_DAYS:
            found = await self._reader.usd_per_busy_s(self._pool, now - now % HOUR_US - days * DAY_US, now)
            if found is not None:
                self._usd = found * float(self._pool.seconds_per_million.input) / 1_000_000
                return

    @property
    def usd_per_work(self) -> float | None:
        """Dollars per unit of work, a prompt token's; None until a request was booked with the figure."""
        return self._usd or None


def _loop(
    pool: Pool,
    scale: ScaleConfig,
    cost: PoolSection | None,
    fleet: OpenFleet,
    lease: Lease,
    gate: Gate,
    metrics: ScaleMetrics,
    prices: "PriceElsewhere | None",
) -> ScaleLoop:
    name = pool.config.name
    return ScaleLoop(
        name,
        targets=Targets(fleet.database),
        lease=lease,
        wished=lambda: _desired_replicas(fleet, name),
        observe=_PoolSignals(pool, scale, lambda: _waiting_at_gate(pool.config, gate), prices),
        policy=lambda state: _policy(scale, cost, state, economic=prices is not None),
        observer=metrics,
    )


class _PoolSignals:
    """Reads the signals of one pool, as changes since the last read."""

    def __init__(
        self, pool: Pool, scale: ScaleConfig, waiting_at_gate: Callable[[], int], prices: "PriceElsewhere | None"
    ) -> None:
        self._prices = prices
        self._pool = pool
        self._reader = SignalReader(scale.ttft_target_s)
        self._waiting_at_gate = waiting_at_gate
        self._turned_away = (time.monotonic(), pool.turned_away_tokens)

    def __call__(self) -> Signals:
        now, tokens = time.monotonic(), self._pool.turned_away_tokens
        before, counted = self._turned_away
        self._turned_away = (now, tokens)
        read = self._reader.read(
            self._pool.snapshot,
            at_s=now,
            wall_s=time.time(),
            waiting_at_gate=self._waiting_at_gate(),
            spilled_tokens_per_s=(tokens - counted) / max(now - before, 0.001),
            first_tokens=self._pool.first_tokens,
        )
        elsewhere = None if self._prices is None else self._prices.usd_per_work
        return msgspec.structs.replace(read, elsewhere_usd=elsewhere)


def _desired_replicas(fleet: OpenFleet, name: str) -> int | None:
    wish = fleet.view.registry.target(name)
    return None if wish is None else wish.desired


def _waiting_at_gate(pool: PoolConfig, gate: Gate) -> int:
    """The requests waiting at the gate in all processes, extrapolated from this one."""
    queues = {gate.queues.queue_of(target) for target in pool.served}
    here = sum(gate.queues.state(name).waiting for name in queues if name is not None)
    return here * gate.sharers()


def _policy(scale: ScaleConfig, cost: PoolSection | None, state: str, *, economic: bool) -> ScalePolicy:
    if cost is None:
        return ScalePolicy(scale, output_weight=_OUTPUT_WEIGHT, state=state)
    per_hour = float(cost.usd_per_gpu_hour * cost.gpus_per_replica * cost.overhead)
    weights = cost.seconds_per_million
    weight = float(weights.output / weights.input) if weights.input else _OUTPUT_WEIGHT
    return ScalePolicy(
        scale,
        usd_per_replica_hour=per_hour,
        output_weight=weight,
        busy_carries=float(1_000_000 / weights.input) if weights.input else None,
        economic=economic,
        state=state,
    )
