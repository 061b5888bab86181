"""GET /v1/savings: the savings report of a range of days, its comparators, and the verdict on the promise."""

from datetime import timedelta
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.web.changing import check_teams
from api.web.gateway import FinanceReader, gateway_of, narrowed
from api.web.openapi import described
from api.web.parameters import Parameters, day, text
from api.web.reading import json_reply, reading
from cost.calendar import Calendar, Days
from cost.calendars import calendar_of
from cost.times import wall_us

router = APIRouter(tags=["savings"])

DEFAULT_DAYS: Final = 30
_PARAMETERS: Final = {
    "start": day(f"The first day; {DEFAULT_DAYS} days before `end` when left out."),
    "end": day("The day after the last one; tomorrow when left out."),
    "team_id": text("Only this team."),
}


@router.get(
    "/v1/savings",
    **described("Read the savings", gives={200: "What was saved, and whether the target is met"}, query=_PARAMETERS),
)
async def savings(request: Request, scope: FinanceReader) -> Response:
    """Return the savings for days from `start` to before `end`; by default the last thirty, today included. Days are the organisation's.

    A team's key sees its team's comparisons; idle GPUs and the fleet's verdict are for finance keys.
    """
    parameters = Parameters(request.query_params, _PARAMETERS)
    gateway = gateway_of(request)
    await check_teams(gateway, scope, filter(None, [parameters.text("team_id")]))
    scope = narrowed(scope, parameters.text("team_id"))
    async with reading(gateway):
        days = _days(parameters, await calendar_of(gateway.database, scope.organisation_id))
        inputs = await gateway.finance.savings.inputs(scope, days)
        found = await gateway.finance.savings.report(scope, inputs)
    return json_reply(gateway.finance.savings.as_json(scope, found))


def _days(parameters: Parameters, calendar: Calendar) -> Days:
    end, start = parameters.day("end"), parameters.day("start")
    last = calendar.day(wall_us()) if end is None else end - timedelta(days=1)
    return Days(last - timedelta(days=DEFAULT_DAYS - 1) if start is None else start, last, calendar)
