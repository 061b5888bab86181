"""/dashboard/teams: the visible teams, and each team's overview of spend, models, budgets and savings."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.store import TeamRecord
from api.operations.refusals import refusal_as_json
from api.teams.change import put_team
from api.web.address import base_url
from api.web.gateway import Gateway
from api.web.reading import reading
from cost.budgets.budget import BudgetStatus
from cost.budgets.periods import PERIODS
from cost.budgets.store import BudgetStore
from cost.calendar import Days
from cost.dimensions import UsageFilters
from cost.reports.compared import ComparedQuery, ComparedReader, window_of
from cost.reports.daily import saving
from cost.reports.latency import BINS, CAUSES, Complexities, LatestReader, Sample, complexities, failures, latency
from cost.reports.movers import signed, told_window
from cost.reports.recent import RecentQuery, RecentReader
from cost.reports.scope import ReadScope
from cost.reports.usage import MAX_ROWS, UsageQuery, UsageSums, added, known_cost
from cost.times import DAY_US, moment
from dashboards.requests.page import key_names, rows_of
from dashboards.requests.refusals_table import refusals_table
from dashboards.spend.changes import change_lines, days_href, named, read_changes
from dashboards.teams.figures import (
    DAYS,
    HABITS,
    SpendLinks,
    Usage,
    cache_chart,
    coverage,
    models_table,
    read_budgets,
    read_end_users,
    read_usage,
    reference_chart,
    requests_chart,
    saved_share,
    sources_table,
    spend_chart,
)
from dashboards.teams.first_steps import first_steps
from dashboards.ui.charts import Chart, Mark, Series
from dashboards.ui.colours import model_colours
from dashboards.ui.formats import money, share
from dashboards.ui.tables import Column, LazyRow, Table
from dashboards.ui.words import cause_words
from dashboards.web.access import allowed
from dashboards.web.forms import FormError
from dashboards.web.period import kept_fields, last_days, period_of, presets
from dashboards.web.view import PageRequest
from proxy.errors import Refused
from selfhosted.prefixes.prefix_report import PrefixReport, rates_of, stability
from selfhosted.prefixes.store import PrefixStore

router: Final = APIRouter(include_in_schema=False)

_RECENT: Final = 8
_CHANGES_SHOWN: Final = 3
_WEEK_DAYS: Final = 7
_PREFIX_DAYS: Final = 7
_MOST_KEYS: Final = 1_000
_MAX_TEAMS: Final = 100
_TARGETS_DRAWN: Final = 4
_LATEST_TABLES: Final = frozenset({"speed", "failures"})


@router.get("/dashboard/teams")
async def teams(view: Annotated[PageRequest, Depends(allowed("signed-in"))]) -> Response:
    """Show the viewer's teams; all of the organisation's for those who may read it."""
    return await _teams(view)


@router.post("/dashboard/teams")
async def create_team(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Create a team by id and name."""
    form = await view.form()
    try:
        team_id = form.text("team_id", required=True)
        name = form.text("name") or team_id
        await _check_new(view, team_id)
        team, _ = await put_team(
            view.gateway.identity.audit, view.actor, view.principal.organisation_id, team_id, name=name
        )
    except FormError as error:
        return await _teams(view, {error.field: error.message}, form.plain)
    except Refused as error:
        return await _teams(view, {error.param if error.param == "name" else "team_id": error.message}, form.plain)
    return view.redirect(f"/dashboard/teams/{team.team_id}", f"Team {team.name} is there. Give it a key next.")


