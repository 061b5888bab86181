"""`weighbridge savings simulate`: the bill of a trace under fleets of every size, with and without scaling."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.commands.shared import ConfigOption, fail, print_json

if TYPE_CHECKING:
    from cost.fleet.pool_config import PoolSection
    from gateway.commands.savings_demand import PlannedWorkload, Workload
    from gateway.configuration.settings import GatewayConfig
    from selfhosted.config import ScaleConfig
    from selfhosted.offline.savings.bills import FleetBill

_SHOWN_FIXED = 12
_PLACES = Decimal("0.0001")


def simulate(
    *,
    trace: Annotated[Path, typer.Option(help="Mooncake's JSON lines, or Azure's CSV; told apart by the first line.")],
    config: ConfigOption = None,
    pool: Annotated[str | None, typer.Option(help="The pool of cost.pools; the first one if left out.")] = None,
    speed: Annotated[float, typer.Option(min=0.001, max=1_000, help="Requests come so many times as fast.")] = 1.0,
    users: Annotated[int, typer.Option(min=1, max=1_000, help="So many times the users, sharing nothing.")] = 1,
    days: Annotated[
        int,
        typer.Option(min=0, max=92, help="Days of the trace's first hour, by an office day's profile; 0: as it is."),
    ] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw a PNG (the extra `plots`).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what a trace would have cost: at the baseline model, elsewhere with routing, and on fleets of our own."""
    from gateway.commands.savings_demand import repeated, workload_of
    from gateway.configuration.settings import load, read_environment
    from selfhosted.offline.simulate.traces import read_trace

    settings = load(config, read_environment(), secrets_from=None)
    chosen, scale = _pool(settings, pool)
    workload = repeated(workload_of(read_trace(trace)), users=users, days=days, speed=speed)
    planned = _planned(settings, chosen, workload)
    bills = _bills(settings, planned, chosen, scale)
    told = _as_json(settings, chosen, scale, trace, workload, planned, bills)
    if as_json:
        print_json(told)
    else:
        _print(told)
    if plot is not None:
        from selfhosted.offline.savings.plots import draw

        drawn = draw(plot, bills, planned.routed_nanousd, title=f"{trace.name}, pool {chosen.name}")
        typer.echo(f"drawn: {drawn}", err=True)


def _pool(settings: "GatewayConfig", name: str | None) -> "tuple[PoolSection, ScaleConfig]":
    from selfhosted.config import ScaleConfig

    found = next((each for each in settings.cost.pools if name in {None, each.name}), None)
    if found is None:
        fail(
            "no pool has a price: the configuration has none under cost.pools" if name is None else f"no pool `{name}`",
            2,
        )
    if not found.seconds_per_million.input:
        fail(f"cost.pools `{found.name}`: seconds_per_million.input is 0, so nobody knows what a replica carries", 2)
    watched = next((each for each in settings.selfhosted.pools if each.name == found.name), None)
    scale = None if watched is None else watched.scale
    return found, ScaleConfig() if scale is None else scale


def _planned(settings: "GatewayConfig", pool: "PoolSection", workload: "Workload") -> "PlannedWorkload":
    from gateway.commands.savings_demand import planned
    from gateway.wiring.policy import build_policy
    from providers.catalog import build_catalog

    catalog = build_catalog(settings.providers, lambda _reference: "unused", pools=settings.selfhosted.pool_of_target())
    first_token_s = settings.deadlines.interactive.first_token_s
    return planned(
        workload,
        catalog=catalog,
        policy=build_policy(settings.policy, settings.cost),
        pool=pool,
        first_token_s=float("inf") if first_token_s is None else first_token_s,
    )


def _bills(
    settings: "GatewayConfig", planned: "PlannedWorkload", pool: "PoolSection", scale: "ScaleConfig"
) -> "list[FleetBill]":
    from selfhosted.offline.savings.bills import fleet_bills
    from selfhosted.offline.savings.fluid import Steps

    first_token_s = settings.deadlines.interactive.first_token_s
    wait_s = float("inf") if first_token_s is None else first_token_s
    bills = list(fleet_bills(Steps(planned.demand), pool, scale, wait_s=wait_s, progress=_progress))
    if sys.stderr.isatty():
        typer.echo("\r" + " " * 40 + "\r", nl=False, err=True)
    return bills


def _progress(name: str, part: float) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{name}: {part:4.0%}        ", nl=False, err=True)


def _as_json(
    settings: "GatewayConfig",
    pool: "PoolSection",
    scale: "ScaleConfig",
    trace: Path,
    workload: "Workload",
    planned: "PlannedWorkload",
    bills: "Sequence[FleetBill]",
) -> dict[str, Any]:
    from cost.fleet.bill import rate_of
    from cost.times import HOUR_US
    from selfhosted.offline.savings.bills import ECONOMIC, best_fixed, needed_utilisation

    demand, target = planned.demand, settings.cost.savings_target
    work_s = float(demand.work_s.sum())
    needed = needed_utilisation(pool, work_s, planned.pool_baseline_nanousd, target)
    best = best_fixed(list(bills))
    economic = next(each for each in bills if each.name == ECONOMIC)
    rows = [
        _elsewhere("everything at the baseline model", planned.baseline_nanousd, planned, target, settings),
        _elsewhere("commercial only, with routing", planned.routed_nanousd, planned, target, settings),
        *(_row(each, planned, len(workload.at_s), target, settings) for each in bills),
    ]
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
        "usd_per_replica_hour": _usd(int(rate_of(pool) * HOUR_US)),
        "cold_start_s": scale.cold_start_s,
        "min_replicas": scale.min_replicas,
        "max_replicas": scale.max_replicas,
        "aim_s": scale.ttft_target_s,
        "reference_target": settings.cost.reference_target,
        "savings_target": target,
        "bills": rows,
        "best_fixed": None if best is None else best.fixed,
        "economic_to_best_fixed": None if best is None else _share(economic.nanousd, best.nanousd),
        "utilisation": _rounded(economic.utilisation),
        "needed_utilisation": None if needed is None else _rounded(float(needed)),
    }


