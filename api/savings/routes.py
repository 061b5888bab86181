"""GET /v1/savings: the savings report of a range of days, its comparators, and the verdict on the promise."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.web.gateway import FinanceReader, gateway_of, narrowed
from api.web.openapi import described
from api.web.parameters import Parameters, day, text
from api.web.reading import json_reply, reading
from cost.times import DAY_US, start_of, wall_us

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
    """Return the savings for UTC days from `start` to before `end`; by default the last thirty, today included.

    A team's key sees its team's comparisons; idle GPUs and the fleet's verdict are for finance keys.
    """
    parameters = Parameters(request.query_params, _PARAMETERS)
    scope = narrowed(scope, parameters.text("team_id"))
    start_us, end_us = _range(parameters)
    gateway = gateway_of(request)
    async with reading(gateway):
        inputs = await gateway.finance.savings.inputs(scope, start_us, end_us)
        found = await gateway.finance.savings.report(scope, inputs)
    return json_reply(gateway.finance.savings.as_json(scope, found))


def _range(parameters: Parameters) -> tuple[int, int]:
    end, start = parameters.day("end"), parameters.day("start")
    now_us = wall_us()
    end_us = now_us - now_us % DAY_US + DAY_US if end is None else start_of(end)
    return end_us - DEFAULT_DAYS * DAY_US if start is None else start_of(start), end_us
