"""More than there is room for: what still arrives in time, and how soon the others are told.

    python -m benchmarks.overload [--quick] [--json build/overload.json]

Four gateways, each offered half to three times what there is capacity for (an open loop, Poisson, the same requests
each time): `queue` with a queue before an engine of limited parallelism, `spill` with a paid target beside it, `bare`
without the queue, and `processor`, where the upstream answers at once and the worker's own core is what is short.
Goodput is whole answers within their deadline. Exit status 1 means that a reply was wrong or a connection broke, not
that an aim was missed. See docs/benchmarks.md. With matplotlib a plot is made beside the figures.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import driver, figures, load_test, queued
from benchmarks.arrivals import Stream, arrivals
from benchmarks.figures import number, ratio, share
from benchmarks.load_test import Stage
from benchmarks.open_loop import Loaded, Plan
from benchmarks.outcomes import Window, probes_told, problems, served_tokens_per_s, summary
from benchmarks.processes import Cores, choose_cores, free_port
from benchmarks.queued import Capacity, Engine
from benchmarks.run import CONNECTIONS, chat_body
from benchmarks.sites import Site, Team, model, start_site

SLOTS: Final = 32
DEADLINE_S: Final = 2.0
TEAMS: Final = tuple(Team(f"team_{number}", spill_over=True) for number in range(10))
PROBES: Final = ("/readyz", "/metrics")
AIM_OF_PEAK: Final = 0.9
_TWICE: Final = 2.0
_GRACE_S: Final = 1.0
"""Seconds that a caller waits beyond its deadline, so that late answers are seen."""
_REST_S: Final = 20.0
_SEED: Final = 5
_PLOT: Final = Path("build/overload.png")


class Size(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[float, ...]
    bare_steps: tuple[float, ...]
    step_s: float
    warm_s: float
    closed_s: float


FULL: Final = Size(
    steps=(0.5, 1.0, 1.5, 2.0, 3.0), bare_steps=(0.5, 1.0, 1.5, 2.0), step_s=20.0, warm_s=4.0, closed_s=4.0
)
QUICK: Final = Size(steps=(0.5, 1.0, 2.0), bare_steps=(1.0, 2.0), step_s=6.0, warm_s=2.0, closed_s=1.5)


def of_peak(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each step with its goodput beside the best of all."""
    peak = max((step["goodput_per_s"] for step in steps), default=0.0)
    return [{**step, "goodput_of_peak": ratio(step["goodput_per_s"], peak)} for step in steps]


def at_factor(steps: Sequence[dict[str, Any]], factor: float, field: str) -> Any:
    """Return the field of the step that offered so many times the capacity; None when there was none."""
    return next((step[field] for step in steps if step["factor"] == factor), None)


