"""/dashboard/teams/{team_id}/end-users: what a team's end users spent in a month, the largest first."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.web.reading import reading
from cost.budgets.periods import PERIODS
from cost.budgets.store import BudgetStore, EndUserStanding
from cost.calendar import Calendar
from cost.close.month import Month, month_of, parse_month
from cost.ledger.archived import archived_note
from cost.reports.end_user_figures import MOST_ATTEMPTS, EndUserFigures, read_end_user_figures
from cost.reports.scope import ReadScope
from dashboards.ui.formats import money
from dashboards.ui.formats import share as shown_share
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

_ROWS: Final = 25
_MOST_CHARS: Final = 200
_PLACE: Final = re.compile(r"(-?[0-9]{1,18})\.(.{1,64})")
_COLUMNS: Final = (
    Column("end_user", "End user", "link", sortable=False),
    Column("spent", "Spent", "money", note="In the month, at the price that requests were booked with", sortable=False),
    Column(
        "budget", "Budget", "badge", note="The nearest to its end of those that hold for this end user", sortable=False
    ),
    Column(
        "requests", "Requests", "number", note=f"Of the newest {MOST_ATTEMPTS} attempts of the month", sortable=False
    ),
    Column("tokens", "Tokens", "number", note=f"Of the newest {MOST_ATTEMPTS} attempts of the month", sortable=False),
    Column("failed", "Failed", "share", note=f"Of the newest {MOST_ATTEMPTS} attempts of the month", sortable=False),
    Column("last", "Last request", "time", sortable=False),
    Column("show", "Requests of", "link", sortable=False),
)


@router.get("/dashboard/teams/{team_id}/end-users")
async def show(view: Annotated[PageRequest, Depends(allowed("team.read"))]) -> Response:
    """Show a month's end users, those that spent most first."""
    team, now_us = view.the_team, view.now_us
    async with reading(view.gateway, on=True):
        calendar = await view.calendar()
    month, problem = _month(view.query.get("month", ""), now_us, calendar)
    begins = view.query.get("q", "").strip()
    begins = begins[:_MOST_CHARS] if begins.isprintable() else ""
    after = _PLACE.fullmatch(view.query.get("after", ""))
    scope = ReadScope(organisation_id=team.organisation_id, team_id=team.team_id)
    async with reading(view.gateway, on=True):
        found = await BudgetStore(view.gateway.database).largest_end_users(
            scope.organisation_id,
            team.team_id,
            _ROWS + 1,
            month=month.first_day,
            after=None if after is None or not after[2].isprintable() else (int(after[1]), after[2]),
            begins=begins,
        )
        shown = found[:_ROWS]
        figures = await read_end_user_figures(
            view.gateway.database, scope, [each.end_user for each in shown], month.start_us, month.end_us
        )
        archived = await archived_note(view.gateway.database, month.start_us, month.end_us)
    is_now = month == month_of(now_us, calendar)
    kept = {"month": "" if is_now else month.text, "q": begins}
    last = shown[-1] if len(found) > _ROWS else None
    table = Table.paged(
        _COLUMNS,
        [_row(each, figures.get(each.end_user), team.team_id, month, is_now=is_now) for each in shown],
        name="end_users",
        caption="End users",
        previous_href=_href(kept) if after is not None else None,
        next_href=None if last is None else _href({**kept, "after": f"{last.spent_nanousd}.{last.end_user}"}),
        csv_href=_href({**kept, "after": view.query.get("after", ""), "format": "csv", "table": "end_users"}),
        empty="No end user is called so." if begins else "No request named an end user in this month.",
    )
    return view.csv_asked(f"{team.team_id}-end-users-{month.text}", table, problem=problem) or view.page(
        "end_users/end_users.html",
        title="End users",
        team=team,
        table=table,
        month=month,
        months=[
            (each.title, _href({"month": "" if each == month_of(now_us, calendar) else each.text}), each == month)
            for each in dict.fromkeys((month_of(now_us, calendar), month_of(now_us, calendar).previous, month))
        ],
        problem=problem,
        begins=begins,
        kept_month=kept["month"],
        is_bounded=any(not each.is_whole for each in figures.values()),
        most=MOST_ATTEMPTS,
        archived=archived,
    )


def _month(text: str, now_us: int, calendar: Calendar) -> tuple[Month, str]:
    if not text:
        return month_of(now_us, calendar), ""
    try:
        return parse_month(text, calendar), ""
    except ValueError as error:
        return month_of(now_us, calendar), f"{error}. This month is shown."


def _href(parameters: Mapping[str, str]) -> str:
    return f"?{urlencode({name: value for name, value in parameters.items() if value})}"


def _row(
    each: EndUserStanding, figures: EndUserFigures | None, team_id: str, month: Month, *, is_now: bool
) -> dict[str, Any]:
    path = f"/dashboard/teams/{team_id}"
    asked = urlencode({"month": month.text, "end_user": each.end_user})
    return {
        "end_user": each.end_user,
        "end_user_href": f"{path}/spend?{asked}",
        "spent": each.spent_nanousd,
        "budget": _budget(each) if is_now else None,
        "requests": None if figures is None else figures.requests,
        "tokens": None if figures is None else figures.tokens,
        "failed": None if figures is None else figures.failed / figures.attempts,
        "last": None if figures is None else figures.last_us,
        "show": "Requests",
        "show_href": f"{path}/requests?{urlencode({'end_user': each.end_user})}",
    }


def _budget(each: EndUserStanding) -> tuple[str, str] | None:
    """Return text and tone of the budget that is used most."""
    if not each.budgets:
        return None
    used = max(each.budgets, key=lambda standing: standing.share or 0)
    told = f"{shown_share(used.share)} of {money(used.limit_nanousd)} {PERIODS[used.budget.period].amount_per}"
    return told, {"open": "good", "warning": "warn", "spent": "bad"}[used.state]
