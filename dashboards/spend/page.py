"""/dashboard/teams/{team_id}/spend and /dashboard/finance/spend: what was spent, beside the time before, and each part a click away."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.store import TeamRecord
from api.web.reading import reading
from cost.dimensions import Dimension, UsageFilters
from cost.reports.compared import MOST_ROWS, Compared, ComparedQuery, ComparedReader
from cost.reports.minutes import read_minutes
from cost.reports.movers import Movers, signed, told_window
from cost.reports.report_errors import BadQuery
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_ROWS, UsageQuery
from cost.times import DAY_US, HOUR_US, MINUTE_US, day_of, iso
from dashboards.spend.asked import (
    CAUSES,
    DIVIDED,
    END_USER_DAYS,
    LASTS,
    Asked,
    asked_of,
    label_of,
    nobody_of,
    requests_href,
)
from dashboards.spend.changes import SHOWN, change_lines, named, read_changes
from dashboards.ui.charts import Chart, Series
from dashboards.ui.colours import model_colours
from dashboards.ui.formats import plural
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.period import chosen_scope, kept_fields, presets, team_names, whose, whose_asked
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

_MODELS_DRAWN: Final = 5
_LEADS: Final[Mapping[str, str]] = {
    "day": "A bar leads to its day by hours.",
    "hour": "A bar leads to its hour by minutes.",
    "minute": "A bar leads to its minute's requests.",
}
_TOO_MANY: Final = f"End users are divided within {END_USER_DAYS} day at most: ask for a day, or for one `end_user`."
Bars = dict[str, dict[int, tuple[int, int]]]
"""Cost and requests by model and the start of a bar."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows; None for what cannot be asked of this time."""

    bars: Bars
    parts: Compared | None
    changes: Movers | None
    problem: str = ""