class Ladder:
    """A growing load on one gateway."""

    def __init__(self, stage: Stage, cores: Cores, size: Size) -> None:
        self._stage = stage
        self._cores = cores
        self._size = size

    def engine_steps(
        self, name: str, site: Site, ours: Engine, factors: Sequence[float], capacity: Capacity
    ) -> list[dict[str, Any]]:
        """Measure streams from ten teams, in equal parts, on an engine."""
        size, steps = self._size, []
        for factor in factors:
            each_per_s = factor * capacity.requests_per_s / len(TEAMS)
            streams = [Stream(caller, each_per_s) for caller in range(len(TEAMS))]
            planned = arrivals(streams, size.step_s, queued.SIZES, _SEED)
            _at_rest(ours)
            before = ours.done()
            loaded = queued.drive(
                self._stage, f"{name}-{factor:g}", site, planned, self._cores, teams=TEAMS, seconds=size.step_s,
                timeout_ms=round(DEADLINE_S * 1000), patience_s=DEADLINE_S + _GRACE_S, probes=PROBES,
            )  # fmt: skip
            after = ours.done()
            told = {
                "engine_use": served_tokens_per_s(loaded.replies, Window(size.warm_s, size.step_s), queued.OURS)
                / capacity.tokens_per_s,
                "engine_cut": after.cut - before.cut,
                "engine_most_waiting": after.most_waiting,
            }
            steps.append(self._told(name, factor, loaded) | told)
        return of_peak(steps)

    def processor_steps(self, site: Site, factors: Sequence[float], per_s: float) -> list[dict[str, Any]]:
        """Measure whole answers of an upstream that costs nothing, from one team."""
        size, steps = self._size, []
        for factor in factors:
            plan = Plan(
                url=site.url,
                keys=(site.keys[TEAMS[0].team_id],),
                body=chat_body(stream=False).decode(),
                headers=(f"x-request-timeout-ms: {DEADLINE_S * 1000:.0f}",),
                arrivals=tuple(arrivals([Stream(0, factor * per_s)], size.step_s, (1,), _SEED)),
                patience_s=DEADLINE_S + _GRACE_S,
                probes=PROBES,
            )
            loaded = self._stage.drive(
                f"processor-{factor:g}", "benchmarks.open_loop", plan, Loaded, within_s=size.step_s + 60,
                core=self._cores.driver,
            )  # fmt: skip
            steps.append(self._told("processor", factor, loaded))
            time.sleep(1.0)
        return of_peak(steps)

    def _told(self, name: str, factor: float, loaded: Loaded) -> dict[str, Any]:
        size = self._size
        step = summary(loaded.replies, Window(size.warm_s, size.step_s), DEADLINE_S)
        self._stage.problems += [
            f"{name} at {factor:g}: {kind} ({count} times)"
            for kind, count in problems(loaded.replies, DEADLINE_S).items()
        ]
        self._stage.say(
            f"{name} at {factor:g} times the capacity: {step['goodput_per_s']:.1f} of {step['offered_per_s']:.1f} a second "
            f"in time, {share(step['refused_share'])} refused"
        )
        more = {"factor": factor, "probes": probes_told(loaded.probes), "most_connections": loaded.most_connections}
        return more | step


def _at_rest(ours: Engine) -> None:
    """Wait until the engine is empty, as each step begins so. Raises RuntimeError."""
    give_up_at = time.monotonic() + _REST_S
    while (done := ours.done()).running or done.waiting:
        if time.monotonic() > give_up_at:
            raise RuntimeError("the engine does not come to rest")
        time.sleep(0.2)


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL
    cores = choose_cores()
    stage.say(cores.describe())
    capacity = Capacity(SLOTS)
    ladder = Ladder(stage, cores, size)
    ours = queued.start_engine(stage, "engine", SLOTS, cores)
    paid = queued.start_paid(stage, cores)
    queue = {"tokens_in_flight": capacity.tokens_in_flight}
    report: dict[str, Any] = {
        "deadline_s": DEADLINE_S,
        "capacity_per_s": capacity.requests_per_s,
        "slots": SLOTS,
        "tokens_in_flight": capacity.tokens_in_flight,
        "pinning": cores.describe(),
    }
    for name, factors, queue_of, paid_of in (
        ("queue", size.steps, queue, None),
        ("spill", size.steps, queue, paid),
        ("bare", size.bare_steps, None, None),
    ):
        site = queued.start_gateway(stage, name, ours, TEAMS, cores, queue=queue_of, paid=paid_of)
        report[name] = {"steps": ladder.engine_steps(name, site, ours, factors, capacity)}
        site.stop()
    report["processor"] = _processor(stage, ladder, cores, size)
    for name in VARIANTS:
        steps = report[name]["steps"]
        report[name]["goodput_at_twice_of_peak"] = at_factor(steps, _TWICE, "goodput_of_peak")
        report[name]["refusal_at_twice_p99_ms"] = (at_factor(steps, _TWICE, "refusal") or {}).get("p99_ms")
    report["goodput_at_twice_of_peak"] = report["queue"]["goodput_at_twice_of_peak"]
    return report


VARIANTS: Final = ("queue", "spill", "bare", "processor")