@router.get("/dashboard/teams/{team_id}")
async def overview(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show a team's overview."""
    if view.query.get("table") in _LATEST_TABLES:
        return await latest(view)
    gateway, team, scope = view.gateway, view.the_team, _scope(view)
    async with reading(gateway, on=True):
        period = period_of(view.query, view.now_us, await view.calendar(), usual_days=DAYS)
        links = SpendLinks(f"/dashboard/teams/{team.team_id}/spend", period.first, period.last)
        usage = await read_usage(gateway.finance.usage, scope, now_us=view.now_us, span=period.span)
        names = await key_names(view)
        # Of thousands of keys the page of spend tells, which asks for nothing else.
        has_few_keys = len(names) <= _MOST_KEYS
        sources = []
        if has_few_keys or view.query.get("table") == "sources":
            sources = [await sources_table(gateway.finance.usage, scope, usage, names, view.query, links)]
        # The page of spend has the same days when it is opened.
        week = last_days(view.now_us, period.span.calendar, _WEEK_DAYS)
        window = window_of(
            week.start_us, week.end_us, view.now_us, calendar=week.calendar, longest_us=2 * _WEEK_DAYS * DAY_US
        )
        asked = ComparedQuery(
            scope=scope, window=window, group_by=("key", "model") if has_few_keys else ("model",), limit=_CHANGES_SHOWN
        )
        changes = await read_changes(ComparedReader(gateway.database), asked)
        budgets = await read_budgets(gateway, scope)
        end_users = await read_end_users(gateway, scope)
        refusals = await gateway.views.refusals.read(
            view.now_us - DAY_US, organisation_id=scope.organisation_id, team_id=team.team_id
        )
        recent = await RecentReader(gateway.database).page(RecentQuery(scope=scope, rows=_RECENT))
    models = models_table(usage, view.query, links)
    refused = refusals_table(map(refusal_as_json, refusals), view.query, names=names, within_team=True)
    file = view.csv_asked(
        f"{team.team_id}-{period.first}-{period.last}", models, *sources, refused, problem=period.problem
    )
    if file is not None:
        return file
    if not (recent.requests or refusals or usage.month.requests or usage.period.requests):
        return await _first_request(view, team)
    return view.page(
        "teams/overview.html",
        title=team.name,
        team=team,
        usage=usage,
        period=period,
        within=period.within(view.now_us),
        presets=presets(view.query, view.now_us, period),
        kept=kept_fields(view.query),
        query=str(view.query),
        figures=_figures(usage),
        changes=change_lines(changes, asked, named({"key": names}), view.now_us, days_href(links.path, week)),
        change=None if changes is None else changes.compared.whole,
        signed=signed,
        compared=told_window(asked.window),
        spend_path=links.path,
        budgets=budgets,
        end_users=end_users,
        periods=PERIODS,
        charts=(
            spend_chart(usage, links, view.gateway.rules().catalog.targets),
            reference_chart(usage),
            requests_chart(usage),
            cache_chart(usage),
        ),
        models=models,
        sources=sources,
        keys=len(names),
        keys_href=links.part(by="key"),
        refused=refused,
        refusals=sum(each.refusals for each in refusals),
        recent=rows_of(recent.requests, team.team_id, names),
    )


async def _first_request(view: PageRequest, team: TeamRecord) -> Response:
    """Show what to do next with a team that has sent nothing yet."""
    now = moment(view.now_us)
    keys = await view.gateway.identity.accounts.keys_of(team.organisation_id, team.team_id)
    return view.page(
        "teams/new_team.html",
        title=team.name,
        team=team,
        has_key=any(key.works_at(now) for key in keys),
        may_change=view.may("team.change"),
        api=f"{base_url(view.request, view.gateway.config().sign_in.public_url)}/v1",
    )


@router.get("/dashboard/teams/{team_id}/savings")
async def savings(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the team's savings of the last 30 days with their verdict. Loaded after the page, because it reads more than
    the rest.
    """
    gateway, team, scope = view.gateway, view.the_team, _scope(view)
    async with reading(gateway, on=True):
        span = last_days(view.now_us, await view.calendar(), DAYS)
        inputs = await gateway.finance.savings.inputs(scope, span)
        found = await gateway.finance.savings.report(scope, inputs)
        booked = await gateway.finance.usage.page(
            UsageQuery(scope=scope, start_us=max(0, span.start_us), end_us=span.end_us, group_by=(), limit=1)
        )
    context: dict[str, Any] = {
        "team": team,
        "savings": found,
        "known": partial(known_cost, found.figures.unpriced_attempts),
        "reference": gateway.config().cost.reference_target,
        "days": DAYS,
        "booked_saving": saving(booked.totals) if booked.totals is not None else None,
    }
    if view.is_part:
        return view.part("teams/savings_part.html", **context)
    return view.page("teams/savings.html", title="Savings", **context)


@router.get("/dashboard/teams/{team_id}/latest")
async def latest(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show the complexity, speed and failures of the latest attempts, and prompt prefixes that defeat caches."""
    gateway, team, scope = view.gateway, view.the_team, _scope(view)
    async with reading(gateway, on=True):
        samples = await LatestReader(gateway.database).read(scope)
        prefixes = await _prefixes(gateway, scope, view.now_us)
    difficulty = complexities(samples)
    speed, failed = _speed_table(samples, view), _failures_table(samples, view)
    file = view.csv_asked(f"{team.team_id}-latest", speed, failed)
    if file is not None:
        return file
    context: dict[str, Any] = {
        "team": team,
        "samples": samples,
        "since_us": samples[-1].at_us if samples else None,
        "difficulty": difficulty,
        "difficulty_chart": _difficulty_chart(difficulty, view.gateway.rules().catalog.targets),
        "speed": speed,
        "failed": failures(samples),
        "failures": failed,
        "prefixes": prefixes,
        "prefix_days": _PREFIX_DAYS,
    }
    if view.is_part:
        return view.part("teams/latest_part.html", **context)
    return view.page("teams/latest.html", title="Difficulty, speed and failures", **context)


async def _check_new(view: PageRequest, team_id: str) -> None:
    """Raise FormError for an existing id: submitting the form twice, or by accident, must not rename a team."""
    known = await view.gateway.identity.accounts.teams_of(view.principal.organisation_id)
    if any(team.team_id == team_id for team in known):
        raise FormError("team_id", "Your organisation has a team of this id already.")


async def _teams(
    view: PageRequest, errors: dict[str, str] | None = None, values: dict[str, str] | None = None
) -> Response:
    gateway, principal = view.gateway, view.principal
    sees_all = view.may("organisation.read")
    async with reading(gateway, on=True):
        calendar = await view.calendar()
        spans = {"today": last_days(view.now_us, calendar, 1), "period": last_days(view.now_us, calendar, DAYS)}
        known = await gateway.identity.accounts.teams_of(principal.organisation_id)
        shown = [team for team in known if sees_all or team.team_id in principal.teams]
        sums = {
            name: await _by_team(gateway, principal.organisation_id, None if sees_all else shown, span)
            for name, span in spans.items()
        }
        budgets = await _most_used(gateway, principal.organisation_id)
        requests = sum(sums["period"].get(team.team_id, UsageSums()).requests for team in shown)
        steps = await first_steps(view, [team.team_id for team in shown], requests)
    # Viewers who may read the whole organisation usually have no role in its teams.
    columns, nothing = _TEAM_COLUMNS if principal.teams else _TEAM_COLUMNS[:-1], UsageSums()
    table = Table.of(
        columns,
        [
            LazyRow(
                {"cost": sums["period"].get(team.team_id, nothing).known_cost_nanousd},
                partial(_team_row, team, view, sums["today"], sums["period"], budgets.get(team.team_id)),
            )
            for team in shown
        ],
        view.query,
        name="teams",
        caption="Teams",
        sort="-cost",
        search=("name", "team_id"),
        empty="Your organisation has no team yet." if sees_all else "You belong to no team yet; ask an administrator.",
    )
    file = view.csv_asked("teams", table)
    if file is not None:
        return file
    return view.page(
        "teams/teams.html",
        title="Teams",
        time_zone=spans["today"].time_zone,
        status=422 if errors else 200,
        table=table,
        days=DAYS,
        total=added(sums["period"].get(team.team_id, UsageSums()) for team in shown),
        today=added(sums["today"].get(team.team_id, UsageSums()) for team in shown),
        saving=saving,
        saved_share=saved_share,
        steps=steps,
        may_create=view.may("organisation.change"),
        errors=errors or {},
        values=values or {},
    )


_TEAM_COLUMNS: Final = (
    Column("name", "Team", "link"),
    Column("team_id", "Id", "code", usual=False),
    Column("requests", "Requests", "number", note="In the last 30 days"),
    Column("today", "Today", "money", note="Spent since midnight"),
    Column("cost", "30 days", "money", note="Spent in the last 30 days, today included"),
    Column(
        "saved", "Saved", "money", note="What the baseline model would have cost for the same tokens, less the cost"
    ),
    Column("saved_share", "Saved share", "share", note="Of what the baseline model would have cost", usual=False),
    Column("budget", "Budget", "badge", note="Of the team's own budgets, the one that is used most"),
    Column("answered", "Succeeded", "share", note="Of the requests, those whose caller got a whole answer"),
    Column("role", "Your role"),
)


async def _most_used(gateway: Gateway, organisation_id: str) -> dict[str, BudgetStatus]:
    """Return the most used of each team's own budgets by team."""
    standings = await BudgetStore(gateway.database).standings_of(organisation_id, ["team"])
    return {each.budget.scope_id: each for each in sorted(standings, key=lambda each: each.share or 0)}


def _budget_mark(standing: BudgetStatus) -> tuple[str, str]:
    """Return a budget in a few words, and its tone."""
    used = f"{share(standing.share)} of {money(standing.limit_nanousd)} {PERIODS[standing.budget.period].amount_per}"
    return used, {"open": "good", "warning": "warn", "spent": "bad"}[standing.state]


def _team_row(
    team: TeamRecord,
    view: PageRequest,
    today: dict[str, UsageSums],
    period: dict[str, UsageSums],
    budget: BudgetStatus | None,
) -> dict[str, Any]:
    sums = period.get(team.team_id, UsageSums())
    return {
        "name": team.name,
        "name_href": f"/dashboard/teams/{team.team_id}",
        "team_id": team.team_id,
        "requests": sums.requests,
        "today": today.get(team.team_id, UsageSums()).known_cost_nanousd,
        "cost": sums.known_cost_nanousd,
        "saved": saving(sums),
        "saved_share": saved_share(sums),
        "answered": sums.served / sums.requests if sums.requests else None,
        "budget": None if budget is None else _budget_mark(budget),
        "role": view.principal.teams.get(team.team_id),
    }


async def _by_team(
    gateway: Gateway, organisation_id: str, teams: list[TeamRecord] | None, span: Days
) -> dict[str, UsageSums]:
    if teams is not None and not teams:
        return {}
    filters = UsageFilters(team=tuple(team.team_id for team in teams[:_MAX_TEAMS])) if teams else UsageFilters()
    page = await gateway.finance.usage.page(
        UsageQuery(
            scope=ReadScope(organisation_id=organisation_id, team_id=None),
            start_us=max(0, span.start_us),
            end_us=span.end_us,
            offsets=span.offsets,
            group_by=("team",),
            filters=filters,
            limit=MAX_ROWS - 1,
        ),
        with_totals=False,
    )
    return {str(row.group[0]): row.sums for row in page.rows}


def _scope(view: PageRequest) -> ReadScope:
    team = view.the_team
    return ReadScope(organisation_id=team.organisation_id, team_id=team.team_id)


def _figures(usage: Usage) -> dict[str, Any]:
    """Return the headline figures."""
    period, month = usage.period, usage.month
    coming = usage.forecast(usage.month_end_us, HABITS)
    spent = month.known_cost_nanousd
    return {
        "today": usage.today.known_cost_nanousd,
        "usual_day": usage.usual_day_nanousd,
        "month": spent,
        "forecast": coming,
        "month_expected": None if coming is None or spent is None else spent + coming.rest_nanousd,
        "month_low": None if coming is None or spent is None else spent + coming.low_nanousd,
        "month_high": None if coming is None or spent is None else spent + coming.high_nanousd,
        "saved": saving(period),
        "saved_share": saved_share(period),
        "coverage": coverage(period),
        "cost": period.known_cost_nanousd,
        "requests": period.requests,
        "served": period.served,
        "answered": period.served / period.requests if period.requests else None,
        "retries": max(0, period.attempts - period.requests),
        "input_tokens": period.input_tokens,
        "output_tokens": period.output_tokens,
        "cached": period.cached_input_tokens / period.input_tokens if period.input_tokens else None,
        "estimated": period.estimated_attempts,
        "unpriced": period.unpriced_attempts,
        "attempts": period.attempts,
        "cache_hits": period.cache_hits,
        "cache_saved": period.cache_saved_nanousd,
    }


async def _prefixes(gateway: Gateway, scope: ReadScope, now_us: int) -> PrefixReport:
    """Return the stability of the team's prompt prefixes on self-hosted pools, as GET /v1/fleet/prefixes reports it."""
    end_us = now_us - now_us % DAY_US + DAY_US
    start_us = end_us - _PREFIX_DAYS * DAY_US
    habits = await PrefixStore(gateway.database).read(scope, start_us, end_us)
    rates = rates_of(gateway.finance.savings.pools, gateway.finance.prices.book, now_us)
    return stability(habits, rates, start_us=start_us, end_us=end_us, now_us=now_us)


def _difficulty_chart(found: Complexities, configured: Iterable[str]) -> Chart:
    """Return the histogram of complexity by target, with bins at their middles, and the threshold between the
    mainstay's prompts and others'.
    """
    marks = () if found.threshold is None else (Mark(found.threshold.at, f"{found.threshold.at:.2f}"),)
    shown, others = found.by_target[:_TARGETS_DRAWN], found.by_target[_TARGETS_DRAWN:]
    colours = model_colours(configured, [name for name, _ in shown])
    series = [Series(name, bins, colour=colours[name]) for name, bins in shown]
    if others:
        together = [sum(column) for column in zip(*(bins for _, bins in others), strict=True)]
        series.append(Series(f"{len(others)} others", together, "quiet"))
    return Chart(
        shape="stacked",
        title="How hard the prompts were, and who answered",
        x=[(place + 0.5) / BINS for place in range(BINS)],
        series=series,
        unit="requests",
        is_time=False,
        x_label="Complexity (middle of the bin)",
        marks=marks,
        caption="From 0, easy, to 1, hard, as they were classified.",
    )


def _speed_table(samples: tuple[Sample, ...], view: PageRequest) -> Table:
    columns = (
        Column("target", "Model", "code"),
        Column("count", "Answers", "number", note="Streamed ones"),
        Column(
            "ttft_p50", "First token p50", "seconds", note="The caller's: half of the streams began within this time"
        ),
        Column("ttft_p95", "First token p95", "seconds", note="19 of 20 answers began within this time"),
        Column("ttft_p99", "First token p99", "seconds", note="99 of 100 answers began within this time"),
        Column("tpot_p50", "Per token p50", "seconds", note="Time for each token after the first"),
        Column("tpot_p95", "Per token p95", "seconds", note="Time for each token after the first"),
    )
    rows = [
        {
            "target": each.target_id or "All targets",
            "count": each.ttft.count,
            "ttft_p50": each.ttft.p50_s,
            "ttft_p95": each.ttft.p95_s,
            "ttft_p99": each.ttft.p99_s,
            "tpot_p50": each.tpot.p50_s,
            "tpot_p95": each.tpot.p95_s,
        }
        for each in latency(samples)
        if each.ttft.count
    ]
    return Table.of(
        columns, rows, view.query, name="speed", caption="Speed", page_rows=20, empty="No streamed answers lately."
    )


def _failures_table(samples: tuple[Sample, ...], view: PageRequest) -> Table:
    columns = (
        Column("target", "Model", "code"),
        Column("cause", "What happened"),
        Column("count", "Attempts", "number"),
        Column("share", "Share", "share", note="Of all attempts that were looked at"),
    )
    found = failures(samples)
    rows = [
        {
            "target": target,
            "cause": cause_words(cause) if cause in CAUSES else cause.capitalize(),
            "count": count,
            "share": count / found.attempts,
        }
        for target, cause, count in found.by_cause
    ]
    return Table.of(
        columns,
        rows,
        view.query,
        name="failures",
        caption="What failed",
        sort="-count",
        page_rows=10,
        empty="Every attempt ended well.",
    )
