"""/dashboard/api: the gateway's OpenAPI document, as a page and as a download."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.openapi.document import document_of
from api.web.address import base_url
from dashboards.api_docs.reference import reference
from dashboards.web.access import allowed
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

_RIGHTS: Final = {
    "": "no key of a team",
    "signed-in": "any key",
    "act": "a key that may do more than read",
    "team.read": "a key of the team, finance or admin",
    "team.change": "an admin key",
    "organisation.read": "a finance or admin key",
    "organisation.change": "an admin key",
    "finance.read": "a finance or admin key",
    "audit.read": "a finance or admin key",
    "prices.change": "an admin key of the operators' organisation",
    "operations.read": "a finance or admin key of the operators' organisation",
    "operations.change": "an admin key of the operators' organisation",
}


@router.get("/dashboard/api")
async def show_reference(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Show every call with its fields and an example."""
    base = base_url(view.request, view.gateway.config().sign_in.public_url)
    return view.page(
        "api_docs/reference.html",
        title="API",
        reference=reference(await document_of(view.request), base),
        base=base,
        rights=_RIGHTS,
    )


@router.get("/dashboard/api/openapi.json")
async def download(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Send the document that GET /v1/openapi.json serves, indented, as an attachment."""
    headers = {
        "content-disposition": 'attachment; filename="weighbridge-openapi.json"',
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    body = msgspec.json.format(msgspec.json.encode(await document_of(view.request)), indent=2)
    return Response(body, media_type="application/json", headers=headers)
