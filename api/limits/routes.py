"""GET /v1/limits: a caller's limits and what remains of them. GET /v1/queues: state of the queues, for operators."""

from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from accounts.access import may, principal_of
from accounts.caller import Caller
from api.web.gateway import AuthenticatedCaller, OperatorCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameters, text
from api.web.reading import json_reply
from proxy.admin.worker_report import QueueReport
from proxy.admit.limits.book import places_of
from proxy.admit.limits.limit import Limit, Remaining
from proxy.admit.limits.rules import Place
from proxy.errors import ModelNotFound
from proxy.parse.chat_request import AUTO
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import may_use

router = APIRouter(tags=["limits"])

_PARAMETERS: Final = {"model": text("A name that may be sent as `model`.")}


class LimitStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, its setting and what remains; null where the key may not see it."""

    object: Literal["limit"]
    scope: str
    scope_id: str
    model: str | None
    kind: str
    per_minute: int | None
    burst: int
    remaining: int | None
    limit: int | None
    reset_s: float | None


class LimitsStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a request draws from, and the number of processes that share them."""

    object: Literal["list"]
    model: str | None
    mode: str
    live_replicas: int
    data: list[LimitStanding]


@router.get(
    "/v1/limits", **described("Read what is left of the limits", gives={200: LimitsStanding}, query=_PARAMETERS)
)
async def list_limits(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return the limits that each request of this key draws from; with `model`, also that model's."""
    gateway = gateway_of(request)
    model = Parameters(request.query_params, _PARAMETERS).text("model") or ""
    if model and not may_name(gateway.rules(), caller, model):
        raise ModelNotFound(
            f"The model `{model[:200]}` does not exist, or your team or this key may not use it.", param="model"
        )
    found = [(place, limit) for place in places_of(caller, model) for limit in gateway.limit_book.at(place)]
    seen = [limit for place, limit in found if sees_use(caller, place, gateway.operator)]
    workers = await gateway.views.workers.now()
    remains = dict(zip(seen, await gateway.views.workers.remaining(tuple(seen)), strict=False))
    return json_reply(
        {
            "object": "list",
            "model": model or None,
            "mode": workers.limits_mode,
            "live_replicas": workers.live,
            "data": [limit_as_json(place, limit, remains.get(limit)) for place, limit in found],
        }
    )


@router.get("/v1/queues", **described("Look at the queues", gives={200: "Each queue, as it stands"}))
async def list_queues(request: Request, _caller: OperatorCaller) -> Response:
    """Return every queue, with what this host's workers have in it. Queues hold requests of all organisations, so only
    operators may read them.
    """
    workers = await gateway_of(request).views.workers.now()
    data = [queue_as_json(each) for each in workers.queues]
    return json_reply({"object": "list", "live_replicas": workers.live, "data": data})


def may_name(rules: PipelineConfig, caller: Caller, name: str) -> bool:
    """Return True if the caller may send this model name: `auto`, or a name with at least one target that it may use."""
    if name == AUTO or name in rules.policy.autos:
        return True
    names = rules.policy.aliases.get(name, (name,))
    targets = [target for each in names if (target := rules.catalog.named(each)) is not None]
    return any(may_use(caller.allowed_models, target) for target in targets)


def sees_use(caller: Caller, place: Place, operator: str) -> bool:
    """Return True if the caller may see how much of a limit is used. An organisation's needs the role finance or admin; a
    model's an admin of the organisation that operates the gateway.
    """
    match place.scope:
        case "organisation":
            return may(principal_of(caller, operator), "organisation.read")
        case "model":
            return may(principal_of(caller, operator), "operations.change")
        case _:
            return True


def queue_as_json(queue: QueueReport) -> dict[str, Any]:
    """Return a queue as the API returns it."""
    look = queue.snapshot
    state = msgspec.structs.asdict(look.state)
    return {
        "object": "queue",
        **state,
        "predicted_wait_s": round(look.state.predicted_wait_s, 3),
        "whole_capacity_tokens": look.whole_capacity_tokens,
        "divided": "by demand" if look.by_demand else "equally",
        "waiting_by_tier": {"interactive": look.waiting_interactive, "batch": look.waiting_batch},
        "drain_tokens_per_s": round(look.drain_tokens_per_s, 3),
        "targets": list(queue.targets),
    }


def limit_as_json(place: Place, limit: Limit, remains: Remaining | None) -> dict[str, Any]:
    """Return a limit as the API returns it; `remains` is None where the caller may not see its use."""
    return {
        "object": "limit",
        "scope": place.scope,
        "scope_id": place.model if place.scope == "model" else place.scope_id,
        "model": place.model or None,
        "kind": limit.kind,
        "per_minute": limit.rate or None,
        "burst": limit.burst,
        "remaining": None if remains is None else remains.remaining,
        "limit": None if remains is None else remains.limit,
        "reset_s": None if remains is None else round(remains.reset_s, 3),
    }
