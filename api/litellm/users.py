"""People in LiteLLM's shapes. A user's id is their mail address, or what the client calls them."""

from typing import Any, Final

from accounts.access import OrganisationRole
from accounts.people.person import Person
from api.litellm.desk import keep_fields
from api.litellm.fields import FieldStore
from api.litellm.keys import team_of
from api.litellm.sent import Sent
from api.people.change import put_person, read_people
from api.people.members_change import put_member
from api.web.admin_access import AdminRequest
from api.web.changing import looking
from proxy.errors import BadRequest, NameTaken, PersonNotFound

_KNOWN: Final = frozenset({"user_id", "user_email", "user_alias", "user_role", "teams", "metadata", "organizations"})
_KEPT: Final = ("user_id", "metadata")
_ROLES: Final[dict[str, OrganisationRole]] = {
    "proxy_admin": "admin",
    "proxy_admin_viewer": "finance",
    "org_admin": "admin",
    "internal_user": "",
    "internal_user_viewer": "",
}
_THEIRS: Final = {
    "admin": "proxy_admin",
    "finance": "proxy_admin_viewer",
    "operator": "proxy_admin",
    "": "internal_user",
}


async def new(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Invite a person as POST /user/new does. There is no key in the reply: POST /key/generate makes one."""
    sent = Sent(fields, _KNOWN)
    email = sent.text("user_email")
    if email is None:
        raise BadRequest("`user_email` is needed: people sign in by it.", param="user_email")
    role = sent.text("user_role") or "internal_user"
    if role not in _ROLES:
        raise BadRequest(f"`user_role` is one of {', '.join(_ROLES)}.", param="user_role")
    log = desk.gateway.identity.audit
    known = {each.email for each in await read_people(desk.gateway.identity.people, desk.organisation_id)}
    if email.strip().lower() in known:
        raise NameTaken("There is a user of this address already.", param="user_email")
    person, _ = await put_person(
        log,
        desk.actor,
        desk.organisation_id,
        email,
        operator=desk.gateway.operator,
        name=sent.text("user_alias") or email.partition("@")[0],
        role=_ROLES[role],
    )
    for team_id in sent.texts("teams") or []:
        await put_member(log, desk.actor, await team_of(desk, team_id), person.email, "member")
    await keep_fields(desk, "user", person.person_id, {name: fields.get(name) for name in _KEPT})
    return {**await _told(desk, person), "key": None}


async def info(desk: AdminRequest, user_id: str | None) -> dict[str, Any]:
    """Show a person, by the id that the client gave, by mail address, or by our id."""
    if user_id is None:
        raise BadRequest("`user_id` says which user.", param="user_id")
    people = await read_people(desk.gateway.identity.people, desk.organisation_id)
    async with looking():
        fields = await FieldStore(desk.gateway.database).of(
            "user", desk.organisation_id, [each.person_id for each in people]
        )
    found = next(
        (
            each
            for each in people
            if user_id in {each.email, each.person_id} or fields.get(each.person_id, {}).get("user_id") == user_id
        ),
        None,
    )
    if found is None:
        raise PersonNotFound(f"There is no user {user_id[:80]!r}.", param="user_id")
    told = await _told(desk, found)
    return {"user_id": told["user_id"], "user_info": told, "keys": [], "teams": told["teams"], **told}


async def _told(desk: AdminRequest, person: Person) -> dict[str, Any]:
    async with looking():
        teams = await desk.gateway.identity.people.teams_of([person.person_id])
        kept = await FieldStore(desk.gateway.database).of("user", desk.organisation_id, [person.person_id])
    fields = kept.get(person.person_id, {})
    return {
        "user_id": fields.get("user_id") or person.email,
        "user_email": person.email,
        "user_alias": person.name,
        "user_role": _THEIRS[person.role],
        "teams": sorted(teams.get(person.person_id, {})),
        "metadata": fields.get("metadata") or {},
        "models": [],
        "spend": 0,
        "max_budget": None,
        "created_at": person.created_at,
    }
