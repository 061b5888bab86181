"""The page that shows somebody's one-time link, this once."""

from starlette.responses import Response

from accounts.people.links import link_url
from accounts.people.person import Person
from api.people.change import make_link
from api.web.address import link_base
from dashboards.web.view import PageRequest


async def with_link(view: PageRequest, person: Person, *, is_new: bool, back: str, above: str) -> Response:
    """Return the page that shows a new link. The link is not stored, so no redirect could show it. `back` is the page to go on
    to, and `above` its name.
    """
    settings, owner = view.gateway.config(), view.principal.organisation_id
    token = await make_link(view.gateway.identity.audit, view.actor, owner, person.email, view.gateway.identity.links)
    return view.page(
        "people/link.html",
        title=f"{person.name} is invited" if is_new else f"A new link for {person.name}",
        person=person,
        link=link_url(link_base(view.request, settings), token),
        link_s=settings.sign_in.link_s,
        works_elsewhere=settings.sign_in.public_url is not None,
        is_new=is_new,
        back=back,
        above=above,
    )
