"""The balancer against the best of the usual ones, over fleets, loads and gateways, in simulated time:
`python -m benchmarks.fleet_bars [--traces FOLDER | --kind chats --seed 1] [--limit 1500] [--repeats 5] [--places 4/0.5/8 …]
[--apart [--told 0.15]]`.

Bars: mean and p99 of the time to the first token no later than the best of round robin, consistent hashing with bounded
loads, vLLM's cache-aware router and llm-d's scorers, and, where the trace takes longer than it was recorded in, throughput within
3 % of the best; and the gateways' queue before ours makes neither mean nor p99 later by more than 3 %. Load 1 x is the trace's rate for eight replicas. FOLDER has mooncake_conversation.jsonl; without one a
made-up trace is used (benchmarks/made_up_traces.py). Each repeat takes other requests (the trace's next `--limit`, the made-up
trace's next seed) and other dice; with several a bar is missed where the median of ours over the best other's is, so that no
single long request decides. Gateways are of one host, with `--apart` each of its own, which tells
the others after `--told` seconds, or nobody. The same figures on any machine. Each place is written to fleet_bars.json at once, and not
measured again until sources change; of the whole grid fleet_bars.png is drawn.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Final

import msgspec

from benchmarks.kept import Kept, fingerprint
from benchmarks.made_up_traces import KINDS, made_up
from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec
from planner.simulate.gateway_queue import SimulatedQueue
from planner.simulate.machines import Machine, machine_of
from planner.simulate.plots import figure_maker
from planner.simulate.simulation_errors import PlotsUnavailable
from planner.simulate.simulation_report import report_of
from planner.simulate.traces import Trace, read_trace, sped_up

OURS: Final = "prefix"
QUEUED: Final = "prefix, queue"
"""With the gateways' queue before it."""
OTHERS: Final = ("round-robin", "consistent-hash", "vllm-cache-aware", "llm-d")
REPLICAS: Final = (4, 8, 16)
LOADS: Final = (0.5, 1.0, 2.0, 3.0)
GATEWAYS: Final = (1, 4, 8)
SATURATED: Final = 1.05
"""A run that takes so many times as long as its trace is saturated."""
THROUGHPUT: Final = 0.97
WORSE: Final = 1.03
"""How many times later the queue may make ours."""
_AS_RECORDED: Final = 8


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation."""

    policy: str
    mean_s: float
    p99_s: float
    tokens_per_s: float
    hit_rate: float
    saturated: bool


class Against(msgspec.Struct, frozen=True):
    """One of our figures over the best other's, over the repeats."""

    figure: str
    median: float
    least: float
    most: float
    best: str
    """The policy that was best in the repeat nearest the median."""

    def __str__(self) -> str:
        spread = "" if self.least == self.most else f" ({self.least:.2f} to {self.most:.2f})"
        return f"{self.figure} {self.median:.2f} of {self.best}{spread}"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """All policies at one place of the grid."""

    replicas: int
    load: float
    gateways: int
    repeats: tuple[tuple[Run, ...], ...]
    """A run of each policy for each repeat: ours, with the queue, and the others."""

    def against(self, figure: str, key: str, *, most: bool = False) -> Against:
        """Return our figure over the best other's, which is the least, or with `most` the most."""
        found = []
        for ours, _, *others in self.repeats:
            best = (max if most else min)(others, key=lambda run: float(getattr(run, key)))
            found.append((getattr(ours, key) / max(1e-9, getattr(best, key)), best.policy))
        ratios = [ratio for ratio, _ in found]
        middle = median(ratios)
        nearest = min(found, key=lambda each: abs(each[0] - middle))
        return Against(figure, middle, min(ratios), max(ratios), nearest[1])

    def queued(self, figure: str, key: str) -> Against:
        """Return our figure with the queue over that without it."""
        ratios = [getattr(queued, key) / max(1e-9, getattr(ours, key)) for ours, queued, *_ in self.repeats]
        return Against(f"queue {figure}", median(ratios), min(ratios), max(ratios), OURS)

    @property
    def saturated(self) -> bool:
        """True if most of the repeats are saturated."""
        return 2 * sum(ours.saturated for ours, *_ in self.repeats) > len(self.repeats)

    def misses(self) -> list[Against]:
        """Return the bars that are missed."""
        late = [self.against("mean", "mean_s"), self.against("p99", "p99_s")]
        found = [each for each in late if each.median > 1]
        queued = [self.queued("mean", "mean_s"), self.queued("p99", "p99_s")]
        found += [each for each in queued if each.median > WORSE]
        done = self.against("throughput", "tokens_per_s", most=True)
        return [*found, done] if self.saturated and done.median < THROUGHPUT else found


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The gateways' relation to each other."""

    apart: bool = False
    """Each is on a host of its own."""
    told_s: float | None = None
    """Seconds after which such gateways hear of each other's requests; None: never."""


