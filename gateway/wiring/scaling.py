"""Wiring of the autoscalers: each pool's signals and prices in this process, and the loop that decides."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cost.fleet.earnings import EarningsReader
from cost.fleet.pool_config import PoolSection
from cost.times import DAY_US, HOUR_US, wall_us
from gateway.configuration.gateway_config import GatewayConfig
from gateway.wiring.prober import OpenProber
from providers.config import ModelConfig
from providers.model_facts import facts_of
from providers.target import NOT_CHAT
from proxy.batch.backlog import Backlog
from proxy.shared.background_tasks import background, every
from selfhosted.config import PoolConfig, PoolPart, ScaleConfig
from selfhosted.registry.lease import Lease
from selfhosted.replica import PoolSnapshot
from selfhosted.scale.loop import ScaleLoop
from selfhosted.scale.model_swap_loop import SharedPool, TurnLoop, TurnObserver, Wanted
from selfhosted.scale.policy import ScalePolicy
from selfhosted.scale.process_reports import ProcessReports, aims_of
from selfhosted.scale.scale_metrics import ScaleMetrics
from selfhosted.scale.signals import SignalReader, Signals
from selfhosted.scale.target import Targets

_PRICES_S: Final = 60.0
_TURNS_S: Final = 1.0
_LOOK_BACK_DAYS: Final = (1, 7, 31)
PolicyFromState = Callable[[str], ScalePolicy]
"""Builds a policy from its saved state."""
_OUTPUT_WEIGHT: Final = 4.0
"""The cost of a generated token relative to a prompt token, where `cost.pools` has not measured it."""


def keep_scaling(
    config: Callable[[], GatewayConfig],
    opened: OpenProber,
    sharers: Callable[[], int],
    backlog: Backlog,
    metrics: ScaleMetrics,
    turns: TurnObserver,
    stack: contextlib.AsyncExitStack,
) -> Callable[[], None]:
    """Start the autoscaler loops, and those of pools that share GPUs. Every prober observes; the one that holds a
    pool's lease decides. `config` returns the configuration in effect; `sharers` returns the number of serving
    processes of all hosts; `backlog` returns the work that batches still need. Returns a function to call after a
    reload, which may change costs and targets.
    """
    _keep_turns(config(), opened, sharers, turns, stack)
    scaled = sum(pool.config.scale is not None for pool in opened.prober.pools.values())
    adopting: list[Callable[[], None]] = []

    def lacks(targets: frozenset[str]) -> float:
        return backlog.tokens_per_s(targets, {model.model_id for model in config().providers.models}, scaled)

    for name, pool in opened.prober.pools.items():
        for part in pool.config.parts if opened.lease is not None else ():
            if part.scale is None or opened.lease is None:
                continue
            prices = PriceElsewhere(EarningsReader(opened.database))
            background(stack, every(_PRICES_S, prices.refresh))
            signals = PoolSignals(
                pool.config,
                pool.snapshot,
                opened.prober.reports,
                sharers,
                prices,
                batch=functools.partial(lacks, frozenset(pool.config.targets)),
                part=part,
            )
            costs = functools.partial(_policy_by_costs, config, name, part, part.scale, prices)
            loop = _loop(part, opened, opened.lease, metrics, signals, costs())
            adopting.append(functools.partial(_adopt, loop, costs))
            background(stack, loop.run())

    def adopt() -> None:
        for each in adopting:
            each()

    return adopt


def _adopt(loop: ScaleLoop, costs: Callable[[], PolicyFromState]) -> None:
    loop.adopt(costs())


def _policy_by_costs(
    config: Callable[[], GatewayConfig], pool: str, part: PoolPart, scale: ScaleConfig, prices: "PriceElsewhere"
) -> PolicyFromState:
    """Set the pool's present costs in `prices`, and return the function that builds its policy with them."""
    now = config()
    cost = next((each for each in now.cost.pools if each.name == pool), None)
    # What an hour of those that only read, or only answer, saves is not known apart.
    economic = part.does == "all" and cost is not None and is_economic(scale, sold=sold_elsewhere(now))
    prices.pool = cost if economic else None
    return functools.partial(_policy, scale, cost, economic=economic)


