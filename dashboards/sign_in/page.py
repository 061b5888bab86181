"""Password sign-in, and signing out."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from accounts.audit.entry import Actor
from accounts.people.people_errors import Locked, PasswordsOff, SignInBusy, UnknownPerson, WrongCredentials
from accounts.people.person import Person
from accounts.people.sessions import Via
from api.web.gateway import Gateway, gateway_of
from dashboards.web.access import SIGN_IN, check_origin, session_of
from dashboards.web.cookie import COOKIE, clear_cookie, local_next, set_cookie
from dashboards.web.forms import FormError, read_form
from dashboards.web.headers import SAFE
from dashboards.web.view import client_address, shown_to_anybody

router: Final = APIRouter(include_in_schema=False)

_TOLD: Final = {
    "out": "You are signed out.",
    "everywhere": "You are signed out on every device.",
}


@router.get(SIGN_IN)
async def show(request: Request) -> Response:
    """Show the sign-in form; a redirect for those signed in already."""
    gateway = gateway_of(request)
    wanted = local_next(request.query_params.get("next"))
    if await session_of(request, gateway) is not None:
        return redirect(wanted)
    return _page(gateway, wanted, note=_TOLD.get(request.query_params.get("told", ""), ""))


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    """Check the password. The reply does not reveal whether the account exists."""
    check_origin(request)
    gateway, address = gateway_of(request), client_address(request)
    form = await read_form(request)
    wanted = local_next(form.plain.get("next"))
    email = ""
    try:
        email = form.text("email", most=254, required=True)
        person = await gateway.identity.sign_in.check(email, form.secret("password"), address)
        return await enter(request, gateway, person, "password", wanted)
    except (WrongCredentials, UnknownPerson) as wrong:
        if isinstance(wrong, WrongCredentials) and wrong.locked:
            await _audit_lock(gateway, wrong.person, address)
        return _page(gateway, wanted, email, error=str(WrongCredentials()), status=403)
    except Locked as locked:
        return _page(gateway, wanted, email, error=str(locked), status=429, retry_after_s=locked.retry_after_s)
    except SignInBusy as busy:
        return _page(gateway, wanted, email, error=str(busy), status=503, retry_after_s=busy.retry_after_s)
    except PasswordsOff as off:
        return _page(gateway, wanted, error=str(off), status=403)
    except FormError as wrong:
        return _page(gateway, wanted, email, error=f"E-mail address or password: {wrong.message}", status=400)


@router.post("/dashboard/sign-out")
async def sign_out(request: Request) -> Response:
    """End this browser's session, if it has one."""
    check_origin(request)
    gateway = gateway_of(request)
    session = await session_of(request, gateway)
    if session is not None:
        await gateway.identity.sessions.close(request.cookies[COOKIE])
        actor = actor_of(session.person, client_address(request))
        await gateway.identity.audit.note(actor, "person.signed_out", "person", session.person.person_id)
    return signed_out("out")


async def enter(request: Request, gateway: Gateway, person: Person, via: Via, wanted: str) -> Response:
    """Open a new session, replacing that of an earlier cookie, and redirect to `wanted`."""
    address = client_address(request)
    cookie = await gateway.identity.sessions.open(
        person.person_id,
        via=via,
        address=address,
        agent=request.headers.get("user-agent", ""),
        replaces=request.cookies.get(COOKIE),
    )
    await gateway.identity.audit.note(
        actor_of(person, address), "person.signed_in", "person", person.person_id, after={"via": via}
    )
    reply = redirect(wanted)
    set_cookie(reply, cookie)
    return reply


def signed_out(told: str) -> Response:
    """Return a redirect to the sign-in form with a message, which clears the session cookie."""
    reply = redirect(f"{SIGN_IN}?told={told}")
    clear_cookie(reply)
    return reply


def redirect(path: str) -> Response:
    """Return a redirect to one of our pages, by GET."""
    return RedirectResponse(path, 303, {"cache-control": "no-store", **SAFE})


def actor_of(person: Person, address: str) -> Actor:
    """Return the audit actor of a person who has no session yet."""
    return Actor(
        kind="person",
        actor_id=person.person_id,
        name=person.name,
        organisation_id=person.organisation_id,
        address=address,
    )


async def _audit_lock(gateway: Gateway, person: Person | None, address: str) -> None:
    # An account that is not there leaves an entry too: otherwise the answer would come sooner.
    organisation_id = gateway.operator if person is None else person.organisation_id
    actor = Actor(
        kind="gateway", actor_id="gateway", name="The gateway", organisation_id=organisation_id, address=address
    )
    await gateway.identity.audit.note(
        actor,
        "person.locked_out",
        "person",
        "unknown" if person is None else person.person_id,
        reason="too many failed sign-ins to this account or from this address",
    )


def _page(
    gateway: Gateway,
    wanted: str,
    email: str = "",
    *,
    error: str = "",
    note: str = "",
    status: int = 200,
    retry_after_s: int | None = None,
) -> Response:
    section = gateway.config().sign_in
    reply = shown_to_anybody(
        "sign_in/form.html",
        title="Sign in",
        status=status,
        email=email,
        next=wanted,
        error=error,
        note=note,
        banner=section.notice,
        with_passwords=section.passwords,
        providers=[(provider.name, provider.label or provider.name) for provider in section.providers],
    )
    if retry_after_s is not None:
        reply.headers["retry-after"] = str(retry_after_s)
    return reply
