"""GET /v1/operations: the operators' snapshot as JSON, for `weighbridge top` and monitoring."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from dashboards.operations.snapshot import operations_snapshot
from dashboards.web.gateway import OperatorCaller, gateway_of
from dashboards.web.openapi import described
from dashboards.web.reading import json_reply

router = APIRouter(tags=["operations"])


@router.get(
    "/v1/operations",
    **described("Look at the whole gateway", gives={200: "The overview, as `weighbridge top` shows it"}),
)
async def show_operations(request: Request, _caller: OperatorCaller) -> Response:
    """The operators' overview, as the answering process sees it. Money is nano-dollars, times are seconds."""
    return json_reply(await operations_snapshot(gateway_of(request)))
