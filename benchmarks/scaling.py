"""The autoscaler against fixed fleets and two other rules, in simulated time:
`python -m benchmarks.scaling [--traces FOLDER] [--case code/4 …] [--out build]`.

A case is a trace and how many times its users come. Replicas are Llama 3 70B FP8 on two H100, which start in six minutes; a miss is
an answer whose first token is late or whose further tokens are slow on average, by the trace's aims. The bill is GPU-hours x (1 +
misses).

Bars, in each case: begun with as many replicas as the best fixed fleet in hindsight, the bill is at most 1.10 of that fleet's; no
rule of KEDA's (on the queue) and Knative's (on requests in flight: 70 a replica, its default, and in hindsight as many as the best
fixed fleet has) has a lower bill with no more misses; from two replicas that know nothing at most 5 % miss. The best fixed fleet is the cheapest of those
that keep the aims for nine tenths of answers, as the scaler is told to do, or of all where none does: by the bill alone one replica that
misses everything may be best, which is told beside it. Beside the cold start stands the least that any rule could miss: 64 replicas
ordered at once.

FOLDER has azure_code.csv and mooncake_conversation.jsonl, on which the scaler's constants were chosen, beside a made-up rise and
fall. azure_conv.csv and the first four made-up chats showed faults and were looked at again; mooncake_synthetic.jsonl, the fifth chats and
single questions were kept apart, as are chats with seeds 51 to 53. Cases whose file is not there are told and left out; without a folder the
made-up ones are run. Each run of a case is written to scaling.json at once, and not made again until sources change; scaling.png is drawn of the cases
asked for. The same figures on any machine.
"""

import argparse
import bisect
import functools
import random
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.kept import Kept, fingerprint
from benchmarks.made_up_traces import made_up
from planner.simulate.fleet_simulation import FleetSimulation, FleetSpec, Measured, Sample
from planner.simulate.machines import Machine, machine_of
from planner.simulate.plots import figure_maker
from planner.simulate.simulation_errors import PlotsUnavailable
from planner.simulate.traces import Trace, multiplied, read_trace
from selfhosted.config import ScaleConfig
from selfhosted.scale.policy import ScaleDecision, ScaleRule
from selfhosted.scale.rules import ConcurrencyRule
from selfhosted.scale.signals import Signals

COLD_START_S: Final = 360.0
MOST_REPLICAS: Final = 64
COLD: Final = 2
WITHIN: Final = 1.10
COLD_MISSES: Final = 0.05
USERS: Final = (1, 4)
OURS: Final = "weighbridge"
OTHERS: Final = ("keda", "knative")
_HOUR_S: Final = 3_600.0
_ALLOWED: Final = 1 - ScaleConfig().ttft_attainment


class Aims(msgspec.Struct, frozen=True):
    """What an answer should keep, in seconds."""

    ttft_s: float = 1.0
    tpot_s: float = 0.05


LONG: Final = Aims(6.0, 0.1)
"""Of prompts of 12,000 tokens, whose first token takes two seconds on an idle replica."""


def rise_and_fall() -> Trace:
    """Return a made-up hour that begins at half its mean rate, triples, and falls to two fifths of that."""
    trace = made_up("single", 1, 9_000)
    rates = [0.5 + min(second, 3_420 - 0.9 * second) / 1_800 for second in range(3_600)]
    ends = list(accumulate(rates))
    scale = trace.duration_s / ends[-1]

    def moved(at_s: float) -> float:
        place = min(bisect.bisect_left(ends, at_s / scale), len(ends) - 1)
        return place + 1 - (ends[place] - at_s / scale) / rates[place]

    requests = tuple(msgspec.structs.replace(each, at_s=max(0.0, moved(each.at_s))) for each in trace.requests)
    return Trace("rise and fall", trace.format, requests)


class Source(msgspec.Struct, frozen=True):
    """A trace, how it is had, and what it is for."""

    read: Callable[[Path], Trace]
    aims: Aims = Aims()
    kept_apart: bool = False
    file: str = ""
    """Its name in the folder; empty for what is made up."""


def _from_file(name: str, aims: Aims = Aims(), *, kept_apart: bool = False) -> Source:  # noqa: B008 - frozen
    return Source(lambda folder: read_trace(folder / name), aims, kept_apart=kept_apart, file=name)


def _chats(seed: int, _: Path) -> Trace:
    return made_up("chats", seed, 9_000)


