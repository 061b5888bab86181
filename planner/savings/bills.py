"""Bills of a trace: each fleet's GPU hours by the books' own arithmetic, and what its overflow costs elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Final

import msgspec

from cost.fleet.bill import bill_of, rate_of
from cost.fleet.pool_config import PoolSection
from cost.times import HOUR_US
from planner.savings.fluid import FluidFleet, FluidSpec, Outcome, Steps
from planner.savings.lateness import Lateness
from selfhosted.config import ScaleConfig
from selfhosted.scale.policy import ScalePolicy

MOST_FIXED: Final = 64
_TODAY: Final = "today's scaler"
ECONOMIC: Final = "economic scaler"


class FleetBill(msgspec.Struct, frozen=True, kw_only=True):
    """The bill under one fleet, for all requests of the trace."""

    name: str
    fixed: int | None = None
    """Replicas of a fleet that never changes."""
    allowed: bool = True
    """False for a fixed fleet that the configuration's minimum, maximum or budget forbids."""
    gpu_nanousd: int = 0
    elsewhere_nanousd: int = 0
    lateness: Lateness | None = None
    requests_here: int = 0
    replica_hours: Decimal = Decimal(0)
    utilisation: float | None = None
    outcome: Outcome | None = None

    @property
    def nanousd(self) -> int:
        return self.gpu_nanousd + self.elsewhere_nanousd


def fleet_bills(
    steps: Steps,
    pool: PoolSection,
    scale: ScaleConfig,
    *,
    wait_s: float,
    spread: float = 0.0,
    progress: Callable[[str, float], None] = lambda _name, _part: None,
) -> Iterator[FleetBill]:
    """Return the fixed fleets of 1 to as many as could be of use, then today's scaler and the economic one. For `wait_s` and `spread`
    see FluidSpec.
    """
    weights = pool.seconds_per_million
    output_weight = float(weights.output / weights.input)
    spec = FluidSpec(
        replicas=scale.min_replicas,
        cold_start_s=scale.cold_start_s,
        wait_s=wait_s,
        spread=spread,
        aim_s=scale.ttft_target_s,
        output_weight=output_weight,
        input_s=float(weights.input) / 1e6,
    )
    hour_usd = float(rate_of(pool) * HOUR_US / 10**9)
    most = scale.max_replicas
    if scale.max_usd_per_hour is not None and hour_usd:
        most = min(most, int(scale.max_usd_per_hour / hour_usd + 1e-9))
    for replicas in range(1, max(1, _useful(steps, scale)) + 1):
        name = f"fixed {replicas}"
        run = FluidFleet(
            steps,
            msgspec.structs.replace(spec, replicas=replicas),
            progress=partial(progress, name),
        )
        allowed = scale.min_replicas <= replicas <= most
        yield _bill(name, run.run(), steps, pool, fixed=replicas, allowed=allowed)
    for name, by_money in ((_TODAY, False), (ECONOMIC, True)):
        policy = ScalePolicy(
            scale,
            usd_per_replica_hour=hour_usd,
            output_weight=output_weight,
            busy_carries=1 / spec.input_s,
            economic=by_money,
        )
        run = FluidFleet(steps, spec, policy, progress=partial(progress, name))
        yield _bill(name, run.run(), steps, pool)


def economic(bills: Sequence[FleetBill]) -> FleetBill:
    """Return the bill of the economic scaler."""
    return next(each for each in bills if each.name == ECONOMIC)


def best_fixed(bills: Sequence[FleetBill]) -> FleetBill | None:
    """Return the cheapest of the fixed fleets that the configuration allows, with all that came in hindsight."""
    allowed = [bill for bill in bills if bill.fixed is not None and bill.allowed]
    return min(allowed, key=lambda bill: bill.nanousd, default=None)


def _useful(steps: Steps, scale: ScaleConfig) -> int:
    """Return the replicas beyond which nothing is left to carry in the busiest minute; within the maximum."""
    return min(MOST_FIXED, scale.max_replicas, max(scale.min_replicas, int(steps.busiest()) + 2))


def _bill(
    name: str, outcome: Outcome, steps: Steps, pool: PoolSection, *, fixed: int | None = None, allowed: bool = True
) -> FleetBill:
    return FleetBill(
        name=name,
        fixed=fixed,
        allowed=allowed,
        gpu_nanousd=bill_of(pool, outcome.up_us).nanousd,
        elsewhere_nanousd=outcome.elsewhere_nanousd + steps.demand.others_nanousd,
        requests_here=outcome.requests_here,
        replica_hours=(Decimal(outcome.up_us) / HOUR_US).quantize(Decimal("0.01")),
        utilisation=outcome.utilisation,
        outcome=outcome,
    )
