"""/dashboard/budgets: every budget of the organisation, the most used first."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.changing import looking
from cost.budgets.budget import BudgetStatus
from cost.budgets.store import BudgetStore
from cost.scopes import ANY, ROWS
from dashboards.budgets.page import STATES
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

_COLUMNS: Final = (
    Column("of", "Of", "link"),
    Column("scope", "What it is"),
    Column("period", "Period"),
    Column("state", "State", "badge"),
    Column("share", "Share spent", "share"),
    Column("spent", "Counted", "money", "Booked in the running period, our own GPUs at their planned rate."),
    Column("limit", "Limit", "money"),
    Column("resets", "Resets", "time"),
    Column("kind", "Kind", note="A hard budget is never overrun; a soft one warns at 50, 80 and 100 %.", usual=False),
    Column("held", "Reserved", "money", "For requests that run now, or on its way into the books.", usual=False),
    Column("id", "Id", "code", usual=False),
)


@router.get("/dashboard/budgets")
async def show_budgets(view: Annotated[PageRequest, Depends(allowed("organisation.read"))]) -> Response:
    """Show all budgets of the viewer's organisation."""
    owner, gateway = view.principal.organisation_id, view.gateway
    async with looking():
        standings = await BudgetStore(gateway.database).of_organisation(owner)
        keys = await gateway.identity.accounts.named_keys(
            owner, [each.budget.scope_id for each in standings if each.budget.scope == "key"]
        )
        calendar = await view.calendar()
        teams = {team.team_id: team.name for team in await gateway.identity.accounts.teams_of(owner)}
    table = Table.of(
        _COLUMNS,
        [_row(each, teams, keys) for each in standings],
        view.query,
        name="budgets",
        caption="Budgets",
        sort="-share",
        search=("of", "scope", "state"),
        empty="Nobody has a budget yet. A team's are set on its page “Budgets and limits”.",
    )
    return view.csv_asked("budgets", table) or view.page(
        "budgets/organisation.html",
        title="Budgets",
        table=table,
        time_zone=calendar.at(view.now_us).time_zone,
        total=len(standings),
        spent=sum(each.state == "spent" for each in standings),
        warned=sum(each.state == "warning" for each in standings),
    )


def _row(standing: BudgetStatus, teams: Mapping[str, str], keys: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    budget = standing.budget
    name, href = _whose(standing, teams, keys)
    return {
        "of": name,
        "of_href": href,
        "scope": ROWS[budget.scope].label,
        "period": budget.period,
        "state": None if budget.for_each else STATES[standing.state],
        "share": None if budget.for_each else standing.share,
        "spent": None if budget.for_each else standing.spent_nanousd,
        "limit": standing.limit_nanousd,
        "resets": standing.renews_us,
        "kind": budget.kind,
        "held": standing.held_nanousd,
        "id": budget.budget_id,
    }


def _whose(standing: BudgetStatus, teams: Mapping[str, str], keys: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """Return a budget's owner by name, and the page where it is changed; '' where there is none."""
    budget = standing.budget
    if budget.scope == "team":
        return teams.get(budget.scope_id, budget.scope_id), _page(budget.scope_id, budget.budget_id)
    if budget.scope == "key":
        name, team_id = keys.get(budget.scope_id, (budget.scope_id, ""))
        whole = f"{name} ({teams.get(team_id, team_id)})" if team_id else name
        return whole, _page(team_id, budget.budget_id) if team_id else ""
    if team_id := ROWS[budget.scope].team_in(budget.scope_id):
        value = budget.scope_id.partition("/")[2]
        label = ROWS[budget.scope].label
        name = f"each {label}" if value == ANY else value
        return f"{name} ({teams.get(team_id, team_id)})", _page(team_id, budget.budget_id)
    if budget.for_each:
        return "Each one of every team", ""
    return ("The whole organisation" if budget.scope == "organisation" else budget.shown_id), ""


def _page(team_id: str, budget_id: str) -> str:
    return f"/dashboard/teams/{quote(team_id, safe='')}/budgets/{quote(budget_id, safe='')}"