def grid() -> Iterator[tuple[int, float, int]]:
    """Return the replicas, load and gateways of every place."""
    for replicas in REPLICAS:
        for load in LOADS:
            for gateways in GATEWAYS:
                yield replicas, load, gateways


def cell_of(machine: Machine, traces: Sequence[Trace], place: tuple[int, float, int], setup: Setup) -> Cell:
    """Measure one place of the grid: a repeat for each trace."""
    replicas, load, gateways = place
    repeats = []
    for seed, trace in enumerate(traces):
        faster = sped_up(trace, load * replicas / _AS_RECORDED)
        runs = [_run(machine, faster, policy, replicas, gateways, setup, seed) for policy in (OURS, QUEUED, *OTHERS)]
        repeats.append(tuple(runs))
    return Cell(replicas=replicas, load=load, gateways=gateways, repeats=tuple(repeats))


def parts(trace: Trace, count: int) -> list[Trace]:
    """Cut a trace into so many, one after the other."""
    size = len(trace.requests) // count
    found = []
    for first in range(0, size * count, size):
        some = trace.requests[first : first + size]
        moved = tuple(msgspec.structs.replace(each, at_s=each.at_s - some[0].at_s) for each in some)
        found.append(Trace(trace.name, trace.format, moved))
    return found


def _run(machine: Machine, trace: Trace, policy: str, replicas: int, gateways: int, setup: Setup, seed: int) -> Run:
    spec = FleetSpec(
        replicas=replicas,
        engine=machine.engine,
        policy=OURS if policy == QUEUED else policy,
        gateways=gateways,
        hosts=gateways if setup.apart else 1,
        hosts_told_after_s=setup.told_s,
        seed=seed,
    )
    gate = SimulatedQueue(gateways) if policy == QUEUED else None
    report = report_of(FleetSimulation(spec, machine.steps, trace, gate=gate).run(), machine, trace)
    return Run(
        policy=policy,
        mean_s=report.ttft_s.mean or 0.0,
        p99_s=report.ttft_s.p99 or 0.0,
        tokens_per_s=(report.prompt_tokens + report.output_tokens) / report.duration_s,
        hit_rate=report.prefix_hit_rate,
        saturated=report.duration_s > SATURATED * trace.duration_s,
    )


def row(cell: Cell) -> str:
    """Return a line of the table, in Markdown: medians of mean, p99 and tokens a second."""
    told = []
    for runs in zip(*cell.repeats, strict=True):
        mean_s, p99_s, tokens = (
            median([getattr(run, key) for run in runs]) for key in ("mean_s", "p99_s", "tokens_per_s")
        )
        told.append(f"{mean_s:.2f} / {p99_s:.1f}, {tokens / 1_000:,.0f}k")
    missed = ", ".join(str(each) for each in cell.misses()) or "-"
    return f"| {cell.replicas} | {cell.load:g} | {cell.gateways} | {' | '.join(told)} | {missed} |"