SOURCES: Final[dict[str, Source]] = {
    "rise": Source(lambda _: rise_and_fall()),
    "chats": Source(lambda _: made_up("chats", 3, 9_000)),
    "others": Source(lambda _: made_up("chats", 11, 9_000)),
    "third": Source(lambda _: made_up("chats", 21, 9_000)),
    "fourth": Source(lambda _: made_up("chats", 22, 9_000)),
    "apart": Source(lambda _: made_up("chats", 41, 9_000), kept_apart=True),
    **{f"chats-{seed}": Source(functools.partial(_chats, seed), kept_apart=True) for seed in (51, 52, 53)},
    "single": Source(lambda _: made_up("single", 7, 9_000), kept_apart=True),
    "code": _from_file("azure_code.csv"),
    "talk": _from_file("mooncake_conversation.jsonl", LONG),
    "conv": _from_file("azure_conv.csv"),
    "synthetic": _from_file("mooncake_synthetic.jsonl", LONG, kept_apart=True),
}


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation."""

    scaler: str
    replicas: int
    """At the beginning."""
    most: int
    gpu_hours: float
    missed: float
    samples: tuple[Sample, ...] = ()

    @property
    def bill(self) -> float:
        return self.gpu_hours * (1 + self.missed)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one trace at one load."""

    name: str
    kept_apart: bool
    fixed: tuple[Ran, ...]
    ours: Ran
    others: tuple[Ran, ...]
    """From as many as the best fixed fleet, as ours."""
    cold: Ran
    at_once: Ran

    @property
    def best(self) -> Ran:
        return best_of(self.fixed)

    @property
    def ratio(self) -> float:
        """Our bill over the best fixed fleet's."""
        return self.ours.bill / self.best.bill

    @property
    def ratio_by_bill(self) -> float:
        """The same over the least bill of all fixed fleets, whatever they miss."""
        return self.ours.bill / min(each.bill for each in self.fixed)

    def missed_bars(self) -> list[str]:
        """Return the bars that are missed, in words."""
        found = [] if self.ratio <= WITHIN else [f"{self.ratio:.2f} of the best fixed fleet's bill"]
        found += [
            f"bill above {each.scaler}'s"
            for each in self.others
            if each.bill <= self.ours.bill and each.missed <= max(self.ours.missed, _ALLOWED)
        ]
        if self.cold.missed > COLD_MISSES:
            found.append(f"cold {self.cold.missed:.1%} missed, {self.at_once.missed:.1%} at the least")
        return found


def best_of(fixed: tuple[Ran, ...]) -> Ran:
    """Return the cheapest of the fleets that keep the aims, or of all where none does."""
    keep = [each for each in fixed if each.missed <= _ALLOWED]
    return min(keep or fixed, key=lambda each: each.bill)


class AtOnce:
    """A rule that orders the most at once."""

    def decide(self, signals: Signals) -> ScaleDecision:
        del signals
        return ScaleDecision(MOST_REPLICAS, "maximum", "all at once")


def run(
    trace: Trace, aims: Aims, machine: Machine, scaler: str, replicas: int, *, rule: ScaleRule | None = None
) -> Ran:
    """Simulate one rule; `rule` in place of the named one."""
    spec = FleetSpec(
        replicas=replicas,
        engine=machine.engine,
        scaler="fixed" if rule is not None else scaler,
        scale=_scale(aims),
        ttft_target_s=aims.ttft_s,
        tpot_target_s=aims.tpot_s,
    )
    return ran_of(scaler, machine, FleetSimulation(spec, machine.steps, trace, rule=rule).run())


def _scale(aims: Aims) -> ScaleConfig:
    return ScaleConfig(
        min_replicas=1,
        max_replicas=MOST_REPLICAS,
        cold_start_s=COLD_START_S,
        ttft_target_s=aims.ttft_s,
        tpot_target_s=aims.tpot_s,
    )


def in_flight(ran: Ran) -> float:
    """Return the mean of requests that a replica has in flight."""
    held = [(each.running + each.waiting) / each.ready for each in ran.samples if each.ready]
    return sum(held) / max(1, len(held))


def ran_of(scaler: str, machine: Machine, measured: Measured) -> Ran:
    return Ran(
        scaler=scaler,
        replicas=measured.spec.replicas,
        most=measured.peak_replicas,
        gpu_hours=measured.replica_s * machine.gpus / _HOUR_S,
        missed=measured.missed / max(1, measured.served),
        samples=tuple(measured.samples),
    )