def _elsewhere(
    name: str, nanousd: int, planned: "PlannedWorkload", target: Decimal, settings: "GatewayConfig"
) -> dict[str, Any]:
    return {
        "fleet": name,
        "gpu_usd": _usd(0),
        "elsewhere_usd": _usd(nanousd),
        "usd": _usd(nanousd),
        **_verdict(nanousd, planned, target, settings),
        "replica_hours": Decimal("0.00"),
        "utilisation": None,
        "late": 0,
        "late_share": Decimal(0),
        "allowed": True,
    }


def _row(
    bill: "FleetBill", planned: "PlannedWorkload", requests: int, target: Decimal, settings: "GatewayConfig"
) -> dict[str, Any]:
    return {
        "fleet": bill.name,
        "gpu_usd": _usd(bill.gpu_nanousd),
        "elsewhere_usd": _usd(bill.elsewhere_nanousd),
        "usd": _usd(bill.nanousd),
        **_verdict(bill.nanousd, planned, target, settings),
        "replica_hours": bill.replica_hours,
        "utilisation": _rounded(bill.utilisation),
        "late": bill.late,
        "late_share": _share(bill.late, requests),
        "allowed": bill.allowed,
    }


def _verdict(nanousd: int, planned: "PlannedWorkload", target: Decimal, settings: "GatewayConfig") -> dict[str, Any]:
    if settings.cost.reference_target is None or planned.baseline_nanousd <= 0:
        return {"savings_share": None, "verdict": "no baseline model"}
    saved = _share(planned.baseline_nanousd - nanousd, planned.baseline_nanousd)
    met = planned.baseline_nanousd - nanousd >= target * planned.baseline_nanousd
    return {"savings_share": saved, "verdict": "met" if met else "not met"}


def _print(told: dict[str, Any]) -> None:
    from gateway.table import print_table

    typer.echo(
        f"{told['trace']}: {told['requests']:,} requests in {told['duration_s'] / 3_600:,.1f} hours, "
        f"{told['input_tokens']:,} tokens in ({told['cached_input_tokens']:,} cached) and {told['output_tokens']:,} out\n"
        f"pool {told['pool']}: {told['pool_requests']:,} requests it is capable of in time, "
        f"{told['pool_requests_bound']:,} of which nobody else is; a replica costs ${told['usd_per_replica_hour']:.2f} "
        f"an hour and starts in {told['cold_start_s']:.0f} s\n"
    )
    rows = [
        [
            each["fleet"] + ("" if each["allowed"] else " *"),
            f"${each['gpu_usd']:,.2f}",
            f"${each['elsewhere_usd']:,.2f}",
            f"${each['usd']:,.2f}",
            "-" if each["savings_share"] is None else f"{each['savings_share']:.1%}",
            each["verdict"],
            f"{each['replica_hours']:,}",
            "-" if each["utilisation"] is None else f"{each['utilisation']:.1%}",
            f"{each['late']:,} ({each['late_share']:.2%})",
        ]
        for each in _shown(told)
    ]
    headings = ["fleet", "GPUs", "elsewhere", "bill", "saved", "target", "replica-hours", "busy", "late first tokens"]
    print_table(headings, rows, right=(1, 2, 3, 4, 6, 7, 8))
    _print_findings(told)


def _shown(told: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows, or of many fixed fleets those around the best one."""
    best, rows = told["best_fixed"] or 1, told["bills"]
    fixed = [each for each in rows if each["fleet"].startswith("fixed ")]
    if len(fixed) <= _SHOWN_FIXED:
        return list(rows)
    kept = {f"fixed {replicas}" for replicas in {1, 2, len(fixed), *range(best - 3, best + 4)}}
    return [each for each in rows if each not in fixed or each["fleet"] in kept]


def _print_findings(told: dict[str, Any]) -> None:
    if any(not each["allowed"] for each in told["bills"]):
        typer.echo(
            f"* not allowed by the configuration ({told['min_replicas']} to {told['max_replicas']} replicas, budget)"
        )
    if told["best_fixed"] is not None:
        typer.echo(
            f"\nbest fixed fleet in hindsight: {told['best_fixed']}; the economic scaler's bill is "
            f"{told['economic_to_best_fixed']:.1%} of its"
        )
    share = f"{told['savings_target']:.0%}"
    verdict = told["bills"][-1]["verdict"]
    if told["needed_utilisation"] is None:
        typer.echo(f"{share} saved: nothing to compare with")
    else:
        busy = "no replica was up" if told["utilisation"] is None else f"busy {told['utilisation']:.1%} of its hours"
        impossible = ", which is impossible" if told["needed_utilisation"] > 1 else ""
        typer.echo(
            f"{share} less than {told['reference_target']} with the economic scaler: {verdict.upper()}; on the pool's own "
            f"requests it needs replicas that are busy {told['needed_utilisation']:.1%} of their hours{impossible} ({busy})"
        )
    if told["refused"]:
        typer.echo(f"! {told['refused']:,} requests fit no model and are in no bill but the baseline's")
    typer.echo(
        "prompts of a trace have no text: complexity is spread evenly, declared capability decides; every fleet, fixed ones "
        "too, is ordered when the trace begins"
    )


def _usd(nanousd: int) -> Decimal:
    from cost.prices import usd

    return usd(nanousd)


def _share(part: int, whole: int) -> Decimal:
    return (Decimal(part) / whole).quantize(_PLACES) if whole else Decimal(0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
