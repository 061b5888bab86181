"""/v1/admin/budgets: the same budgets as /v1/budgets, for administrators."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.budgets.admin_types import BudgetOut
from api.budgets.change import put_budget, read_budget, read_budgets, remove_budget
from api.budgets.listing import EnteredBudget, budget_as_json
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Deleted, Listed
from api.web.changing import refusals
from api.web.openapi import PREFIX, described
from cost.budgets.budget import checked
from cost.budgets.store import BudgetStore

router = APIRouter(tags=["budgets"])

_EXAMPLE = {"scope": "team", "scope_id": "payments", "period": "month", "limit_usd": 500, "kind": "hard"}


@router.get(f"{PREFIX}/budgets", **described("List the budgets", gives={200: Listed[BudgetOut]}))
async def list_budgets(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))]) -> Response:
    """Return all budgets of the organisation, with their spend."""
    found = await read_budgets(BudgetStore(desk.gateway.database), desk.organisation_id)
    return desk.reply(Listed(data=[budget_as_json(each) for each in found]))


@router.get(f"{PREFIX}/budgets/{{budget_id}}", **described("Read a budget", gives={200: BudgetOut}))
async def show_budget(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))], budget_id: str) -> Response:
    """Show one budget with its spend."""
    return desk.reply(
        budget_as_json(await read_budget(BudgetStore(desk.gateway.database), desk.organisation_id, budget_id))
    )


@router.put(
    f"{PREFIX}/budgets/{{budget_id}}",
    **described("Set a budget", takes=EnteredBudget, gives={200: BudgetOut, 201: BudgetOut}, example=_EXAMPLE),
)
async def set_budget(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], budget_id: str) -> Response:
    """Set a budget. Its scope, period and kind never change: another budget has another id."""
    asked = await desk.body(EnteredBudget)
    with refusals():
        budget = checked(asked.budget(budget_id, desk.organisation_id))
    standing, created = await put_budget(
        desk.gateway.identity.audit, desk.actor, budget, webhooks=desk.gateway.webhooks
    )
    return desk.reply(budget_as_json(standing), 201 if created else 200)


@router.delete(f"{PREFIX}/budgets/{{budget_id}}", **described("Take a budget away", gives={200: Deleted}))
async def take_budget(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], budget_id: str) -> Response:
    """Remove a budget. Its spend stays in the books."""
    await remove_budget(desk.gateway.identity.audit, desk.actor, desk.organisation_id, budget_id)
    return desk.reply(Deleted(id=budget_id, object="budget.deleted"))
