"""/dashboard/budgets: every budget of the organisation, the most used first, and a page of each that is no team's."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.budgets.change import read_budget
from api.web.changing import looking
from cost.budgets.budget import BudgetStatus, Kind
from cost.budgets.store import BudgetStore
from cost.scopes import ANY, ROWS
from dashboards.budgets import one_budget
from dashboards.budgets.one_budget import LASTS_NOTE, Subject, budget_row
from dashboards.limits.limit_fields import KIND_NOTE
from dashboards.ui.tables import Column, LazyRow, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

_PLACE: Final = "/dashboard/budgets"
_COLUMNS: Final = (
    Column("of", "Of", "link"),
    Column("scope", "What it is"),
    Column("period", "Period"),
    Column("state", "State", "badge"),
    Column("share", "Share spent", "share"),
    Column("spent", "Counted", "money", "Booked in the running period, our own GPUs at their planned rate."),
    Column("limit", "Limit", "money"),
    Column("lasts", "Runs out", "badge", LASTS_NOTE),
    Column("expected", "Forecast", "money", "Expected to be counted by the reset.", usual=False),
    Column("resets", "Resets", "time"),
    Column("kind", "Kind", note=KIND_NOTE, usual=False),
    Column("held", "Reserved", "money", "For requests that run now, or on its way into the books.", usual=False),
    Column("id", "Id", "code", usual=False),
)


@router.get(_PLACE)
async def show_budgets(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """Show all budgets of the viewer's organisation."""
    async with looking():
        standings = await BudgetStore(view.gateway.database).of_organisation(view.principal.organisation_id)
        calendar = await view.calendar()
    teams, keys = await _owners(view, standings)
    problem = view.gateway.rules().names.budget_problem
    idle = sum(_is_told(each) and bool(problem(each.budget)) for each in standings)
    rows = [
        LazyRow({"share": each.share if _is_told(each) else None}, partial(_row, view, each, teams, keys))
        for each in standings
    ]
    ends = [each.runs_out_us for each in standings if each.renews_us is not None and each.runs_out_us is not None]
    table = Table.of(
        _COLUMNS,
        rows,
        view.query,
        name="budgets",
        caption="Budgets",
        sort="-share",
        search=("of", "scope", "state", "lasts"),
        empty="Nobody has a budget yet. A team's are set on its page “Budgets and limits”.",
    )
    return view.csv_asked("budgets", table) or view.page(
        "budgets/organisation.html",
        title="Budgets",
        table=table,
        time_zone=calendar.at(view.now_us).time_zone,
        idle=idle,
        total=len(standings),
        spent=_spent(standings, "hard"),
        over=_spent(standings, "soft"),
        runs_out=len(ends),
        first_end_us=min(ends, default=None),
        warned=sum(each.state == "warning" for each in standings),
    )


@router.get(f"{_PLACE}/{{budget_id}}")
async def show_budget(view: Annotated[PageRequest, Depends(allowed("organisation.read"))], budget_id: str) -> Response:
    """Show one budget's standing, and the forms to change it."""
    return one_budget.show(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}")
async def change_budget(
    view: Annotated[PageRequest, Depends(allowed("organisation.change"))], budget_id: str
) -> Response:
    """Change a budget's limit and what happens when it is exhausted."""
    return await one_budget.change(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}/raise")
async def raise_for_a_while(
    view: Annotated[PageRequest, Depends(allowed("organisation.change"))], budget_id: str
) -> Response:
    """Put another limit in force to the end of a day, or end a raise."""
    return await one_budget.raise_for_a_while(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}/topups")
async def pay_in(view: Annotated[PageRequest, Depends(allowed("organisation.change"))], budget_id: str) -> Response:
    """Pay into a prepaid budget."""
    return await one_budget.pay_in(view, await _subject(view, budget_id))


@router.post(f"{_PLACE}/{{budget_id}}/remove")
async def take_budget(
    view: Annotated[PageRequest, Depends(allowed("organisation.change"))], budget_id: str
) -> Response:
    """Remove a budget. Its spend stays in the books."""
    return await one_budget.take(view, await _subject(view, budget_id))


async def _subject(view: PageRequest, budget_id: str) -> Subject:
    """Return one of the organisation's budgets. Raises BudgetNotFound."""
    store = BudgetStore(view.gateway.database)
    standing = await read_budget(store, view.principal.organisation_id, budget_id)
    teams, keys = await _owners(view, [standing])
    async with looking():
        topups = await store.topups(budget_id) if standing.budget.period == "prepaid" else []
    return Subject(
        _PLACE, "Budgets", standing, _row(view, standing, teams, keys), topups, view.may("organisation.change")
    )


async def _owners(
    view: PageRequest, standings: Sequence[BudgetStatus]
) -> tuple[dict[str, str], Mapping[str, tuple[str, str]]]:
    """Return the names of the organisation's teams, and of the keys that have one of these budgets."""
    owner, accounts = view.principal.organisation_id, view.gateway.identity.accounts
    async with looking():
        of_keys = [each.budget.scope_id for each in standings if each.budget.scope == "key"]
        keys = await accounts.named_keys(owner, of_keys)
        return await accounts.team_names(owner), keys


def _is_told(standing: BudgetStatus) -> bool:
    """Return False for a budget for each one of many, which has spent nothing itself."""
    return not standing.budget.for_each


def _spent(standings: Sequence[BudgetStatus], kind: Kind) -> int:
    return sum(each.state == "spent" and each.budget.kind == kind for each in standings)


def _row(
    view: PageRequest, standing: BudgetStatus, teams: Mapping[str, str], keys: Mapping[str, tuple[str, str]]
) -> dict[str, Any]:
    name, href = _whose(standing, teams, keys)
    return {
        **budget_row(view, standing, told=_is_told(standing)),
        "of": name,
        "of_href": href,
        "scope": ROWS[standing.budget.scope].label,
    }


def _whose(standing: BudgetStatus, teams: Mapping[str, str], keys: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Return a budget's owner by name, and the page where it is changed."""
    budget = standing.budget
    own_page = f"{_PLACE}/{quote(budget.budget_id, safe='')}"
    if budget.scope == "team":
        return teams.get(budget.scope_id, budget.scope_id), _page(budget.scope_id, budget.budget_id)
    if budget.scope == "key":
        name, team_id = keys.get(budget.scope_id, (budget.scope_id, ""))
        whole = f"{name} ({teams.get(team_id, team_id)})" if team_id else name
        return whole, _page(team_id, budget.budget_id) if team_id else own_page
    if team_id := ROWS[budget.scope].team_in(budget.scope_id):
        value = budget.scope_id.partition("/")[2]
        label = ROWS[budget.scope].label
        name = f"each {label}" if value == ANY else value
        return f"{name} ({teams.get(team_id, team_id)})", _page(team_id, budget.budget_id)
    if budget.for_each:
        return "Each one of every team", own_page
    return ("The whole organisation" if budget.scope == "organisation" else budget.shown_id), own_page


def _page(team_id: str, budget_id: str) -> str:
    return f"/dashboard/teams/{quote(team_id, safe='')}/budgets/{quote(budget_id, safe='')}"
