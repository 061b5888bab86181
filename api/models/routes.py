"""GET /v1/models: the names that a caller may send as `model`, with prices and capabilities as extra fields.

In Anthropic's shape for a caller that sends `anthropic-version`; there every name also begins with `claude-`, as clients of
Anthropic's show no others.
"""

from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from accounts.caller import Caller
from api.web.api_types import Listed
from api.web.gateway import AuthenticatedCaller, gateway_of
from api.web.openapi import described
from api.web.parameters import Parameter, Parameters, text, whole
from api.web.reading import json_reply
from cost.prices import Price, usd
from providers.target import NOT_CHAT, Target
from proxy.errors import BadRequest, ModelNotFound
from proxy.parse.chat_request import AUTO
from proxy.parse.wires.messages.parser import CLAUDE_PREFIX, model_named
from proxy.parse.wires.messages.wire import ANTHROPIC_VERSION
from proxy.plan.evidence import Evidence
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import may_use

router = APIRouter(tags=["models"])

_MOST_LISTED: Final = 1_000
_LISTING: Final[Mapping[str, Parameter]] = {
    "limit": whole("Names in the page.", least=1, most=_MOST_LISTED, otherwise=_MOST_LISTED),
    "after_id": text("The id of the last name of the page before."),
    "before_id": text("The id of the first name of the page after."),
}
"""Parameters of Anthropic's list; OpenAI's has none, and ignores all."""


class ModelOut(msgspec.Struct, frozen=True, kw_only=True):
    """A name for `model`: `auto`, an alias with its `targets`, or a target with its capabilities and prices."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    targets: list[str] | UnsetType = UNSET
    tier_eligibility: list[str] | UnsetType = UNSET
    max_context_tokens: int | UnsetType | None = UNSET
    max_output_tokens: int | UnsetType | None = UNSET
    capabilities: list[str] | UnsetType = UNSET
    capability: float | UnsetType | None = UNSET
    evidence: Evidence | UnsetType = UNSET
    """The evidence of its quality."""
    usd_per_million_tokens: dict[str, str] | UnsetType | None = UNSET


class AnthropicModelOut(msgspec.Struct, frozen=True, kw_only=True):
    """A name for `model` in Anthropic's shape. What a name may stand for, as an alias, is known of none."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str = "1970-01-01T00:00:00Z"
    """A name in a configuration has none, and Anthropic's shape wants one."""
    lifecycle: Literal["active", "deprecated", "retired"] = "active"
    deprecated_at: str | None = None
    retires_at: str | None = None
    line: str | None = None
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    capabilities: dict[str, Any] | None = None


class AnthropicModels(msgspec.Struct, frozen=True, kw_only=True):
    """A page of names in Anthropic's shape."""

    data: list[AnthropicModelOut]
    has_more: bool
    first_id: str | None
    last_id: str | None


@router.get(
    "/v1/models", **described("List the models", gives={200: (Listed[ModelOut], AnthropicModels)}, query=_LISTING)
)
async def list_models(request: Request, caller: AuthenticatedCaller) -> Response:
    """Return the names that this key may send as `model`; with the header `anthropic-version` in Anthropic's shape."""
    visible = _visible(gateway_of(request).rules(), caller)
    if ANTHROPIC_VERSION in request.headers:
        return json_reply(_page([_for_anthropic(each) for each in visible.values()], request.query_params))
    listed = list(visible.values())
    if _is_mistrals(request):
        listed = [_for_mistral(each) for each in listed]
    return JSONResponse({"object": "list", "data": listed})


@router.get("/v1/models/{name:path}", **described("Read a model", gives={200: ModelOut}))
async def get_model(name: str, request: Request, caller: AuthenticatedCaller) -> Response:
    """Return one name that this key may send as `model`."""
    if not name:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    rules = gateway_of(request).rules()
    anthropic = ANTHROPIC_VERSION in request.headers
    meant = model_named(name, rules.has_model) if anthropic else name
    found = _visible(rules, caller).get(meant)
    if found is None:
        raise ModelNotFound(
            f"The model `{name}` does not exist, or your team or this key may not use it.", param="model"
        )
    if anthropic:
        return json_reply(_for_anthropic(found))
    return JSONResponse(_for_mistral(found) if _is_mistrals(request) else found)


