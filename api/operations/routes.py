"""GET /v1/operations and its incidents: the operators' snapshot as JSON, for `weighbridge top` and monitoring."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.incidents.scoped import read_incidents
from api.incidents.store import KEPT_US
from api.operations.incidents import told_kept
from api.operations.snapshot import operations_snapshot
from api.web.gateway import OperatorCaller, gateway_of
from api.web.openapi import described
from api.web.reading import json_reply, reading
from cost.times import wall_us

router = APIRouter(tags=["operations"])


@router.get(
    "/v1/operations",
    **described("Look at the whole gateway", gives={200: "The overview, as `weighbridge top` shows it"}),
)
async def show_operations(request: Request, _caller: OperatorCaller) -> Response:
    """Return the operators' overview, as the answering process sees it. Money is nano-dollars, times are seconds."""
    return json_reply(await operations_snapshot(gateway_of(request)))


@router.get(
    "/v1/operations/incidents",
    **described(
        "List incidents",
        gives={200: "The incidents of 90 days, open ones first, each with whom it hurt"},
    ),
)
async def list_incidents(request: Request, _caller: OperatorCaller) -> Response:
    """Return open and closed incidents with the requests of each team and model that they hurt."""
    gateway = gateway_of(request)
    async with reading(gateway, on=True):
        found = await read_incidents(gateway.views.operations.history.store, wall_us() - KEPT_US)
    return json_reply(
        {
            "object": "list",
            "data": [
                {**told_kept(each.kept), "hurt": [msgspec.to_builtins(share) for share in each.hurt]} for each in found
            ],
        }
    )
