"""GET /v1/end_users/{end_user}: how an end user stands, for the team's own keys."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.end_users.standing import EndUserOut, read_end_user
from api.web.changing import TEAM_ASKED, team_asked
from api.web.gateway import AuthenticatedCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters
from api.web.reading import json_reply

router = APIRouter(tags=["budgets"])


@router.get(
    "/v1/end_users/{end_user:path}",
    **described("Read how an end user stands", gives={200: EndUserOut}, query=TEAM_ASKED),
)
async def show_end_user(request: Request, caller: AuthenticatedCaller, end_user: str) -> Response:
    """Return what an end user of the team spent, the budgets and limits that hold for this one, and what is left of them."""
    gateway = gateway_of(request)
    team = await team_asked(gateway, caller, Parameters(request.query_params, TEAM_ASKED))
    return json_reply(await read_end_user(gateway, team.organisation_id, team.team_id, end_user))
