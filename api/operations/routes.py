"""GET /v1/operations: the operators' snapshot as JSON, for `weighbridge top` and monitoring."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.operations.snapshot import operations_snapshot
from api.web.gateway import OperatorCaller, gateway_of
from api.web.openapi import described
from api.web.reading import json_reply

router = APIRouter(tags=["operations"])


@router.get(
    "/v1/operations",
    **described("Look at the whole gateway", gives={200: "The overview, as `weighbridge top` shows it"}),
)
async def show_operations(request: Request, _caller: OperatorCaller) -> Response:
    """Return the operators' overview, as the answering process sees it. Money is nano-dollars, times are seconds."""
    return json_reply(await operations_snapshot(gateway_of(request)))