def _keep_turns(
    config: GatewayConfig,
    opened: OpenProber,
    sharers: Callable[[], int],
    metrics: TurnObserver,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Start the loop of each group of pools that share GPUs. The process that holds a group's lease decides and acts."""
    registry, reports = opened.view.registry, opened.prober.reports
    if opened.lease is None:
        return
    for group in config.selfhosted.shared_gpus:
        pools = {name: opened.prober.pools[name] for name in group.pools}
        loop = TurnLoop(
            group,
            {
                name: SharedPool(pool.snapshot, pool.watch.answered, pool.fetch)
                for name, pool in pools.items()
                if pool.fetch is not None
            },
            targets=Targets(opened.database),
            lease=opened.lease,
            demand=PoolDemand(group.pools, reports, sharers),
            stored=registry.refresh,
            observer=metrics,
            every_s=min(_TURNS_S, group.settle_s / 4),
        )
        opened.view.turn_problems[group.name] = loop.problems
        background(stack, loop.run())


class PoolDemand:
    """The demand for pools that share GPUs, in all processes."""

    def __init__(self, pools: Sequence[str], reports: ProcessReports, sharers: Callable[[], int]) -> None:
        self._reports = reports
        self._sharers = sharers
        self._turned_away = {pool: reports.turned_away(pool) for pool in pools}

    def __call__(self, pool: str) -> Wanted:
        reports = self._reports
        turned_away = reports.turned_away(pool)
        more, self._turned_away[pool] = turned_away - self._turned_away[pool], turned_away
        others = others_of(self._sharers(), reports.reporting(pool))
        waiting_batch, running_batch = reports.batch(pool)
        watched = reports.waiting_at_gate(pool) - waiting_batch
        return Wanted(
            # All that nobody watches is as patient as one who does.
            waiting=round(others * watched) + min(1, waiting_batch),
            turned_away=round(others * more),
            running_batch=round(others * running_batch),
        )


def others_of(sharers: int, reporting: int) -> float:
    """Return the serving processes for each that reports here: those of other hosts are taken to be like these."""
    return max(1.0, sharers / max(1, reporting))


def is_economic(scale: ScaleConfig, *, sold: bool) -> bool:
    """Return whether a pool with a price is scaled by what its hours are worth."""
    return scale.objective == "economic" or (scale.objective is None and sold)


def sold_elsewhere(config: GatewayConfig) -> bool:
    """Return True when `auto` may choose a model that is not our own, so that a pool's overflow has somewhere to go."""
    own = {target for pool in config.cost.pools for target in pool.targets} | set(config.selfhosted.pool_of_target())
    auto = config.policy.auto
    names = [each.model_id for each in config.providers.models if _chats(each)] if auto is None else auto
    return any(name not in own for name in names)


def _chats(model: ModelConfig) -> bool:
    """Return False for a target that embeds, draws or speaks: no overflow goes there."""
    capabilities = facts_of(model).capabilities_of(model)
    return not capabilities or capabilities.isdisjoint(NOT_CHAT)


class PriceElsewhere:
    """The cost of the pool's work elsewhere in the last days, by the books."""

    def __init__(
        self, reader: EarningsReader, pool: PoolSection | None = None, now_us: Callable[[], int] = wall_us
    ) -> None:
        self._reader = reader
        self.pool = pool
        """Pool whose work is priced; None while it is not scaled by the worth of its hours."""
        self._now_us = now_us
        self._usd: float | None = None

    async def refresh(self) -> None:
        """Read the newest day that has the figure; what was known before counts while there is none."""
        now, pool = self._now_us(), self.pool
        if pool is None:
            return
        for days in _LOOK_BACK_DAYS:
            found = await self._reader.usd_per_busy_s(pool, now - now % HOUR_US - days * DAY_US, now)
            if found is not None:
                self._usd = found * float(pool.seconds_per_million.input) / 1_000_000
                return

    @property
    def usd_per_work(self) -> float | None:
        """Dollars per unit of work, a prompt token's; None until a request was booked with the figure."""
        return None if self.pool is None else self._usd or None


class PoolSignals:
    """The signals of one pool, as changes since the last read."""

    def __init__(
        self,
        config: PoolConfig,
        snapshot: Callable[[], PoolSnapshot],
        reports: ProcessReports,
        sharers: Callable[[], int],
        prices: "PriceElsewhere | None",
        clock: Callable[[], float] = time.monotonic,
        batch: Callable[[], float] = lambda: 0.0,
        part: PoolPart | None = None,
    ) -> None:
        """`part`: whose signals they are; the whole pool's if left out."""
        self._batch = batch
        self.prices = prices
        self._name = config.name
        self._config = config
        self._part = config.parts[0] if part is None else part
        self._snapshot = snapshot
        self._reports = reports
        self._sharers = sharers
        self._clock = clock
        scale = self._part.scale
        self._reader = SignalReader(
            aims_of(config).ttft_s if scale is None else scale.ttft_target_s,
            self._part.does,
            ranks=config.data_parallel_ranks,
        )
        self._turned_away = (clock(), self._lost_tokens())

    def __call__(self) -> Signals:
        now, tokens = self._clock(), self._lost_tokens()
        before, counted = self._turned_away
        self._turned_away = (now, tokens)
        others = self._others()
        read = self._reader.read(
            self._own(self._snapshot()),
            at_s=now,
            wall_s=time.time(),
            # What waits there waits for a place to be answered.
            waiting_at_gate=0
            if self._part.does == "reads"
            else round(others * self._reports.waiting_at_gate(self._name)),
            spilled_tokens_per_s=others * (tokens - counted) / max(now - before, 0.001),
            first_tokens=self._reports.first_tokens(self._name),
            further_tokens=self._reports.further_tokens(self._name),
        )
        elsewhere = None if self.prices is None else self.prices.usd_per_work
        return msgspec.structs.replace(read, elsewhere_usd=elsewhere, batch_work_per_s=self._batch())

    def _lost_tokens(self) -> int:
        """Return the counter of demand that found no room: here, or for want of readers."""
        reports = self._reports
        return (
            reports.unread_tokens(self._name) if self._part.does == "reads" else reports.turned_away_tokens(self._name)
        )

    def _own(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        if self._part.does == "all":
            return snapshot
        own = tuple(each for each in snapshot.replicas if self._config.is_in(self._part, each.name))
        return msgspec.structs.replace(snapshot, replicas=own)

    def _others(self) -> float:
        return others_of(self._sharers(), self._reports.reporting(self._name))


def _loop(
    part: PoolPart,
    opened: OpenProber,
    lease: Lease,
    metrics: ScaleMetrics,
    signals: PoolSignals,
    policy: PolicyFromState,
) -> ScaleLoop:
    return ScaleLoop(
        part.name,
        targets=Targets(opened.database),
        lease=lease,
        wished=lambda: _desired_replicas(opened, part.name),
        observe=signals,
        policy=policy,
        observer=metrics,
    )


def _desired_replicas(opened: OpenProber, name: str) -> int | None:
    wish = opened.view.registry.target(name)
    return None if wish is None else wish.desired


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
