"""Keys in LiteLLM's shapes. A key is named by itself, by its id here, or by the SHA-256 that LiteLLM knew it by."""

import secrets
from collections.abc import Mapping
from typing import Any, Final

from accounts.keys import digest_presented, digest_token, is_token, may_be_imported, token_of
from accounts.store import KeyRecord, TeamRecord
from api.keys.change import block_key, create_key, import_key, read_key, revoke_key, set_key_expiry, set_key_models
from api.litellm.desk import BOUNDS, keep_fields, set_bounds, shown
from api.litellm.sent import Sent
from api.web.admin_access import AdminRequest
from api.web.changing import looking
from proxy.errors import BadRequest, KeyNotFound

KNOWN: Final = BOUNDS | {
    "key",
    "key_alias",
    "duration",
    "models",
    "team_id",
    "user_id",
    "metadata",
    "tags",
    "blocked",
    "organization_id",
}
_KEPT: Final = ("user_id", "metadata", "tags", "key_alias")
_OPEN: Final = frozenset({"all-team-models", "all-proxy-models"})
_NOTHING: Final[Mapping[str, Any]] = {
    **{
        name: {}
        for name in (
            "aliases",
            "config",
            "permissions",
            "router_settings",
            "model_max_budget",
            "model_spend",
            "budget_fallbacks",
        )
    },
    **{name: [] for name in ("access_group_ids", "allowed_routes", "allowed_cache_controls", "policies")},
    "key_type": "default",
    "auto_rotate": False,
    "rotation_count": 0,
    "soft_budget_cooldown": False,
}
"""What no key here has, for clients that go over it."""
_LEAST_CHOSEN: Final = 16
_MOST_PAGE: Final = 100


