"""`weighbridge savings simulate`: the bill of a trace under fleets of every size, with and without scaling."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.shown import percent, rounded_money
from gateway.commands.shared import ConfigOption, fail, print_json

if TYPE_CHECKING:
    from decimal import Decimal

    from cost.fleet.pool_config import PoolSection
    from gateway.configuration.gateway_config import GatewayConfig
    from planner.savings.bills import FleetBill
    from planner.savings.lateness import LatenessModel
    from planner.savings.lateness_simulation import Engines
    from planner.savings.workload import PlannedWorkload, Workload
    from planner.simulate.machines import Machine
    from planner.simulate.traces import Trace
    from providers.catalog import Catalog
    from selfhosted.config import PoolConfig, ScaleConfig

_SHOWN_FIXED = 12


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
    model: Annotated[
        str | None, typer.Option(help="What the engines run, as `plan` knows it; by upstream_model if left out.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="On what, as `plan` knows it.")] = "h100",
    lateness: Annotated[
        bool, typer.Option(help="Simulate windows request by request, for late first tokens; otherwise bills alone.")
    ] = True,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, help="About so many requests are simulated under each fleet; otherwise what takes minutes."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the windows and draws: same seed, same figures.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw a PNG (the extra `plots`).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the cost of a trace: at the baseline model, elsewhere with routing, and on fleets of our own."""
    from gateway.configuration.environment import read_environment
    from gateway.configuration.settings import load
    from planner.savings import savings_json as savings_report
    from planner.savings.lateness_simulation import most_for, with_lateness
    from planner.savings.workload import repeated, workload_of
    from planner.simulate.traces import read_trace

    settings = load(config, read_environment(), secrets_from=None)
    chosen, scale = _pool(settings, pool)
    read = read_trace(trace)
    workload = repeated(workload_of(read), users=users, days=days, speed=speed)
    planned = _planned(settings, chosen, workload)
    machine = _machine(settings, chosen, model, gpu) if lateness and len(planned.demand) else None
    bills = _bills(settings, planned, chosen, scale)
    told = savings_report.demand_as_json(settings.cost, chosen, scale, trace, workload, planned)
    if machine is not None:
        found, engines = _lateness_model(
            settings,
            chosen,
            scale,
            read,
            workload,
            planned,
            machine=machine,
            most=sample or most_for(len(bills)),
            seed=seed,
        )
        bills = with_lateness(bills, found, _progress)
        told["lateness"] = savings_report.lateness_as_json(found, engines, bills, seed)
    _progress_done()
    told |= savings_report.bills_as_json(settings.cost, chosen, planned, bills)
    if as_json:
        print_json(told)
    else:
        _print(told)
    if plot is not None:
        from planner.savings.plots import draw

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
    watched = _watched(settings, found)
    scale = None if watched is None else watched.scale
    return found, ScaleConfig() if scale is None else scale


def _watched(settings: "GatewayConfig", pool: "PoolSection") -> "PoolConfig | None":
    return next((each for each in settings.selfhosted.pools if each.name == pool.name), None)


def _catalog(settings: "GatewayConfig") -> "Catalog":
    from gateway.wiring.catalog import catalog_of, classifier_of
    from gateway.wiring.policy import build_policy
    from planner.savings.workload import with_capabilities

    return with_capabilities(
        catalog_of(settings), classifier_of(settings), build_policy(settings.policy, settings.cost)
    )


def _first_token_s(settings: "GatewayConfig") -> float:
    first_token_s = settings.deadlines.interactive.first_token_s
    return float("inf") if first_token_s is None else first_token_s


def _planned(settings: "GatewayConfig", pool: "PoolSection", workload: "Workload") -> "PlannedWorkload":
    from gateway.wiring.policy import build_policy
    from planner.savings.workload import planned

    return planned(
        workload,
        catalog=_catalog(settings),
        policy=build_policy(settings.policy, settings.cost),
        pool=pool,
        first_token_s=_first_token_s(settings),
    )


def _bills(
    settings: "GatewayConfig", planned: "PlannedWorkload", pool: "PoolSection", scale: "ScaleConfig"
) -> "list[FleetBill]":
    from planner.savings.bills import fleet_bills
    from planner.savings.fluid import Steps
    from proxy.plan.marginal_cost import SPREAD

    wait_s, spread = _first_token_s(settings), SPREAD if pool.price == "margin" else 0.0
    return list(fleet_bills(Steps(planned.demand), pool, scale, wait_s=wait_s, spread=spread, progress=_progress))


def _machine(settings: "GatewayConfig", pool: "PoolSection", model: str | None, gpu: str) -> "Machine":
    from planner.savings.lateness_simulation import machine_for

    return machine_for(pool, _watched(settings, pool), model, gpu)


def _lateness_model(
    settings: "GatewayConfig",
    pool: "PoolSection",
    scale: "ScaleConfig",
    trace: "Trace",
    workload: "Workload",
    planned: "PlannedWorkload",
    *,
    machine: "Machine",
    most: int,
    seed: int,
) -> "tuple[LatenessModel, Engines]":
    from gateway.wiring.policy import build_policy
    from planner.savings.lateness_simulation import lateness_model

    return lateness_model(
        trace,
        workload,
        planned,
        machine=machine,
        catalog=_catalog(settings),
        policy=build_policy(settings.policy, settings.cost),
        pool=pool,
        watched=_watched(settings, pool),
        scale=scale,
        first_token_s=_first_token_s(settings),
        most=most,
        seed=seed,
    )