def _visible(rules: PipelineConfig, caller: Caller) -> dict[str, dict[str, Any]]:
    catalog = rules.catalog
    named = (catalog.named(name) for entry in catalog.wildcards.entries for name in entry.names)
    targets = [
        target
        for target in (*catalog.targets.values(), *named)
        if target is not None and may_use(caller.allowed_models, target)
    ]
    models = {name: _model(name, "weighbridge") for name in (AUTO, *rules.policy.autos)}
    for alias, names in rules.policy.aliases.items():
        behind = [(name, catalog.named(name)) for name in names]
        usable = [name for name, target in behind if target is not None and may_use(caller.allowed_models, target)]
        if usable:
            models[alias] = {**_model(alias, "weighbridge"), "targets": usable}
    models |= {target.target_id: _described(target, rules.policy.evidence) for target in targets}
    return models


def _is_mistrals(request: Request) -> bool:
    """Return True for Mistral's own client, which reads only models of its shape, and says so in its user agent alone."""
    agent = request.headers.get("user-agent", "")
    return agent.startswith("mistral-client-") or agent.endswith("mistralai")


def _for_mistral(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model as Mistral's client wants it: with a type, and its capabilities as flags."""
    known = model.get("capabilities")
    can = {name: known is None or ours in known for name, ours in (("function_calling", "tools"), ("vision", "vision"))}
    shown = {name: value for name, value in model.items() if name != "capabilities"}
    context = {} if model.get("max_context_tokens") is None else {"max_context_length": model["max_context_tokens"]}
    is_chat = known is None or NOT_CHAT.isdisjoint(known)
    return {**shown, **context, "type": "base", "capabilities": {"completion_chat": is_chat, **can}}


def _for_anthropic(model: dict[str, Any]) -> AnthropicModelOut:
    name = model["id"]
    known = model.get("capabilities")
    return AnthropicModelOut(
        id=name if name.startswith(CLAUDE_PREFIX) else f"{CLAUDE_PREFIX}{name}",
        display_name=name,
        max_input_tokens=model.get("max_context_tokens"),
        max_tokens=model.get("max_output_tokens"),
        capabilities=None if known is None else _anthropics_capabilities(known),
    )


def _anthropics_capabilities(known: Collection[str]) -> dict[str, Any]:
    """Return what a model can do by Anthropic's names: what nobody declares here counts as not there."""
    yes, no = {"supported": True}, {"supported": False}
    return {
        "batch": yes if NOT_CHAT.isdisjoint(known) else no,
        "citations": no,
        "code_execution": no,
        "context_management": no,
        "effort": {**no, "low": no, "medium": no, "high": no, "max": no},
        "image_input": yes if "vision" in known else no,
        "pdf_input": no,
        "server_tools": {**no, "code_execution": no, "web_search": no},
        "structured_outputs": yes if "json" in known else no,
        "thinking": {**no, "types": {"adaptive": no, "between_tools": no, "disabled": yes, "enabled": no}},
    }


def _page(names: list[AnthropicModelOut], query: QueryParams) -> AnthropicModels:
    """Return the page that was asked for. Raises BadRequest."""
    asked = Parameters(query, _LISTING)
    most = asked.whole("limit", _MOST_LISTED, least=1, most=_MOST_LISTED)
    after, before = _place(names, asked, "after_id"), _place(names, asked, "before_id")
    if after is not None and before is not None:
        raise BadRequest("Send `after_id` or `before_id`, and not both.", param="before_id")
    rest = names[:before] if after is None else names[after + 1 :]
    data = rest[:most] if before is None else rest[-most:]
    return AnthropicModels(
        data=data,
        has_more=len(rest) > most,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def _place(names: list[AnthropicModelOut], asked: Parameters, name: str) -> int | None:
    wanted = asked.text(name)
    if wanted is None:
        return None
    for place, each in enumerate(names):
        if each.id == wanted:
            return place
    raise BadRequest(f"`{name}` names no model of this list: send an id of one.", param=name)


def _model(name: str, owner: str) -> dict[str, Any]:
    # OpenAI's shape wants a creation time; a name in a configuration has none.
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _described(target: Target, evidence: Mapping[str, Evidence]) -> dict[str, Any]:
    return {
        **_model(target.target_id, target.provider),
        "tier_eligibility": sorted(target.tiers),
        "max_context_tokens": target.known("max_context_tokens"),
        "max_output_tokens": target.known("max_output_tokens"),
        "capabilities": sorted(target.capabilities),
        "capability": target.capability,
        "evidence": evidence.get(target.target_id, "none"),
        "usd_per_million_tokens": _prices(target.price),
    }


def _prices(price: Price | None) -> dict[str, str] | None:
    """Return prices as exact decimal text; None when unknown."""
    if price is None:
        return None
    meters = {
        "input": price.input_nanousd,
        "cached_input": price.cached_input_nanousd,
        "cache_write": price.cache_write_nanousd,
        "output": price.output_nanousd,
    }
    return {name: f"{usd(amount).normalize():f}" for name, amount in meters.items()}
