"""/dashboard/operations/traffic: requests, errors, waits, queues, tokens and cost over the last hour or day."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Depends
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.incidents.kept import KeptIncident
from api.web.gateway import Gateway
from cost.times import DAY_US, HOUR_US, MINUTE_US, wall_us
from dashboards.operations.overview_page import HOME
from dashboards.ui import formats
from dashboards.ui.charts import Chart, Mark, Series, Tone, Unit
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest
from proxy.settle.traffic.store import QUARTER_US, TrafficInterval, TrafficStore
from proxy.settle.traffic.waits import quantile_s

router: Final = APIRouter(include_in_schema=False)

Span = Literal["hour", "day"]
_PATIENCE_S: Final = 2.0
_SECOND_US: Final = 1_000_000
_MILLION: Final = 1_000_000
_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)
_MOST_MARKS: Final = 5
_MARK_CHARS: Final = 24
_Line = tuple[str, Tone, Callable[[TrafficInterval], float | None]]
"""A line of a chart: its label, its tone, and its value of one step."""
_REQUESTS: Final[_Line] = ("Requests", "accent", lambda each: each.requests)
_ERRORS: Final[_Line] = ("Errors", "bad", lambda each: each.errors)
_REFUSED: Final[_Line] = ("Refused", "warn", lambda each: each.refusals)
_QUANTILES: Final[Sequence[tuple[str, float, Tone]]] = (
    ("p50", 0.5, "accent"),
    ("p95", 0.95, "warn"),
    ("p99", 0.99, "bad"),
)


class Traffic(msgspec.Struct, frozen=True):
    """Whole steps of time, the oldest first; None for a step that no process told of."""

    step_us: int
    starts_us: Sequence[int]
    intervals: Sequence[TrafficInterval | None]

    @property
    def until_us(self) -> int:
        return self.starts_us[-1] + self.step_us

    @property
    def all(self) -> TrafficInterval:
        """All steps together."""
        whole = TrafficInterval(start_us=self.starts_us[0])
        for each in filter(None, self.intervals):
            whole.add(each)
        return whole


@router.get(f"{HOME}/hour")
async def show_hour(view: Annotated[PageRequest, Depends(allowed("operations.read"))]) -> Response:
    """Show the last hour in lines, with the incidents that began within it: the overview's first part."""
    now_us = wall_us()
    traffic, incidents = await _read_patiently(view.gateway, now_us, "hour"), list[KeptIncident]()
    if traffic is not None:
        with contextlib.suppress(*_FAILS):
            async with asyncio.timeout(_PATIENCE_S):
                incidents = await view.gateway.views.operations.history.store.recent(traffic.starts_us[0])
    return view.part(
        "operations/_hour.html",
        charts=traffic and hour_charts(traffic, incidents),
        until_us=traffic.until_us if traffic else now_us,
    )


@router.get(f"{HOME}/traffic")
async def show_traffic(
    view: Annotated[PageRequest, Depends(allowed("operations.read"))], span: Span = "hour"
) -> Response:
    """Show the time series of one hour by minute, or of one day by quarter of an hour."""
    now_us = wall_us()
    traffic = await _read_patiently(view.gateway, now_us, span)
    return view.page(
        "operations/traffic.html",
        title="Traffic",
        span=span,
        spans=[(f"One {each}", f"?span={each}", each == span) for each in ("hour", "day")],
        charts=traffic and charts_of(traffic),
        figures=traffic and figures_of(traffic),
        until_us=traffic.until_us if traffic else now_us,
    )


async def _read_patiently(gateway: Gateway, now_us: int, span: Span) -> Traffic | None:
    """Return the traffic; None while the database does not answer."""
    try:
        async with asyncio.timeout(_PATIENCE_S), gateway.finance.reads:
            return await read_traffic(gateway.views.traffic, now_us, span)
    except _FAILS:
        return None


async def read_traffic(store: TrafficStore, now_us: int, span: Span) -> Traffic:
    """Return the last hour or day, up to the last step that is over."""
    step_us, whole_us = (MINUTE_US, HOUR_US) if span == "hour" else (QUARTER_US, DAY_US)
    until_us = now_us - now_us % step_us
    found = {each.start_us: each for each in await store.read(until_us - whole_us, until_us, step_us)}
    starts_us = range(until_us - whole_us, until_us, step_us)
    return Traffic(step_us, starts_us, [found.get(each) for each in starts_us])


