"""/v1/admin/teams/{team_id}/keys: creating, rotating and revoking keys. A key's secret is in one reply only."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from accounts.store import KeyRecord, utc_now
from api.keys.admin_types import BlockKey, KeyOut, PutKey, RotateKey, key_out, used_key_out
from api.keys.change import block_key, newest_working, put_key, read_keys, revoke_key, rotate_key
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Listed
from api.web.openapi import PREFIX, described
from api.web.reading import reading
from cost.reports.keys import read_key_use
from cost.times import wall_us
from proxy.errors import KeyNotFound

router = APIRouter(tags=["keys"])

_PLACE = f"{PREFIX}/teams/{{team_id}}/keys"


@router.get(_PLACE, **described("List a team's keys", gives={200: Listed[KeyOut]}))
async def list_keys(desk: Annotated[AdminRequest, Depends(admin("team.read"))]) -> Response:
    """Return all keys of the team, oldest first, expired and revoked ones included."""
    team, gateway = desk.the_team, desk.gateway
    keys = await read_keys(gateway.identity.accounts, team)
    async with reading(gateway, on=True):
        use = await read_key_use(gateway.database, team.organisation_id, team.team_id, wall_us())
    now = utc_now()
    return desk.reply(Listed(data=[used_key_out(key, now, use.get(key.key_id)) for key in keys]))


@router.put(
    f"{_PLACE}/{{key}}",
    **described(
        "Make sure that a key of this name works",
        takes=PutKey,
        gives={200: KeyOut, 201: KeyOut},
        example={"role": "member", "expires_at": "2027-01-31T00:00:00Z"},
    ),
)
async def set_key(desk: Annotated[AdminRequest, Depends(admin("team.change"))], key: str) -> Response:
    """Ensure a working key of this name. 201 with its secret where it was created; 200 without where one worked
    already.
    """
    asked = await desk.body(PutKey)
    found, minted = await put_key(
        desk.gateway.identity.audit,
        desk.actor,
        desk.the_team,
        key,
        desk.gateway.identity.peppers[0],
        may_all=desk.may("organisation.change"),
        role=asked.role,
        expires_at=asked.expires_at,
        life_s=asked.expires_in_s,
        models=asked.models,
        known=desk.gateway.rules().catalog,
    )
    if minted is None:
        return desk.reply(key_out(found, utc_now()))
    return desk.reply(key_out(found, utc_now(), plaintext=minted.plaintext), 201)


@router.get(f"{_PLACE}/{{key}}", **described("Read a key", gives={200: KeyOut}))
async def show_key(desk: Annotated[AdminRequest, Depends(admin("team.read"))], key: str) -> Response:
    """Show one key, by its id, or by its name while it works; never its secret."""
    return desk.reply(key_out(await _key_of(desk, key), utc_now()))


@router.post(
    f"{_PLACE}/{{key}}/rotate",
    **described("Replace a key", takes=RotateKey, gives={201: KeyOut}, example={"overlap_s": 86_400}),
)
async def replace_key(desk: Annotated[AdminRequest, Depends(admin("team.change"))], key: str) -> Response:
    """Rotate a key. The new key has the same name, and its secret is in this reply only. The old one works for the
    overlap; rotating it again is refused with 409.
    """
    asked = await desk.body(RotateKey)
    old = await _key_of(desk, key)
    made, minted = await rotate_key(
        desk.gateway.identity.audit,
        desk.actor,
        desk.the_team,
        old.key_id,
        desk.gateway.identity.peppers[0],
        overlap_s=asked.overlap_s,
        may_all=desk.may("organisation.change"),
    )
    return desk.reply(key_out(made, utc_now(), plaintext=minted.plaintext), 201)


@router.post(f"{_PLACE}/{{key}}/block", **described("Block a key", takes=BlockKey, gives={200: KeyOut}, example={}))
async def block_one_key(desk: Annotated[AdminRequest, Depends(admin("team.change"))], key: str) -> Response:
    """Refuse a key with 403 until it is unblocked; every server follows within seconds."""
    return await _blocked(desk, key, blocked=True)


@router.post(f"{_PLACE}/{{key}}/unblock", **described("Unblock a key", takes=BlockKey, gives={200: KeyOut}, example={}))
async def unblock_one_key(desk: Annotated[AdminRequest, Depends(admin("team.change"))], key: str) -> Response:
    """Let a blocked key work again."""
    return await _blocked(desk, key, blocked=False)


async def _blocked(desk: AdminRequest, key: str, *, blocked: bool) -> Response:
    asked = await desk.body(BlockKey)
    found = await _key_of(desk, key)
    changed = await block_key(
        desk.gateway.identity.audit,
        desk.actor,
        desk.the_team,
        found.key_id,
        blocked=blocked,
        may_all=desk.may("organisation.change"),
        reason=asked.reason,
    )
    return desk.reply(key_out(changed, utc_now()))


@router.delete(f"{_PLACE}/{{key}}", **described("Revoke a key", gives={200: KeyOut}))
async def end_key(desk: Annotated[AdminRequest, Depends(admin("team.change"))], key: str) -> Response:
    """Revoke a key; every server refuses it within seconds. Idempotent by id. It stays in the list."""
    found = await _key_of(desk, key)
    ended = await revoke_key(
        desk.gateway.identity.audit, desk.actor, desk.the_team, found.key_id, may_all=desk.may("organisation.change")
    )
    return desk.reply(key_out(ended, utc_now()))


async def _key_of(desk: AdminRequest, key: str) -> KeyRecord:
    keys = await read_keys(desk.gateway.identity.accounts, desk.the_team)
    found = next((each for each in keys if each.key_id == key), None) or newest_working(keys, key, utc_now())
    if found is None:
        raise KeyNotFound(f"The team has no key `{key[:80]}`.", param="key")
    return found
