"""Authorisation of pages, in one place: session, team, right, and protection against cross-site requests."""

import hmac
import logging
from typing import Final
from urllib.parse import quote, urlsplit

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request

from accounts.access import Right, may
from accounts.errors import UnknownTeam
from accounts.people.sessions import Session
from accounts.store import TeamRecord
from api.web.gateway import Gateway, gateway_of
from api.web.parameters import check_path
from api.web.patience import patience
from dashboards.web.cookie import COOKIE
from dashboards.web.forms import FORM, Form, read_form
from dashboards.web.view import PageRequest
from proxy.errors import CrossSite, DatabaseAway, NotAllowed, NotSignedIn, SignInFirst, TeamNotFound

SIGN_IN: Final = "/dashboard/sign-in"
CSRF_HEADER: Final = "x-csrf-token"
_SAFE: Final = frozenset({"GET", "HEAD"})
_MAX_NEXT: Final = 1_000
_PATIENCE_S: Final = 3.0
_AWAY: Final = (
    "The database does not answer, so nobody can be told anything here; what is running goes on. Try again shortly."
)
_log: Final = logging.getLogger("weighbridge.pages")


class Allowed:
    """A dependency of routes that requires a right, and gives a PageRequest."""

    def __init__(self, right: Right) -> None:
        self.right = right

    async def __call__(self, request: Request) -> PageRequest:
        gateway = gateway_of(request)
        sent = None
        if request.method not in _SAFE:
            check_origin(request)
        try:
            session = await session_of(request, gateway)
        except DatabaseAway:
            return self._during_outage(request, gateway)
        if session is None:
            raise _not_signed_in(request)
        if request.method not in _SAFE:
            sent = await _checked_form(request, session)
        check_path(request)
        principal = session.principal(gateway.operator)
        team_id = request.path_params.get("team_id")
        team = None if team_id is None else await _team(gateway, principal.organisation_id, team_id)
        if not may(principal, self.right, team_id=team_id):
            # 404 instead of 403: a team that the viewer may not read must look like one that does not exist.
            if team is not None and not may(principal, "team.read", team_id=team_id):
                raise _no_team(team_id or "")
            raise NotAllowed("Your role does not allow this; an administrator of your organisation can change it.")
        # Without a team there is nothing to query.
        teams = principal.teams
        names = await gateway.identity.accounts.names_of(principal.organisation_id, teams) if teams else {}
        return PageRequest(request, gateway, principal, session, team, names, sent)

    def _during_outage(self, request: Request, gateway: Gateway) -> PageRequest:
        """Return the request while the database is down: operators may read their pages, to see the outage; all others get
        DatabaseAway.
        """
        session = remembered_operator(request, gateway)
        if session is None or self.right != "operations.read" or request.method not in _SAFE:
            raise DatabaseAway(_AWAY)
        return PageRequest(request, gateway, session.principal(gateway.operator), session, None, {})


def allowed(right: Right) -> Allowed:
    """Return the dependency for a right: `view: Annotated[PageRequest, Depends(allowed("team.read"))]`."""
    return Allowed(right)


async def session_of(request: Request, gateway: Gateway) -> Session | None:
    """Return the request's session, or None. Raises DatabaseAway."""
    cookie = request.cookies.get(COOKIE)
    # Automatic refreshes must not extend the session.
    by_hand = request.headers.get("hx-request") != "true"
    if not cookie:
        return None
    try:
        async with patience(_PATIENCE_S):
            return await gateway.identity.sessions.find(cookie, renew=by_hand)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        _log.warning("the database does not tell who is signed in: %s", type(error).__name__)
        raise DatabaseAway(_AWAY) from error


def remembered_operator(request: Request, gateway: Gateway) -> Session | None:
    """Return the cached session of an operator, for while the database is down; None for others."""
    session = gateway.identity.sessions.remembered(request.cookies.get(COOKIE, ""))
    if session is None or not may(session.principal(gateway.operator), "operations.read"):
        return None
    return session


def check_origin(request: Request) -> None:
    """Raise CrossSite for a request that another site initiated. Browsers without the headers are covered by the CSRF
    token.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site != "same-origin":
            raise CrossSite("This was sent from another site; open the page here and try again.")
        return
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise CrossSite("This was sent from another site; open the page here and try again.")


async def _checked_form(request: Request, session: Session) -> Form | None:
    """Return the form, after verifying the session's CSRF token in a header or field. Raises CrossSite."""
    is_form = request.headers.get("content-type", "").startswith(FORM)
    form = await read_form(request) if is_form else None
    given = request.headers.get(CSRF_HEADER) or (form.text("csrf") if form is not None else "")
    if not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise CrossSite("The page is too old to send this; load it again and try once more.")
    return form


def _not_signed_in(request: Request) -> Exception:
    path, query = request.scope["path"], request.url.query
    wanted = f"{path}?{query}" if query else path
    if request.method == "GET" and request.headers.get("hx-request") != "true" and len(wanted) <= _MAX_NEXT:
        return SignInFirst(f"{SIGN_IN}?next={quote(wanted, safe='')}")
    return NotSignedIn("You are signed out; sign in and try again.")


async def _team(gateway: Gateway, organisation_id: str, team_id: str) -> TeamRecord:
    try:
        return await gateway.identity.accounts.team_of(organisation_id, team_id)
    except UnknownTeam as error:
        raise _no_team(team_id) from error


def _no_team(team_id: str) -> TeamNotFound:
    return TeamNotFound(f"There is no team `{team_id[:80]}`.", param="team_id")
