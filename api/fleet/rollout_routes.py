"""/v1/fleet/versions and /v1/fleet/rollouts: versions of our own models, and canaries of new ones, for operators."""

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.fleet.rollouts import (
    add_version,
    check_registrable,
    comparison_as_json,
    pool_of_model,
    promote,
    ready_versions,
    roll_back,
    rollout_as_json,
    start_canary,
    version_as_json,
)
from api.web.actor import actor_of
from api.web.admin_access import parsed
from api.web.changing import checked_reason, looking
from api.web.gateway import Gateway, OperatorCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters, text
from api.web.reading import json_reply
from api.web.request_body import read_body
from cost.times import wall_us
from selfhosted.config import PoolConfig
from selfhosted.rollouts.reading import VersionReader
from selfhosted.rollouts.store import RolloutStore
from selfhosted.rollouts.versions import Kind, ModelVersion, Rule, State, share_of

router = APIRouter(tags=["fleet"])
MAX_BODY_BYTES: Final = 128 * 1024
_PARAMETERS: Final = {"model": text("Only this model's.")}
_Reason = Annotated[str, msgspec.Meta(max_length=500)]


class NewVersion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A version to register; it never changes. An adapter says which model it adapts (`base`)."""

    model: str
    version: str
    weights: str
    digest: str = ""
    precision: str = ""
    layout: str = ""
    tokenizer: str = ""
    arguments: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    base: str = ""
    note: str = ""


class StartCanary(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The share of conversations, in percent, that a version gets; `ttft_worse` and `tpot_worse` are parts, null for never."""

    model: str
    version: str
    percent: float
    rollback_on_errors: bool = True
    rollback_on_quality: bool = True
    ttft_worse: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = 0.5
    tpot_worse: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = 0.5
    promote_after: Annotated[int, msgspec.Meta(ge=100, le=10_000_000)] | None = None
    reason: _Reason = ""


