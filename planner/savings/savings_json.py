"""The figures of `weighbridge savings simulate`: the demand, the bills with their verdicts, and the lateness, as JSON."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from cost.config import CostSection
from cost.fleet.bill import rate_of
from cost.fleet.pool_config import PoolSection
from cost.prices import usd
from cost.times import HOUR_US
from planner.savings.bills import FleetBill, best_fixed, economic
from planner.savings.lateness import LatenessModel
from planner.savings.lateness_simulation import Engines
from planner.savings.verdicts import by_utilisation, crossings, verdict_of
from planner.savings.windows import LEAD_S, Share
from planner.savings.workload import PlannedWorkload, Workload
from selfhosted.config import ScaleConfig

_PLACES: Final = Decimal("0.0001")


def demand_as_json(
    cost: CostSection,
    pool: PoolSection,
    scale: ScaleConfig,
    trace: Path,
    workload: Workload,
    planned: PlannedWorkload,
) -> dict[str, Any]:
    """Return the trace, the demand for the pool and the settings that bills depend on."""
    demand = planned.demand
    return {
        "trace": trace.name,
        "requests": len(workload.at_s),
        "duration_s": round(workload.duration_s, 3),
        "input_tokens": int(workload.input_tokens.sum()),
        "cached_input_tokens": int(workload.cached_tokens.sum()),
        "output_tokens": int(workload.output_tokens.sum()),
        "refused": planned.refused,
        "pool": pool.name,
        "pool_requests": len(demand),
        "pool_requests_bound": int(demand.bound.sum()),
        "usd_per_replica_hour": usd(int(rate_of(pool) * HOUR_US)),
        "cold_start_s": scale.cold_start_s,
        "min_replicas": scale.min_replicas,
        "max_replicas": scale.max_replicas,
        "aim_s": scale.ttft_target_s,
        "reference_target": cost.reference_target,
        "savings_target": cost.savings_target,
        "lateness": None,
    }


def bills_as_json(
    cost: CostSection, pool: PoolSection, planned: PlannedWorkload, bills: Sequence[FleetBill]
) -> dict[str, Any]:
    """Return the bills, the commercial ones first, with both verdicts on each, and those on the pool's own requests by utilisation."""
    target = cost.savings_target
    best, chosen = best_fixed(bills), economic(bills)
    return {
        "bills": [
            _elsewhere("everything at the baseline model", planned.baseline_nanousd, planned, target, cost),
            _elsewhere("commercial only, with routing", planned.routed_nanousd, planned, target, cost),
            *(_row(each, planned, target, cost) for each in bills),
        ],
        "best_fixed": None if best is None else best.fixed,
        "economic_to_best_fixed": None if best is None else _share(chosen.nanousd, best.nanousd),
        "utilisation": _rounded(chosen.utilisation),
        "by_utilisation": by_utilisation(pool, planned.elsewhere, target),
        "crossings": crossings(pool, planned.elsewhere, target),
    }


def lateness_as_json(model: LatenessModel, engines: Engines, bills: Sequence[FleetBill], seed: int) -> dict[str, Any]:
    """Return the facts of the lateness simulation, and the economic scaler's lateness beside the best fixed fleet's."""
    sample, machine = model.sample, engines.machine
    best, chosen = best_fixed(bills), economic(bills)
    later = None
    if best is not None and best.lateness is not None and chosen.lateness is not None:
        later = model.later(chosen.lateness, best.lateness)
    return {
        "model": machine.model,
        "gpu": machine.gpu,
        "gpus_per_replica": machine.gpus,
        "speed_factor": round(1 / engines.factor, 4),
        "whole_trace": sample.length_s is None,
        "windows": len(sample.runs),
        "window_s": sample.length_s,
        "lead_s": 0.0 if sample.length_s is None else LEAD_S,
        "requests": sample.requests,
        "seed": seed,
        "economic_less_best_fixed": _interval(later),
        "misses_no_more": None if later is None else later.low <= 0,
    }


def _elsewhere(name: str, nanousd: int, planned: PlannedWorkload, target: Decimal, cost: CostSection) -> dict[str, Any]:
    return {
        "fleet": name,
        "gpu_usd": usd(0),
        "elsewhere_usd": usd(nanousd),
        "usd": usd(nanousd),
        **_verdicts(nanousd, planned, target, cost),
        "replica_hours": Decimal("0.00"),
        "utilisation": None,
        "late": None,
        "overflow": None,
        "overflow_billed": None,
        "allowed": True,
    }


def _row(bill: FleetBill, planned: PlannedWorkload, target: Decimal, cost: CostSection) -> dict[str, Any]:
    found = bill.lateness
    return {
        "fleet": bill.name,
        "gpu_usd": usd(bill.gpu_nanousd),
        "elsewhere_usd": usd(bill.elsewhere_nanousd),
        "usd": usd(bill.nanousd),
        **_verdicts(bill.nanousd, planned, target, cost),
        "replica_hours": bill.replica_hours,
        "utilisation": _rounded(bill.utilisation),
        "late": None if found is None else _interval(found.late),
        "overflow": None if found is None else _interval(found.overflow),
        "overflow_billed": _overflow_billed(bill),
        "allowed": bill.allowed,
    }


def _overflow_billed(bill: FleetBill) -> Decimal | None:
    """Return the part of the pool's requests that the bill has elsewhere."""
    found = bill.outcome
    return None if found is None else _share(found.requests_elsewhere, found.requests_here + found.requests_elsewhere)


def _verdicts(nanousd: int, planned: PlannedWorkload, target: Decimal, cost: CostSection) -> dict[str, Any]:
    """Return the verdict on a bill for all requests against the baseline model's and against that of routing alone."""
    told = verdict_of(planned.baseline_nanousd, nanousd, target)
    if cost.reference_target is None or planned.baseline_nanousd <= 0:
        told = {"savings_share": None, "verdict": "no baseline model"}
    return {**told, "routed": verdict_of(planned.routed_nanousd, nanousd, target)}


def _interval(found: Share | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"share": round(found.share, 6), "low": round(found.low, 6), "high": round(found.high, 6)}


def _share(part: int, whole: int) -> Decimal:
    return (Decimal(part) / whole).quantize(_PLACES) if whole else Decimal(0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
