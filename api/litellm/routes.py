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
    "return_full_object": flag("Whole objects instead of ids."),
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


@router.post("/key/delete", **described("Revoke keys", gives=_SHAPE))
async def delete_keys(desk: _Changes) -> Response:
    """Revoke keys."""
    return desk.reply(await keys.delete(desk, await _sent(desk)))


@router.get("/key/list", **described("List keys", gives=_SHAPE, query=_LIST))
async def list_keys(desk: _ReadsAll) -> Response:
    """List the organisation's keys that are not revoked."""
    asked = _asked(desk, _LIST)
    page, size = asked.whole("page", 1, least=1, most=100_000), asked.whole("size", 10, least=1, most=100)
    found = await keys.listed(desk, asked.text("team_id"), page, size, whole=bool(asked.flag("return_full_object")))
    return desk.reply(found)


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


@router.get("/team/list", **described("List teams", gives=_SHAPE))
async def list_teams(desk: _ReadsAll) -> Response:
    """List the organisation's teams."""
    return desk.reply(await teams.listed(desk))


@router.post("/user/new", **described("Invite a person", gives=_SHAPE))
async def new_user(desk: _Changes) -> Response:
    """Invite a person by mail address."""
    return desk.reply(await users.new(desk, await _sent(desk)))


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
