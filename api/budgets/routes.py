"""/v1/budgets: budgets with their spend, and, for administrators, setting and removing them."""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from api.budgets.admin_types import BudgetOut
from api.budgets.change import put_budget
from api.budgets.change import remove_budget as remove_budget_of
from api.budgets.listing import EnteredBudget, budget_as_json, member_budget_as_json, parse_budget
from api.web.actor import actor_of
from api.web.api_types import Deleted, Listed
from api.web.changing import team_asked
from api.web.gateway import AdminCaller, AuthenticatedCaller, gateway_of, read_scope
from api.web.openapi import described
from api.web.parameters import Parameters, text
from api.web.patience import patience
from api.web.reading import json_reply
from api.web.request_body import read_body
from cost.budgets.budget import checked
from cost.budgets.budget_errors import BadBudget
from cost.budgets.store import BudgetStore
from proxy.errors import BadRequest, BudgetNotFound, BudgetsOutOfReach, BudgetTaken, ChangesUnavailable

router = APIRouter(tags=["budgets"])

MAX_BODY_BYTES: Final = 16 * 1024
_PATIENCE_S: Final = 3.0
_PARAMETERS: Final = {"team_id": text("Only this team's, and its keys'.")}


@router.get(
    "/v1/budgets",
    **described("List the budgets that concern the key", gives={200: Listed[BudgetOut]}, query=_PARAMETERS),
)
async def list_budgets(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return budgets with their spend. A member key sees its team's, its own and its team's tags'; finance and admin
    keys see all, or those of the team asked for and of its keys.
    """
    gateway = gateway_of(request)
    asked = Parameters(request.query_params, _PARAMETERS)
    team = await team_asked(gateway, caller, asked)
    store, accounts = BudgetStore(gateway.database), gateway.identity.accounts
    async with _database():
        if read_scope(caller).team_id is not None:
            found = await store.of_member(caller.organisation_id, caller.team_id, caller.key_id)
            data = [member_budget_as_json(each) for each in found]
        elif "team_id" in asked:
            keys = await accounts.keys_of(
                team.organisation_id, team.team_id, await store.keys_with_one(team.organisation_id)
            )
            found = await store.of_team(team.organisation_id, team.team_id, [key.key_id for key in keys])
            data = [budget_as_json(each) for each in found]
        else:
            data = [budget_as_json(each) for each in await store.of_organisation(caller.organisation_id)]
    return json_reply({"object": "list", "data": data})


@router.put(
    "/v1/budgets/{budget_id}",
    **described(
        "Set a budget",
        takes=EnteredBudget,
        gives={200: BudgetOut, 201: BudgetOut},
        example={"scope": "team", "scope_id": "team_search", "period": "month", "limit_usd": 500},
    ),
)
async def set_budget(budget_id: str, request: Request, caller: AdminCaller) -> Response:
    """Set a budget, or change its limit and what happens when it is exhausted. Every server follows within seconds."""
    gateway = gateway_of(request)
    body = await read_body(request, timeout_s=gateway.rules().body_timeout_s, most_bytes=MAX_BODY_BYTES)
    try:
        budget = checked(parse_budget(body).budget(budget_id, caller.organisation_id))
    except BadBudget as error:
        raise BadRequest(f"The budget is not valid: {error}.") from error
    async with _database():
        actor = actor_of(request, caller)
        standing, new = await put_budget(
            gateway.identity.audit, actor, budget, webhooks=gateway.webhooks, names=gateway.rules().names
        )
    return json_reply(budget_as_json(standing), status=201 if new else 200)


@router.delete("/v1/budgets/{budget_id}", **described("Take a budget away", gives={200: Deleted}))
async def remove_budget(budget_id: str, request: Request, caller: AdminCaller) -> Response:
    """Remove a budget: it no longer blocks or warns. Its spend stays in the books."""
    async with _database():
        actor = actor_of(request, caller)
        await remove_budget_of(gateway_of(request).identity.audit, actor, caller.organisation_id, budget_id)
    return json_reply({"id": budget_id, "object": "budget.deleted", "deleted": True})


@contextlib.asynccontextmanager
async def _database() -> AsyncIterator[None]:
    try:
        async with patience(_PATIENCE_S):
            yield
    except BudgetNotFound as error:
        raise BudgetNotFound(f"{error.message} GET /v1/budgets lists them.", param="budget_id") from error
    except BudgetTaken as error:
        raise BudgetTaken(error.message, param="budget_id") from error
    except (ChangesUnavailable, SQLAlchemyError, OSError, TimeoutError) as error:
        raise BudgetsOutOfReach("The database does not answer; try again shortly.") from error
