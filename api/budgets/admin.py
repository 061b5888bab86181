"""/v1/admin/budgets: the same budgets as /v1/budgets, for administrators."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.budgets.admin_types import BudgetOut, TopupOut
from api.budgets.change import put_budget, raise_budget, read_budget, read_budgets, remove_budget, top_up
from api.budgets.listing import EnteredBudget, EnteredRaise, EnteredTopup, budget_as_json, topup_as_json
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Deleted, Listed
from api.web.changing import looking, refusals
from api.web.openapi import PREFIX, described
from cost.budgets.budget import checked, limit_from_usd
from cost.budgets.store import BudgetStore
from cost.budgets.topups import Topup, amount_from_usd, new_topup_id
from proxy.errors import BadRequest

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
        desk.gateway.identity.audit,
        desk.actor,
        budget,
        webhooks=desk.gateway.webhooks,
        names=desk.gateway.rules().names,
    )
    return desk.reply(budget_as_json(standing), 201 if created else 200)


@router.post(
    f"{PREFIX}/budgets/{{budget_id}}/raise",
    **described(
        "Raise a budget for a while",
        takes=EnteredRaise,
        gives={200: BudgetOut},
        example={"limit_usd": 800, "until": "2027-01-31T00:00:00Z", "reason": "the launch"},
    ),
)
async def raise_limit(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], budget_id: str) -> Response:
    """Put another limit in force until a moment; then the budget's own holds again by itself."""
    asked = await desk.body(EnteredRaise)
    if (asked.until is None) != (asked.limit_usd is None):
        raise BadRequest("A raise has `limit_usd` and `until`; without both it ends now.", param="until")
    with refusals():
        limit = limit_from_usd(asked.limit_usd or 0)
    standing = await raise_budget(
        desk.gateway.identity.audit,
        desk.actor,
        desk.organisation_id,
        budget_id,
        limit,
        asked.until_us,
        reason=asked.reason,
    )
    return desk.reply(budget_as_json(standing))


@router.get(
    f"{PREFIX}/budgets/{{budget_id}}/topups", **described("List a budget's top-ups", gives={200: Listed[TopupOut]})
)
async def list_topups(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))], budget_id: str) -> Response:
    """Return what was paid into a prepaid budget, oldest first."""
    store = BudgetStore(desk.gateway.database)
    await read_budget(store, desk.organisation_id, budget_id)
    async with looking():
        found = await store.topups(budget_id)
    return desk.reply(Listed(data=[topup_as_json(each) for each in found]))


@router.post(
    f"{PREFIX}/budgets/{{budget_id}}/topups",
    **described(
        "Pay into a prepaid budget",
        takes=EnteredTopup,
        gives={200: BudgetOut, 201: BudgetOut},
        example={"amount_usd": 250, "id": "invoice-1042"},
    ),
)
async def add_topup(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], budget_id: str) -> Response:
    """Pay in, once for each `id`; 200 where it was paid in before."""
    asked = await desk.body(EnteredTopup)
    with refusals():
        topup = Topup(asked.id or new_topup_id(), amount_from_usd(asked.amount_usd), asked.note)
    standing, new = await top_up(desk.gateway.identity.audit, desk.actor, desk.organisation_id, budget_id, topup)
    return desk.reply(budget_as_json(standing), 201 if new else 200)


@router.delete(f"{PREFIX}/budgets/{{budget_id}}", **described("Take a budget away", gives={200: Deleted}))
async def take_budget(desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], budget_id: str) -> Response:
    """Remove a budget. Its spend stays in the books."""
    await remove_budget(desk.gateway.identity.audit, desk.actor, desk.organisation_id, budget_id)
    return desk.reply(Deleted(id=budget_id, object="budget.deleted"))
