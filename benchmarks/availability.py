"""Availability to callers while one of the targets is ill, and the calls that an outage costs its targets.

make soak-availability, or: python -m benchmarks.availability [--quick] [--json build/availability.json]; WB_MINUTES says how long
(15)

First, fresh gateways with their defaults, whose cheapest target is ill from the first second in each of the ways that providers are; beside
them deployments, other teams, long prompts, slow pools, and outages of everything. Then a mix of faults on one gateway of two workers, with
PostgreSQL, Redis, a pool and two providers, under the load of ten teams on all wires. Exit status 1 means that a bar was missed:
every request answered in the first part, 99.9 % of each tier in the second, and at most 1.2 calls a request in an outage. From
four minutes on the figures mean something. See docs/benchmarks.md.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks import availability_mix, availability_trials, figures, load_test
from benchmarks.availability_trials import MOST_CALLS, first_seconds, others, outages, told
from benchmarks.load_test import Stage

MINUTES: Final = float(os.environ.get("WB_MINUTES", "15"))
LEAST_SHARE: Final = 0.999
_QUICK_MINUTES: Final = 4.0
_LONG_MINUTES: Final = 10.0
"""Length of a run from which on every illness is also tried at one request a second for a minute."""
_SOME: Final = ("429 insufficient_quota", "429, bare", "500", "refused")
_MIX_SHARE: Final = 0.5
"""Share of the time for the mix."""
_FAULTS: Final = 18
_BETWEEN_S: Final = 5.0
"""Seconds, about, until a target is used again."""


def measure(stage: Stage) -> dict[str, Any]:
    minutes = _QUICK_MINUTES if stage.quick else MINUTES
    is_long = minutes >= _LONG_MINUTES
    trials = [
        (first_seconds(10.0, 60), 3),
        (first_seconds(1.0, 60) if is_long else first_seconds(1.0, 15, _SOME), 7),
        (others(60), 3),
        (outages(30.0 if is_long else 10.0), 4),
    ]
    size = availability_mix.Size(
        fault_s=max(3.0, minutes * 60 * _MIX_SHARE / _FAULTS - _BETWEEN_S),
        back_s=30.0 if is_long else 8.0,
        retry_after_s=20 if is_long else 4,
    )

    async def everything() -> dict[str, Any]:
        found = []
        for group, at_once in trials:
            found += await availability_trials.play(stage, group, at_once=at_once)
        return {"minutes": minutes, "trials": found, "mix": await availability_mix.play(stage, size)}

    report = asyncio.run(everything())
    stage.problems += missed(report)
    return report


def missed(report: Mapping[str, Any]) -> list[str]:
    """Return the bars that were not reached, in words."""
    found = []
    for trial in report["trials"]:
        if not trial["met"]:
            what = (
                f"{trial['calls_per_request']:.2f} calls a request, at most {MOST_CALLS:g} are allowed"
                if trial["outage"]
                else f"{trial['answered']} of {trial['requests']} answered; {told(trial)}"
            )
            found.append(f"{trial['bar']}, {trial['name']}: {what}")
    for name, tier in report["mix"]["tiers"].items():
        share = figures.ratio(tier["answered"], tier["requests"])
        if share is None or share < LEAST_SHARE:
            found.append(f"mix, {name}: {_share(tier)} answered, at least {LEAST_SHARE * 100:g} % are wanted")
    return found


def _share(found: Mapping[str, Any]) -> str:
    """Round a share to two decimals, and never up to 1."""
    share = figures.ratio(found["answered"], found["requests"])
    return "-" if share is None else f"{int(share * 10_000) / 100:.2f} %"


_HEADS: Final = ("requests", "answered", "share", "first token p50, ms", "p99", "calls a request", "failed")


def _row(label: str, found: Mapping[str, Any]) -> list[str]:
    calls = found.get("calls_per_request")
    first = found["first_token"]
    has_any = first["count"] > 0
    return [
        label,
        f"{found['requests']:,}",
        f"{found['answered']:,}",
        _share(found),
        figures.number(first["p50_ms"] if has_any else None, 0),
        figures.number(first["p99_ms"] if has_any else None, 0),
        figures.number(calls),
        told(found) or "-",
    ]


def _table(title: str, rows: Sequence[Sequence[str]], heads: Sequence[str] = _HEADS) -> None:
    print(figures.table([title, *heads], rows) + "\n")


def show(report: dict[str, Any]) -> None:
    bars = list(dict.fromkeys(trial["bar"] for trial in report["trials"]))
    for bar in bars:
        _table(bar, [_row(trial["name"], trial) for trial in report["trials"] if trial["bar"] == bar])
    mix = report["mix"]
    phases = [
        [*_row(each["name"], each)[:-1], figures.number(each["back_s"], 1), _row("", each)[-1]]
        for each in mix["phases"]
    ]
    _table("mix, by fault", phases, (*_HEADS[:-1], "used again, s", "failed"))
    for by in ("tiers", "teams", "wires"):
        _table(f"mix, by {by.removesuffix('s')}", [_row(name, each) for name, each in mix[by].items()])
    print(
        f"{report['minutes']:g} minutes were asked for; used again: from the end of the fault to the target's next request"
    )


def main() -> int:
    return load_test.run("availability", __doc__, measure, show)


if __name__ == "__main__":
    sys.exit(main())
