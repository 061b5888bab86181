"""Ten thousand callers at once on two workers, two thousand of them of one team.

    python -m benchmarks.callers [--quick] [--json build/callers.json]

Each caller holds one stream at a time. The first leg streams one event a second to each; what it costs in processor
time tells which rate this machine can drive, and the second leg streams at that rate. Exit status 1 means that a
stream was wrong, missing or refused, not that an aim was missed. See docs/benchmarks.md.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from benchmarks import figures, load_test
from benchmarks.crowd import Callers, Crowd, Plan, Sample
from benchmarks.figures import number, quantiles_ms, share
from benchmarks.load_test import Stage
from benchmarks.mock_upstream import FRAMING_EVENTS
from benchmarks.processes import Child, free_port
from benchmarks.run import PROMPT_TOKENS, chat_body
from benchmarks.sites import Seen, Site, Team, Workers, model, start_site, wait_workers

WORKERS: Final = 2
HEAVY: Final = "team_0"
LIGHT_TEAMS: Final = 9
HEAVY_SHARE: Final = 0.2
FIRST_EVERY_S: Final = 1.0
_BUSY: Final = 0.7
"""The share of all cores that the second leg may take: beyond it events queue up, and figures tell of the machine."""
_FULL_CROWD: Final = 0.98
_LEAST_EVERY_S: Final = 0.05
_WARM_EVENTS: Final = 4


class Size(msgspec.Struct, frozen=True, kw_only=True):
    callers: int
    ramp_s: float
    stream_s: float
    streams_each: int


FULL: Final = Size(callers=10_000, ramp_s=40, stream_s=70, streams_each=2)
QUICK: Final = Size(callers=1_000, ramp_s=4, stream_s=10, streams_each=2)


class Plateau(msgspec.Struct, frozen=True, kw_only=True):
    """While nearly all callers held a stream."""

    begins_s: float
    ends_s: float
    events: int

    @property
    def seconds(self) -> float:
        return self.ends_s - self.begins_s

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


def plateau(samples: Sequence[Sample], callers: int) -> Plateau | None:
    """Return the first and the last moment of the first period in which nearly all were open; None when they never
    were.
    """
    first = next((index for index, each in enumerate(samples) if each.open_streams >= _FULL_CROWD * callers), None)
    if first is None:
        return None
    last = first
    while last + 1 < len(samples) and samples[last + 1].open_streams >= _FULL_CROWD * callers:
        last += 1
    return Plateau(
        begins_s=samples[first].at_s,
        ends_s=samples[last].at_s,
        events=samples[last].events - samples[first].events,
    )


def split(callers: int) -> dict[str, int]:
    """Return callers by team: one has its large share, the others the rest in equal parts."""
    heavy = round(callers * HEAVY_SHARE)
    least, more = divmod(callers - heavy, LIGHT_TEAMS)
    return {HEAVY: heavy} | {f"team_{index + 1}": least + (index < more) for index in range(LIGHT_TEAMS)}


def affordable_every_s(cpu_s_an_event: float, coming: float, callers: int, cores: int) -> float | None:
    """Return the shortest time between two events of each stream that leaves the cores some air while callers come.

    `coming` is how many cores those take who come; None when they leave nothing.
    """
    left = _BUSY * cores - coming
    return max(_LEAST_EVERY_S, callers * cpu_s_an_event / left) if left > 0 else None


class Look(msgspec.Struct, frozen=True):
    """The gateway's and the mock's use of the machine at a moment."""

    at_s: float
    workers: tuple[Seen, ...]
    mock_cpu_s: float

    @property
    def rss_bytes(self) -> int:
        return sum(each.rss_bytes for each in self.workers)

    @property
    def cpu_s(self) -> float:
        return sum(each.cpu_s for each in self.workers)


def nearest(looks: Sequence[Look], at_s: float) -> Look:
    return min(looks, key=lambda look: abs(look.at_s - at_s))


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """One rate, and what came of it."""

    every_s: float
    size: Size
    crowd: Crowd
    before: Look
    looks: list[Look]
    by_worker: list[int]
    """Callers of each worker when all were there."""
    seconds: float


def measure(stage: Stage) -> dict[str, Any]:
    size = QUICK if stage.quick else FULL
    mock_url = f"http://127.0.0.1:{free_port()}"
    mock = stage.python("mock", "benchmarks.mock_upstream", "--port", mock_url.rpartition(":")[2])
    mock.wait_ready(mock_url)
    teams = split(size.callers)
    site = start_site(
        stage.children, stage.folder, "gateway", _sections(mock_url), [Team(each) for each in teams],
        workers=WORKERS, max_in_flight=size.callers,
    )  # fmt: skip
    workers = wait_workers(site.child, WORKERS)
    stage.say(f"the mock upstream and a gateway of {WORKERS} workers are ready")
    tests = _Tests(stage, site, mock, workers, teams)
    tests.warm_up()
    legs = [tests.leg("one_a_second", FIRST_EVERY_S, size)]
    report = _leg_report(legs[0])
    if (cost_us := report["cpu_us_an_event_everywhere"]) is not None:
        coming = report["cpu_us_a_request_everywhere"] / 1e6 * size.callers / size.ramp_s
        every_s = affordable_every_s(cost_us / 1e6, coming, size.callers, os.cpu_count() or 1)
        # A machine that the first leg filled without harm is not asked for less.
        if every_s is not None and (every_s < FIRST_EVERY_S or report["errors"]):
            legs.append(tests.leg("found", round(every_s, 3), size))
        else:
            stage.say("one event a second to each is what this machine can drive")
    for leg in legs:
        stage.problems += [
            f"every {leg.every_s} s: {kind} ({count} times)" for kind, count in leg.crowd.error_kinds.items()
        ]
    told = [_leg_report(leg) for leg in legs]
    for later in told[1:]:
        # What the first leg's streams took stays with the process, so a later one's cannot be told.
        later["kib_a_stream"] = None
    return {
        "callers": size.callers,
        "callers_by_team": teams,
        "workers": WORKERS,
        "prompt_tokens": PROMPT_TOKENS,
        "peak_streams": min(leg["peak_streams"] for leg in told),
        "errors": sum(leg["errors"] for leg in told),
        "kib_a_stream": told[0]["kib_a_stream"],
        "reached_events_per_s": max((leg["reached_events_per_s"] or 0.0 for leg in told), default=0.0),
        "legs": told,
    }


def _sections(mock_url: str) -> dict[str, Any]:
    models = [
        model("bench-cheap", mock_url, input_price=0.2, output_price=0.4, capability=0.6),
        model("bench-dear", mock_url, input_price=2.5, output_price=10.0),
    ]
    # Limits that are never reached are still counted for every request.
    limits = {"key": {"requests_per_minute": 100_000_000, "tokens_per_minute": 100_000_000_000}}
    return {"providers": {"models": models}, "limits": limits, "cost": {"reference_target": "bench-dear"}}


class _Tests:
    """The crowds against one gateway."""

    def __init__(self, stage: Stage, site: Site, mock: Child, workers: Workers, teams: dict[str, int]) -> None:
        self._stage = stage
        self._site = site
        self._mock = mock
        self._workers = workers
        self._teams = teams

    def warm_up(self) -> None:
        """Warm up a worker, so that what it loads and learns once is no memory of a stream."""
        self._workers.wait_quiet()
        size = Size(callers=max(200, sum(self._teams.values()) // 20), ramp_s=1.0, stream_s=0.4, streams_each=2)
        crowd = self._drive("warm-up", 0.1, size)
        self._stage.problems += [f"warm-up: {kind} ({count} times)" for kind, count in crowd.error_kinds.items()]
        self._workers.wait_quiet()

    def leg(self, name: str, every_s: float, size: Size) -> Leg:
        offered = size.callers / every_s
        self._stage.say(
            f"{size.callers:,} callers, an event every {every_s:g} s to each: {offered:,.0f} events/s offered"
        )
        self._workers.wait_quiet()
        looks: list[Look] = []
        by_worker: list[int] = []
        before = self._look()
        began = time.monotonic()
        amid_s = (size.ramp_s + size.stream_s) / 2

        def look() -> None:
            looks.append(self._look())
            if not by_worker and time.monotonic() - began > amid_s:
                by_worker.extend(self._workers.connections(urlsplit(self._site.url).port or 0))

        crowd = self._drive(name, every_s, size, look)
        return Leg(
            by_worker=by_worker,
            every_s=every_s,
            size=size,
            crowd=crowd,
            before=before,
            looks=looks,
            seconds=time.monotonic() - began,
        )

    def _look(self) -> Look:
        return Look(time.monotonic(), self._workers.now(), self._mock.cpu_s())

    def _drive(self, name: str, every_s: float, size: Size, look: Callable[[], None] = lambda: None) -> Crowd:
        tokens = max(1, round(size.stream_s / every_s))
        body = chat_body(stream=True, tokens=tokens, pace=-max(1, round(every_s * 1000)))
        share_of = size.callers / sum(self._teams.values())
        expected_s = size.ramp_s + size.streams_each * tokens * every_s
        plan = Plan(
            url=self._site.url,
            body=body.decode(),
            callers=tuple(
                Callers(team_id, self._site.keys[team_id], round(count * share_of))
                for team_id, count in self._teams.items()
            ),
            streams_each=size.streams_each,
            ramp_s=size.ramp_s,
            events=tokens + FRAMING_EVENTS,
            give_up_s=2 * expected_s + 30,
        )
        return self._stage.drive(name, "benchmarks.crowd", plan, Crowd, within_s=plan.give_up_s + 30, look=look)


def _leg_report(leg: Leg) -> dict[str, Any]:
    crowd, size = leg.crowd, leg.size
    full = plateau(crowd.samples, size.callers)
    peak = max(leg.looks, key=lambda look: look.rss_bytes, default=leg.before)
    expected = size.callers * size.streams_each
    interval_us = leg.every_s * 1e6
    tokens = max(1, round(size.stream_s / leg.every_s))
    by_round = [[each for each in crowd.ended if each.round == number] for number in range(size.streams_each)]
    report: dict[str, Any] = {
        "every_s": leg.every_s,
        "offered_events_per_s": size.callers / leg.every_s,
        "streams": expected,
        "streams_whole": len(crowd.ended),
        "errors": sum(crowd.error_kinds.values()),
        "error_kinds": crowd.error_kinds,
        "peak_streams": crowd.peak_streams,
        "peak_share": crowd.peak_streams / size.callers,
        "peak_by_team": dict(sorted(crowd.peak_by_team.items())),
        "connect": quantiles_ms(crowd.connects_us),
        # The mock's own first token comes after one interval; what is told is what was added to it.
        "ttft_added_coming": quantiles_ms([each.ttft_us - interval_us for each in by_round[0]]),
        "ttft_added_among_all": quantiles_ms([each.ttft_us - interval_us for each in by_round[-1]]),
        # From the first token to the finish reason there are as many intervals as tokens.
        "stretch_p50": figures.percentile([each.flow_us / interval_us / tokens for each in crowd.ended], 0.5),
        "stretch_p99": figures.percentile([each.flow_us / interval_us / tokens for each in crowd.ended], 0.99),
        "callers_by_worker": leg.by_worker,
        "most_on_one_worker": figures.ratio(max(leg.by_worker, default=0), sum(leg.by_worker)),
        "memory_before_mib": leg.before.rss_bytes / 2**20,
        "memory_peak_mib": peak.rss_bytes / 2**20,
        "memory_peak_by_worker_mib": [each.rss_bytes / 2**20 for each in peak.workers],
        "kib_a_stream": (peak.rss_bytes - leg.before.rss_bytes) / 1024 / max(1, crowd.peak_streams),
        "seconds": round(leg.seconds, 1),
    }
    return report | _plateau_report(leg, full)


def _plateau_report(leg: Leg, full: Plateau | None) -> dict[str, Any]:
    """Return the figures while all are there: reached events, processor time, the spread over the workers."""
    if full is None or not full.events:
        return dict.fromkeys(_PLATEAU_FIELDS)
    samples = [each for each in leg.crowd.samples if full.begins_s <= each.at_s <= full.ends_s]
    first, last = nearest(leg.looks, full.begins_s), nearest(leg.looks, full.ends_s)
    gateway_s, mock_s = last.cpu_s - first.cpu_s, last.mock_cpu_s - first.mock_cpu_s
    driver_s = samples[-1].cpu_s - samples[0].cpu_s
    return {
        "full_s": full.seconds,
        "reached_events_per_s": full.events_per_s,
        "reached_share": full.events_per_s / (leg.size.callers / leg.every_s),
        "cpu_us_an_event": gateway_s / full.events * 1e6,
        "cpu_us_an_event_everywhere": (gateway_s + mock_s + driver_s) / full.events * 1e6,
        "cpu_us_a_request_everywhere": _request_us(leg, (gateway_s + mock_s + driver_s) / full.events),
        "gateway_cores": gateway_s / full.seconds,
        "mock_cores": mock_s / full.seconds,
        "driver_cores": driver_s / full.seconds,
    }


def _request_us(leg: Leg, event_s: float) -> float:
    """Return the cost of a request beside its events: connecting, weighing, booking."""
    last, samples = leg.looks[-1], leg.crowd.samples
    all_s = last.cpu_s - leg.before.cpu_s + last.mock_cpu_s - leg.before.mock_cpu_s + samples[-1].cpu_s
    requests = len(leg.crowd.ended) + sum(leg.crowd.error_kinds.values())
    return max(0.0, all_s - samples[-1].events * event_s) / max(1, requests) * 1e6


_PLATEAU_FIELDS: Final = (
    "full_s", "reached_events_per_s", "reached_share", "cpu_us_an_event", "cpu_us_an_event_everywhere", "cpu_us_a_request_everywhere", "gateway_cores",
    "mock_cores", "driver_cores",
)  # fmt: skip


def show(report: dict[str, Any]) -> None:
    legs = report["legs"]

    def row(label: str, tell: Callable[[dict[str, Any]], str]) -> list[str]:
        return [label, *(tell(leg) for leg in legs)]

    def times(label: str, field: str) -> list[str]:
        return row(
            f"{label}, p50 / p99 / most, ms",
            lambda leg: " / ".join(
                number(leg[field][name], 0 if leg[field][name] > 100 else 1) for name in ("p50_ms", "p99_ms", "max_ms")
            ),
        )

    rows = [
        row("events/s offered", lambda leg: number(leg["offered_events_per_s"], 0)),
        row("events/s reached while all were there", lambda leg: number(leg["reached_events_per_s"], 0)),
        row("  reached / offered", lambda leg: share(leg["reached_share"])),
        row("most streams at once", lambda leg: f"{leg['peak_streams']:,}"),
        row("whole streams", lambda leg: f"{leg['streams_whole']:,} of {leg['streams']:,}"),
        row("errors", lambda leg: f"{leg['errors']:,}"),
        times("connecting", "connect"),
        times("first token, added, while they come", "ttft_added_coming"),
        times("first token, added, among all", "ttft_added_among_all"),
        row("duration / ideal duration, p50 / p99", lambda leg: f"{number(leg['stretch_p50'])} / {number(leg['stretch_p99'])}"),
        row("memory of the workers before / at the peak, MiB", lambda leg: f"{number(leg['memory_before_mib'], 0)} / {number(leg['memory_peak_mib'], 0)}"),
        row("  memory a stream, KiB", lambda leg: number(leg["kib_a_stream"], 1)),
        row("processor time an event, gateway, µs", lambda leg: number(leg["cpu_us_an_event"], 1)),
        row("processor time a request, everywhere, µs", lambda leg: number(leg["cpu_us_a_request_everywhere"], 0)),
        row("  gateway / mock / driver, cores", lambda leg: " / ".join(number(leg[name]) for name in ("gateway_cores", "mock_cores", "driver_cores"))),
        row("callers by worker", lambda leg: " / ".join(f"{each:,}" for each in leg["callers_by_worker"]) or "-"),
    ]  # fmt: skip
    print(
        figures.table(
            [
                f"{report['callers']:,} callers, {report['workers']} workers",
                *(f"every {leg['every_s']:g} s" for leg in legs),
            ],
            rows,
        )
    )


def main() -> int:
    return load_test.run("callers", __doc__, measure, show)


if __name__ == "__main__":
    sys.exit(main())
