"""Figures of a team's overview, from the roll-ups, its budgets and its latest requests. The second half is pure."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from api.web.gateway import Gateway
from cost.budgets.budget import BudgetStatus
from cost.budgets.periods import PERIODS
from cost.budgets.periods import end_us as period_end_us
from cost.budgets.store import BudgetStore, EndUserStanding
from cost.calendar import Calendar, Days
from cost.forecast import Forecast, forecast
from cost.ledger.rollups import SPENT_ORIGINS
from cost.reports.daily import saving, share
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_ROWS, UsageQuery, UsageReader, UsageRow, UsageSums, added
from cost.savings.comparisons import floor
from cost.times import DAY_US, day_of, start_of
from dashboards.ui.charts import Chart, Series, Unit
from dashboards.ui.colours import model_colours
from dashboards.ui.formats import plural
from dashboards.ui.tables import Column, Table

DAYS: Final = 30
HABITS: Final = ("caller", "shadow", "true-up")
"""Origins that forecasts extrapolate. Corrections and differences to a provider's books happen once."""
_BEFORE: Final = 28
_WEEK: Final = 7
_MODELS_DRAWN: Final = 5

Mix = Mapping[tuple[int, str, str], UsageSums]
"""A team's sums by day, model and origin."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A team's usage in the chosen period, and before it as far as forecasts need."""

    now_us: int
    span: Days
    """The chosen period."""
    mix: Mix
    """Each day by its mark (`Days.marks`)."""

    @property
    def calendar(self) -> Calendar:
        """The organisation's calendar, which cuts the days."""
        return self.span.calendar

    @property
    def this_day(self) -> date:
        """The current day."""
        return self.calendar.day(self.now_us)

    @property
    def today_us(self) -> int:
        """The current day's mark."""
        return start_of(self.this_day)

    @property
    def month_us(self) -> int:
        """The mark of the month's first day."""
        return start_of(self.this_day.replace(day=1))

    @cached_property
    def by_day(self) -> Mapping[int, UsageSums]:
        """Sums by day, computed once: charts ask for every day several times, and a day has many models."""
        parts: dict[int, list[UsageSums]] = {}
        for (day, _, _), sums in self.mix.items():
            parts.setdefault(day, []).append(sums)
        return {day: added(each) for day, each in parts.items()}

    def between(self, start_us: int, end_us: int) -> UsageSums:
        """Sum the days from the mark `start_us` to before `end_us`."""
        return added(self.by_day[day] for day in range(start_us, end_us, DAY_US) if day in self.by_day)

    @property
    def today(self) -> UsageSums:
        """Sums of the current day."""
        return self.between(self.today_us, self.today_us + DAY_US)

    @property
    def month(self) -> UsageSums:
        """Sums of the calendar month until now."""
        return self.between(self.month_us, self.today_us + DAY_US)

    @property
    def period(self) -> UsageSums:
        """Sums of the chosen period."""
        return self.between(self.span.marks.start, self.span.marks.stop)

    @property
    def usual_day_nanousd(self) -> int | None:
        """Mean daily cost of the last seven complete days; None without known cost."""
        first_us = self.today_us - _WEEK * DAY_US
        week = sum(cost for day, cost in self.costs(HABITS).items() if first_us <= day < self.today_us)
        return week // _WEEK or None

    def costs(self, origins: Collection[str] | None = None) -> dict[int, int]:
        """Return known cost by day, of these origins or of all. Nano-dollars."""
        costs: dict[int, int] = {}
        for (day, _, origin), sums in self.mix.items():
            if origins is None or origin in origins:
                costs[day] = costs.get(day, 0) + sums.cost_nanousd
        return costs

    def forecast(self, end_us: int, origins: Collection[str] | None = None) -> Forecast | None:
        """Return the forecast of the cost from now until `end_us`; None without enough history."""
        start_us, after_us = self.calendar.days(self.this_day, self.this_day)
        gone = (self.now_us - start_us) * DAY_US // (after_us - start_us)
        last = self.calendar.day(max(end_us - 1, self.now_us))
        return forecast(self.costs(origins), now_us=self.today_us + gone, end_us=start_of(last) + DAY_US)

    @property
    def trued_up_nanousd(self) -> int:
        """True-up of self-hosted GPUs in this month's cost; negative where they were busier than planned."""
        return sum(
            sums.cost_nanousd
            for (day, _, origin), sums in self.mix.items()
            if origin == "true-up" and day >= self.month_us
        )

    @property
    def counted_nanousd(self) -> int:
        """Cost of the calendar month as budgets count it: with our own GPUs at the planned rate, without the adjustment."""
        return sum(cost for day, cost in self.costs(SPENT_ORIGINS).items() if day >= self.month_us)

    @property
    def month_end_us(self) -> int:
        """End of the calendar month, exclusive."""
        return period_end_us("month", self.now_us, self.calendar)

    def drawn_days(self) -> list[int]:
        """Mark of each day of the period."""
        return list(self.span.marks)

    def models(self) -> list[tuple[str, UsageSums]]:
        """Sum the period by model, most expensive first."""
        found: dict[str, list[UsageSums]] = {}
        for (day, name, _), sums in self.mix.items():
            if day in self.span.marks:
                found.setdefault(name, []).append(sums)
        summed = [(name, added(parts)) for name, parts in found.items()]
        return sorted(summed, key=lambda each: (-each[1].cost_nanousd, -each[1].served, each[0]))


