"""The sample's configuration: the company's models and prices, its pool, and the addresses of the stand-ins."""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gateway.demo.company import FAST, HAIKU, HOSTED, MINI, ORGANISATION, OWN, POOL, REFERENCE, SONNET

REPLICAS: Final = ("replica-1", "replica-2")
GPU_USD_PER_HOUR: Final = "0.86"
NOTICE: Final = "Sample data: the company, its people, requests and answers are made up. What they cost and where they went is computed as for real ones."
_NOBODY: Final = "http://127.0.0.1:9"
"""An address at which nothing answers, for looking at pages without calling a model."""


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the stand-ins. None of them calls anything outside of this machine."""

    upstream: str = f"{_NOBODY}/v1"
    replicas: tuple[str, ...] = tuple(f"http://127.0.0.1:{port}" for port in range(9, 9 + len(REPLICAS)))
    webhook: str = f"{_NOBODY}/hook"


_RULES: Final = [
    {"name": "cards", "kind": "pii", "entities": ["card", "iban"], "input": "block"},
    {"name": "mails", "kind": "pii", "entities": ["email"], "input": "mask"},
]
"""A floor that makes the pages of the guard worth a look."""


def write_sample_config(folder: Path, addresses: Addresses, first_day: date) -> Path:
    """Write `sample.yaml` into the folder, in the format of a hand-written file.

    `first_day` is where the history begins: the prices that change within it are dated by it.
    """
    config: dict[str, Any] = {
        "accounts": {"pepper_file": str(folder / "pepper")},
        "sign_in": {"notice": NOTICE},
        "classifier": {"learning": {"keep_days": 60}},
        "limits": {
            "organisation": {"tokens_per_minute": 20_000_000},
            "team": {"requests_per_minute": 3_000, "tokens_per_minute": 8_000_000, "concurrency": 500},
            "key": {"requests_per_minute": 600, "tokens_per_minute": 2_000_000},
        },
        "queues": {POOL: {"targets": [OWN], "max_waiting": 1_000, "max_wait_s": {"interactive": 10, "batch": 600}}},
        "selfhosted": {"pools": [_pool(addresses.replicas)]},
        "cost": _cost(folder),
        "webhooks": {
            "destinations": [{"name": "finance", "url": addresses.webhook, "secret": "env:SAMPLE_WEBHOOK_SECRET"}]
        },
        "policy": {
            "auto": [OWN, HAIKU, SONNET, REFERENCE],
            "aliases": {FAST: MINI, "open-weights": [OWN, HOSTED]},
            "fallbacks": {REFERENCE: [SONNET], HAIKU: [MINI]},
            "quality_floor": 0.97,
        },
        "cache": {"default": True},
        "guard": {"rules": _RULES},
        "providers": {"models": _models(addresses.upstream, first_day)},
    }
    path = folder / "sample.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def _cost(folder: Path) -> dict[str, Any]:
    pool = {
        "name": POOL,
        "targets": [OWN],
        "replicas": 0,
        "gpus_per_replica": 1,
        "usd_per_gpu_hour": GPU_USD_PER_HOUR,
        "overhead": "1.1",
        "organisation": ORGANISATION,
        "seconds_per_million": {"input": "667", "cached_input": "20", "output": "3300"},
    }
    return {
        "reference_target": REFERENCE,
        "hosted": {OWN: HOSTED},
        "savings_target": "0.40",
        "holdout_share": "0.03",
        "pools": [pool],
        "report": {"at": "06:00", "folder": str(folder / "reports"), "webhook": "finance"},
        "journal_dir": str(folder / "journal"),
    }


def _pool(replicas: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": POOL,
        "targets": [OWN],
        "engine": "vllm",
        "upstream_model": "slow-first-token-340ms+every-21ms+tokens-160+prompt-tokens-5000+cached-tokens-2000",
        "replicas": [{"name": name, "url": url} for name, url in zip(REPLICAS, replicas, strict=True)],
        "scale": {"min_replicas": 0, "max_replicas": len(REPLICAS), "cold_start_s": 240, "objective": "latency"},
    }


def _models(upstream: str, first_day: date) -> list[dict[str, Any]]:
    cheaper = (first_day + timedelta(days=18)).isoformat()
    # fmt: off
    return [
        _model(OWN, provider="self-hosted", capability=0.6, ability="llama-3-70b-instruct", context=32_768,
            prices={"input": "0.60", "cached_input": "0.02", "output": "2.90", "effective_from": "2026-05-01"}),
        _model(MINI, provider="openai", capability=0.55, ability="gpt-4o-mini-2024-07-18", upstream=upstream,
            script="slow-first-token-280ms+every-9ms+tokens-90+prompt-tokens-900",
            prices={"input": "0.15", "cached_input": "0.075", "output": "0.60", "effective_from": "2024-07-18"}),
        _model(HAIKU, provider="anthropic", capability=0.7, context=200_000, upstream=upstream,
            script="slow-first-token-420ms+every-11ms+tokens-120+prompt-tokens-1200",
            prices=[{"input": "1.00", "cached_input": "0.10", "cache_write": "1.25", "output": "5.00", "effective_from": "2025-10-15"},
                    {"input": "0.90", "cached_input": "0.09", "cache_write": "1.125", "output": "4.50", "effective_from": cheaper}]),
        _model(SONNET, provider="anthropic", capability=1.0, context=200_000, upstream=upstream,
            script="slow-first-token-900ms+every-16ms+tokens-200+prompt-tokens-2400",
            prices={"input": "3.00", "cached_input": "0.30", "cache_write": "3.75", "output": "15.00", "effective_from": "2025-09-29"}),
        _model(REFERENCE, provider="openai", capability=0.95, ability="gpt-4o-2024-05-13", upstream=upstream,
            script="slow-first-token-600ms+every-13ms+tokens-160+prompt-tokens-2000+cached-tokens-1024",
            prices={"input": "2.50", "cached_input": "1.25", "output": "10.00", "effective_from": "2024-10-01"}),
        _model(HOSTED, provider="together", capability=0.6, upstream=upstream,
            script="slow-first-token-350ms+every-10ms+tokens-120+prompt-tokens-900",
            prices={"input": "0.88", "output": "0.88", "effective_from": "2026-06-01"}),
    ]
    # fmt: on


def _model(
    model_id: str,
    *,
    provider: str,
    capability: float,
    prices: Mapping[str, str] | Sequence[Mapping[str, str]],
    ability: str | None = None,
    context: int = 128_000,
    upstream: str | None = None,
    script: str = "",
) -> dict[str, Any]:
    model: dict[str, Any] = {
        "model_id": model_id,
        "provider": provider,
        "tier_eligibility": ["interactive", "batch"],
        "prices": prices,
        "max_context_tokens": context,
        "max_output_tokens": 8_192,
        "capabilities": ["tools", "json"],
        "capability": capability,
    }
    if ability is not None:
        model["ability"] = ability
    if upstream is not None:
        names = ("public", "europe") if model_id == REFERENCE else ("public",)
        model["deployments"] = [
            {"name": name, "kind": "openai", "base_url": upstream, "upstream_model": script} for name in names
        ]
    return model