def heading() -> str:
    """Return the table's first two lines."""
    names = ("replicas", "load", "gateways", OURS, QUEUED, *OTHERS, "misses")
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def summary(found: Sequence[Cell]) -> str:
    """Return the means over all places, with the least and the most."""
    told = []
    for figures in (
        [cell.against("mean", "mean_s") for cell in found],
        [cell.against("p99", "p99_s") for cell in found],
        [cell.against("throughput", "tokens_per_s", most=True) for cell in found],
        [cell.queued("mean", "mean_s") for cell in found],
        [cell.queued("p99", "p99_s") for cell in found],
    ):
        ratios = [each.median for each in figures]
        told.append(f"{figures[0].figure} {fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return "\nof the best other's, and with the queue of ours without it: " + "; ".join(told)


def draw(path: Path, found: list[Cell]) -> None:
    """Draw the mean time to the first token over the best other's, one line for each number of gateways."""
    figure = figure_maker()(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, len(REPLICAS), sharey=True)
    for place, replicas in zip(axes, REPLICAS, strict=True):
        for gateways in GATEWAYS:
            chosen = [cell for cell in found if (cell.replicas, cell.gateways) == (replicas, gateways)]
            ratios = [cell.against("mean", "mean_s").median for cell in chosen]
            place.plot([cell.load for cell in chosen], ratios, marker="o", label=f"{gateways} gateways")
        place.axhline(1.0, color="grey", linewidth=0.8)
        place.set_title(f"{replicas} replicas")
        place.set_xlabel("load")
    axes[0].set_ylabel("mean first token / best other's")
    axes[0].legend()
    figure.savefig(path)


def _place(text: str) -> tuple[int, float, int]:
    replicas, load, gateways = text.split("/")
    return int(replicas), float(load), int(gateways)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--limit", type=int, default=1_500, help="the first so many requests")
    parser.add_argument("--kind", choices=tuple(KINDS), default="chats", help="of a made-up trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1, help="with other requests and other dice")
    parser.add_argument(
        "--places", type=_place, nargs="+", help="replicas/load/gateways, as 4/0.5/8; without it the whole grid"
    )
    parser.add_argument("--apart", action="store_true", help="each gateway on a host of its own")
    parser.add_argument(
        "--told", type=float, help="hosts hear of each other's requests after so many seconds; else never"
    )
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    file = options.traces / "mooncake_conversation.jsonl" if options.traces else None
    if file is None:
        traces = [made_up(options.kind, options.seed + each, options.limit) for each in range(options.repeats)]
    else:
        whole = read_trace(file, limit=options.limit * options.repeats)
        traces = parts(whole, options.repeats)
    setup = Setup(apart=options.apart, told_s=options.told)
    machine = machine_of()
    asked = f"{options.repeats} x {options.limit} of {traces[0].name}"
    if options.apart:
        asked += f", hosts apart, told after {options.told} s" if options.told is not None else ", hosts apart"
    places = {f"{asked}, {'/'.join(f'{part:g}' for part in place)}": place for place in options.places or list(grid())}
    kept = Kept(options.out / "fleet_bars.json", Cell, fingerprint(Path(__file__), *([file] if file else [])))
    found: list[Cell] = []
    print(heading(), flush=True)
    for _, cell in kept.each(list(places), lambda name: cell_of(machine, traces, places[name], setup)):
        found.append(cell)
        print(row(cell), flush=True)
    print(summary(found))
    missed = [cell for cell in found if cell.misses()]
    about = f"{traces[0].name}, {options.repeats} x {options.limit:,} requests"
    print(f"\n{about}: {len(found) - len(missed)} of {len(found)} miss no bar")
    if options.places:
        return
    try:
        draw(options.out / "fleet_bars.png", found)
    except PlotsUnavailable as error:
        print(error)


if __name__ == "__main__":
    main()