def _processor(stage: Stage, ladder: Ladder, cores: Cores, size: Size) -> dict[str, Any]:
    """Measure the processor, once a closed loop has found what one worker does."""
    mock_url = f"http://127.0.0.1:{free_port()}"
    mock = stage.python("mock", "benchmarks.mock_upstream", "--port", mock_url.rpartition(":")[2], core=cores.mock)
    mock.wait_ready(mock_url)
    sections = {
        "providers": {"models": [model(queued.OURS, mock_url, input_price=0.1, output_price=0.2)]},
        "cost": {"reference_target": queued.OURS},
    }
    site = start_site(stage.children, stage.folder, "processor", sections, TEAMS[:1], core=cores.server, workers=1)
    load = driver.Load(
        url=site.url,
        body=chat_body(stream=False),
        connections=CONNECTIONS,
        seconds=size.closed_s,
        key=site.keys[TEAMS[0].team_id],
    )
    closed = asyncio.run(driver.drive(load))
    stage.problems += [f"closed loop: {kind} ({count} times)" for kind, count in closed.error_kinds.items()]
    per_s = closed.requests / closed.seconds
    stage.say(f"one worker answers {per_s:.0f} requests a second in a closed loop")
    if not closed.requests:
        raise RuntimeError("the gateway answers nothing")
    steps = ladder.processor_steps(site, size.bare_steps, per_s)
    site.stop()
    return {"closed_loop_per_s": per_s, "steps": steps}


_HEADS: Final = (
    "offered", "/s", "in time/s", "of peak", "engine", "p50", "p99, ms", "token p90", "refused", "p50", "p99", "max, ms",
    "≤ 50 ms", "retry-after", "late", "gave up", "paid", "readyz p99", "metrics p99",
)  # fmt: skip


def _row(step: dict[str, Any]) -> list[str]:
    good = sum(step["targets"].values())
    return [
        f"{step['factor']:g} ×",  # noqa: RUF001  The sign is meant.
        number(step["offered_per_s"], 0),
        number(step["goodput_per_s"], 1),
        share(step["goodput_of_peak"]),
        share(step.get("engine_use")),
        number(step["latency"]["p50_ms"], 0),
        number(step["latency"]["p99_ms"], 0),
        number(step["ttft"]["p90_ms"], 0),
        share(step["refused_share"]),
        *(
            number(step["refusal"][name], 1) if step["refusal"]["count"] else "-"
            for name in ("p50_ms", "p99_ms", "max_ms")
        ),
        share(step["refused_soon_share"]),
        share(step["retry_after_share"]),
        f"{step['late']:,}",
        f"{step['gave_up']:,}",
        share(ratio(step["targets"].get(queued.PAID, 0), good)),
        *(number(step["probes"].get(path, {}).get("p99_ms"), 1) for path in PROBES),
    ]


def show(report: dict[str, Any]) -> None:
    print(
        f"an engine of {report['slots']} slots, {report['capacity_per_s']:.0f} requests/s, deadline {report['deadline_s']:g} s; "
        f"the worker's own core: {report['processor']['closed_loop_per_s']:.0f} requests/s in a closed loop\n"
    )
    rows: list[list[str]] = []
    for name in VARIANTS:
        rows.append([name, *[""] * (len(_HEADS) - 1)])
        rows += [[f"  {row[0]}", *row[1:]] for row in map(_row, report[name]["steps"])]
    print(figures.table(_HEADS, rows))
    told = report["goodput_at_twice_of_peak"]
    print(f"\ngoodput at twice the capacity, of its peak    {share(told)}  (aim: at least {share(AIM_OF_PEAK)})")
    _plot(report)


def _plot(report: dict[str, Any]) -> None:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - a plot is made where it is there
    except ImportError:
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name in VARIANTS:
        steps = report[name]["steps"]
        base = report["processor"]["closed_loop_per_s"] if name == "processor" else report["capacity_per_s"]
        axes.plot(
            [step["factor"] for step in steps], [step["goodput_per_s"] / base for step in steps], "o-", label=name
        )
    axes.set(xlabel="offered / capacity", ylabel="answers in time / capacity", ylim=(0, None), xlim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    _PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(_PLOT, dpi=120)
    print(f"plotted in {_PLOT}")


def main() -> int:
    return load_test.run("overload", __doc__, measure, show)


if __name__ == "__main__":
    sys.exit(main())