class Promote(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The version that gets everything; the one on trial when it is left out."""

    model: str
    version: str | None = None
    reason: _Reason = ""


class RollBack(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The model whose version on trial gets nothing any more."""

    model: str
    reason: _Reason = ""


class VersionOut(msgspec.Struct, frozen=True, kw_only=True):
    """A version; what is unknown is null."""

    object: Literal["model_version"]
    model: str
    version: str
    kind: Kind
    weights: str
    digest: str | None
    precision: str | None
    layout: str | None
    tokenizer: str | None
    arguments: list[str]
    adapters: list[str]
    base: str | None
    note: str | None
    added_by: str | None
    added_at: str


class VersionsOut(msgspec.Struct, frozen=True, kw_only=True):
    """Versions by model, the newest first."""

    object: Literal["list"]
    data: list[VersionOut]


class RolloutOut(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a model's rollout."""

    object: Literal["rollout"]
    model: str
    pool: str
    state: State
    stable: str | None
    candidate: str | None
    percent: float
    missing: str | None
    """The version that is to get conversations and gets none, as no replica runs it."""
    since: str
    changed_by: str
    reason: str
    rule: Rule


@router.get(
    "/v1/fleet/versions", **described("List versions of our own models", gives={200: VersionsOut}, query=_PARAMETERS)
)
async def list_versions(request: Request, _caller: OperatorCaller) -> Response:
    """Return the versions of models and LoRA adapters."""
    model = Parameters(request.query_params, _PARAMETERS).text("model")
    async with looking():
        found = await RolloutStore(gateway_of(request).database).versions(model)
    return json_reply({"object": "list", "data": [version_as_json(each) for each in found]})


@router.post(
    "/v1/fleet/versions",
    **described(
        "Register a version",
        takes=NewVersion,
        gives={200: VersionOut},
        example={"model": "llama-3-70b", "version": "v2", "weights": "s3://weights/llama-fp8", "precision": "fp8"},
    ),
)
async def add(request: Request, caller: OperatorCaller) -> Response:
    """Register a version of a model that a pool serves, or of an adapter. Nothing is sent there yet."""
    gateway = gateway_of(request)
    said = await _body(request, NewVersion)
    made = ModelVersion(kind="adapter" if said.base else "weights", **msgspec.structs.asdict(said))
    async with looking():
        check_registrable(_pools(gateway), made)
        made = await add_version(gateway.identity.audit, actor_of(request, caller), made)
    return json_reply(version_as_json(made))


@router.get("/v1/fleet/rollouts", **described("Compare versions", gives={200: "Every rollout with its comparison"}))
async def list_rollouts(request: Request, _caller: OperatorCaller) -> Response:
    """Return all rollouts. One with a version on trial has the figures of both versions, each with its 95 % interval."""
    gateway = gateway_of(request)
    served = {each.name: each.served for each in _pools(gateway)}
    async with looking():
        found = []
        for each in await RolloutStore(gateway.database).rollouts(served):
            told = None
            if each.state == "canary":
                samples = await VersionReader(gateway.database).samples(each, served[each.pool], wall_us())
                told = comparison_as_json(samples)
            found.append({**rollout_as_json(each, ready_versions(gateway, each.pool)), "comparison": told})
    return json_reply({"object": "list", "data": found})


@router.put(
    "/v1/fleet/rollouts/canary",
    **described(
        "Give a version a share",
        takes=StartCanary,
        gives={200: RolloutOut},
        example={"model": "llama-3-70b", "version": "v2", "percent": 5},
    ),
)
async def canary(request: Request, caller: OperatorCaller) -> Response:
    """Give a version a share of conversations, or the one on trial another. Every process follows within seconds."""
    gateway = gateway_of(request)
    said = await _body(request, StartCanary)
    rule = Rule(
        errors=said.rollback_on_errors,
        ttft_worse=said.ttft_worse,
        promote_after=said.promote_after,
        tpot_worse=said.tpot_worse,
        quality=said.rollback_on_quality,
    )
    async with looking():
        after = await start_canary(
            gateway.identity.audit,
            actor_of(request, caller),
            said.model,
            pool_of_model(_pools(gateway), said.model),
            said.version,
            share_ppm=share_of(said.percent),
            rule=rule,
            reason=checked_reason(said.reason),
        )
    return json_reply(rollout_as_json(after, ready_versions(gateway, after.pool)))


@router.post(
    "/v1/fleet/rollouts/promote",
    **described("Give a version everything", takes=Promote, gives={200: RolloutOut}, example={"model": "llama-3-70b"}),
)
async def promote_version(request: Request, caller: OperatorCaller) -> Response:
    """Give a version all conversations."""
    gateway = gateway_of(request)
    said = await _body(request, Promote)
    async with looking():
        pool = pool_of_model(_pools(gateway), said.model)
        reason = checked_reason(said.reason)
        after = await promote(
            gateway.identity.audit, actor_of(request, caller), said.model, pool, said.version, reason=reason
        )
    return json_reply(rollout_as_json(after, ready_versions(gateway, after.pool)))


@router.post(
    "/v1/fleet/rollouts/rollback",
    **described(
        "Take everything from a version",
        takes=RollBack,
        gives={200: RolloutOut},
        example={"model": "llama-3-70b", "reason": "tables come out broken"},
    ),
)
async def rollback(request: Request, caller: OperatorCaller) -> Response:
    """Take all conversations from the version on trial."""
    gateway = gateway_of(request)
    said = await _body(request, RollBack)
    async with looking():
        actor = actor_of(request, caller)
        after = await roll_back(gateway.identity.audit, actor, said.model, reason=checked_reason(said.reason))
    return json_reply(rollout_as_json(after, ready_versions(gateway, after.pool)))


def _pools(gateway: Gateway) -> list[PoolConfig]:
    view = gateway.views.fleet
    return [] if view is None else [each.config for each in view.pools.values()]


async def _body(request: Request, kind: type[Any]) -> Any:
    timeout_s = gateway_of(request).rules().body_timeout_s
    return parsed(await read_body(request, timeout_s=timeout_s, most_bytes=MAX_BODY_BYTES), kind)
