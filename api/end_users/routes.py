"""GET /v1/end_users/{end_user}: how an end user stands, for the team's own keys."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.end_users.standing import EndUserOut, read_end_user
from api.web.changing import looking
from api.web.gateway import AuthenticatedCaller, gateway_of, narrowed, read_scope
from api.web.openapi import described
from api.web.reading import json_reply

router = APIRouter(tags=["budgets"])


@router.get("/v1/end_users/{end_user:path}", **described("Read how an end user stands", gives={200: EndUserOut}))
async def show_end_user(
    request: Request,
    caller: AuthenticatedCaller,
    end_user: str,
    team_id: Annotated[str | None, Query(description="A team that the key reads; its own where none is named.")] = None,
) -> Response:
    """Return what an end user of the team spent, the budgets and limits that hold for this one, and what is left of them."""
    gateway = gateway_of(request)
    scope = narrowed(read_scope(caller), team_id or caller.team_id)
    async with looking():
        team = await gateway.identity.accounts.team_of(scope.organisation_id, scope.team_id or "")
    return json_reply(await read_end_user(gateway, team.organisation_id, team.team_id, end_user))
