"""The load of llm-d's published comparisons, as inference-perf's `shared_prefix` makes it, and bars on it:
`python -m benchmarks.shared_prefix [--loads held] [--seeds 1 2] [--out build]`; part of `make bench-fleet-bars`. Each run is
written to shared_prefix.json at once, and not made again until sources change.

Groups of prompts share a system prompt each; all prompts are asked in one shuffled order, again and again, in stages of a
rate. A first stage fills the caches and is not measured; the next begins when the engines have nothing left. Eight replicas
whose KV caches the last stage fills.

Bars: mean, median and p99 of the time to the first token, and tokens generated a second, as good as the best of llm-d's
scorers, vLLM's cache-aware router and consistent hashing, each with one picker for everything; ours with 1, 4 and 8 gateways
of one host, without and with the gateways' queue. A figure within `CLOSE` of the best counts as good: whether a replica holds
18 groups or 19 decides over some seconds of it. The weights were tuned on the loads `TUNED`; `HELD` are for checking.
"""

import argparse
import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from benchmarks.kept import Kept, fingerprint
from planner.simulate.engine import Job
from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec
from planner.simulate.gateway_queue import SimulatedQueue
from planner.simulate.machines import Machine, machine_of
from planner.simulate.plots import figure_maker
from planner.simulate.simulation_errors import PlotsUnavailable
from planner.simulate.traces import BLOCK_TOKENS, Trace, TraceRequest

OTHERS: Final = ("llm-d", "vllm-cache-aware", "consistent-hash")
GATEWAYS: Final = (1, 4, 8)
REPLICAS: Final = 8
KV_TOKENS: Final = 284_512
"""Of Qwen3-32B in bf16 on two H100."""
CLOSE: Final = 0.03
_PAUSE_S: Final = 60.0
_FIGURES: Final = ("mean_s", "median_s", "p99_s", "tokens_per_s")


class Stage(msgspec.Struct, frozen=True):
    """Requests at a rate, for some seconds."""

    per_s: float
    seconds: float


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of inference-perf's `shared_prefix`, in tokens, with a stage that fills the caches and one that is measured."""

    groups: int
    prompts: int
    """Prompts of each group."""
    system: int
    question: int
    output: int
    fill: Stage
    measured: Stage

    @property
    def filling(self) -> int:
        """Requests of the first stage."""
        return int(self.fill.per_s * self.fill.seconds)


