"""Fleets in simulated time, on real production traces: who chooses, and who scales. See docs/benchmarks.md.

    python -m benchmarks.fleet_sim TRACES [--quick] [--out build]

TRACES is the folder with mooncake_conversation.jsonl and azure_code.csv. Writes fleet_sim.json and pictures. Simulated
time does not depend on the machine: the same code and seed give the same figures anywhere.
"""

import argparse
import math
import random
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec
from planner.simulate.machines import Machine, machine_of
from planner.simulate.plots import draw
from planner.simulate.simulation_report import HEADINGS, Report, report_of, row_of
from planner.simulate.traces import Trace, multiplied, read_trace, sped_up, spread, tiled
from selfhosted.config import ScaleConfig

POLICIES: Final = (
    *("oracle", "prefix", "vllm-cache-aware", "vllm-cache-aware-eager"),
    *("least-loaded", "power-of-two", "round-robin", "random"),
)
LOADS: Final = ((8, 0.5), (8, 1.0), (16, 2.0), (32, 4.0))
"""Replicas, and how many times as fast the conversations come."""
GATEWAYS: Final = (1, 4)
FIXED: Final = (4, 8, 16, 32)
COLD_START_S: Final = 300.0
WITHIN: Final = 1.05
"""Bound as a multiple of the oracle's mean time to the first token."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few minutes' worth of each")
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    machine = machine_of()
    limit = 1_500 if options.quick else 5_000_000
    began = time.perf_counter()
    told = {
        "machine": msgspec.to_builtins(machine, str_keys=True),
        "gateways": _gateways(
            machine, read_trace(options.traces / "mooncake_conversation.jsonl", limit=limit), replicas=8
        ),
        "scaling": _scaling(options, machine, limit),
        "conversations": _conversations(options, machine, limit),
        "simulated_in_s": 0.0,
    }
    told["simulated_in_s"] = round(time.perf_counter() - began, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "fleet_sim.json").write_bytes(msgspec.json.format(msgspec.json.encode(told)) + b"\n")
    print(f"\nwritten: {options.out / 'fleet_sim.json'}; simulated in {told['simulated_in_s']} s")


def _conversations(options: argparse.Namespace, machine: Machine, limit: int) -> list[dict[str, Any]]:
    recorded = read_trace(options.traces / "mooncake_conversation.jsonl", limit=limit)
    found = []
    for shape, trace in (("as recorded", recorded), ("spread", spread(recorded))):
        for replicas, speed in LOADS:
            for gateways in GATEWAYS:
                if shape == "spread" and (gateways > 1 or replicas == LOADS[-1][0]):
                    continue
                title = f"conversations {shape}, x{speed:g}, {replicas} replicas, {gateways} gateways"
                faster = sped_up(trace, speed)
                reports = [
                    _run(
                        FleetSpec(replicas=replicas, engine=machine.engine, policy=policy, gateways=gateways),
                        machine,
                        faster,
                    )
                    for policy in POLICIES
                ]
                _show(title, reports)
                _beside(reports)
                if shape == "as recorded" and gateways == 1:
                    draw(options.out / f"fleet_sim_{replicas}_x{speed:g}.png", reports, title=title)
                found += [{"run": title, **_plain(report)} for report in reports]
    return found


def _gateways(machine: Machine, trace: Trace, replicas: int) -> list[dict[str, Any]]:
    """Return the loss of several gateways that do not know of one another, and the part of it that KV events give back."""
    reports = [
        _run(
            FleetSpec(
                replicas=replicas, engine=machine.engine, policy="prefix", gateways=gateways, kv_events=kv_events
            ),
            machine,
            trace,
        )
        for gateways in (1, 2, 4, 8)
        for kv_events in (False, True)
    ]
    title = f"prefix, {replicas} replicas, several gateways, without and with KV events"
    _show(title, reports)
    for report in reports:
        told = "KV events" if report.kv_events else "inferred"
        print(f"{report.gateways} gateways, {told}: mean first token {report.ttft_s.mean:.3f} s")
    return [{"run": title, **_plain(report)} for report in reports]


def _scaling(options: argparse.Namespace, machine: Machine, limit: int) -> list[dict[str, Any]]:
    hour = read_trace(options.traces / "azure_code.csv", limit=limit)
    cases = {
        "coding x4 users, the hour": multiplied(hour, 4, random.Random(1)),
        "coding, 2 days": tiled(hour, 2, random.Random(2)),
    }
    found = []
    for title, trace in cases.items():
        reports = [
            _run(
                FleetSpec(
                    replicas=replicas,
                    engine=machine.engine,
                    policy="prefix",
                    scaler=scaler,
                    scale=ScaleConfig(min_replicas=1, max_replicas=64, cold_start_s=COLD_START_S),
                    usd_per_replica_hour=float(machine.usd_per_hour),
                ),
                machine,
                trace,
            )
            for scaler, replicas in (
                *(("weighbridge", 4), ("keda", 4), ("perfect", 4)),
                *(("fixed", each) for each in FIXED),
            )
            if "days" not in title or scaler != "fixed" or replicas <= FIXED[1]
        ]
        _show(title, reports)
        name = "days" if "days" in title else "hour"
        draw(options.out / f"fleet_sim_scaling_{name}.png", reports, title=title)
        found += [{"run": title, **_plain(report)} for report in reports]
    return found


def _run(spec: FleetSpec, machine: Machine, trace: Trace) -> Report:
    return report_of(FleetSimulation(spec, machine.steps, trace).run(), machine, trace)


def _plain(report: Report) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(report, samples=()))
    return plain


def _show(title: str, reports: list[Report]) -> None:
    rows = [[*HEADINGS], *(row_of(report) for report in reports)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n{title}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


def _beside(reports: list[Report]) -> None:
    """Note the distance of each mean first token from the oracle's, and the lead of ours over all others."""
    means = {report.policy: report.ttft_s.mean or math.inf for report in reports}
    best = means["oracle"]
    print(
        "mean first token: "
        + ", ".join(f"{policy} {mean:.3f} s ({mean / best:.2f}x)" for policy, mean in means.items())
    )
    others = [mean for policy, mean in means.items() if policy not in {"oracle", "prefix"}]
    ahead = means["prefix"] < min(others)
    near = means["prefix"] <= WITHIN * best
    print(
        f"prefix ahead of every other: {'yes' if ahead else 'NO'}; within 5 % of the oracle: {'yes' if near else 'NO'}"
    )


if __name__ == "__main__":
    main()
