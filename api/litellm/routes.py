"""LiteLLM's admin routes, for clients and Terraform that call them: off unless `accounts.litellm_routes`.

Each goes by the changes of the admin API, with its rights. What is sent and nothing here does is refused by its name.
"""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from api.litellm import keys, teams, users
from api.litellm.models import model_info
from api.web.admin_access import AdminRequest, admin
from api.web.gateway import AuthenticatedCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters, flag, text, whole
from api.web.reading import json_reply
from proxy.errors import BadRequest

router = APIRouter(tags=["litellm"])

_Reads = Annotated[AdminRequest, Depends(admin("signed-in"))]
_ReadsAll = Annotated[AdminRequest, Depends(admin("organisation.read"))]
_Changes = Annotated[AdminRequest, Depends(admin("organisation.change"))]
_SHAPE: Final = {200: "In LiteLLM's shape"}
_OF_KEY: Final = {"key": text("The key, its id, or the SHA-256 of it; otherwise the key that asks.")}
_OF_TEAM: Final = {"team_id": text("Which team.")}
_OF_USER: Final = {"user_id": text("Which user: a mail address, or the id that a client gave.")}
_OF_MODEL: Final = {"litellm_model_id": text("Only this deployment.")}
_LIST: Final = {
    "page": whole("Which page.", least=1, most=100_000, otherwise=1),
    "size": whole("Keys on a page.", least=1, most=100, otherwise=10),
    "team_id": text("Only this team's."),
    "key_alias": text("Only keys of this name."),
    "user_id": text("Only this user's."),
    "key_hash": text("Only this key: its id, or the SHA-256 of it."),
    "organization_id": text("Only this organisation's."),
    "return_full_object": flag("Whole objects instead of ids."),
    "include_team_keys": flag("Nothing: every key is a team's."),
}
_OF_USERS: Final = {
    "page": whole("Which page.", least=1, most=100_000, otherwise=1),
    "page_size": whole("Rows on a page.", least=1, most=100, otherwise=25),
    "role": text("Only people of this role."),
    "user_ids": text("Only these, with commas between them."),
    "user_email": text("Only addresses with this within."),
}
_TEAMS: Final = {
    "user_id": text("Only teams of this user."),
    "organization_id": text("Only this organisation's."),
}
_OF_TEAMS: Final = _TEAMS | {
    "page": whole("Which page.", least=1, most=100_000, otherwise=1),
    "page_size": whole("Rows on a page.", least=1, most=100, otherwise=10),
    "team_id": text("Only this team."),
    "team_alias": text("Only names with this within."),
    "sort_by": text("Nothing: teams come in the order of their ids."),
    "sort_order": text("Nothing: teams come in the order of their ids."),
}


@router.post("/key/generate", **described("Make a key", gives=_SHAPE))
async def generate_key(desk: _Changes) -> Response:
    """Make a key of a team, with limits and a budget of its own."""
    return desk.reply(await keys.generate(desk, await _sent(desk)))


@router.get("/key/info", **described("Read a key", gives=_SHAPE, query=_OF_KEY))
async def key_info(desk: _Reads) -> Response:
    """Show a key: an administrator's may ask of any of the organisation, others of themselves."""
    return desk.reply(await keys.info(desk, _asked(desk, _OF_KEY).text("key")))


@router.post("/key/update", **described("Change a key", gives=_SHAPE))
async def update_key(desk: _Changes) -> Response:
    """Change models, end, limits, budget, block and metadata of a key."""
    return desk.reply(await keys.update(desk, await _sent(desk)))


@router.post("/key/block", **described("Block a key", gives=_SHAPE))
async def block_key(desk: _Changes) -> Response:
    """Block a key: it is refused."""
    return desk.reply(await keys.block(desk, await _sent(desk), blocked=True))


@router.post("/key/unblock", **described("Lift a key's block", gives=_SHAPE))
async def unblock_key(desk: _Changes) -> Response:
    """Lift a key's block."""
    return desk.reply(await keys.block(desk, await _sent(desk), blocked=False))


@router.post("/key/delete", **described("Revoke keys", gives=_SHAPE))
async def delete_keys(desk: _Changes) -> Response:
    """Revoke keys."""
    return desk.reply(await keys.delete(desk, await _sent(desk)))


@router.get("/key/list", **described("List keys", gives=_SHAPE, query=_LIST))
async def list_keys(desk: _ReadsAll) -> Response:
    """List the organisation's keys that are not revoked."""
    asked = _asked(desk, _LIST)
    page, size = asked.whole("page", 1, least=1, most=100_000), asked.whole("size", 10, least=1, most=100)
    wanted = {name: asked.text(name) for name in ("key_alias", "user_id", "key_hash", "organization_id")}
    is_whole = bool(asked.flag("return_full_object"))
    return desk.reply(await keys.listed(desk, asked.text("team_id"), wanted, page, size, whole=is_whole))


@router.post("/team/new", **described("Make a team", gives=_SHAPE))
async def new_team(desk: _Changes) -> Response:
    """Make a team, with limits and a budget."""
    return desk.reply(await teams.new(desk, await _sent(desk)))


@router.get("/team/info", **described("Read a team", gives=_SHAPE, query=_OF_TEAM))
async def team_info(desk: _Reads) -> Response:
    """Show a team with its keys."""
    return desk.reply(await teams.info(desk, _asked(desk, _OF_TEAM).text("team_id")))