def fixed_fleets(one: Callable[[int], Ran]) -> Iterator[Ran]:
    """Run fleets of 1, 2, 3 and on, each about a sixth larger, until one keeps the aims, and with one replica fewer until one does not."""
    replicas, lost = 1, 0
    while True:
        found = one(replicas)
        yield found
        if found.missed <= _ALLOWED or replicas >= MOST_REPLICAS:
            break
        lost, replicas = replicas, replicas + max(1, replicas // 6)
    for fewer in range(replicas - 1, lost, -1):
        found = one(fewer)
        yield found
        if found.missed > _ALLOWED:
            break


def case_of(name: str, folder: Path, machine: Machine, kept: Kept[Ran]) -> Case:
    """Run all that a case compares and is not known yet. Raises KeyError for an unknown trace."""
    source, users = name.split("/")
    told = SOURCES[source]
    traces: list[Trace] = []

    def one(scaler: str, replicas: int, rule: ScaleRule | None = None) -> Ran:
        def measure() -> Ran:
            if not traces:
                traces.append(multiplied(told.read(folder), int(users), random.Random(1)))
            found = run(traces[0], told.aims, machine, scaler, replicas, rule=rule)
            line = f"{name}: {scaler}, {replicas} replicas at first: {found.gpu_hours:.1f} h, {found.missed:.1%} missed"
            print(line, file=sys.stderr, flush=True)
            return found

        return kept.of(f"{name}, {scaler}, {replicas}", measure)

    fixed = tuple(fixed_fleets(lambda replicas: one("fixed", replicas)))
    best = best_of(fixed)
    begin = best.replicas
    tuned = ConcurrencyRule(_scale(told.aims), target=max(1.0, in_flight(best)))
    return Case(
        name=name,
        kept_apart=told.kept_apart,
        fixed=tuple(msgspec.structs.replace(each, samples=()) for each in fixed),
        ours=one(OURS, begin),
        others=(*(one(other, begin) for other in OTHERS), one("knative in hindsight", begin, tuned)),
        cold=one(OURS, COLD),
        at_once=one("at once", COLD, AtOnce()),
    )


def line_of(case: Case) -> str:
    """Return the case's figures in one line."""
    others = "  ".join(f"{each.scaler} {each.gpu_hours:.1f} h {each.missed:.1%}" for each in case.others)
    return (
        f"{case.name:12} {'apart' if case.kept_apart else '':6} best fixed {case.best.replicas:>2}: {case.best.gpu_hours:.1f} h "
        f"{case.best.missed:.1%}  ours {case.ours.gpu_hours:.1f} h {case.ours.missed:.1%} ({case.ratio:.2f}; "
        f"{case.ratio_by_bill:.2f} of the least bill)  {others}  cold {case.cold.gpu_hours:.1f} h {case.cold.missed:.1%}, "
        f"at once {case.at_once.missed:.1%}  {'; '.join(case.missed_bars()) or 'met'}"
    )


def draw(path: Path, cases: list[Case]) -> Path:
    """Draw the replicas of each case, ours warm and cold beside the others' and the best fixed fleet."""
    figure = figure_maker()(figsize=(11, 2.6 * len(cases)), layout="constrained")
    for axes, case in zip(figure.subplots(len(cases), 1, squeeze=False)[:, 0], cases, strict=True):
        runs = ((OURS, case.ours), (f"{OURS}, cold", case.cold), *((each.scaler, each) for each in case.others))
        for label, ran in runs:
            up = [sample.ready + sample.starting + sample.draining for sample in ran.samples]
            axes.step(
                [sample.at_s / 60 for sample in ran.samples],
                up,
                where="post",
                linewidth=1,
                label=f"{label}: {ran.gpu_hours:.1f} h, {ran.missed:.1%} missed",
            )
        axes.axhline(case.best.replicas, color="grey", linestyle="--", linewidth=0.8)
        axes.set_title(
            f"{case.name}: best fixed {case.best.gpu_hours:.1f} h, {case.best.missed:.1%} missed", fontsize=9
        )
        axes.set_ylabel("replicas that cost")
        axes.legend(fontsize=7, loc="upper right")
    axes.set_xlabel("minutes")
    figure.savefig(path, dpi=110)
    return path


def names(folder: Path | None) -> tuple[list[str], list[str]]:
    """Return all cases whose trace is there, those of one time its users first; and what is left out, in words."""
    found, left_out = [], []
    for name, source in SOURCES.items():
        if not source.file or (folder is not None and (folder / source.file).exists()):
            found.append(name)
        else:
            left_out.append(
                f"{name}: left out, as {source.file} is not {'given' if folder is None else f'in {folder}'}"
            )
    return [f"{name}/{users}" for users in USERS for name in found], left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="the folder; without it only made-up cases are run")
    parser.add_argument("--case", action="append", help="such as code/4; again for more; all if left out")
    parser.add_argument("--out", type=Path, default=Path("build"))
    options = parser.parse_args()
    machine = machine_of(tp=2)
    wanted, left_out = names(options.traces)
    if not options.case:
        print("\n".join(left_out), flush=True)
    folder = options.traces or Path()
    files = [folder / source.file for source in SOURCES.values() if source.file]
    file = options.out / "scaling.json"
    kept = Kept(file, Ran, fingerprint(Path(__file__), *files))
    cases: list[Case] = []
    for name in options.case or wanted:
        cases.append(case_of(name, folder, machine, kept))
        print(line_of(cases[-1]), flush=True)
    missed = [case for case in cases if case.missed_bars()]
    print(f"bars met in {len(cases) - len(missed)} of {len(cases)} cases; written: {file}")
    try:
        print(f"drawn: {draw(options.out / 'scaling.png', cases)}")
    except PlotsUnavailable as error:
        print(error)


if __name__ == "__main__":
    main()