@router.get("/dashboard/teams/{team_id}/spend")
async def of_team(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show a team's spend."""
    team = view.the_team
    return await _show(view, ReadScope(organisation_id=team.organisation_id, team_id=team.team_id), team, {})


@router.get("/dashboard/finance/spend")
async def of_organisation(view: Annotated[PageRequest, Depends(allowed("finance.read"))]) -> Response:
    """Show the organisation's spend, or that of one of its teams."""
    if (asked := await whose_asked(view)) is not None:
        return asked
    async with reading(view.gateway, on=True):
        scope, team = await chosen_scope(view)
        teams = await team_names(view)
    return await _show(view, scope, team, teams)


async def _show(view: PageRequest, scope: ReadScope, team: TeamRecord | None, teams: Mapping[str, str]) -> Response:
    now_us, whole = view.now_us, scope.team_id is None
    async with reading(view.gateway, on=True):
        asked = asked_of(view.query, now_us, await view.calendar(), of_organisation=whole)
    causes: tuple[Dimension, ...] = ("team", *CAUSES[asked.of][1]) if whole else CAUSES[asked.of][1]
    accounts = view.gateway.identity.accounts
    async with reading(view.gateway, on=True):
        key = asked.values.get("key")
        filters = asked.filters(() if key is None else await accounts.key_family(scope.organisation_id, key))
        found = await _read(view, scope, asked, filters, causes)
        ids = {*([key] if key else []), *_keys(found.parts, (asked.by,)), *_keys(found.changes, causes)}
        keys = await accounts.named_keys(scope.organisation_id, ids) if ids else {}
    name = named({"team": teams, "key": {each: told for each, (told, _) in keys.items()}})
    table = _table(asked, found.parts, name, view.query)
    window = asked.window(now_us, causes)
    # A time that is not over is compared to its last full hour or day, which rows stand for; bars go on to now.
    counted_us = window.end_us if window.end_us < min(asked.end_us, now_us) else None
    until = "" if counted_us is None else f"-until-{iso(counted_us)[:16].replace(':', '')}Z"
    problem = asked.period.problem or found.problem
    file = view.csv_asked(
        f"spend-by-{asked.by}-{asked.period.first}-{asked.period.last}{until}",
        table,
        problem=problem or ("" if found.parts else _TOO_MANY),
    )
    if file is not None:
        return file
    query = ComparedQuery(scope=scope, window=window, group_by=causes) if found.changes else None
    return view.page(
        "spend/spend.html",
        title="Spend",
        team=team,
        teams=whose(teams) if teams else (),
        period=msgspec.structs.replace(asked.period, problem=problem),
        presets=_presets(view, asked),
        kept=[each for each in kept_fields(view.query) if each[0] not in {"last", "hour"}],
        chips=[(label_of(each), name(each, value), asked.href(**{each: ""})) for each, value in asked.values.items()],
        bars=found.bars,
        spent=sum(cost for bars in found.bars.values() for cost, _ in bars.values()),
        requests=sum(count for bars in found.bars.values() for _, count in bars.values()),
        change=None if found.changes is None else found.changes.compared.whole,
        signed=signed,
        compared=told_window(window),
        counted_us=counted_us,
        chart=_chart(asked, found.bars, now_us, scope.team_id, view.gateway.rules().catalog.targets),
        lines=[] if query is None else change_lines(found.changes, query, name, now_us, asked.part_href),
        causes=[(words, asked.href(of=key), key == asked.of) for key, (words, _) in CAUSES.items()],
        against=[
            ("The time before", asked.href(against=""), asked.against == "previous"),
            ("The same weekdays before", asked.href(against="week"), asked.against == "week"),
        ],
        tabs=[
            (label_of(each), asked.href(by=each), each == asked.by)
            for each in (*(("team",) if whole else ()), *DIVIDED)
        ],
        by=label_of(asked.by),
        table=table,
        others=None if found.parts is None or len(found.parts.rows) < MOST_ROWS else found.parts.others,
        most=MOST_ROWS,
        end_user_days=END_USER_DAYS,
        requests_href="" if scope.team_id is None else asked.requests_href(scope.team_id),
    )


async def _read(
    view: PageRequest, scope: ReadScope, asked: Asked, filters: UsageFilters, causes: tuple[Dimension, ...]
) -> Found:
    """Read the bars, the parts and the changes; what the time is too long for is left out, with the reason."""
    reader, now_us = ComparedReader(view.gateway.database), view.now_us
    try:
        bars = await _bars(view, scope, filters, asked)
        parts = changes = None
        if _is_divisible(asked, (asked.by,)):
            window = asked.window(now_us, (asked.by,))
            parts = await reader.read(
                ComparedQuery(
                    scope=scope, window=window, group_by=(asked.by,), filters=filters, order="cost", limit=MOST_ROWS
                )
            )
        if _is_divisible(asked, causes):
            window = asked.window(now_us, causes)
            changes = await read_changes(
                reader, ComparedQuery(scope=scope, window=window, group_by=causes, filters=filters, limit=SHOWN)
            )
    except BadQuery as error:
        return Found(bars={}, parts=None, changes=None, problem=f"This time cannot be shown: {error}.")
    return Found(bars=bars, parts=parts, changes=changes)


def _is_divisible(asked: Asked, by: tuple[Dimension, ...]) -> bool:
    """Return False for end users over more days than are read one by one; a single one is found by an index."""
    return "end_user" not in by or "end_user" in asked.values or _length_us(asked) <= END_USER_DAYS * DAY_US


def _length_us(asked: Asked) -> int:
    # A day of 25 hours is a day.
    return asked.end_us - asked.start_us - (0 if asked.is_short else HOUR_US)


async def _bars(view: PageRequest, scope: ReadScope, filters: UsageFilters, asked: Asked) -> Bars:
    found: Bars = {}
    if asked.step == "minute":
        for row in await read_minutes(view.gateway.database, scope, filters, asked.start_us, asked.end_us):
            found.setdefault(row.model, {})[row.start_us] = (row.cost_nanousd, row.requests)
        return found
    query = UsageQuery(
        scope=scope,
        start_us=asked.start_us,
        end_us=asked.end_us,
        # An hour within which a day begins has a bar in each.
        group_by=("day", "model") if asked.step == "day" else ("day", "model", "hour"),
        filters=filters,
        offsets=asked.calendar.offsets(asked.start_us, asked.end_us),
        limit=MAX_ROWS - 1,
    )
    while True:
        page = await view.gateway.finance.usage.page(query, with_totals=False)
        for each in page.rows:
            at_us, model, *hour = (each.group[0], str(each.group[1]), *each.group[2:])
            found.setdefault(model, {})[_bar(asked, int(at_us), *map(int, hour))] = (
                each.sums.cost_nanousd,
                each.sums.requests,
            )
        if page.next_cursor is None:
            return found
        query = msgspec.structs.replace(query, cursor=page.next_cursor)


def _bar(asked: Asked, mark: int, hour_us: int | None = None) -> int:
    """Return the bar of a row (`Asked.bars`) by its day's mark and its hour."""
    if hour_us is None:
        return mark
    return max(hour_us, asked.calendar.start(day_of(mark)))


def _keys(found: Compared | Movers | None, group_by: tuple[Dimension, ...]) -> list[str]:
    """Return the keys among the groups."""
    if found is None or "key" not in group_by:
        return []
    rows = [each.row for each in found.movers] if isinstance(found, Movers) else found.rows
    return [row.group[group_by.index("key")] for row in rows if row.group[group_by.index("key")]]


def _presets(view: PageRequest, asked: Asked) -> list[tuple[str, str, bool]]:
    short = [(f"{hours} hours", asked.href(last=name), view.query.get("last") == name) for name, hours in LASTS.items()]
    days = presets(
        {name: value for name, value in view.query.items() if name not in {"last", "hour"}}, view.now_us, asked.period
    )
    return [*reversed(short), *((label, href, here and not asked.is_short) for label, href, here in days)]


def _chart(asked: Asked, bars: Bars, now_us: int, team_id: str | None, configured: Iterable[str]) -> Chart:
    x = asked.bars(now_us)
    totals = {model: sum(cost for cost, _ in found.values()) for model, found in bars.items()}
    ranked = sorted((model for model, total in totals.items() if total > 0), key=lambda model: (-totals[model], model))
    shown, others = ranked[:_MODELS_DRAWN], ranked[_MODELS_DRAWN:]

    def costs(*models: str) -> list[float | None]:
        # A correction may take a bar below zero, which a stack cannot show; the table beside it has the figure.
        return [max(0, sum(bars[model].get(at, (0, 0))[0] for model in models)) for at in x]

    colours = model_colours(configured, shown)
    series = [Series(model or "No model", costs(model), colour=colours[model]) for model in shown]
    if others:
        series.append(Series(plural(len(others), "other model"), costs(*others), "quiet"))
    if asked.step == "minute":
        hrefs = [] if team_id is None else [
            requests_href(team_id, at, at + MINUTE_US, asked.values) for at in x
        ]  # fmt: skip
    else:
        hrefs = [asked.narrowed(at) for at in x]
    return Chart(
        shape="stacked",
        title=f"Cost by {asked.step} and model",
        x=x,
        series=series,
        unit="usd",
        by_hour=asked.step != "day",
        x_label=f"{asked.step.capitalize()} ({asked.period.time_zone})",
        time_zone=asked.period.time_zone,
        caption=_LEADS[asked.step] if hrefs else "",
        hrefs=hrefs,
    )


_COLUMNS: Final = (
    Column("cost", "Cost", "money", note="Everything that is booked to it"),
    Column("before", "Before", "money", note="In the time that it is compared with"),
    Column("change", "Change", "money"),
    Column("change_share", "Change, %", "share", note="Of the cost before"),
    Column("requests", "Requests", "number"),
    Column("requests_before", "Requests before", "number", usual=False),
    Column("tokens", "Tokens", "number"),
    Column("tokens_before", "Tokens before", "number", usual=False),
    Column("failed", "Not served", "number", note="Attempts whose answer did not reach the caller whole", usual=False),
)


def _table(asked: Asked, parts: Compared | None, name: Any, query: Mapping[str, str]) -> Table:
    rows = [
        {
            "name": name(asked.by, value) if value else nobody_of(asked.by),
            "name_href": asked.href(**{asked.by: value}) if value and asked.by not in asked.values else None,
            "id": value,
            "cost": row.now.known_cost_nanousd,
            "before": row.before.known_cost_nanousd,
            "change": row.change_nanousd,
            "change_share": None if row.change_share is None else float(row.change_share),
            "requests": row.now.requests,
            "requests_before": row.before.requests,
            "tokens": row.now.tokens,
            "tokens_before": row.before.tokens,
            "failed": max(0, row.now.attempts - row.now.served),
        }
        for row in (() if parts is None else parts.rows)
        for value in row.group
    ]
    columns: tuple[Column, ...] = (Column("name", label_of(asked.by), "link"), *_COLUMNS)
    if asked.by in {"key", "team"}:
        columns = (*columns, Column("id", "Id", "code", usual=False))
    return Table.of(
        columns,
        rows,
        query,
        name="parts",
        caption=f"Spend by {label_of(asked.by).lower()}",
        sort="-cost",
        page_rows=20,
        search=("name", "id"),
        empty="Nothing was spent in this time.",
    )
