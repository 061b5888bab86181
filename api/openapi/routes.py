"""GET /v1/openapi.json: the OpenAPI document of every route except pages; and a second one of the admin API alone."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from api.openapi.document import admin_document_of, document_of
from api.web.admin_access import AdminRequest, admin
from api.web.gateway import AuthenticatedCaller
from api.web.openapi import PREFIX, described
from api.web.reading import json_reply

router = APIRouter(tags=["about"])


@router.get("/v1/openapi.json", **described("This document", gives={200: "OpenAPI 3.1"}))
async def show_document(request: Request, _caller: AuthenticatedCaller) -> Response:
    """Return the OpenAPI document of every route except pages. Any key may read it."""
    return json_reply(await document_of(request))


@router.get(f"{PREFIX}/openapi.json", **described("The admin API's part of this document", gives={200: "OpenAPI 3.1"}))
async def show_admin_document(desk: Annotated[AdminRequest, Depends(admin("signed-in"))]) -> Response:
    """Return the OpenAPI document of the admin API. Any key may read it."""
    return desk.reply(await admin_document_of(desk.request))
