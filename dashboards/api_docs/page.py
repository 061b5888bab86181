"""/dashboard/api: the gateway's OpenAPI document, as a list of all calls, a page a part, and a download."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException
from starlette.responses import Response

from api.openapi.document import document_of
from api.web.address import base_url
from dashboards.api_docs.reference import reference
from dashboards.ui.tables import MAX_QUERY_CHARS
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
async def show_calls(view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """List every call, or those that match what is searched, each with a link to its description."""
    base = _base(view)
    told = reference(await document_of(view.request), base)
    asked = view.query.get("q", "").strip()[:MAX_QUERY_CHARS]
    return view.page(
        "api_docs/calls.html", title="API", reference=told, found=told.matching(asked), asked=asked, base=base
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


@router.get("/dashboard/api/{part}")
async def show_part(part: str, view: Annotated[PageRequest, Depends(allowed("organisation.change"))]) -> Response:
    """Show the calls of one part with their fields and an example each, and what they are made of."""
    told = reference(await document_of(view.request), _base(view))
    group = next((each for each in told.groups if each.anchor == part), None)
    if group is None:
        raise HTTPException(404)
    return view.page("api_docs/part.html", title=f"API: {group.name}", reference=told, group=group, rights=_RIGHTS)


def _base(view: PageRequest) -> str:
    return base_url(view.request, view.gateway.config().sign_in.public_url)
