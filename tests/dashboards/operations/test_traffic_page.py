"""Traffic over time: what callers got is on the operators' page with its numbers, and a gap is not a zero."""

import asyncio
import html
from pathlib import Path

import aiohttp

from api.incidents.kept import KeptIncident
from cost.times import HOUR_US, MINUTE_US, wall_us
from dashboards.operations.traffic_page import Traffic, charts_of, figures_of, hour_charts
from proxy.settle.refusals.store import RefusalStore
from proxy.settle.traffic.store import TrafficInterval, TrafficStore
from proxy.settle.traffic.waits import RANGES, range_of
from tests.api.finance import SCRIPTED
from tests.running_gateway import model, running_gateway
from tests.signed_in import signed_in

START_US = 490_000 * HOUR_US


def test_figures_are_rates_of_the_time_that_is_known() -> None:
    """A minute that nobody told of counts in no rate, and is a gap in every line."""
    ttft = [0] * RANGES
    ttft[range_of(0.4)] = 10
    interval = TrafficInterval(
        start_us=START_US,
        requests=30,
        errors=2,
        refusals=4,
        output_tokens=600,
        priced_tokens=2_000,
        cost_nanousd=10_000_000,
        waiting=5,
        ttft=ttft,
    )
    traffic = Traffic(MINUTE_US, (START_US, START_US + MINUTE_US), (interval, None))
    figures = {label: figure for label, figure, _ in figures_of(traffic)}
    assert figures["Requests"] == "30"
    assert figures["Tokens a second"] == "10"
    assert figures["Cost an hour"] == "$0.60"
    assert figures["Cost per million tokens"] == "$5.00"
    charts = {each.title: each for each in charts_of(traffic)}
    assert all(line.values[1] is None for each in charts.values() for line in each.series)
    assert charts["Cost an hour"].series[0].values[0] == 600_000_000
    assert charts["Errors a minute"].series[0].values[0] == 2
    assert [line.label for line in charts["First token of streams"].series] == ["p50", "p95", "p99"]


def kept(subject: str, opened_us: int) -> KeptIncident:
    """An incident of the history that is over."""
    return KeptIncident(
        incident_id=subject,
        place=subject,
        places=(subject,),
        targets=(),
        kind="down",
        severity="bad",
        subject=subject,
        text="",
        advice="",
        href="",
        also=(),
        opened_us=opened_us,
        seen_us=opened_us,
        seen_by="here",
        closed_us=opened_us + MINUTE_US,
    )


def test_incidents_are_marked_where_they_began() -> None:
    """On every line of the overview; those that began before the hour have no mark on it."""
    starts = [START_US + at * MINUTE_US for at in range(60)]
    interval = TrafficInterval(start_us=starts[3], requests=7, errors=2, refusals=1, cost_nanousd=5)
    traffic = Traffic(MINUTE_US, starts, [interval if at == starts[3] else None for at in starts])
    incidents = [
        kept("gpt-4o", starts[20] + 5),
        kept("old", START_US - 1),
        kept("coming", starts[-1] + MINUTE_US),
    ]
    charts = {each.title: each for each in hour_charts(traffic, incidents)}
    assert all(
        [(mark.label, mark.x) for mark in each.marks] == [("gpt-4o", starts[20] + 5)] for each in charts.values()
    )
    requests, errors = charts["Requests and errors a minute"].series
    assert (requests.values[3], errors.values[3]) == (7, 2)
    assert charts["Cost a minute"].series[0].values[3] == 5


async def told(store: TrafficStore, least: int) -> tuple[TrafficInterval, ...]:
    """Waits for the control plane's round."""
    async with asyncio.timeout(30):
        while True:
            kept = await store.read(0, wall_us() + 1, MINUTE_US)
            if sum(each.requests for each in kept) >= least:
                return kept
            await asyncio.sleep(0.05)


async def test_what_callers_got_is_on_the_page(tmp_path: Path) -> None:
    """From the worker through the control plane and its table to both pages, refusals and answers apart."""
    limits = {"team": {"requests_per_minute": 3}}
    async with running_gateway(tmp_path, [model("only", SCRIPTED)], limits=limits) as running:
        headers = {"authorization": f"Bearer {running.key}"}
        body = {"model": "only", "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession() as session:
            statuses = []
            for _ in range(8):
                async with session.post(f"{running.base_url}/chat/completions", json=body, headers=headers) as reply:
                    statuses.append(reply.status)
        kept = await told(TrafficStore(running.engine), len(statuses))
        assert sum(each.requests for each in kept) == len(statuses)
        assert sum(each.refusals for each in kept) == statuses.count(429) > 0
        assert sum(each.output_tokens for each in kept) > 0
        refused = await RefusalStore(running.engine).read(0)
        assert [(each.status, each.refusals) for each in refused] == [(429, statuses.count(429))]
        async with signed_in(running, "op@default.test", role="operator") as operator:
            for span in ("hour", "day"):
                page = html.unescape((await operator.get(f"/dashboard/operations/traffic?span={span}")).text)
                assert f"in the last {span}" in page
                assert "Cost per million tokens" in page or "No request came in this time." in page
            hour = html.unescape((await operator.get("/dashboard/operations/hour")).text)
            assert "The last hour" in hour
            wrong = await operator.get("/dashboard/operations/traffic?span=year")
        assert wrong.status in {400, 422}
