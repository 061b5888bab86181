"""`weighbridge selfhosted simulate`: a fleet in simulated time, to compare policies and to plan with."""
# ruff: noqa: PLC0415 - imports stand in the command, so that `--help` answers at once

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cost.shown import percent, rounded_money
from gateway.commands.shared import amount_option

if TYPE_CHECKING:
    from planner.simulate.fleet_simulation import FleetSpec
    from planner.simulate.machines import Machine
    from planner.simulate.simulation_report import Report
    from planner.simulate.traces import Trace

_MOST_RUNS = 64


def simulate(
    *,
    trace: Annotated[Path, typer.Option(help="Mooncake's JSON lines, or Azure's CSV; told apart by the first line.")],
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="At the beginning; without scaling, always.")] = 8,
    policy: Annotated[
        list[str] | None, typer.Option(help="Who chooses a replica, such as prefix or round-robin. Again for more.")
    ] = None,
    scaling: Annotated[
        list[str] | None, typer.Option(help="fixed, weighbridge, keda, knative or perfect. Again for more.")
    ] = None,
    gateways: Annotated[int, typer.Option(min=1, max=256, help="Gateway processes, each with its own view.")] = 1,
    hosts: Annotated[
        int, typer.Option(min=1, max=256, help="The gateways are dealt out to so many; those of one tell each other.")
    ] = 1,
    hosts_told: Annotated[
        float | None,
        typer.Option(min=0.0, max=60.0, help="Seconds until hosts hear of each other's requests, about 0.15 by Redis."),
    ] = None,
    kv_events: Annotated[
        bool, typer.Option("--kv-events", help="Engines tell the gateways what they have cached.")
    ] = False,
    queue: Annotated[
        bool,
        typer.Option(
            "--queue", help="The gateways' queue stands before the pool; its callers wait as long as it takes."
        ),
    ] = False,
    speed: Annotated[float, typer.Option(min=0.001, max=1_000, help="Requests come so many times as fast.")] = 1.0,
    users: Annotated[int, typer.Option(min=1, max=1_000, help="So many times the users, sharing nothing.")] = 1,
    days: Annotated[
        int, typer.Option(min=0, max=31, help="Days of the trace's hour, by an office day's profile; 0: as it is.")
    ] = 0,
    spread: Annotated[
        bool, typer.Option("--spread", help="Requests of one timestamp come one after the other until the next.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
    model: Annotated[str, typer.Option(help="As `plan` knows it.")] = "llama-3-70b",
    gpu: Annotated[str, typer.Option(help="As `plan` knows it.")] = "h100",
    tp: Annotated[int, typer.Option(min=1, max=64, help="GPUs a replica.")] = 4,
    precision: Annotated[Literal["bf16", "fp8", "int4"], typer.Option(help="Of the weights.")] = "fp8",
    kv_precision: Annotated[Literal["bf16", "fp8"], typer.Option(help="Of the KV cache.")] = "fp8",
    efficiency: Annotated[str, typer.Option(help="vllm, or ceiling (NVIDIA's own figures).")] = "vllm",
    kv_tokens: Annotated[
        int | None, typer.Option(min=512, max=1_000_000_000, help="Of a replica's KV cache; otherwise what fits.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, max=65_536, help="As vLLM's.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(min=2, max=1_000_000, help="As vLLM's.")] = 8_192,
    cold_start: Annotated[
        float, typer.Option(min=0, max=7_200, help="Seconds from an order to the first answer.")
    ] = 300.0,
    min_replicas: Annotated[int, typer.Option(min=0, max=10_000, help="Scaling goes no lower.")] = 1,
    max_replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Scaling goes no higher.")] = 64,
    ttft_target: Annotated[float, typer.Option(min=0.001, max=3_600, help="Seconds to the first token.")] = 1.0,
    tpot_target: Annotated[float, typer.Option(min=0.0001, max=60, help="Seconds a further token.")] = 0.05,
    overflow: Annotated[
        str | None,
        typer.Option(help="What no replica has room for goes here: a price that `plan` knows, or NAME=INPUT/OUTPUT."),
    ] = None,
    gpu_usd_hour: Annotated[str | None, typer.Option(help="What one GPU costs an hour.")] = None,
    target_rps: Annotated[
        float | None, typer.Option(min=0.001, max=1e9, help="How many such fleets carry so many requests a second.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything there; `-` prints it.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a PNG, or into a folder.")] = None,
) -> None:
    """Replay a trace on a fleet of simulated engines, with the balancer and the autoscaler as they are."""
    from planner.plans.comparators import comparator_named
    from planner.simulate.choosers import check_policy
    from planner.simulate.fleet_simulation import FleetSpec
    from planner.simulate.machines import machine_of
    from planner.simulate.scaling import check_scaler
    from planner.simulate.simulation_errors import SimulationRefused
    from planner.simulate.simulation_report import report_of, title_of
    from planner.simulate.traces import prepared
    from selfhosted.config import ScaleConfig

    policies, scalers = policy or ["prefix"], scaling or ["fixed"]
    for each in policies:
        check_policy(each)
    for each in scalers:
        check_scaler(each)
    price = None if gpu_usd_hour is None else amount_option(gpu_usd_hour, "--gpu-usd-hour", 0, 10_000)
    comparator = None if overflow is None else comparator_named(overflow)
    machine = machine_of(
        model=model, gpu=gpu, tp=tp, precision=precision, kv_precision=kv_precision, efficiency=efficiency,
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, kv_tokens=kv_tokens,
        usd_per_gpu_hour=price,
    )  # fmt: skip
    if min_replicas > max_replicas:
        raise SimulationRefused("--min-replicas is above --max-replicas")
    scale = ScaleConfig(
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        cold_start_s=cold_start,
        ttft_target_s=ttft_target,
        tpot_target_s=tpot_target,
    )
    replayed = prepared(trace, limit=limit, speed=speed, users=users, days=days, seed=seed, spaced=spread)
    runs = [
        FleetSpec(
            replicas=replicas, engine=machine.engine, policy=each, gateways=gateways, hosts=hosts, seed=seed, kv_events=kv_events,
            hosts_told_after_s=hosts_told,
            spill=comparator is not None, scaler=scaler, scale=scale, ttft_target_s=ttft_target,
            tpot_target_s=tpot_target, usd_per_replica_hour=float(machine.usd_per_hour),
        )
        for each in policies
        for scaler in scalers
    ]  # fmt: skip
    if len(runs) > _MOST_RUNS:
        raise SimulationRefused(f"{len(runs)} combinations of policies and scalings are more than {_MOST_RUNS}")
    reports = [
        report_of(
            _run(spec, machine, replayed, queue=queue), machine, replayed, comparator=comparator,
            target_requests_per_s=target_rps,
        )
        for spec in runs
    ]  # fmt: skip
    _print_reports(reports, replayed, machine, json_file)
    if plot is not None:
        from planner.simulate.plots import draw

        typer.echo(f"drawn: {draw(plot, reports, title=title_of(replayed, machine))}", err=True)


def _run(spec: "FleetSpec", machine: "Machine", trace: "Trace", *, queue: bool) -> Any:
    from planner.simulate.fleet_simulation import FleetSimulation

    shown = sys.stderr.isatty()

    def progress(part: float) -> None:
        if shown:
            typer.echo(f"\r{spec.policy}, {spec.scaler}: {percent(part, 0):>5}", nl=False, err=True)

    gate = None
    if queue:
        from planner.simulate.gateway_queue import SimulatedQueue

        gate = SimulatedQueue(spec.gateways)
    measured = FleetSimulation(spec, machine.steps, trace, progress, gate=gate).run()
    if shown:
        typer.echo("\r" + " " * 60 + "\r", nl=False, err=True)
    return measured


def _print_reports(reports: "list[Report]", trace: "Trace", machine: "Machine", json_file: Path | None) -> None:
    import msgspec

    told = msgspec.json.format(msgspec.json.encode({"trace": trace.as_json(), "machine": machine, "runs": reports}))
    if json_file is not None and str(json_file) == "-":
        typer.echo(told.decode())
        return
    _print(reports, trace, machine)
    if json_file is not None:
        json_file.write_bytes(told + b"\n")


def _print(reports: "list[Report]", trace: "Trace", machine: "Machine") -> None:
    from gateway.table import print_table
    from planner.simulate.simulation_report import HEADINGS, row_of, title_of

    typer.echo(
        f"{title_of(trace, machine)}: {len(trace.requests):,} requests, "
        f"{trace.prompt_tokens:,} tokens in and {trace.output_tokens:,} out, "
        f"{machine.engine.kv_tokens:,} KV tokens a replica\n"
    )
    print_table(HEADINGS, [row_of(report) for report in reports], right=range(2, len(HEADINGS)))
    for report in reports:
        if report.refused:
            typer.echo(f"! {report.policy}: {report.refused:,} requests fit no engine's KV cache and were refused")
        if report.cells is not None:
            cells = report.cells
            typer.echo(
                f"\non paper, {report.policy}, {report.scaler}: {cells.requests_per_s:,.0f} requests/s are {cells.cells:,} such fleets: "
                f"{cells.replicas:,} replicas, {cells.gpus:,} GPUs, {rounded_money(cells.usd_per_hour)} an hour.\n"
                f"That assumes that {cells.assumes}."
            )
