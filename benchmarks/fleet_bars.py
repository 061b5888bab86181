"""The balancer against the best of the usual ones, over fleets, loads and gateways, in simulated time:
`python -m benchmarks.fleet_bars [--traces FOLDER | --kind chats --seed 1] [--limit 1500] [--apart [--told 0.15]] [--queue]`.

Bars: mean and p99 of the time to the first token no later than the best of round robin, consistent hashing with bounded
loads, vLLM's cache-aware router and llm-d's scorers, and, where the trace takes longer than it was recorded in, throughput within
3 % of the best. Load 1 x is the trace's rate for eight replicas. FOLDER has mooncake_conversation.jsonl; without one a
made-up trace is used (benchmarks/made_up_traces.py). Gateways are of one host, with `--apart` each of its own, which tells
the others after `--told` seconds, or nobody. With `--queue` the gateways' queue stands before ours. The same figures on any
machine. Writes fleet_bars.json and fleet_bars.png.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.made_up_traces import KINDS, made_up
from gateway.commands.selfhosted.simulated_queue import SimulatedQueue
from selfhosted.offline.simulate.fleet import Fleet, FleetSpec
from selfhosted.offline.simulate.machines import Machine, machine_of
from selfhosted.offline.simulate.plots import figure_maker
from selfhosted.offline.simulate.report import report_of
from selfhosted.offline.simulate.simulation_errors import PlotsUnavailable
from selfhosted.offline.simulate.traces import Trace, read_trace, sped_up

OURS: Final = "prefix"
OTHERS: Final = ("round-robin", "consistent-hash", "vllm-cache-aware", "llm-d")
REPLICAS: Final = (4, 8, 16)
LOADS: Final = (0.5, 1.0, 2.0, 3.0)
GATEWAYS: Final = (1, 4, 8)
SATURATED: Final = 1.05
"""A run that takes so many times as long as its trace is saturated."""
THROUGHPUT: Final = 0.97
_AS_RECORDED: Final = 8


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation."""

    policy: str
    mean_s: float
    p99_s: float
    tokens_per_s: float
    hit_rate: float
    saturated: bool


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """All policies at one place of the grid."""

    replicas: int
    load: float
    gateways: int
    runs: tuple[Run, ...]

    @property
    def ours(self) -> Run:
        return next(run for run in self.runs if run.policy == OURS)

    @property
    def others(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.policy != OURS)

    def misses(self) -> list[str]:
        """The bars that are missed, in words."""
        ours, found = self.ours, []
        for name, key in (("mean", "mean_s"), ("p99", "p99_s")):
            best = min(self.others, key=lambda run: float(getattr(run, key)))
            if getattr(ours, key) > getattr(best, key):
                found.append(f"{name} ({best.policy} {getattr(best, key):.2f} s)")
        most = max(self.others, key=lambda run: run.tokens_per_s)
        if ours.saturated and ours.tokens_per_s < THROUGHPUT * most.tokens_per_s:
            found.append(f"throughput ({most.policy} {most.tokens_per_s:,.0f})")
        return found


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the gateways stand to each other."""

    apart: bool = False
    """Each is on a host of its own."""
    told_s: float | None = None
    """After so many seconds such gateways hear of each other's requests; None: never."""
    queue: bool = False
    """The gateways' queue stands before ours."""


def cells(machine: Machine, trace: Trace, setup: Setup) -> Iterator[Cell]:
    """Every place of the grid."""
    for replicas in REPLICAS:
        for load in LOADS:
            faster = sped_up(trace, load * replicas / _AS_RECORDED)
            for gateways in GATEWAYS:
                runs = tuple(_run(machine, faster, policy, replicas, gateways, setup) for policy in (OURS, *OTHERS))
                yield Cell(replicas=replicas, load=load, gateways=gateways, runs=runs)


def _run(machine: Machine, trace: Trace, policy: str, replicas: int, gateways: int, setup: Setup) -> Run:
    spec = FleetSpec(
        replicas=replicas,
        engine=machine.engine,
        policy=policy,
        gateways=gateways,
        hosts=gateways if setup.apart else 1,
        hosts_told_after_s=setup.told_s,
    )
    gate = SimulatedQueue(gateways) if setup.queue and policy == OURS else None
    report = report_of(Fleet(spec, machine.steps, trace, gate=gate).run(), machine, trace)
    return Run(
        policy=policy,
        mean_s=report.ttft_s.mean or 0.0,
        p99_s=report.ttft_s.p99 or 0.0,
        tokens_per_s=(report.prompt_tokens + report.output_tokens) / report.duration_s,
        hit_rate=report.prefix_hit_rate,
        saturated=report.duration_s > SATURATED * trace.duration_s,
    )


def row(cell: Cell) -> str:
    """A line of the table, in Markdown."""
    told = [f"{run.mean_s:.2f} / {run.p99_s:.1f}, {run.tokens_per_s / 1_000:,.0f}k" for run in cell.runs]
    missed = ", ".join(cell.misses()) or "-"
    return f"| {cell.replicas} | {cell.load:g} | {cell.gateways} | {' | '.join(told)} | {missed} |"


def heading() -> str:
    """The table's first two lines."""
    names = ("replicas", "load", "gateways", OURS, *OTHERS, "misses")
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def draw(path: Path, found: list[Cell]) -> None:
    """Mean time to the first token over the best other's, one line for each number of gateways."""
    figure = figure_maker()(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, len(REPLICAS), sharey=True)
    for place, replicas in zip(axes, REPLICAS, strict=True):
        for gateways in GATEWAYS:
            chosen = [cell for cell in found if (cell.replicas, cell.gateways) == (replicas, gateways)]
            ratios = [cell.ours.mean_s / min(run.mean_s for run in cell.others) for cell in chosen]
            place.plot([cell.load for cell in chosen], ratios, marker="o", label=f"{gateways} gateways")
        place.axhline(1.0, color="grey", linewidth=0.8)
        place.set_title(f"{replicas} replicas")
        place.set_xlabel("load")
    axes[0].set_ylabel("mean first token / best other's")
    axes[0].legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--limit", type=int, default=1_500, help="the first so many requests")
    parser.add_argument("--kind", choices=tuple(KINDS), default="chats", help="of a made-up trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="each gateway on a host of its own")
    parser.add_argument(
        "--told", type=float, help="hosts hear of each other's requests after so many seconds; else never"
    )
    parser.add_argument("--queue", action="store_true", help="with the gateways' queue before ours")
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    trace = (
        made_up(options.kind, options.seed, options.limit)
        if options.traces is None
        else read_trace(options.traces / "mooncake_conversation.jsonl", limit=options.limit)
    )
    print(heading())
    found: list[Cell] = []
    setup = Setup(apart=options.apart, told_s=options.told, queue=options.queue)
    for cell in cells(machine_of(), trace, setup):
        found.append(cell)
        print(row(cell), flush=True)
    missed = [cell for cell in found if cell.misses()]
    print(f"\n{trace.name}, {len(trace.requests):,} requests: {len(found) - len(missed)} of {len(found)} miss no bar")
    options.out.mkdir(parents=True, exist_ok=True)
    plain: Any = msgspec.to_builtins(found)
    (options.out / "fleet_bars.json").write_bytes(msgspec.json.format(msgspec.json.encode(plain)) + b"\n")
    try:
        draw(options.out / "fleet_bars.png", found)
    except PlotsUnavailable as error:
        print(error)


if __name__ == "__main__":
    main()