# The first is llm-d's own at its highest rate, the second the same at half of it.
TUNED: Final = {
    "150 x 5, 60/s": Load(
        groups=150, prompts=5, system=6_000, question=1_200, output=1_000, fill=Stage(15, 50), measured=Stage(60, 25)
    ),
    "150 x 5, 30/s": Load(
        groups=150, prompts=5, system=6_000, question=1_200, output=1_000, fill=Stage(15, 50), measured=Stage(30, 40)
    ),
    "60 x 20, 40/s": Load(
        groups=60, prompts=20, system=8_192, question=1_024, output=700, fill=Stage(15, 80), measured=Stage(40, 37)
    ),
}
HELD: Final = {
    "300 x 4, 60/s": Load(
        groups=300, prompts=4, system=3_000, question=600, output=600, fill=Stage(20, 60), measured=Stage(60, 30)
    ),
    "100 x 10, 30/s": Load(
        groups=100, prompts=10, system=7_000, question=1_500, output=800, fill=Stage(15, 66), measured=Stage(30, 40)
    ),
    "40 x 40, 50/s": Load(
        groups=40, prompts=40, system=4_096, question=512, output=500, fill=Stage(20, 80), measured=Stage(50, 40)
    ),
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one picker, means over the seeds."""

    picker: str
    mean_s: float
    median_s: float
    p99_s: float
    tokens_per_s: float
    hit_rate: float


def shared_prefix(load: Load, seed: int) -> Trace:
    """Return the requests of both stages."""
    rng, ids = random.Random(f"shared/{seed}"), count()
    tokens, prompts = load.system + load.question, []
    for _ in range(load.groups):
        system = tuple(next(ids) for _ in range(load.system // BLOCK_TOKENS))
        for _ in range(load.prompts):
            own = tuple(next(ids) for _ in range(-(-tokens // BLOCK_TOKENS) - len(system)))
            prompts.append((*system, *own))
    rng.shuffle(prompts)
    found: list[TraceRequest] = []
    for stage, begins_s in ((load.fill, 0.0), (load.measured, load.fill.seconds + _PAUSE_S)):
        gaps = [rng.expovariate(1) for _ in range(int(stage.per_s * stage.seconds))]
        at_s, scale = begins_s, stage.seconds / sum(gaps)
        for gap in gaps:
            at_s += gap * scale
            found.append(TraceRequest(at_s, tokens, load.output, prompts[len(found) % len(prompts)]))
    return Trace(f"shared prefix {seed}", "mooncake", tuple(found))


def run(machine: Machine, load: Load, seed: int, policy: str, gateways: int = 1, *, queue: bool = False) -> Run:
    """Simulate a picker under the load."""
    jobs: list[Job] = []
    spec = FleetSpec(replicas=REPLICAS, engine=machine.engine, policy=policy, gateways=gateways, seed=seed)
    gate = SimulatedQueue(gateways) if queue else None
    trace = shared_prefix(load, seed)
    ends_s = FleetSimulation(spec, machine.steps, trace, gate=gate, arrived=jobs.append).run().duration_s
    named = policy if policy in OTHERS else f"ours, {gateways}{' with queue' if queue else ''}"
    return Run(picker=named, **_figures(jobs[load.filling :], ends_s))


def mean_of(runs: Sequence[Run]) -> Run:
    """Return the means of a picker's runs."""
    return Run(
        picker=runs[0].picker, **{key: fmean([getattr(each, key) for each in runs]) for key in (*_FIGURES, "hit_rate")}
    )


def _figures(jobs: list[Job], ends_s: float) -> dict[str, float]:
    waits = sorted((job.first_token_at or ends_s) - job.arrived_at for job in jobs)
    return {
        "mean_s": fmean(waits),
        "median_s": waits[len(waits) // 2],
        "p99_s": waits[int(0.99 * len(waits))],
        "tokens_per_s": sum(job.output_tokens for job in jobs) / (ends_s - jobs[0].arrived_at),
        "hit_rate": sum(job.cached_tokens for job in jobs) / sum(job.prompt_tokens for job in jobs),
    }


def misses(ours: Run, others: list[Run]) -> list[str]:
    """Return the bars that are missed, each with our figure over the best other's."""
    found = []
    for key in _FIGURES:
        figures = [float(getattr(each, key)) for each in others]
        ratio = getattr(ours, key) / (max(figures) if key == "tokens_per_s" else min(figures))
        if ratio < 1 - CLOSE if key == "tokens_per_s" else ratio > 1 + CLOSE:
            found.append(f"{key.rpartition('_')[0]} {ratio:.2f}")
    return found


def machine() -> Machine:
    """Return a replica with the KV cache of llm-d's comparison."""
    return machine_of(model="qwen3-32b", gpu="h100", tp=2, precision="bf16", kv_precision="bf16", kv_tokens=KV_TOKENS)


def compared(name: str, load: Load, seeds: list[int], kept: Kept[Run]) -> list[Run]:
    """Print a load's table in Markdown, with the least and most over the seeds of ours, and return the means, the others first."""
    replica = machine()
    pickers = [(policy, 1, False) for policy in OTHERS]
    pickers += [("prefix", each, queue) for queue in (False, True) for each in GATEWAYS]
    asked = {f"{name}: {picker}, seed {seed}": (picker, seed) for picker in pickers for seed in seeds}

    def measure(key: str) -> Run:
        (policy, gateways, queue), seed = asked[key]
        return run(replica, load, seed, policy, gateways, queue=queue)

    found: dict[tuple[str, int, bool], list[Run]] = {}
    for key, one in kept.each(list(asked), measure):
        found.setdefault(asked[key][0], []).append(one)
    runs = [mean_of(each) for each in found.values()]
    print(f"\n{name}\n\n| picker | mean, s | median, s | p99, s | tokens/s | cached | misses |\n|{'---|' * 7}")
    for mean, each in zip(runs, found.values(), strict=True):
        missed = "" if mean.picker in OTHERS else ", ".join(misses(mean, runs[: len(OTHERS)])) or "-"
        by_seed = " ".join(f"{seeded.mean_s:.2f}" for seeded in each)
        figures = f"{mean.median_s:.2f} | {mean.p99_s:.1f} | {mean.tokens_per_s:,.0f} | {mean.hit_rate:.3f}"
        print(f"| {mean.picker} | {mean.mean_s:.2f} ({by_seed}) | {figures} | {missed} |", flush=True)
    return runs


def draw(path: Path, found: dict[str, list[Run]]) -> None:
    """Draw the mean time to the first token of every picker, a panel for each load."""
    figure = figure_maker()(figsize=(4 * len(found), 4), layout="constrained")
    for place, (name, runs) in zip(figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True):
        place.barh([each.picker for each in runs], [each.mean_s for each in runs])
        place.invert_yaxis()
        place.set_title(name)
        place.set_xlabel("mean first token, s")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", choices=("tuned", "held"), default="held")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    loads = TUNED if options.loads == "tuned" else HELD
    kept = Kept(options.out / "shared_prefix.json", Run, fingerprint(Path(__file__)))
    found = {name: compared(name, load, options.seeds, kept) for name, load in loads.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        draw(options.out / f"shared_prefix_{options.loads}.png", found)
    except PlotsUnavailable as error:
        print(error)


if __name__ == "__main__":
    main()
