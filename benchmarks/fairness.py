"""One team at ten times its share, and what the other nine notice of it.

    python -m benchmarks.fairness [--quick] [--json build/fairness.json]

Ten teams of equal weight share an engine of limited parallelism behind one queue. In each round the nine are alone,
then together with the heavy one, then alone again, each time with the very same requests at the same moments; so the
machine's noise falls on all, and how far the two solo parts are apart tells how large it is. A second gateway has teams
of different weights that all ask for more than their share. Exit status 1 means that a reply was wrong or a connection
broke, not that an aim was missed. See docs/benchmarks.md.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from benchmarks import figures, load_test, queued
from benchmarks.arrivals import Stream, arrivals
from benchmarks.figures import number, percentile, quantiles_ms, ratio, share
from benchmarks.load_test import Stage
from benchmarks.open_loop import Reply
from benchmarks.outcomes import REFUSALS, Window, is_good, problems, served_tokens_per_s, summary
from benchmarks.processes import Cores, choose_cores
from benchmarks.queued import Capacity
from benchmarks.sites import Site, Team

SLOTS: Final = 48
TEAMS: Final = tuple(Team(f"team_{number}", spill_over=False) for number in range(10))
HEAVY: Final = 0
TIMES_ITS_SHARE: Final = 10.0
LIGHT_OF_SHARE: Final = 0.5
"""The nine ask for half of what is theirs, so that alone they hardly wait."""
WEIGHTS: Final = (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0)
_EACH_OF_CAPACITY: Final = 0.22
"""More than the share of the heaviest weight, so that every team has work waiting."""
AIM_RATIO: Final = 1.05
_DEADLINE_S: Final = 10.0
_PATIENCE_S: Final = 12.0
_PAUSE_S: Final = 1.0
_SEED: Final = 11
PARTS: Final = ("alone", "together", "alone again")


class Size(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    part_s: float
    warm_s: float
    weights_s: float


FULL: Final = Size(rounds=4, part_s=15.0, warm_s=3.0, weights_s=30.0)
QUICK: Final = Size(rounds=1, part_s=6.0, warm_s=2.0, weights_s=10.0)


def latencies_us(replies: Sequence[Reply], caller: int | None = None) -> list[int]:
    """Return the latencies of whole answers: one caller's, or all but the heavy one's."""
    return [
        reply.latency_us
        for reply in replies
        if is_good(reply, _DEADLINE_S) and (reply.caller != HEAVY if caller is None else reply.caller == caller)
    ]


def added_us(before: Sequence[Reply], after: Sequence[Reply]) -> list[int]:
    """Return the microseconds by which the same requests took longer the second time, where both were answered."""
    known = {(reply.caller, reply.at_s): reply.latency_us for reply in before if is_good(reply, _DEADLINE_S)}
    return [
        reply.latency_us - known[reply.caller, reply.at_s]
        for reply in after
        if is_good(reply, _DEADLINE_S) and (reply.caller, reply.at_s) in known
    ]


def shares(replies: Sequence[Reply], window: Window) -> dict[int, float]:
    """Return the part of all tokens served in the window that each caller got; what ended within it counts."""
    served: dict[int, int] = {}
    for reply in replies:
        if is_good(reply, _DEADLINE_S) and window.from_s <= reply.at_s + reply.latency_us / 1e6 < window.to_s:
            served[reply.caller] = served.get(reply.caller, 0) + reply.tokens + queued.PROMPT_TOKENS
    total = sum(served.values())
    return {caller: tokens / total for caller, tokens in sorted(served.items())}


def compared(parts: Mapping[str, Sequence[Reply]], caller: int | None = None) -> dict[str, Any]:
    """Compare the latencies together with those alone, and the two runs alone with each other."""
    alone, again = latencies_us(parts["alone"], caller), latencies_us(parts["alone again"], caller)
    together = latencies_us(parts["together"], caller)
    told: dict[str, Any] = {"count": len(together)}
    for name, at in (("p50", 0.5), ("p99", 0.99)):
        solo = percentile([*alone, *again], at)
        told[f"solo_{name}_ms"] = solo / 1000
        told[f"together_{name}_ms"] = percentile(together, at) / 1000
        told[f"{name}_ratio"] = ratio(percentile(together, at), solo)
        told[f"{name}_noise_ratio"] = ratio(percentile(again, at), percentile(alone, at))
    return told


class _Tests:
    """The loads of one gateway after another."""

    def __init__(self, stage: Stage, cores: Cores, size: Size) -> None:
        self._stage = stage
        self._cores = cores
        self._size = size
        self._capacity = Capacity(SLOTS)

    def rounds(self, site: Site) -> dict[str, Any]:
        share_per_s = self._capacity.requests_per_s / len(TEAMS)
        light = [Stream(caller, LIGHT_OF_SHARE * share_per_s) for caller in range(len(TEAMS)) if caller != HEAVY]
        heavy = Stream(HEAVY, TIMES_ITS_SHARE * share_per_s)
        parts: dict[str, list[Reply]] = {name: [] for name in PARTS}
        # Rounds are told apart by their moments, so that a request of one is not taken for one of another.
        for number_of in range(self._size.rounds):
            for name in PARTS:
                streams = [*light, heavy] if name == "together" else light
                replies = self._load(f"round-{number_of + 1}-{name.replace(' ', '-')}", site, streams, number_of)
                counted = Window(self._size.warm_s, self._size.part_s).of(replies)
                parts[name] += [
                    msgspec.structs.replace(reply, at_s=reply.at_s + number_of * self._size.part_s) for reply in counted
                ]
            self._stage.say(self._said(number_of, parts))
        return self._told(parts)

    def _said(self, number_of: int, parts: Mapping[str, Sequence[Reply]]) -> str:
        told = compared(parts)
        return (
            f"round {number_of + 1} of {self._size.rounds}: the nine at p99 {number(told['solo_p99_ms'], 0)} ms alone, "
            f"{number(told['together_p99_ms'], 0)} ms together"
        )

    def _told(self, parts: Mapping[str, Sequence[Reply]]) -> dict[str, Any]:
        teams = {TEAMS[caller].team_id: compared(parts, caller) for caller in range(len(TEAMS)) if caller != HEAVY}
        seconds = self._size.rounds * (self._size.part_s - self._size.warm_s)
        window = Window(0.0, seconds)
        heavy = [msgspec.structs.replace(reply, at_s=0.0) for reply in parts["together"] if reply.caller == HEAVY]
        light = [reply for reply in parts["together"] if reply.caller != HEAVY]
        alone = [*parts["alone"], *parts["alone again"]]
        added = added_us(parts["alone"], parts["together"])
        return {
            "all_nine": compared(parts),
            "worst_p99_ratio": max((each["p99_ratio"] or 0.0 for each in teams.values()), default=None),
            "worst_p99_noise_ratio": max((each["p99_noise_ratio"] or 0.0 for each in teams.values()), default=None),
            "teams": teams,
            "first_token_alone": quantiles_ms([reply.ttft_us for reply in alone if reply.ttft_us]),
            "first_token_together": quantiles_ms([reply.ttft_us for reply in light if reply.ttft_us]),
            "added": quantiles_ms(added),
            "added_noise": quantiles_ms(added_us(parts["alone"], parts["alone again"])),
            "light_refused_alone": sum(reply.status in REFUSALS for reply in alone),
            "light_refused_together": sum(reply.status in REFUSALS for reply in light),
            "heavy": summary(heavy, window, _DEADLINE_S),
            "light_goodput_per_s": len(latencies_us(light)) / seconds,
        }

    def weights(self, site: Site) -> dict[str, Any]:
        each_per_s = _EACH_OF_CAPACITY * self._capacity.requests_per_s
        streams = [Stream(caller, each_per_s) for caller in range(len(TEAMS))]
        seconds = self._size.weights_s
        replies = self._load("weights", site, streams, 0, seconds)
        # What came first found an empty engine; what comes last would be served when the others have gone.
        window = Window(seconds / 4, seconds)
        got = shares(replies, window)
        due = [weight / sum(WEIGHTS) for weight in WEIGHTS]
        off = [got.get(caller, 0.0) / fair - 1 for caller, fair in enumerate(due)]
        return {
            "offered_of_capacity": _EACH_OF_CAPACITY * len(TEAMS),
            "weights": dict(zip([team.team_id for team in TEAMS], WEIGHTS, strict=True)),
            "shares": {TEAMS[caller].team_id: part for caller, part in got.items()},
            "reached_of_share": {TEAMS[caller].team_id: 1 + each for caller, each in enumerate(off)},
            "most_off": max(map(abs, off)),
            "engine_use": served_tokens_per_s(replies, window, queued.OURS) / self._capacity.tokens_per_s,
        }

    def _load(
        self, name: str, site: Site, streams: Sequence[Stream], number_of: int, seconds: float | None = None
    ) -> list[Reply]:
        part_s = self._size.part_s if seconds is None else seconds
        loaded = queued.drive(
            self._stage, name, site, arrivals(streams, part_s, queued.SIZES, _SEED + number_of), self._cores,
            teams=TEAMS, seconds=part_s, timeout_ms=None, patience_s=_PATIENCE_S,
        )  # fmt: skip
        self._stage.problems += [
            f"{name}: {kind} ({count} times)" for kind, count in problems(loaded.replies, _DEADLINE_S).items()
        ]
        time.sleep(_PAUSE_S)
        return loaded.replies


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL
    cores = choose_cores()
    stage.say(cores.describe())
    capacity = Capacity(SLOTS)
    # Of so few places a tenth, the default, is less than the nine need at once now and then; see docs/benchmarks.md.
    queue = {"tokens_in_flight": capacity.tokens_in_flight, "light_share": 0.2}
    ours = queued.start_engine(stage, "engine", SLOTS, cores)
    tests = _Tests(stage, cores, size)
    site = queued.start_gateway(stage, "equal", ours, TEAMS, cores, queue=queue)
    rounds = tests.rounds(site)
    site.stop()
    weighted = [msgspec.structs.replace(team, weight=weight) for team, weight in zip(TEAMS, WEIGHTS, strict=True)]
    site = queued.start_gateway(stage, "weighted", ours, weighted, cores, queue=queue)
    weights = tests.weights(site)
    site.stop()
    return {
        "capacity_per_s": capacity.requests_per_s,
        "slots": SLOTS,
        "tokens_in_flight": capacity.tokens_in_flight,
        "heavy_times_its_share": TIMES_ITS_SHARE,
        "light_of_share": LIGHT_OF_SHARE,
        "pinning": cores.describe(),
        **rounds,
        "weighted": weights,
    }


def show(report: dict[str, Any]) -> None:
    heads = (
        "the other nine",
        "answers",
        "alone p50",
        "together",
        "ratio",
        "alone p99",
        "together",
        "ratio",
        "noise p99",
    )

    def row(name: str, told: dict[str, Any]) -> list[str]:
        cells = [number(told[f"{where}_p50_ms"], 1) for where in ("solo", "together")] + [number(told["p50_ratio"], 3)]
        cells += [number(told[f"{where}_p99_ms"], 1) for where in ("solo", "together")] + [number(told["p99_ratio"], 3)]
        return [name, f"{told['count']:,}", *cells, number(told["p99_noise_ratio"], 3)]

    rows = [row(name, told) for name, told in report["teams"].items()]
    print(figures.table(heads, [*rows, row("all nine", report["all_nine"])]))
    added, noise = report["added"], report["added_noise"]
    print(
        f"\nthe same request together rather than alone, ms: p50 {number(added['p50_ms'], 1)}, p99 {number(added['p99_ms'], 1)} "
        f"(alone twice: {number(noise['p50_ms'], 1)}, {number(noise['p99_ms'], 1)})"
        f"\nfirst token of the nine, p99, ms: {number(report['first_token_alone']['p99_ms'], 1)} alone, "
        f"{number(report['first_token_together']['p99_ms'], 1)} together"
        f"\nrefused of the nine: {report['light_refused_alone']} alone, {report['light_refused_together']} together"
        f"\nthe heavy team: {number(report['heavy']['offered_per_s'], 1)} a second asked, "
        f"{number(report['heavy']['goodput_per_s'], 1)} answered, {share(report['heavy']['refused_share'])} refused"
        f"\nall nine at p99, together / alone    {number(report['all_nine']['p99_ratio'], 3)}  (aim: at most {AIM_RATIO})\n"
    )
    weighted = report["weighted"]
    rows = [
        [team, number(weight, 0), share(weighted["shares"].get(team)), number(weighted["reached_of_share"][team], 3)]
        for team, weight in weighted["weights"].items()
    ]
    print(figures.table(("team", "weight", "got", "of its share"), rows))
    print(f"\nfarthest from its share: {share(weighted['most_off'])}; engine in use {share(weighted['engine_use'])}")


def main() -> int:
    return load_test.run("fairness", __doc__, measure, show)


if __name__ == "__main__":
    sys.exit(main())