def _progress(name: str, part: float) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{name}: {percent(part, 0):>5}{'':16}", nl=False, err=True)


def _progress_done() -> None:
    if sys.stderr.isatty():
        typer.echo("\r" + " " * 56 + "\r", nl=False, err=True)


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
            rounded_money(each["gpu_usd"]),
            rounded_money(each["elsewhere_usd"]),
            rounded_money(each["usd"]),
            _shown_share(each["savings_share"]),
            each["verdict"],
            _shown_share(each["routed"]["savings_share"]),
            f"{each['replica_hours']:,}",
            "-" if each["utilisation"] is None else percent(each["utilisation"]),
            _shown_interval(each["late"]),
            _shown_interval(each["overflow"]),
        ]
        for each in _shown(told)
    ]
    headings = ["fleet", "GPUs", "elsewhere", "bill", "saved", "target", "to routing", "replica-hours", "busy", "late"]
    print_table([*headings, "overflowed"], rows, right=(1, 2, 3, 4, 6, 7, 8, 9, 10))
    _print_findings(told)


def _shown(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all rows, or of many fixed fleets those around the best one."""
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
            f"{percent(told['economic_to_best_fixed'])} of its"
        )
    _print_verdicts(told)
    if told["refused"]:
        typer.echo(f"! {told['refused']:,} requests fit no model and are in no bill but the baseline's")
    if told["lateness"] is not None:
        _print_lateness(told, told["lateness"])
    typer.echo(
        "prompts of a trace have no text: complexity is spread evenly, capability decides (declared, else the share of the "
        "classifier's sample that a model is good enough for); every fleet, fixed ones "
        "too, is ordered when the trace begins"
    )


def _print_verdicts(told: dict[str, Any]) -> None:
    """Print what both comparisons say of the economic scaler, and on the pool's own requests at each utilisation."""
    from gateway.table import print_table

    share, chosen = percent(told["savings_target"], 0), told["bills"][-1]
    names = {"reference": told["reference_target"] or "a baseline model", "routed": "routing without GPUs"}
    for against, found in (("reference", chosen), ("routed", chosen["routed"])):
        saved = found["savings_share"]
        difference = "" if saved is None else f", {percent(abs(saved))} {'less' if saved >= 0 else 'MORE'}"
        typer.echo(
            f"{share} less than {names[against]} with the economic scaler: {found['verdict'].upper()}{difference}"
        )
    busy = "no replica was up" if told["utilisation"] is None else f"busy {percent(told['utilisation'])} of its hours"
    typer.echo(f"\nthe pool's own requests, by how busy its replicas are (with the economic scaler: {busy}):")
    rows = [
        [
            percent(each["busy"], 0),
            rounded_money(each["reference"]["usd"]),
            *(cell for name in names for cell in (_shown_share(each[name]["savings_share"]), each[name]["verdict"])),
        ]
        for each in told["by_utilisation"]
    ]
    headings = ["busy", "here", f"saved of {names['reference']}", "target", "saved of routing", "target"]
    print_table(headings, rows, right=(0, 1, 2, 4))
    for against, found in told["crossings"].items():
        if found["break_even"] is None:
            typer.echo(f"against {names[against]}: nothing to compare with")
            continue
        typer.echo(
            f"against {names[against]} ({rounded_money(found['elsewhere_usd'])}): cheaper from {_from(found['break_even'])}, "
            f"{share} less from {_from(found['target'])}"
        )


def _from(busy: float) -> str:
    return f"{percent(busy)} busy on" + (", which is impossible" if busy > 1 else "")


def _shown_share(share: "Decimal | None") -> str:
    return "-" if share is None else percent(share)


def _print_lateness(told: dict[str, Any], late: dict[str, Any]) -> None:
    typer.echo(
        f"late: first tokens after {told['aim_s']:g} s; overflowed: elsewhere for want of room; both of the pool's "
        f"{told['pool_requests']:,} requests, with 95 % confidence"
    )
    engines = f"{late['gpus_per_replica']} x {late['gpu']} with {late['model']}"
    how = (
        "every request was simulated"
        if late["whole_trace"]
        else f"{late['requests']:,} requests in {late['windows']} windows of {late['window_s']:g} s were simulated, the "
        f"busiest one and two drawn from each equal part of the trace (seed {late['seed']})"
    )
    typer.echo(
        f"{how}, with the month's number of replicas, the planner and the balancer before engines of {engines} at "
        f"{late['speed_factor']:.2f} times what data sheets allow, which is `seconds_per_million`"
    )
    billed = told["bills"][-1]
    typer.echo(
        f"bills come from rates of work, by which {percent(billed['overflow_billed'], 2)} overflow under the economic scaler, where "
        f"{percent(billed['overflow']['share'], 2)} did on engines"
    )
    less = late["economic_less_best_fixed"]
    if less is not None:
        verdict = "misses no more" if late["misses_no_more"] else "MISSES MORE"
        typer.echo(
            f"the economic scaler {verdict} than the best fixed fleet: {percent(less['share'], 2, signed=True)} of first tokens "
            f"({percent(less['low'], 2, signed=True)} to {percent(less['high'], 2, signed=True)})"
        )


def _shown_interval(found: dict[str, float] | None) -> str:
    if found is None:
        return "-"
    half = (found["high"] - found["low"]) / 2
    return percent(found["share"], 2) + (f" ±{percent(half, 2)}" if half else "")
