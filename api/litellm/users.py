"""People in LiteLLM's shapes. A user's id is their mail address, or what the client calls them."""

from typing import Any, Final

from accounts.access import OrganisationRole
from accounts.people.person import Person
from api.litellm.desk import keep_fields
from api.litellm.fields import FieldStore
from api.litellm.keys import team_of
from api.litellm.sent import Sent
from api.people.change import disable_person, put_person, read_people
from api.people.members_change import put_member
from api.web.admin_access import AdminRequest
from api.web.changing import looking
from api.web.parameters import Parameters
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
    role = _role(sent.text("user_role") or "internal_user")
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
        role=role,
    )
    for team_id in sent.texts("teams") or []:
        await put_member(log, desk.actor, await team_of(desk, team_id), person.email, "member")
    await keep_fields(desk, "user", person.person_id, {name: fields.get(name) for name in _KEPT})
    return {**await _told(desk, person), "key": None}


def _role(named: str) -> OrganisationRole:
    if named not in _ROLES:
        raise BadRequest(f"`user_role` is one of {', '.join(_ROLES)}.", param="user_role")
    return _ROLES[named]


async def update(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Change name, role and metadata of a person; what was not sent stays."""
    sent = Sent(fields, _KNOWN, changes=True)
    person = await find(desk, sent.text("user_id") or sent.text("user_email"))
    role, alias = sent.text("user_role"), sent.text("user_alias")
    changes: dict[str, Any] = {} if alias is None else {"name": alias}
    if role is not None:
        changes["role"] = _role(role)
    if changes:
        log, operator = desk.gateway.identity.audit, desk.gateway.operator
        person, _ = await put_person(log, desk.actor, desk.organisation_id, person.email, operator=operator, **changes)
    await keep_fields(desk, "user", person.person_id, {"metadata": fields.get("metadata")})
    told = await _told(desk, person)
    return {"user_id": told["user_id"], "data": told, **told}


async def delete(desk: AdminRequest, fields: dict[str, Any]) -> int:
    """Disable people and end their sessions. Returns how many, as POST /user/delete does."""
    named = Sent(fields, {"user_ids"}).texts("user_ids")
    if not named:
        raise BadRequest("`user_ids` says which users.", param="user_ids")
    for person in [await find(desk, each) for each in named]:
        await disable_person(desk.gateway.identity.audit, desk.actor, desk.organisation_id, person.email)
    return len(named)


async def listed(desk: AdminRequest, asked: Parameters) -> dict[str, Any]:
    """List people by the page, as GET /user/list does."""
    page, size = asked.whole("page", 1, least=1, most=100_000), asked.whole("page_size", 25, least=1, most=100)
    people = [
        each for each in await read_people(desk.gateway.identity.people, desk.organisation_id) if not each.disabled_at
    ]
    told = [{**await _told(desk, each), "key_count": 0} for each in people]
    ids, email, role = asked.text("user_ids"), asked.text("user_email"), asked.text("role")
    wanted = None if ids is None else {each.strip() for each in ids.split(",")}
    found = [
        each
        for each in told
        if (wanted is None or each["user_id"] in wanted)
        and (email or "").lower() in each["user_email"]
        and role in {None, each["user_role"]}
    ]
    return page_of("users", found, page, size)


def page_of(name: str, found: list[dict[str, Any]], page: int, size: int) -> dict[str, Any]:
    """Return a page of a list under its name, as LiteLLM counts pages."""
    return {
        name: found[(page - 1) * size : page * size],
        "total": len(found),
        "page": page,
        "page_size": size,
        "total_pages": -(-len(found) // size),
    }


async def whole(desk: AdminRequest, user_id: str | None) -> dict[str, Any]:
    """Show a person alone, as GET /v2/user/info does."""
    return await _told(desk, await find(desk, user_id))


async def info(desk: AdminRequest, user_id: str | None) -> dict[str, Any]:
    """Show a person, with their teams."""
    told = await _told(desk, await find(desk, user_id))
    return {"user_id": told["user_id"], "user_info": told, "keys": [], "teams": told["teams"], **told}


async def find(desk: AdminRequest, user_id: str | None) -> Person:
    """Return a person, by the id that the client gave, by mail address, or by our id. Raises BadRequest, PersonNotFound."""
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
    return found


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
        "spend": 0,
        "max_budget": None,
        "created_at": person.created_at,
        **{name: [] for name in ("models", "allowed_cache_controls", "policies")},
        **{name: {} for name in ("model_max_budget", "model_spend")},
    }
