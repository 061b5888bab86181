"""OpenID sign-in: the redirect to the provider, and its callback."""

import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from accounts.openid.openid_errors import SignInStopped
from accounts.openid.pending import LASTS_S
from accounts.openid.provisioning import arrive
from accounts.people.oidc import IdentityRefused
from accounts.people.oidc_config import OidcSection
from accounts.people.people_errors import UnknownPerson
from api.web.gateway import Gateway, gateway_of
from dashboards.sign_in.page import enter, redirect
from dashboards.web.access import SIGN_IN
from dashboards.web.cookie import local_next
from dashboards.web.view import client_address, shown_to_anybody

if TYPE_CHECKING:
    from accounts.openid.oidc import SignInResult

router: Final = APIRouter(include_in_schema=False)

BEGUN_COOKIE: Final = "__Host-weighbridge-oidc"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
_log: Final = logging.getLogger("weighbridge.sign_in")


@router.get("/dashboard/sign-in/{provider}")
async def begin(provider: str, request: Request) -> Response:
    """Redirect the browser to the provider."""
    found = gateway_of(request).identity.providers.get(provider)
    if found is None:
        raise HTTPException(_NOT_FOUND)
    wanted = local_next(request.query_params.get("next"))
    try:
        begun = await found.begin(wanted)
    except SignInStopped as stopped:
        return _failure_page(found.section, stopped, wanted)
    reply = redirect(begun.address)
    # Lax, for the provider's redirect back is another site's; a top-level GET carries such cookies.
    reply.set_cookie(BEGUN_COOKIE, begun.cookie, max_age=LASTS_S, path="/", secure=True, httponly=True, samesite="lax")
    return reply


@router.get("/dashboard/sign-in/{provider}/callback")
async def finish(provider: str, request: Request) -> Response:
    """Handle the provider's callback. The pending sign-in is used up, whatever the result."""
    gateway = gateway_of(request)
    found = gateway.identity.providers.get(provider)
    if found is None:
        raise HTTPException(_NOT_FOUND)
    try:
        finished = await found.finish(request.cookies.get(BEGUN_COOKIE), request.query_params.multi_items())
        reply = await _complete(request, gateway, finished, found.section)
    except SignInStopped as stopped:
        reply = _failure_page(found.section, stopped)
    except IdentityRefused as refused:
        reply = _failure_page(found.section, SignInStopped(refused.reason, refused.message, status=_FORBIDDEN))
    reply.delete_cookie(BEGUN_COOKIE, path="/", secure=True, httponly=True, samesite="lax")
    return reply


async def _complete(request: Request, gateway: Gateway, finished: "SignInResult", section: OidcSection) -> Response:
    """Return the reply that opens a session, after provisioning the person."""
    person = await arrive(gateway.identity.audit, finished.identity, section, client_address(request))
    try:
        return await enter(request, gateway, person, "oidc", local_next(finished.next_path))
    except UnknownPerson as gone:
        raise IdentityRefused("disabled", "Your account was switched off a moment ago.") from gone


def _failure_page(section: OidcSection, stopped: SignInStopped, wanted: str = "") -> Response:
    _log.warning("sign-in with %s stopped: %s", section.name, stopped.reason)
    then = f"?next={quote(wanted, safe='')}" if wanted else ""
    return shown_to_anybody(
        "sign_in/refused.html",
        title="You are not signed in",
        status=stopped.status,
        message=stopped.message,
        label=section.label,
        again=f"{SIGN_IN}/{section.name}{then}",
        elsewhere=f"{SIGN_IN}{then}",
    )
