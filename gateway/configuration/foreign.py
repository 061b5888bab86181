"""Files of other gateways, by what only they have, and what to do with each."""

from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.configuration.file import Document, KeyPath, Problem, Value

_OURS: Final = "check it with `weighbridge config check`; docs/litellm.md maps the concepts of gateways like these"


class _Foreign(NamedTuple):
    """A gateway, the key that its files are known by (None where a file is none of it), and what to do."""

    key_in: Callable[[dict[str, Value]], KeyPath | None]
    words: str


def foreign_problem(document: Document) -> Problem | None:
    """Return what to do with a file of another gateway; None for one that is none of those that are known."""
    for each in _KNOWN:
        found = each.key_in(document.values)
        if found is not None:
            return document.problem(found, each.words.format(file=document.file))
    return None


def _litellm(values: dict[str, Value]) -> KeyPath | None:
    if "model_list" in values:
        return ("model_list",)
    if "providers" in values:
        return None
    found = next((key for key in ("litellm_settings", "router_settings", "general_settings") if key in values), None)
    return None if found is None else (found,)


def _bifrost(values: dict[str, Value]) -> KeyPath | None:
    if "getbifrost" in str(values.get("$schema", "")):
        return ("$schema",)
    providers = values.get("providers")
    if isinstance(providers, dict):
        if "models" in providers:
            return None
        for name, each in providers.items():
            if isinstance(each, dict) and _BIFROSTS & each.keys():
                return ("providers", name)
    return next(((key,) for key in ("config_store", "logs_store", "governance", "auth_config") if key in values), None)


_BIFROSTS: Final = frozenset({"keys", "network_config", "custom_provider_config", "concurrency_and_buffer_size"})


def _portkey(values: dict[str, Value]) -> KeyPath | None:
    strategy, targets = values.get("strategy"), values.get("targets")
    if isinstance(strategy, dict) and "mode" in strategy:
        return ("strategy",)
    if isinstance(targets, list) and any(isinstance(each, dict) and _PORTKEYS & each.keys() for each in targets):
        return ("targets",)
    if str(values.get("mode")) in _MODES or (isinstance(values.get("provider"), str) and _PORTKEYS & values.keys()):
        return ("mode",) if "mode" in values else ("provider",)
    retry, cache = values.get("retry"), values.get("cache")
    if isinstance(retry, dict) and {"attempts", "on_status_codes"} & retry.keys():
        return ("retry",)
    if isinstance(cache, dict) and str(cache.get("mode")) in {"simple", "semantic"}:
        return ("cache",)
    return next(((key,) for key in ("virtual_key", "input_guardrails", "override_params") if key in values), None)


_PORTKEYS: Final = frozenset({"virtual_key", "override_params", "provider", "api_key", "custom_host"})
_MODES: Final = frozenset({"single", "fallback", "loadbalance", "conditional"})


def _openrouter(values: dict[str, Value]) -> KeyPath | None:
    provider = values.get("provider")
    if isinstance(provider, dict) and _PREFERENCES & provider.keys():
        return ("provider",)
    if "route" in values and "models" in values:
        return ("route",)
    return next(((key,) for key in ("provider_preferences", "allow_fallbacks") if key in values), None)


_PREFERENCES: Final = frozenset(
    {
        "order",
        "only",
        "ignore",
        "allow_fallbacks",
        "require_parameters",
        "data_collection",
        "sort",
        "quantizations",
        "max_price",
        "zdr",
    }
)
_KNOWN: Final = (
    _Foreign(
        _litellm,
        "this is a configuration of LiteLLM's proxy: `weighbridge import litellm {file}` writes ours and tells what became of each line",
    ),
    _Foreign(
        _bifrost,
        "this is a configuration of Bifrost: write each provider's models under `providers.models` (docs/providers.md has a line for each), "
        f"virtual keys are made by `weighbridge keys create`; {_OURS}",
    ),
    _Foreign(
        _portkey,
        "this is a configuration of Portkey: write each target under `providers.models`, a strategy `fallback` as `policy.fallbacks`, "
        f"`loadbalance` as `weight` of `deployments`; {_OURS}",
    ),
    _Foreign(
        _openrouter,
        "these are OpenRouter's preferences of a request: write its models with `provider: openrouter` under `providers.models`, an order "
        f"among them as `policy.fallbacks`; {_OURS}",
    ),
)
