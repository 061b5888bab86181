"""The demo's two targets with their prices, and its configuration file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.demo.engine import CONTEXT_TOKENS

CHEAP = "llama-3-70b"
TEAM = "team_demo"
MAX_OUTPUT_TOKENS = 48

# What our own Llama 3 70B costs, for a million tokens in and out together: two H100 at a median market price of $2.95 an
# hour each (AIMultiple, 37 providers, May 2026), NVIDIA's published TensorRT-LLM figure of 4,205 output tokens/s at
# 1,000 in and 1,000 out (Llama 3.3 70B FP8), 30 % utilisation, and 30 % on top for storage, network and staff:
# 2 * 2.95 * 1.3 / (4,205 * 3,600 * 2 / 10^6) / 0.30 = 0.845. vLLM at half of that throughput would cost twice as much.
_LLAMA_USD = "0.845"
_LLAMA_SINCE = "2026-05-01"

# Its engine holds an answer to a schema. The weights' own template has no place for tools: they would be left out unsaid.
_STAND_IN = ["json"]


class CommercialModel(msgspec.Struct, frozen=True, kw_only=True):
    """The commercial model that costs are compared with."""

    name: str
    provider: str
    upstream_model: str
    base_url: str
    secret: str
    input_usd: str
    cached_input_usd: str
    output_usd: str
    since: str
    context_tokens: int


# List prices, $ per million tokens, input / cached input / output.
_GPT_4O = CommercialModel(
    name="gpt-4o",
    provider="openai",
    upstream_model="gpt-4o",
    base_url="https://api.openai.com/v1",
    secret="env:OPENAI_API_KEY",  # noqa: S106 - a reference, not a secret
    input_usd="2.50",
    cached_input_usd="1.25",
    output_usd="10.00",
    since="2024-10-01",
    context_tokens=128_000,
)
_CLAUDE = CommercialModel(
    name="claude-sonnet-4-5",
    provider="anthropic",
    upstream_model="claude-sonnet-4-5",
    # Anthropic answers OpenAI's wire at this address, too.
    base_url="https://api.anthropic.com/v1",
    secret="env:ANTHROPIC_API_KEY",  # noqa: S106 - a reference, not a secret
    input_usd="3.00",
    cached_input_usd="0.30",
    output_usd="15.00",
    since="2025-09-29",
    context_tokens=200_000,
)


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of the expensive target, and whether it is the real provider or a stand-in."""

    dear: str
    real: bool
    engines: tuple[str, ...]
    """Aliases of the local engines to start."""
    caveat: str


def choose_stage(environ: Mapping[str, str]) -> tuple[Stage, CommercialModel]:
    """Choose the expensive target: with a provider's API key in the environment the real one, else a stand-in."""
    if environ.get("OPENAI_API_KEY"):
        dear, real = _GPT_4O, True
    elif environ.get("ANTHROPIC_API_KEY"):
        dear, real = _CLAUDE, True
    else:
        dear, real = _GPT_4O, False
    stand_in = "a stand-in, a local model of 135 million parameters"
    who = f"{CHEAP} is {stand_in}; {dear.name} is the real one" if real else f"each of the two targets is {stand_in}"
    caveat = (
        f"How to read this: {who}. A model of that size is only for show: it exercises the real path with real tokens, and "
        "its answers are not to be judged, nor is the quality that routing would give. It writes JSON where that is asked for, "
        f"but calls no tools{', so those requests go to ' + dear.name if real else ': such a request is refused'}. The prices are those of "
        f"{dear.name}'s public list (${dear.input_usd} in, ${dear.cached_input_usd} cached, ${dear.output_usd} out per million "
        f"tokens) and, for {CHEAP}, ${_LLAMA_USD} per million tokens of our own GPUs: two H100 at $2.95 an hour, 30 % busy, 30 % "
        "overhead. Less busy GPUs cost more a token, and idle ones save nothing. The comparison takes the same number of "
        "tokens for both."
    )
    engines = (CHEAP,) if real else (CHEAP, dear.name)
    return Stage(dear=dear.name, real=real, engines=engines, caveat=caveat), dear


def write_config(folder: Path, dear: CommercialModel, addresses: Mapping[str, str]) -> Path:
    """Write the demo's configuration, in the format of a hand-written file."""
    models = [
        _model(
            model_id=CHEAP,
            provider="self-hosted",
            capability=0.6,
            context_tokens=CONTEXT_TOKENS,
            prices=_prices(_LLAMA_SINCE, _LLAMA_USD, _LLAMA_USD, _LLAMA_USD),
            deployment={"name": "local", "kind": "llama.cpp", "base_url": addresses[CHEAP], "upstream_model": CHEAP},
            capabilities=_STAND_IN,
        ),
        _model(
            model_id=dear.name,
            provider=dear.provider,
            capability=1.0,
            context_tokens=dear.context_tokens if dear.name not in addresses else CONTEXT_TOKENS,
            prices=_prices(dear.since, dear.input_usd, dear.cached_input_usd, dear.output_usd),
            deployment=_dear_deployment(dear, addresses),
            capabilities=_STAND_IN if dear.name in addresses else None,
        ),
    ]
    config: dict[str, Any] = {
        "accounts": {"pepper_file": str(folder / "pepper")},
        "providers": {"models": models},
        "cost": {"reference_target": dear.name, "journal_dir": str(folder / "journal")},
    }
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def _dear_deployment(dear: CommercialModel, addresses: Mapping[str, str]) -> dict[str, Any]:
    if dear.name in addresses:
        return {"name": "local", "kind": "llama.cpp", "base_url": addresses[dear.name], "upstream_model": dear.name}
    return {
        "name": "public",
        "kind": "openai",
        "base_url": dear.base_url,
        "api_key": dear.secret,
        "upstream_model": dear.upstream_model,
    }


def _model(
    *,
    model_id: str,
    provider: str,
    capability: float,
    context_tokens: int,
    prices: dict[str, str],
    deployment: dict[str, Any],
    capabilities: list[str] | None,
) -> dict[str, Any]:
    known = {} if capabilities is None else {"capabilities": capabilities}
    return {
        "model_id": model_id,
        "provider": provider,
        "tier_eligibility": ["interactive", "batch"],
        "capability": capability,
        "max_context_tokens": context_tokens,
        "max_output_tokens": 1024,
        "prices": prices,
        "deployments": [deployment],
        **known,
    }


def _prices(since: str, input_usd: str, cached_usd: str, output_usd: str) -> dict[str, str]:
    return {"effective_from": since, "input": input_usd, "cached_input": cached_usd, "output": output_usd}