class BudgetLine(msgspec.Struct, frozen=True):
    """A budget's standing, with what is expected of it."""

    standing: BudgetStatus

    @property
    def renews_day_us(self) -> int | None:
        """Day that begins with the next period; None where no period follows."""
        renews_us = self.standing.renews_us
        return None if renews_us is None else start_of(self.standing.calendar.day(renews_us))

    @property
    def share(self) -> Decimal | None:
        """Spent ÷ limit to four places, rounded down; None for a limit of 0."""
        return self.standing.share

    @property
    def amount_per(self) -> str:
        """Words behind the limit, such as `a month`."""
        return PERIODS[self.standing.budget.period].amount_per

    @property
    def tone(self) -> str:
        """`bad` for an exhausted budget, `warn` for one that is nearly or soon exhausted, `accent` otherwise."""
        if self.standing.state == "open":
            return "warn" if self.standing.runs_out_us is not None else "accent"
        return "bad" if self.standing.state == "spent" else "warn"


async def read_usage(usage: UsageReader, scope: ReadScope, *, now_us: int, span: Days) -> Usage:
    """Return usage of the period, of this month, and of four weeks for the forecast."""
    today = span.calendar.day(now_us)
    first = min(today - timedelta(days=_BEFORE), today.replace(day=1))
    spans = [span, Days(first, today, span.calendar)]
    if span.first <= today + timedelta(days=1) and first <= span.last + timedelta(days=1):
        spans = [Days(min(span.first, first), max(span.last, today), span.calendar)]
    mix: dict[tuple[int, str, str], UsageSums] = {}
    for each in spans:
        mix |= await _mix(usage, scope, each)
    return Usage(now_us=now_us, span=span, mix=mix)


async def _mix(usage: UsageReader, scope: ReadScope, span: Days) -> dict[tuple[int, str, str], UsageSums]:
    query = UsageQuery(
        scope=scope,
        start_us=max(0, span.start_us),
        end_us=span.end_us,
        offsets=span.offsets,
        group_by=("day", "model", "origin"),
        limit=MAX_ROWS - 1,
    )
    mix: dict[tuple[int, str, str], UsageSums] = {}
    while True:
        page = await usage.page(query, with_totals=False)
        mix |= {(int(row.group[0]), str(row.group[1]), str(row.group[2])): row.sums for row in page.rows}
        if page.next_cursor is None:
            return mix
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


async def read_budgets(gateway: Gateway, scope: ReadScope) -> list[BudgetLine]:
    """Return the team's own budgets, the most used first."""
    standings = await BudgetStore(gateway.database).of_scope(scope.organisation_id, "team", scope.team_id or "")
    return sorted(map(BudgetLine, standings), key=lambda line: (-(line.share or 0), line.standing.budget.budget_id))


async def read_end_users(gateway: Gateway, scope: ReadScope) -> list[EndUserStanding]:
    """Return the team's end users that spent most this month, with their budgets."""
    return await BudgetStore(gateway.database).largest_end_users(scope.organisation_id, scope.team_id or "")