@router.post("/team/update", **described("Change a team", gives=_SHAPE))
async def update_team(desk: _Changes) -> Response:
    """Change name, models, limits, budget, block, members and metadata of a team."""
    return desk.reply(await teams.update(desk, await _sent(desk)))


@router.post("/team/delete", **described("Block teams and revoke their keys", gives=_SHAPE))
async def delete_teams(desk: _Changes) -> Response:
    """Block teams for good and revoke their keys; their books stay."""
    return desk.reply(await teams.delete(desk, await _sent(desk)))


@router.get("/team/list", **described("List teams", gives=_SHAPE, query=_TEAMS))
async def list_teams(desk: _ReadsAll) -> Response:
    """List the organisation's teams."""
    asked = _asked(desk, _TEAMS)
    return desk.reply(await teams.listed(desk, asked.text("user_id"), asked.text("organization_id")))


@router.get("/v2/team/list", **described("List teams by the page", gives=_SHAPE, query=_OF_TEAMS))
async def list_teams_by_page(desk: _ReadsAll) -> Response:
    """List the organisation's teams by the page."""
    return desk.reply(await teams.page(desk, _asked(desk, _OF_TEAMS)))


@router.post("/team/block", **described("Block a team", gives=_SHAPE))
async def block_team(desk: _Changes) -> Response:
    """Block a team: its keys are refused."""
    return desk.reply(await teams.block(desk, await _sent(desk), blocked=True))


@router.post("/team/unblock", **described("Lift a team's block", gives=_SHAPE))
async def unblock_team(desk: _Changes) -> Response:
    """Lift a team's block."""
    return desk.reply(await teams.block(desk, await _sent(desk), blocked=False))


@router.post("/team/member_add", **described("Add members to a team", gives=_SHAPE))
async def add_members(desk: _Changes) -> Response:
    """Add one person or several to a team."""
    return desk.reply(await teams.add_members(desk, await _sent(desk)))


@router.post("/team/member_update", **described("Change a member's role", gives=_SHAPE))
async def change_member(desk: _Changes) -> Response:
    """Change the role that a person has in a team."""
    return desk.reply(await teams.change_member(desk, await _sent(desk)))


@router.post("/team/member_delete", **described("Take a member out of a team", gives=_SHAPE))
async def remove_member(desk: _Changes) -> Response:
    """Take a person out of a team."""
    return desk.reply(await teams.remove_member(desk, await _sent(desk)))


@router.post("/user/new", **described("Invite a person", gives=_SHAPE))
async def new_user(desk: _Changes) -> Response:
    """Invite a person by mail address."""
    return desk.reply(await users.new(desk, await _sent(desk)))


@router.post("/user/update", **described("Change a person", gives=_SHAPE))
async def update_user(desk: _Changes) -> Response:
    """Change name, role and metadata of a person."""
    return desk.reply(await users.update(desk, await _sent(desk)))


@router.post("/user/delete", **described("Disable people", gives=_SHAPE))
async def delete_users(desk: _Changes) -> Response:
    """Disable people and end their sessions."""
    return desk.reply(await users.delete(desk, await _sent(desk)))


@router.get("/user/list", **described("List people", gives=_SHAPE, query=_OF_USERS))
async def list_users(desk: _ReadsAll) -> Response:
    """List the organisation's people by the page."""
    return desk.reply(await users.listed(desk, _asked(desk, _OF_USERS)))


@router.get("/v2/user/info", **described("Read a person alone", gives=_SHAPE, query=_OF_USER))
async def whole_user(desk: _ReadsAll) -> Response:
    """Show a person without what belongs to them."""
    return desk.reply(await users.whole(desk, _asked(desk, _OF_USER).text("user_id")))


@router.get("/user/info", **described("Read a person", gives=_SHAPE, query=_OF_USER))
async def user_info(desk: _ReadsAll) -> Response:
    """Show a person with their teams."""
    return desk.reply(await users.info(desk, _asked(desk, _OF_USER).text("user_id")))


@router.get(
    "/model/info", name="model_info", **described("List models with their facts", gives=_SHAPE, query=_OF_MODEL)
)
@router.get(
    "/v1/model/info",
    name="model_info_of_v1",
    **described("List models with their facts", gives=_SHAPE, query=_OF_MODEL),
)
async def show_models(request: Request, caller: AuthenticatedCaller) -> Response:
    """List the models that the key may use, with mode, lengths and prices."""
    asked = Parameters(request.query_params, _OF_MODEL)
    return json_reply(model_info(gateway_of(request).rules(), caller, asked.text("litellm_model_id")))


@router.post("/model/new", name="model_new", **described("Say where models are configured", gives=_SHAPE))
@router.post("/model/update", name="model_update", **described("Say where models are configured", gives=_SHAPE))
@router.post("/model/delete", name="model_delete", **described("Say where models are configured", gives=_SHAPE))
async def change_models(_desk: _Changes) -> Response:
    """Refuse a change of models, which stand in the configuration."""
    raise BadRequest(
        "Models stand in the configuration, under `providers.models`; a reload (SIGHUP) brings a change into effect."
    )


async def _sent(desk: AdminRequest) -> dict[str, Any]:
    return await desk.body(dict[str, Any])


def _asked(desk: AdminRequest, known: Any) -> Parameters:
    return Parameters(desk.request.query_params, known)
