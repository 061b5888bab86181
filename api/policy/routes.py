"""GET /v1/policy/preview: forecast savings of quality floors for the caller's team. Nothing is applied."""

import asyncio
import contextlib
from typing import Any, Final

from fastapi import APIRouter, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import JSONResponse

from accounts.caller import Caller
from accounts.store import TeamRecord
from api.policy.preview import floors_from, preview_as_json, replicas_up
from api.policy.traffic import AutoTraffic, auto_traffic
from api.web.changing import TEAM_ASKED, team_asked
from api.web.gateway import AuthenticatedCaller, Gateway, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters, texts
from api.web.patience import patience
from classifier.heuristic import HeuristicClassifier
from classifier.learning.requests import OwnRequests, own_requests
from cost.reports.scope import ReadScope
from cost.times import wall_us
from proxy.errors import BadRequest
from proxy.plan.quality_tolerance import FLOORS, Tolerances

router = APIRouter(tags=["policy"])

_PATIENCE_S = 3.0
_PARAMETERS: Final = {"quality_floor": texts("Minimum qualities from 0 to 1, one or several."), **TEAM_ASKED}


@router.get(
    "/v1/policy/preview",
    **described(
        "Preview minimum qualities", gives={200: "What each minimum would cost, save and keep"}, query=_PARAMETERS
    ),
)
async def preview_policy(request: Request, caller: AuthenticatedCaller) -> JSONResponse:
    """Return the forecasts of the floors asked for (`quality_floor` may be repeated), or of the usual ones, beside the
    team's own.
    """
    asked = Parameters(request.query_params, _PARAMETERS)
    try:
        floors = floors_from(asked.texts("quality_floor"))
    except ValueError as error:
        raise BadRequest(f"`quality_floor` is not valid: {error}.", param="quality_floor") from error
    gateway = gateway_of(request)
    team = await team_asked(gateway, caller, asked)
    rules = gateway.rules()
    tolerances = rules.tolerances or Tolerances(
        catalog=rules.catalog, policy=rules.policy, classifier=HeuristicClassifier()
    )
    own, traffic = await _own_traffic(gateway, team, tolerances)
    # Some tens of milliseconds of arithmetic: off the loop that other requests are served by, and a few at a time, for
    # answers are checked in the same threads.
    async with gateway.finance.reads:
        return JSONResponse(
            await asyncio.to_thread(_previewed, tolerances, floors or FLOORS, team, own, traffic, replicas_up(gateway))
        )


def _previewed(
    tolerances: Tolerances,
    floors: tuple[float, ...],
    team: Caller | TeamRecord,
    own: OwnRequests | None,
    traffic: AutoTraffic | None,
    up: dict[str, int],
) -> dict[str, Any]:
    found = tolerances.preview(floors, team.allowed_models, current=team.settings.quality_floor, own=own, up=up)
    return preview_as_json(found, team.team_id, traffic)


async def _own_traffic(
    gateway: Gateway, team: Caller | TeamRecord, tolerances: Tolerances
) -> tuple[OwnRequests | None, AutoTraffic | None]:
    """Return the team's own requests and bill; None without a database, where the classifier's sample is used and the reply says
    so.
    """
    scope = ReadScope(organisation_id=team.organisation_id, team_id=team.team_id)
    with contextlib.suppress(SQLAlchemyError, OSError, TimeoutError):
        async with patience(_PATIENCE_S):
            own = await own_requests(gateway.database, team.team_id, tolerances.artifact, tolerances.width)
            return own, await auto_traffic(gateway.database, scope, wall_us())
    return None, None
