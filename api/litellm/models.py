"""Models in LiteLLM's shape: a row for each deployment, without keys and addresses."""

from decimal import Decimal
from typing import Any, Final

from accounts.caller import Caller
from cost.meters import TOKENS_PER_PRICE
from cost.prices import Price, usd
from providers.target import NOT_CHAT, UNKNOWN_CONTEXT_TOKENS, Target
from proxy.plan.pipeline_config import PipelineConfig
from proxy.plan.route_plan import may_use

_MODES: Final = {
    "embeddings": "embedding",
    "images": "image_generation",
    "speech": "audio_speech",
    "transcription": "audio_transcription",
    "rerank": "rerank",
    "moderation": "moderation",
}
_COSTS: Final = {
    "input_nanousd": "input_cost_per_token",
    "output_nanousd": "output_cost_per_token",
    "cached_input_nanousd": "cache_read_input_token_cost",
    "cache_write_nanousd": "cache_creation_input_token_cost",
}


def model_info(rules: PipelineConfig, caller: Caller, model_id: str | None) -> dict[str, Any]:
    """Return the models that a key may use, by the names that callers send."""
    usable = [each for each in rules.catalog.targets.values() if may_use(caller.allowed_models, each)]
    rows = [row for target in usable for row in _rows(target.target_id, target)]
    for alias, names in rules.policy.aliases.items():
        behind = [target for target in usable if target.target_id in names]
        rows += [row for target in behind for row in _rows(alias, target)]
    return {"data": [row for row in rows if model_id is None or row["model_info"]["id"] == model_id]}


def _rows(name: str, target: Target) -> list[dict[str, Any]]:
    return [
        {
            "model_name": name,
            "litellm_params": {"model": f"{target.provider}/{each.upstream_model}"},
            "model_info": {
                "id": each.deployment_id,
                "db_model": False,
                "litellm_provider": target.provider,
                **_facts(target),
            },
        }
        for each in target.deployments
    ]


def _facts(target: Target) -> dict[str, Any]:
    other = next((each for each in sorted(target.capabilities & NOT_CHAT)), None)
    context = None if target.max_context_tokens >= UNKNOWN_CONTEXT_TOKENS else target.max_context_tokens
    return {
        "mode": "chat" if other is None else _MODES.get(other, other),
        "max_tokens": target.max_output_tokens,
        "max_input_tokens": context,
        "max_output_tokens": target.max_output_tokens,
        "supports_vision": "vision" in target.capabilities,
        "supports_function_calling": "tools" in target.capabilities,
        "supports_response_schema": "json" in target.capabilities,
        **_costs(target.price),
    }


def _costs(price: Price | None) -> dict[str, Decimal | None]:
    return {
        theirs: None if price is None else usd(getattr(price, ours)) / TOKENS_PER_PRICE
        for ours, theirs in _COSTS.items()
    }