class SpendLinks(msgspec.Struct, frozen=True):
    """Addresses of the parts of a team's spend in the page's days."""

    path: str
    """The page of spend."""
    first: str
    last: str
    """The days, ISO 8601, both included."""

    def part(self, **values: str) -> str | None:
        """Return the address of the part with this key, tag or model; None for nobody's."""
        return (
            f"{self.path}?{urlencode({'from': self.first, 'to': self.last, **values})}"
            if all(values.values())
            else None
        )

    def days(self, usage: Usage) -> list[str]:
        """Return the address of each drawn day."""
        return [f"{self.path}?{urlencode({'from': day_of(at), 'to': day_of(at)})}" for at in usage.drawn_days()]


def spend_chart(usage: Usage, links: SpendLinks, configured: Iterable[str] = ()) -> Chart:
    """Return the cost by day and model; all but the most expensive models together. `configured` models' order gives
    their colours.
    """
    ranked = [name for name, sums in usage.models() if sums.cost_nanousd > 0]
    shown, others = ranked[:_MODELS_DRAWN], ranked[_MODELS_DRAWN:]
    colours = model_colours(configured, shown)
    series = [Series(name, _costs(usage, [name]), colour=colours[name]) for name in shown]
    if others:
        series.append(Series(plural(len(others), "other model"), _costs(usage, others), "quiet"))
    zone = usage.span.time_zone
    caption = "The last bar is today until now." if usage.span.last == usage.this_day else f"Days are in {zone}."
    caption = f"{caption} A bar leads to its day."
    chart = _daily(usage, "stacked", "Spend by day and model", series, "usd", caption=caption)
    return msgspec.structs.replace(chart, hrefs=links.days(usage))


def reference_chart(usage: Usage) -> Chart:
    """Return the cost beside the reference's cost, by day. A day without comparable requests is a gap."""
    days = [usage.between(day, day + DAY_US) for day in usage.drawn_days()]
    return _daily(
        usage,
        "area",
        "Spent, and what the baseline model would have cost",
        [
            Series("Spent", [each.known_cost_nanousd for each in days], "accent"),
            Series(
                "At the baseline model",
                [each.baseline_nanousd if each.baseline_rows else None for each in days],
                "quiet",
            ),
        ],
        "usd",
        caption="Of answered requests; failed attempts are in what was spent.",
    )


def requests_chart(usage: Usage) -> Chart:
    """Draw requests by day, answered and not answered in full."""
    days = [usage.between(day, day + DAY_US) for day in usage.drawn_days()]
    return _daily(
        usage,
        "stacked",
        "Requests by day",
        [
            Series("Succeeded", [each.served for each in days], "accent"),
            Series("Not succeeded", [max(0, each.requests - each.served) for each in days], "bad"),
        ],
        "requests",
        caption="“Not succeeded” includes callers who hung up.",
    )


def cache_chart(usage: Usage) -> Chart:
    """Return the share of prompt tokens read from caches, by day."""
    days = [usage.between(day, day + DAY_US) for day in usage.drawn_days()]
    shares = [_share(each.cached_input_tokens, each.input_tokens) for each in days]
    return _daily(
        usage,
        "line",
        "Prompt tokens found in a cache",
        [Series("Cached", [None if each is None else float(each) for each in shares], "accent")],
        "share",
        caption="A share of all prompt tokens; cached ones cost a fraction.",
    )


