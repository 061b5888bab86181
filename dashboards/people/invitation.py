"""The page that shows somebody's one-time link, this once."""

from starlette.responses import Response

from accounts.people.links import link_url
from accounts.people.person import Person
from dashboards.people.change import make_link
from dashboards.web.address import base_url
from dashboards.web.view import PageRequest


async def with_link(view: PageRequest, person: Person, *, is_new: bool, back: str, above: str) -> Response:
    """The page that shows a new link. The link is not stored, so no redirect could show it. `back` is the page to go on
    to, and `above` its name.
    """
    section, owner = view.gateway.config().sign_in, view.principal.organisation_id
    token = await make_link(view.gateway.audit, view.actor, owner, person.email, view.gateway.links)
    return view.page(
        "people/link.html",
        title=f"{person.name} is invited" if is_new else f"A new link for {person.name}",
        person=person,
        link=link_url(base_url(view.request, section.public_url), token),
        link_s=section.link_s,
        is_new=is_new,
        back=back,
        above=above,
    )