async def generate(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Make a key as POST /key/generate does, or let the one that was chosen work."""
    sent = Sent(fields, KNOWN)
    _check_organisation(desk, sent)
    team = await team_of(desk, sent.text("team_id") or desk.caller.team_id)
    alias = sent.text("key_alias")
    name, models = alias or f"key-{secrets.token_hex(4)}", models_in(sent)
    gateway, log = desk.gateway, desk.gateway.identity.audit
    chosen = sent.text("key")
    may_all, known, ends = desk.may("organisation.change"), gateway.rules().catalog, sent.ends_at()
    pepper = gateway.identity.peppers[0]
    if chosen is None:
        made, minted = await create_key(
            log, desk.actor, team, name, pepper, may_all=may_all, expires_at=ends, models=models, known=known
        )
        plaintext = minted.plaintext
    else:
        _check_chosen(desk, chosen)
        made = await import_key(
            log,
            desk.actor,
            team,
            name,
            pepper,
            token_of(chosen),
            last4=chosen[-4:],
            may_all=may_all,
            expires_at=ends,
            models=models,
            known=known,
        )
        plaintext = chosen
    await set_bounds(desk, "key", made.key_id, sent)
    if sent.flag("blocked"):
        made = await block_key(log, desk.actor, team, made.key_id, blocked=True, may_all=may_all)
    await keep_fields(desk, "key", made.key_id, {name: fields.get(name) or None for name in _KEPT})
    (told,) = await _told(desk, [made])
    return {**told, "key": plaintext, "duration": sent.text("duration")}


def _check_chosen(desk: AdminRequest, chosen: str) -> None:
    if not desk.gateway.config().accounts.imported_keys:
        raise BadRequest(
            "A key of one's own choice needs `accounts: {imported_keys: true}` in the configuration.", param="key"
        )
    if not may_be_imported(chosen) or not chosen.startswith("sk-") or len(chosen) < _LEAST_CHOSEN:
        raise BadRequest(
            f"A key of one's own choice begins with sk- and has {_LEAST_CHOSEN} to 256 printable characters.",
            param="key",
        )


def _check_organisation(desk: AdminRequest, sent: Sent) -> None:
    named = sent.text("organization_id")
    if named is not None and named != desk.organisation_id:
        raise BadRequest("A key belongs to the organisation of the key that makes it.", param="organization_id")


def models_in(sent: Sent) -> list[str] | None:
    """Return the models that were sent; None for all of the team's, as an empty list is there."""
    found = sent.texts("models")
    return None if not found or _OPEN & set(found) else found


async def team_of(desk: AdminRequest, team_id: str) -> TeamRecord:
    """Return one of the organisation's teams. Raises TeamNotFound."""
    async with looking():
        return await desk.gateway.identity.accounts.team_of(desk.organisation_id, team_id)


async def find(desk: AdminRequest, named: str) -> KeyRecord:
    """Return the key that a client means. Raises KeyNotFound, also for another organisation's."""
    accounts = desk.gateway.identity.accounts
    async with looking():
        if named.startswith("key_"):
            return await accounts.key_of(desk.organisation_id, None, named)
        peppers = desk.gateway.identity.peppers
        digests = [
            (digest_token(named, each) if is_token(named) else digest_presented(named, each)).hex() for each in peppers
        ]
        stored = next((each for each in await accounts.find_keys(digests) if each is not None), None)
        if stored is None or stored.organisation_id != desk.organisation_id:
            raise KeyNotFound("There is no such key.", param="key")
        return await accounts.key_of(desk.organisation_id, stored.team_id, stored.key_id)


async def info(desk: AdminRequest, named: str | None) -> dict[str, Any]:
    """Show a key; without a name the one that asks."""
    asked = named or desk.caller.key_id
    found = await find(desk, asked)
    if found.key_id != desk.caller.key_id and not desk.may("organisation.read"):
        raise KeyNotFound("There is no such key.", param="key")
    (told,) = await _told(desk, [found])
    return {"key": asked, "info": told}


async def update(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Change what was sent; what was not sent stays."""
    sent = Sent(fields, KNOWN, changes=True)
    named = sent.text("key")
    if named is None:
        raise BadRequest("`key` says which key: itself, its id or its token.", param="key")
    found = await find(desk, named)
    team = await team_of(desk, found.team_id)
    if (other := sent.text("team_id")) is not None and other != found.team_id:
        raise BadRequest("A key stays with its team, as its spending does; make a new one.", param="team_id")
    log, may_all = desk.gateway.identity.audit, desk.may("organisation.change")
    await _rename(desk, found, sent)
    if "models" in sent and (models := models_in(sent)) != found.models:
        found = await set_key_models(
            log, desk.actor, team, found.key_id, models, may_all=may_all, known=desk.gateway.rules().catalog
        )
    if sent.text("duration") is not None:
        found = await set_key_expiry(log, desk.actor, team, found.key_id, sent.ends_at(), may_all=may_all)
    blocked = sent.flag("blocked")
    if blocked is not None and blocked != (found.blocked_at is not None):
        found = await block_key(log, desk.actor, team, found.key_id, blocked=blocked, may_all=may_all)
    await set_bounds(desk, "key", found.key_id, sent)
    await keep_fields(desk, "key", found.key_id, {name: fields.get(name) for name in _KEPT})
    (told,) = await _told(desk, [await read_key(desk.gateway.identity.accounts, team, found.key_id)])
    return {**told, "key": named}


async def _rename(desk: AdminRequest, found: KeyRecord, sent: Sent) -> None:
    """Raise BadRequest for another name: entries of the ledger and the audit log have it."""
    alias = sent.text("key_alias")
    if alias is None or alias == found.name:
        return
    kept = (await shown(desk, "key", [found.key_id])).fields.get(found.key_id, {}).get("key_alias")
    if alias != kept:
        raise BadRequest("A key keeps its name; make a new key, or rotate this one.", param="key_alias")


async def block(desk: AdminRequest, fields: dict[str, Any], *, blocked: bool) -> dict[str, Any]:
    """Block a key, or lift its block."""
    named = Sent(fields, {"key"}).text("key")
    return await update(desk, {"key": named, "blocked": blocked})


async def delete(desk: AdminRequest, fields: dict[str, Any]) -> dict[str, Any]:
    """Revoke keys. Their entries stay in the books."""
    sent = Sent(fields, {"keys", "key_aliases"})
    named, aliases = sent.texts("keys") or [], set(sent.texts("key_aliases") or [])
    if not named and not aliases:
        raise BadRequest("`keys` says which keys.", param="keys")
    found = [await find(desk, each) for each in named]
    if aliases:
        found += [each for each in await _all(desk, None) if each.name in aliases]
    for key in found:
        team = await team_of(desk, key.team_id)
        await revoke_key(
            desk.gateway.identity.audit, desk.actor, team, key.key_id, may_all=desk.may("organisation.change")
        )
    return {"deleted_keys": [*named, *sorted(aliases)]}


async def listed(
    desk: AdminRequest, team_id: str | None, wanted: Mapping[str, str | None], page: int, size: int, *, whole: bool
) -> dict[str, Any]:
    """List keys that are not revoked, oldest first: those of the wanted `key_alias`, `user_id`, `organization_id` and `key_hash`."""
    size = min(size, _MOST_PAGE)
    keys = await _all(desk, team_id)
    if (named := wanted.get("key_hash")) is not None:
        found = await _id_of(desk, named)
        keys = [key for key in keys if key.key_id == found]
    same = {
        field: wanted[field] for field in ("key_alias", "user_id", "organization_id") if wanted.get(field) is not None
    }
    if same:
        told = await _told(desk, keys)
        keys = [key for key, shape in zip(keys, told, strict=True) if same.items() <= shape.items()]
    part = keys[(page - 1) * size : page * size]
    told = await _told(desk, part)
    return {
        "keys": told if whole else [each["token"] for each in told],
        "total_count": len(keys),
        "current_page": page,
        "total_pages": -(-len(keys) // size),
    }


async def _id_of(desk: AdminRequest, named: str) -> str | None:
    try:
        return (await find(desk, named)).key_id
    except KeyNotFound:
        return None


async def _all(desk: AdminRequest, team_id: str | None) -> list[KeyRecord]:
    accounts = desk.gateway.identity.accounts
    async with looking():
        teams = (
            [await accounts.team_of(desk.organisation_id, team_id)]
            if team_id
            else await accounts.teams_of(desk.organisation_id)
        )
        found = [key for team in teams for key in await accounts.keys_of(team.organisation_id, team.team_id)]
    return [key for key in found if key.revoked_at is None]


async def told_of_team(desk: AdminRequest, team: TeamRecord) -> list[dict[str, Any]]:
    """Return a team's keys in LiteLLM's shape."""
    return await _told(desk, (await _all(desk, team.team_id))[:_MOST_PAGE])


async def _told(desk: AdminRequest, keys: list[KeyRecord]) -> list[dict[str, Any]]:
    beside = await shown(desk, "key", [key.key_id for key in keys])
    return [
        _as_theirs(key, beside.bounds[key.key_id], beside.fields.get(key.key_id, {}), desk.organisation_id)
        for key in keys
    ]


def _as_theirs(key: KeyRecord, bounds: dict[str, Any], fields: dict[str, Any], organisation_id: str) -> dict[str, Any]:
    return {
        "token": key.key_id,
        "token_id": key.key_id,
        "key_name": f"...{key.last4}",
        "key_alias": fields.get("key_alias") or key.name,
        "models": key.models or [],
        "team_id": key.team_id,
        "user_id": fields.get("user_id"),
        "organization_id": organisation_id,
        "metadata": fields.get("metadata") or {},
        "tags": fields.get("tags") or [],
        "expires": key.expires_at,
        "blocked": key.blocked_at is not None,
        "created_at": key.created_at,
        **_NOTHING,
        **bounds,
    }