def models_table(usage: Usage, query: Mapping[str, str], links: SpendLinks) -> Table:
    """Return usage by model in the period."""
    served = usage.period.served
    rows = [
        {
            "model": name,
            "model_href": links.part(model=name),
            "served": sums.served,
            "share": _share(sums.served, served),
            "input_tokens": sums.input_tokens,
            "cached": _share(sums.cached_input_tokens, sums.input_tokens),
            "output_tokens": sums.output_tokens,
            "cost": sums.known_cost_nanousd,
            "each": sums.cost_nanousd // sums.served if sums.served and sums.known_cost_nanousd is not None else None,
            "saved": saving(sums),
        }
        for name, sums in usage.models()
    ]
    columns = (
        Column("model", "Model", "link"),
        Column("served", "Answers", "number", note="Requests whose whole answer came from here"),
        Column("share", "Share", "share", note="Of all answers"),
        Column("input_tokens", "Prompt tokens", "number", usual=False),
        Column("cached", "Cached", "share", note="Of the prompt tokens, those that were found in a cache"),
        Column("output_tokens", "Answer tokens", "number", usual=False),
        Column("cost", "Cost", "money", note="With failed attempts, comparisons and corrections"),
        Column("each", "Per answer", "money", note="The cost divided by the answers"),
        Column(
            "saved", "Saved", "money", note="What the baseline model would have cost for the same tokens, less the cost"
        ),
    )
    return Table.of(
        columns,
        rows,
        query,
        name="models",
        caption="Models",
        sort="-cost",
        page_rows=20,
        search=("model",),
        empty="No model was called in this time.",
    )


async def sources_table(
    usage: UsageReader,
    scope: ReadScope,
    period: Usage,
    names: Mapping[str, str],
    query: Mapping[str, str],
    links: SpendLinks,
) -> Table:
    """Return usage by key and tag. `names` are the team's keys."""
    page = await usage.page(
        UsageQuery(
            scope=scope,
            start_us=period.span.start_us,
            end_us=period.span.end_us,
            offsets=period.span.offsets,
            group_by=("key", "tag"),
            limit=MAX_ROWS - 1,
        ),
        with_totals=False,
    )
    # Callers choose tags, so there may be thousands: build the table off the event loop.
    return await asyncio.to_thread(_sources_table, page.rows, names, query, links)


def _sources_table(
    found: Sequence[UsageRow], names: Mapping[str, str], query: Mapping[str, str], links: SpendLinks
) -> Table:
    rows = [
        {
            "key": names.get(str(row.group[0]), str(row.group[0]) or "No key (posted by the books)"),
            "key_href": links.part(key=str(row.group[0])),
            "tag": str(row.group[1]) or None,
            "tag_href": links.part(tag=str(row.group[1])),
            "requests": row.sums.requests,
            "input_tokens": row.sums.input_tokens,
            "output_tokens": row.sums.output_tokens,
            "cost": row.sums.known_cost_nanousd,
            "saved": saving(row.sums),
        }
        for row in found
    ]
    columns = (
        Column("key", "Key", "link"),
        Column("tag", "Tag", "link", note="The header x-weighbridge-tag that the caller sent"),
        Column("requests", "Requests", "number"),
        Column("input_tokens", "Prompt tokens", "number"),
        Column("output_tokens", "Answer tokens", "number"),
        Column("cost", "Cost", "money"),
        Column(
            "saved", "Saved", "money", note="What the baseline model would have cost for the same tokens, less the cost"
        ),
    )
    return Table.of(
        columns,
        rows,
        query,
        name="sources",
        caption="Keys and tags",
        sort="-cost",
        page_rows=10,
        search=("key", "tag"),
        empty="Nothing was asked in this time.",
    )


def coverage(sums: UsageSums) -> Decimal | None:
    """Return the share of answers that have a baseline price."""
    return share(sums.baseline_rows, sums.served)


def saved_share(sums: UsageSums) -> Decimal | None:
    """Return savings divided by the baseline's cost, rounded down as the savings report does; None without a baseline."""
    saved = saving(sums)
    return None if saved is None or sums.baseline_nanousd <= 0 else floor(Fraction(saved, sums.baseline_nanousd))


def _share(part: int, whole: int) -> Decimal | None:
    return share(part, whole)


def _costs(usage: Usage, models: Sequence[str]) -> list[float | None]:
    days: dict[int, int] = {}
    for (day, name, _), sums in usage.mix.items():
        if name in models:
            days[day] = days.get(day, 0) + sums.cost_nanousd
    # A correction may take a day below zero, which a stack cannot show; the table beside it has the figure.
    return [max(0, days.get(day, 0)) for day in usage.drawn_days()]


def _daily(usage: Usage, shape: Any, title: str, series: Sequence[Series], unit: Unit, *, caption: str) -> Chart:
    x_label = f"Day ({usage.span.time_zone})"
    return Chart(
        shape=shape, title=title, x=usage.drawn_days(), series=series, unit=unit, x_label=x_label, caption=caption
    )