def figures_of(traffic: Traffic) -> list[tuple[str, str, str]]:
    """Return the whole time in numbers: label, figure, and a note."""
    whole = traffic.all
    known = sum(each is not None for each in traffic.intervals) * traffic.step_us
    p50, p95, p99 = (formats.seconds(quantile_s(whole.ttft, share)) for _, share, _ in _QUANTILES)
    return [
        ("Requests", formats.number(whole.requests), "answered, failed and refused"),
        ("Errors", formats.number(whole.errors), "5xx, without refusals for lack of room"),
        ("Refused", formats.number(whole.refusals), "4xx and 503"),
        ("First token", p50, f"the median of streams; p95 {p95}, p99 {p99}"),
        ("Waiting", formats.number(whole.waiting), "the most in queues at once"),
        ("Tokens a second", formats.number(_rate(whole.output_tokens, known)), "of answers, on average"),
        ("Cost an hour", formats.money(_an_hour(whole.cost_nanousd, known)), "on average"),
        ("Cost per million tokens", formats.money(_a_million(whole)), "in and out, where the cost is known"),
    ]


def hour_charts(traffic: Traffic, incidents: Iterable[KeptIncident]) -> list[Chart]:
    """Return what the operations overview begins with; incidents are marked where they began, also those that are over."""
    marks = [
        Mark(each.opened_us, each.subject[:_MARK_CHARS])
        for each in incidents
        if traffic.starts_us[0] <= each.opened_us < traffic.until_us
    ][:_MOST_MARKS]
    told: Sequence[tuple[str, Unit, Sequence[_Line]]] = (
        ("Requests and errors a minute", "requests", (_REQUESTS, _ERRORS)),
        (
            "First token of streams",
            "seconds",
            tuple((name, tone, _ttft(share)) for name, share, tone in _QUANTILES[:2]),
        ),
        ("Refused a minute", "requests", (_REFUSED,)),
        ("Cost a minute", "usd", (("Cost", "accent", lambda each: each.cost_nanousd),)),
    )
    return [_chart(traffic, title, unit, lines, marks) for title, unit, lines in told]


def _chart(traffic: Traffic, title: str, unit: Unit, lines: Sequence[_Line], marks: Sequence[Mark] = ()) -> Chart:
    series = [
        Series(label, [None if each is None else value(each) for each in traffic.intervals], tone)
        for label, tone, value in lines
    ]
    return Chart(
        shape="line",
        title=title,
        caption=_caption(series[0], unit),
        x=traffic.starts_us,
        x_label="Time (UTC)",
        by_hour=True,
        unit=unit,
        series=series,
        marks=marks,
    )


def charts_of(traffic: Traffic) -> list[Chart]:
    """Return one small chart for each figure."""
    step_us = traffic.step_us
    minutes = step_us // MINUTE_US
    chart = partial(_chart, traffic)
    return [
        chart("Requests a minute", "requests", [("Requests", "accent", lambda each: each.requests / minutes)]),
        chart("Errors a minute", "requests", [("Errors", "bad", lambda each: each.errors / minutes)]),
        chart("Refused a minute", "requests", [("Refused", "warn", lambda each: each.refusals / minutes)]),
        chart("First token of streams", "seconds", [(name, tone, _ttft(share)) for name, share, tone in _QUANTILES]),
        chart("Waiting in queues, at most", "requests", [("Waiting", "accent", lambda each: each.waiting)]),
        chart("Tokens a second", "tokens", [("Tokens", "accent", lambda each: _rate(each.output_tokens, step_us))]),
        chart("Cost an hour", "usd", [("Cost", "accent", lambda each: _an_hour(each.cost_nanousd, step_us))]),
        chart("Cost per million tokens", "usd", [("Cost", "accent", _a_million)]),
    ]


_SHOWN: Final[dict[Unit, Callable[[Any], str]]] = {
    "requests": formats.number,
    "seconds": formats.seconds,
    "tokens": formats.short,
    "usd": formats.money,
}


def _caption(series: Series, unit: Unit) -> str:
    """Return the newest and the highest value of the first line."""
    known = [value for value in series.values if value is not None]
    if not known:
        return ""
    shown = _SHOWN[unit]
    name = f"{series.label}: " if unit == "seconds" else ""
    return f"{name}{shown(series.values[-1])} at the end, at most {shown(max(known))}"


def _ttft(share: float) -> Callable[[TrafficInterval], float | None]:
    return lambda interval: quantile_s(interval.ttft, share)


def _rate(count: int, time_us: int) -> float | None:
    return round(count * _SECOND_US / time_us, 2) if time_us else None


def _an_hour(cost_nanousd: int, time_us: int) -> int | None:
    return cost_nanousd * HOUR_US // time_us if time_us else None


def _a_million(interval: TrafficInterval) -> int | None:
    """Return the nano-dollars of a million tokens; None without a token of a known cost."""
    return interval.cost_nanousd * _MILLION // interval.priced_tokens if interval.priced_tokens else None
