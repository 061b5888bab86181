"""How one end user of a team stands: spending, the budgets and limits that hold, and what is left of them."""

from decimal import Decimal
from typing import Any

import msgspec

from api.budgets.admin_types import BudgetOut
from api.budgets.listing import budget_as_json
from api.limits.routes import LimitStanding, limit_as_json
from api.web.changing import looking
from api.web.gateway import Gateway
from cost.budgets.alerts import dollars
from cost.budgets.budget import split_id
from cost.budgets.store import BudgetStore, EndUserStanding
from cost.end_users import booked
from cost.scopes import ANY
from cost.times import iso
from proxy.admit.limits.rules import Place, check_place
from proxy.errors import BadRequest


class EndUserBudgetOut(BudgetOut, frozen=True, kw_only=True):
    """A budget as it holds for one end user."""

    own: bool
    """False for the default of all end users of the team, or of every team."""


class EndUserOut(msgspec.Struct, frozen=True, kw_only=True):
    """An end user's standing. Without budgets or limits nothing bounds this one alone."""

    team_id: str
    end_user: str
    """As it is booked: a mail address is a digest."""
    spent_usd: Decimal
    """In this month of the organisation's calendar."""
    month_start: str
    budgets: list[EndUserBudgetOut]
    limits: list[LimitStanding]
    object: str = "end_user"


async def read_end_user(gateway: Gateway, organisation_id: str, team_id: str, name: str) -> dict[str, Any]:
    """Return an end user's standing as the API returns it. One who never called has spent nothing. Raises BadRequest."""
    place = Place("end_user", f"{team_id}/{booked(name)}")
    if name in {"", ANY}:
        raise BadRequest(f"Name one end user: nobody is called nothing, and `{ANY}` are all of them.", param="end_user")
    async with looking():
        check_place(place)
        found = await BudgetStore(gateway.database).of_end_user(organisation_id, team_id, booked(name))
    limits = gateway.limit_book.at(place)
    remains = await gateway.views.workers.remaining(limits) if limits else ()
    told = [limit_as_json(place, limit, left) for limit, left in zip(limits, remains, strict=False)]
    return {"object": "end_user", "team_id": team_id, **spending_as_json(found), "limits": told}


def spending_as_json(found: EndUserStanding) -> dict[str, Any]:
    """Return what an end user spent, and the budgets that hold, with exact amounts as Decimals."""
    return {
        "end_user": found.end_user,
        "spent_usd": Decimal(dollars(found.spent_nanousd)),
        "month_start": iso(found.month_us),
        "budgets": [{**budget_as_json(each), "own": not split_id(each.budget.budget_id)[1]} for each in found.budgets],
    }
