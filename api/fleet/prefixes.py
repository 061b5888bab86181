"""GET /v1/fleet/prefixes: teams whose prompts begin in ways that prefix caches cannot use, and the monthly cost of
that.
"""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.web.gateway import FinanceReader, gateway_of, narrowed
from api.web.openapi import described
from api.web.parameters import Parameters, text, whole
from api.web.reading import json_reply, reading
from cost.times import DAY_US, wall_us
from selfhosted.prefixes.prefix_report import prefixes_as_json, rates_of, stability
from selfhosted.prefixes.store import KEPT_DAYS, PrefixStore

router = APIRouter(tags=["fleet"])

DEFAULT_DAYS: Final = 7
_PARAMETERS: Final = {
    "days": whole("How many days, today included.", least=1, most=KEPT_DAYS, otherwise=DEFAULT_DAYS),
    "team_id": text("Only this team."),
}


@router.get(
    "/v1/fleet/prefixes",
    **described("Find prompts that no cache can keep", gives={200: "What was found, team by team"}, query=_PARAMETERS),
)
async def prefixes(request: Request, scope: FinanceReader) -> Response:
    """Return the prompt prefixes of the last `days` UTC days, today included; by default a week.

    A team's key sees its own; a finance or admin key all teams of its organisation. No prompt is kept or shown.
    """
    parameters = Parameters(request.query_params, _PARAMETERS)
    scope = narrowed(scope, parameters.text("team_id"))
    days = parameters.whole("days", DEFAULT_DAYS, least=1, most=KEPT_DAYS)
    gateway = gateway_of(request)
    now_us = wall_us()
    end_us = now_us - now_us % DAY_US + DAY_US
    start_us = end_us - days * DAY_US
    async with reading(gateway, on=True):
        habits = await PrefixStore(gateway.database).read(scope, start_us, end_us)
    rates = rates_of(gateway.finance.savings.pools, gateway.finance.prices.book, now_us)
    report = stability(habits, rates, start_us=start_us, end_us=end_us, now_us=now_us)
    return json_reply({"organisation_id": scope.organisation_id, "team_id": scope.team_id, **prefixes_as_json(report)})
