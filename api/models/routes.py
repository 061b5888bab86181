"""GET /v1/models: the names that a caller may send as `model`, with prices and capabilities as extra fields.

In Anthropic's shape for a caller that sends `anthropic-version`; there every name also begins with `claude-`, as clients of
Anthropic's show no others.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, UnsetType
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from accounts.caller import Caller
from api.web.api_types import Listed
from api.web.gateway import AuthenticatedCaller, gateway_of
from api.web.openapi import described
from cost.prices import Price, usd
from providers.target import NOT_CHAT, Target
from proxy.errors import ModelNotFound
from proxy.parse.chat_request import AUTO
from proxy.parse.wires.messages.parser import CLAUDE_PREFIX, model_named
from proxy.plan.evidence import Evidence
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import may_use

router = APIRouter(tags=["models"])

_ANTHROPIC_VERSION: Final = "anthropic-version"


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
    """A name for `model` in Anthropic's shape."""

    id: str
    type: Literal["model"]
    display_name: str
    created_at: str


class AnthropicModels(msgspec.Struct, frozen=True, kw_only=True):
    """All names in Anthropic's shape; there is one page."""

    data: list[AnthropicModelOut]
    has_more: bool
    first_id: str
    last_id: str


@router.get("/v1/models", **described("List the models", gives={200: (Listed[ModelOut], AnthropicModels)}))
async def list_models(request: Request, caller: AuthenticatedCaller) -> JSONResponse:
    """Return the names that this key may send as `model`; with the header `anthropic-version` in Anthropic's shape."""
    visible = _visible(gateway_of(request).rules(), caller)
    if _ANTHROPIC_VERSION in request.headers:
        data = [_for_anthropic(name) for name in visible]
        return JSONResponse({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})
    listed = list(visible.values())
    if _is_mistrals(request):
        listed = [_for_mistral(each) for each in listed]
    return JSONResponse({"object": "list", "data": listed})


@router.get("/v1/models/{name:path}", **described("Read a model", gives={200: ModelOut}))
async def get_model(name: str, request: Request, caller: AuthenticatedCaller) -> JSONResponse:
    """Return one name that this key may send as `model`."""
    if not name:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    rules = gateway_of(request).rules()
    anthropic = _ANTHROPIC_VERSION in request.headers
    meant = model_named(name, rules.has_model) if anthropic else name
    found = _visible(rules, caller).get(meant)
    if found is None:
        raise ModelNotFound(
            f"The model `{name}` does not exist, or your team or this key may not use it.", param="model"
        )
    if anthropic:
        return JSONResponse(_for_anthropic(meant))
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


def _for_anthropic(name: str) -> dict[str, Any]:
    claude = name if name.startswith(CLAUDE_PREFIX) else f"{CLAUDE_PREFIX}{name}"
    # Anthropic's shape wants a creation time; a name in a configuration has none.
    return {"type": "model", "id": claude, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


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
