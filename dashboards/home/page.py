"""The start page by role, and the static files of pages."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dashboards.ui.rendering import STATIC_PATH, assets
from dashboards.web.access import allowed
from dashboards.web.headers import SAFE
from dashboards.web.view import PageRequest

router: Final = APIRouter(include_in_schema=False)

_FOR_EVER: Final = "public, max-age=31536000, immutable"


@router.get("/dashboard")
async def start(view: Annotated[PageRequest, Depends(allowed("signed-in"))]) -> Response:
    """Redirect to the start page of the viewer's role."""
    return view.redirect(start_page(view))


def start_page(view: PageRequest) -> str:
    """Return the address of the viewer's start page: operations for operators, the savings for finance, a member's only
    team, otherwise the list of teams.
    """
    if view.principal.role == "operator":
        return "/dashboard/operations"
    if view.principal.role == "finance":
        return "/dashboard/finance"
    if len(view.principal.teams) == 1 and view.principal.role == "":
        return f"/dashboard/teams/{next(iter(view.principal.teams))}"
    return "/dashboard/teams"


@router.get("/dashboard/static/{digest}/{name:path}")
async def static(digest: str, name: str, request: Request) -> Response:
    """Send a static file. Its address contains the digest of its content, so it is cached for ever."""
    found = assets().get(f"{STATIC_PATH}/{digest}/{name}")
    if found is None:
        raise HTTPException(404)
    packed = takes_gzip(request.headers.get("accept-encoding", ""))
    # Two bodies of one address have two tags.
    etag = f'"{digest}-gzip"' if packed else f'"{digest}"'
    headers = {**SAFE, "cache-control": _FOR_EVER, "etag": etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    if not packed:
        return Response(found.body, media_type=found.kind, headers=headers)
    return Response(found.packed, media_type=found.kind, headers={**headers, "content-encoding": "gzip"})


def takes_gzip(accepted: str) -> bool:
    """Return True if an Accept-Encoding names gzip and does not refuse it."""
    for each in accepted.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() == "gzip":
            return not weight or weight.strip().removeprefix("q=").strip("0.") != ""
    return False
