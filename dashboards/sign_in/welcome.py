"""Choosing a password by one-time link, for an invitation or a reset."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from accounts.people.links import WELCOME
from accounts.people.people_errors import LinkUnusable, SignInBusy, UnknownPerson, WeakPassword
from accounts.people.person import Person
from api.web.gateway import Gateway, gateway_of
from dashboards.sign_in.page import actor_of, enter
from dashboards.web.access import check_origin
from dashboards.web.forms import Form, FormError, read_form
from dashboards.web.view import client_address, shown_to_anybody

router: Final = APIRouter(include_in_schema=False)


@router.get(WELCOME + "/{token}")
async def show(token: str, request: Request) -> Response:
    """Return the form. Opening it does not use up the link, because mail programs open links too."""
    gateway = gateway_of(request)
    person = await _person_of_link(gateway, token)
    return _unusable() if person is None else _page(gateway, person)


@router.post(WELCOME + "/{token}")
async def choose(token: str, request: Request) -> Response:
    """Set the password, end all earlier sessions, and sign in."""
    check_origin(request)
    gateway, form = gateway_of(request), await read_form(request)
    person = await _person_of_link(gateway, token)
    if person is None:
        return _unusable()
    try:
        password = chosen_password(form)
        hashed = await gateway.identity.links.hashed(token, password)
        actor = actor_of(person, client_address(request))
        async with gateway.identity.audit.change(actor, "person.password_set", reason="one-time link") as change:
            await gateway.identity.links.within(change.within).accept(token, hashed)
            # The entry tells that a link was used, and nothing of the password.
            change.tell("person", person.person_id, before={"link": "open"}, after={"link": "used"})
        return await enter(request, gateway, person, "link", "/dashboard")
    except (LinkUnusable, UnknownPerson):
        return _unusable()
    except FormError as wrong:
        return _page(gateway, person, error=wrong.message, field=wrong.field, status=400)
    except WeakPassword as weak:
        return _page(gateway, person, error=str(weak), field="password", status=400)
    except SignInBusy as busy:
        return _page(gateway, person, error=str(busy), field="password", status=503)


def chosen_password(form: Form) -> str:
    """Return the new password, entered twice. Raises FormError."""
    password = form.secret("password")
    if not password:
        raise FormError("password", "Choose a password.")
    if password != form.secret("again"):
        raise FormError("again", "The two are not the same. Type the password again.")
    return password


async def _person_of_link(gateway: Gateway, token: str) -> Person | None:
    if not gateway.config().sign_in.passwords:
        return None
    return await gateway.identity.links.peek(token)


def _page(gateway: Gateway, person: Person, *, error: str = "", field: str = "", status: int = 200) -> Response:
    return shown_to_anybody(
        "sign_in/welcome.html",
        title="Choose a new password" if person.has_password else f"Welcome, {person.name}",
        status=status,
        banner=gateway.config().sign_in.notice,
        person=person,
        error=error,
        field=field,
        least=gateway.config().sign_in.password_min_chars,
    )


def _unusable() -> Response:
    return shown_to_anybody(
        "sign_in/link.html", title="This link cannot be used", status=404, message=str(LinkUnusable())
    )
