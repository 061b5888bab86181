"""/v1/admin/limits: rate limits that override the configuration's."""

from typing import Annotated, Final, Literal, cast

from fastapi import APIRouter, Depends
from starlette.responses import Response

from api.limits.admin_types import LimitOut, PutLimit, limit_out
from api.limits.change import put_limit, read_limit, read_limits, remove_limit
from api.web.admin_access import AdminRequest, admin
from api.web.api_types import Deleted, Listed
from api.web.openapi import PREFIX, described
from api.web.parameters import Parameters, text
from proxy.admit.limits.limit import Scope
from proxy.admit.limits.rules import ANY_ID, OWN_SCOPES, SCOPES, Place, Rule, with_booked_user
from proxy.admit.limits.store import LimitStore
from proxy.errors import BadRequest, NotAllowed

router = APIRouter(tags=["limits"])

_MODEL: Final = f"{PREFIX}/limits/model/{{model:path}}"
_PLACE: Final = f"{PREFIX}/limits/{{scope}}/{{scope_id:path}}"
_QUERY: Final = {"model": text("Only on this model, as callers name it.")}
_EXAMPLE: Final = {"requests_per_minute": 600, "tokens_per_minute": 200_000, "concurrency": 20}


@router.get(f"{PREFIX}/limits", **described("List the limits that were set", gives={200: Listed[LimitOut]}))
async def list_limits(desk: Annotated[AdminRequest, Depends(admin("organisation.read"))]) -> Response:
    """Return limits set for the organisation, its teams, keys and end users. Others have the configuration's."""
    found = await read_limits(LimitStore(desk.gateway.database), desk.organisation_id)
    return desk.reply(Listed(data=[limit_out(each) for each in found]))


@router.get(_MODEL, **described("Read a model's limit", gives={200: LimitOut}))
async def show_model_limit(desk: Annotated[AdminRequest, Depends(admin("operations.read"))], model: str) -> Response:
    """Return the limit of a model, shared by all organisations."""
    return await _show(desk, _model(model))


@router.put(
    _MODEL,
    **described("Limit a model", takes=PutLimit, gives={200: LimitOut, 201: LimitOut}, example=_EXAMPLE),
)
async def set_model_limit(desk: Annotated[AdminRequest, Depends(admin("operations.change"))], model: str) -> Response:
    """Set the limit of a model, shared by all organisations. Only operators may."""
    return await _set(desk, _model(model))


@router.delete(_MODEL, **described("Take a model's limit away", gives={200: Deleted}))
async def take_model_limit(desk: Annotated[AdminRequest, Depends(admin("operations.change"))], model: str) -> Response:
    """Remove the limit of a model; the configuration's applies again."""
    return await _take(desk, _model(model))


@router.get(_PLACE, **described("Read a limit", gives={200: LimitOut}, query=_QUERY))
async def show_limit(
    desk: Annotated[AdminRequest, Depends(admin("organisation.read"))], scope: str, scope_id: str
) -> Response:
    """Return the limit of the organisation, a team, a key, or an end user."""
    return await _show(desk, _place_of(desk, scope, scope_id))


@router.put(
    _PLACE,
    **described("Set a limit", takes=PutLimit, gives={200: LimitOut, 201: LimitOut}, example=_EXAMPLE, query=_QUERY),
)
async def set_limit(
    desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], scope: str, scope_id: str
) -> Response:
    """Replace the limit of the organisation, a team, a key, or an end user; every process follows within seconds."""
    return await _set(desk, _place_of(desk, scope, scope_id))


@router.delete(_PLACE, **described("Take a limit away", gives={200: Deleted}, query=_QUERY))
async def take_limit(
    desk: Annotated[AdminRequest, Depends(admin("organisation.change"))], scope: str, scope_id: str
) -> Response:
    """Remove the limit of the organisation, a team, a key, or an end user; the configuration's applies again."""
    return await _take(desk, _place_of(desk, scope, scope_id))


async def _show(desk: AdminRequest, place: Place) -> Response:
    store = LimitStore(desk.gateway.database)
    return desk.reply(limit_out(await read_limit(store, desk.gateway.identity.accounts, desk.organisation_id, place)))


async def _set(desk: AdminRequest, place: Place) -> Response:
    _check_may_change(desk, place)
    asked = await desk.body(PutLimit)
    rule, created = await put_limit(
        desk.gateway.identity.audit,
        desk.actor,
        desk.organisation_id,
        Rule(place=place, limits=asked.limits()),
        names=desk.gateway.rules().names,
        reason=asked.reason,
    )
    return desk.reply(limit_out(rule), 201 if created else 200)


async def _take(desk: AdminRequest, place: Place) -> Response:
    _check_may_change(desk, place)
    await remove_limit(desk.gateway.identity.audit, desk.actor, desk.organisation_id, place)
    return desk.reply(Deleted(id=str(place), object="limit.deleted"))


def _check_may_change(desk: AdminRequest, place: Place) -> None:
    """Raise NotAllowed unless the actor may: an organisation's limit protects the others, so the operator sets it."""
    if place.scope == "organisation" and not desk.may("operations.change"):
        raise NotAllowed("The limits of a whole organisation are set by who runs the gateway.")


def _place_of(desk: AdminRequest, scope: str, scope_id: str) -> Place:
    if scope not in OWN_SCOPES:
        raise BadRequest(f"A limit is for one of {', '.join(SCOPES)}.", param="scope")
    model = Parameters(desk.request.query_params, _QUERY).text("model") or ""
    if not model.isprintable():
        raise BadRequest("A model's name is printable.", param="model")
    return with_booked_user(Place(cast(Scope, scope), scope_id, model))


def _model(model: str) -> Place:
    scope: Literal["model"] = "model"
    return Place(scope, ANY_ID, model)
