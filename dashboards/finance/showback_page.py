"""/dashboard/finance/showback: spend by team, model or key. The rows, the idle row included, add up to the bill."""

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, cast
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.reading import reading
from cost.calendar import Days
from cost.dimensions import ON_PAGES, Dimension
from cost.reports.period import DaySpent, PeriodLine, PeriodReader, SpendSum, idle_of, known_cost_of, lines_by, spent
from dashboards.ui.charts import Chart, Series
from dashboards.ui.tables import Column, LazyRow, Row, Table
from dashboards.web.access import allowed
from dashboards.web.period import Period, chosen_scope, kept_fields, period_of, presets, team_names, whose, whose_asked
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

IDLE: Final = "Idle GPUs"
_SERIES: Final = 5
"""Most teams with their own series in the chart."""
_SHARE: Final = Decimal("0.0001")
_MOST_NAMES: Final = 5_000
"""Most keys that are named; further ones stand with their ids."""


@router.get("/dashboard/finance/showback")
async def show(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show the chosen days' spend, by team or by the address's grouping, of the organisation or of one team."""
    gateway, now_us = view.gateway, view.now_us
    if (asked := await whose_asked(view)) is not None:
        return asked
    by = _by(view.query.get("by", ""))
    reader = PeriodReader(gateway.database)
    async with reading(gateway, on=True):
        period = period_of(view.query, now_us, await view.calendar())
        scope, team = await chosen_scope(view)
        teams = await team_names(view)
        lines = await reader.lines(scope, period.start_us, period.end_us, (by,), apart=("origin",))
        dearest = await reader.dearest_teams(scope, period.start_us, period.end_us, _SERIES)
        days = await reader.days(scope, period.start_us, period.end_us, period.span.offsets, dearest)
        names, links = await _told(view, by, lines, teams, period)
    total = spent(lines)
    idle = idle_of(lines)
    table = Table.of(
        _columns(by),
        _rows(lines, by, names, links),
        view.query,
        name="showback",
        caption=f"Costs by {by}",
        sort="-total",
        search=("name", "id"),
        empty="Nothing was spent in this time.",
    )
    return view.csv_asked(f"showback-{by}-{period.first}-{period.last}", table, problem=period.problem) or view.page(
        "finance/showback.html",
        title="Showback",
        period=period,
        presets=presets(view.query, now_us, period),
        kept=kept_fields(view.query),
        tabs=_tabs(view.query, by),
        team=team,
        teams=whose(teams),
        by=ON_PAGES[by].label.lower(),
        total=total,
        idle=idle,
        nobody=spent(line for line in lines if not line.team_id and line.origin != "idle")
        if by == "team"
        else SpendSum(),
        planned_days=_running(period, now_us),
        table=table,
        chart=_chart(days, dearest, teams, period, now_us),
    )


def _by(given: str) -> Dimension:
    return cast("Dimension", given) if given in ON_PAGES else "team"


def _tabs(query: Mapping[str, str], by: Dimension) -> list[tuple[str, str, bool]]:
    # Another grouping has other rows, so search, sorting and page are reset.
    kept = {name: value for name, value in query.items() if name in {"from", "to", "month", "team"}}
    return [(each.label, f"?{urlencode({**kept, 'by': name})}", name == by) for name, each in ON_PAGES.items()]


def _columns(by: Dimension) -> tuple[Column, ...]:
    columns = (
        Column("name", ON_PAGES[by].label, "link"),
        Column("total", "Total", "money", "Everything that is booked to it"),
        Column("share", "Of the bill", "share"),
        Column("booked", "Booked", "money", "Requests and shadow calls, at the price of the day"),
        Column(
            "corrected", "Corrected", "money", "Corrections of prices, and to the providers' own figures", usual=False
        ),
        Column("true_up", "Adjustment", "money", "From the planned rate of our own GPUs to their bill"),
        Column("reference", "At the baseline model", "money", "What the same served requests would have cost there"),
        Column("saved", "Saved", "money", "At the baseline model, less the total"),
        Column("requests", "Requests", "number"),
        Column("input_tokens", "Tokens in", "number", usual=False),
        Column("output_tokens", "Tokens out", "number", usual=False),
        Column("unpriced", "Without a price", "number", "Attempts that are in no total", usual=False),
    )
    return (*columns, Column("id", "Id", "code", usual=False)) if by in {"team", "key"} else columns


def _priced(view: PageRequest) -> Collection[str]:
    """Return models that have a page in the price book; models removed from the configuration long ago have none."""
    return view.gateway.rules().catalog.targets.keys() | view.gateway.finance.prices.book.prices.keys()


async def _told(
    view: PageRequest, by: Dimension, lines: Sequence[PeriodLine], teams: Mapping[str, str], period: Period
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the names and links of rows by their ids: a team's models, a key's page, a model's price. What is gone has
    none.
    """
    if by == "team":
        days = {"from": period.first, "to": period.last}
        return teams, {
            key: f"/dashboard/finance/showback?{urlencode({'team': key, 'by': 'model', **days})}" for key in teams
        }
    ids = list(lines_by(lines, by))[:_MOST_NAMES]
    if by == "model":
        priced = _priced(view)
        return {}, {key: f"/dashboard/finance/prices/{quote(key, safe='')}" for key in ids if key in priced}
    if by != "key":
        return {}, {}
    keys = await view.gateway.identity.accounts.named_keys(view.principal.organisation_id, filter(None, ids))
    names = {key: f"{name} ({teams.get(team_id, team_id)})" for key, (name, team_id) in keys.items()}
    return names, {key: f"/dashboard/teams/{team_id}/keys/{key}" for key, (_, team_id) in keys.items()}


def _rows(lines: Sequence[PeriodLine], by: Dimension, names: Mapping[str, str], links: Mapping[str, str]) -> list[Row]:
    whole = spent(lines).cost_nanousd

    def made(key: str, found: Sequence[PeriodLine]) -> Row:
        name = names.get(key, key) if key else ON_PAGES[by].nobody
        return {**_row(name, key, spent(found), whole), "name_href": links.get(key)}

    rows: list[Row] = [
        LazyRow({"total": known_cost_of(found)}, partial(made, key, found))
        for key, found in lines_by(lines, by).items()
    ]
    idle = idle_of(lines)
    if idle.cost_nanousd:
        rows.append({**_row(IDLE, "", idle, whole), "total": idle.cost_nanousd, "name_href": None})
    return rows


def _row(name: str, key: str, found: SpendSum, whole: int) -> dict[str, Any]:
    return {
        "name": name,
        "id": key,
        "requests": found.requests,
        "input_tokens": found.input_tokens,
        "output_tokens": found.output_tokens,
        "booked": None if found.known_cost_nanousd is None else found.part("requests", "shadow"),
        "corrected": found.part("corrections", "reconciliations"),
        "true_up": found.part("true-up"),
        "total": found.known_cost_nanousd,
        "share": (Decimal(found.cost_nanousd) / whole).quantize(_SHARE) if whole > 0 else None,
        "reference": found.baseline_nanousd if found.baseline_rows else None,
        "saved": found.saving_nanousd,
        "unpriced": found.unpriced_attempts,
    }


def _running(period: Period, now_us: int) -> bool:
    """Return True if the period includes now. Today's GPUs are booked at the planned rate until the nightly true-up."""
    return period.start_us <= now_us < period.end_us


def _chart(
    days: Sequence[DaySpent], named: Sequence[str], teams: Mapping[str, str], period: Period, now_us: int
) -> Chart:
    """Return spend by day of the most expensive teams, of the others together, and of idle GPUs."""
    x = list(
        Days(period.span.first, min(period.span.last, period.span.calendar.day(now_us)), period.span.calendar).marks
    )
    place = {day: at for at, day in enumerate(x)}
    columns: dict[str | None, list[int]] = {each: [0] * len(x) for each in named}
    others, idle = [0] * len(x), [0] * len(x)
    for each in days:
        column = idle if each.is_idle else columns.get(each.team_id, others)
        if each.day_us in place:
            # A day whose corrections are larger than what it cost has no bar.
            column[place[each.day_us]] += each.cost_nanousd
    series = [Series(teams.get(each, each) or ON_PAGES["team"].nobody, columns[each]) for each in named]
    if any(others):
        series.append(Series("All other teams", others))
    if any(idle):
        series.append(Series("Idle GPUs", idle, "quiet"))
    return Chart(
        shape="stacked",
        title="Cost by day",
        x=x,
        series=series,
        unit="usd",
        x_label=f"Day ({period.time_zone})",
        caption="US dollars a day, by team; the dearest teams have a colour of their own.",
    )
