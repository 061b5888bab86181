"""/dashboard/account: the signed-in person's profile, password and sessions."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.access import OrganisationRole
from accounts.people.people_errors import Locked, SignInBusy, WeakPassword, WrongCredentials
from accounts.people.sessions import SessionRecord
from dashboards.sign_in.page import signed_out
from dashboards.sign_in.welcome import chosen_password
from dashboards.ui.tables import Column, Table
from dashboards.web.access import allowed
from dashboards.web.cookie import COOKIE, set_cookie
from dashboards.web.forms import FormError
from dashboards.web.view import PageRequest, client_address

router: Final = APIRouter(include_in_schema=False)

ACCOUNT: Final = "/dashboard/account"
SignedIn = Annotated[PageRequest, Depends(allowed("signed-in"))]

_ROLES: Final[dict[OrganisationRole, str]] = {
    "": "Member: sees the teams below",
    "admin": "Administrator: can see and change everything in the organisation",
    "finance": "Finance: can read everything in the organisation",
    "operator": "Operator: runs the gateway",
}
_TEAM_ROLES: Final = {"admin": "Team administrator", "member": "Member"}
_VIA: Final = {"password": "Password", "link": "One-time link", "oidc": "Single sign-on"}
# First match wins: user agents name their ancestors too (Chrome's contains Safari).
_BROWSERS: Final = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
)
_SYSTEMS: Final = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
_COLUMNS: Final = (
    Column("device", "Where"),
    Column("seen", "Last used", "time", note="To the minute."),
    Column("address", "Address", "code"),
    Column("via", "Signed in with"),
    Column("created", "Since", "time"),
)


@router.get(ACCOUNT)
async def show(view: SignedIn) -> Response:
    """Show the account page."""
    return await _page(view)


@router.post(ACCOUNT + "/password")
async def change_password(view: SignedIn) -> Response:
    """Set a new password after checking the current one, and end all other sessions."""
    person, form, gateway = view.session.person, await view.form(), view.gateway
    try:
        password = chosen_password(form)
        await gateway.identity.sign_in.check_own(person, form.secret("current"), client_address(view.request))
        hashed = await gateway.identity.sign_in.hashed(person, password)
    except WrongCredentials:
        return await _page(view, {"current": "This is not your current password."}, 400)
    except Locked as locked:
        return await _page(view, {"current": str(locked)}, 429)
    except SignInBusy as busy:
        return await _page(view, {"current": str(busy)}, 503)
    except WeakPassword as weak:
        return await _page(view, {"password": str(weak)}, 400)
    except FormError as wrong:
        return await _page(view, {wrong.field: wrong.message}, 400)
    async with gateway.identity.audit.change(view.actor, "person.password_set") as change:
        await gateway.identity.sign_in.set_password(person.person_id, hashed, engine=change.within)
        ended = await gateway.identity.sessions.within(change.within).close_all(person.person_id)
        change.tell("person", person.person_id, before={"sessions": ended}, after={"sessions": 1, "changed": True})
    cookie = await gateway.identity.sessions.open(
        person.person_id,
        via="password",
        address=client_address(view.request),
        agent=view.request.headers.get("user-agent", ""),
        replaces=view.request.cookies.get(COOKIE),
    )
    reply = view.redirect(ACCOUNT, "Your password is changed. You are signed out on every other device.")
    set_cookie(reply, cookie)
    return reply


@router.post(ACCOUNT + "/sessions/end")
async def end_session(view: SignedIn) -> Response:
    """End one of the person's sessions."""
    # An unknown digest, or another person's, is reported as ended.
    digest = (await view.form()).plain.get("session", "")
    person_id = view.session.person.person_id
    if not await view.gateway.identity.sessions.close_one(person_id, digest):
        return view.redirect(ACCOUNT, "That session had ended already.", "info")
    await view.gateway.identity.audit.note(view.actor, "person.session_ended", "person", person_id)
    return signed_out("out") if digest == view.session.digest else view.redirect(ACCOUNT, "That device is signed out.")


@router.post(ACCOUNT + "/sessions/end-others")
async def end_others(view: SignedIn) -> Response:
    """End every session but this one."""
    person_id = view.session.person.person_id
    ended = await view.gateway.identity.sessions.close_all(person_id, but=view.session.digest)
    if not ended:
        return view.redirect(ACCOUNT, "You are signed in on this device only.", "info")
    await view.gateway.identity.audit.note(
        view.actor, "person.signed_out_elsewhere", "person", person_id, after={"sessions_ended": ended}
    )
    return view.redirect(ACCOUNT, f"{ended} other {'session' if ended == 1 else 'sessions'} signed out.")


@router.post(ACCOUNT + "/sessions/end-all")
async def end_all(view: SignedIn) -> Response:
    """End every session, this one included."""
    person_id = view.session.person.person_id
    ended = await view.gateway.identity.sessions.close_all(person_id)
    await view.gateway.identity.audit.note(
        view.actor, "person.signed_out_everywhere", "person", person_id, after={"sessions_ended": ended}
    )
    return signed_out("everywhere")


def device(agent: str) -> str:
    """Return the browser and operating system that a user agent names, such as `Firefox on Linux`; `Unknown` without either."""
    browser = next((name for mark, name in _BROWSERS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    return f"{browser or 'A browser'} on {system}" if system else browser or "Unknown"


async def _page(view: PageRequest, errors: dict[str, str] | None = None, status: int = 200) -> Response:
    person, section = view.session.person, view.gateway.config().sign_in
    sessions = await view.gateway.identity.sessions.of_person(person.person_id)
    rows = [_row(each, is_here=each.digest == view.session.digest) for each in sessions]
    table = Table.of(_COLUMNS, rows, view.query, sort="-seen", caption="Where you are signed in", csv=False)
    return view.page(
        "account/account.html",
        title="Your account",
        status=status,
        person=person,
        role=_ROLES[person.role],
        teams=[(view.team_names.get(each, each), each, _TEAM_ROLES[role]) for each, role in view.session.teams.items()],
        sessions=table,
        others=len(sessions) - 1,
        errors=errors or {},
        with_password=person.has_password and section.passwords,
        least=section.password_min_chars,
        idle_s=section.idle_s,
    )


def _row(record: SessionRecord, *, is_here: bool) -> dict[str, Any]:
    return {
        "digest": record.digest,
        "is_here": is_here,
        "device": f"{device(record.agent)} (this one)" if is_here else device(record.agent),
        "address": record.address or None,
        "via": _VIA[record.via],
        "created": record.created_us,
        "seen": record.seen_us,
    }
