"""Targets and their deployments: what can be called, what it can do, and what it costs."""

from typing import Literal, get_args

import msgspec

from cost.prices import Price

Tier = Literal["interactive", "batch"]
Capability = Literal["vision", "tools", "json", "embeddings"]
CacheIsolation = Literal["none", "organisation", "team"]
"""Who shares what an engine has cached of prompts."""
OwnEngine = Literal["vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp"]
DeploymentKind = Literal["openai", "azure", OwnEngine, "litellm", "scripted"]

OWN_ENGINES: frozenset[DeploymentKind] = frozenset(get_args(OwnEngine))
"""Kinds that run inside one's own network, so what they fetch they fetch from there."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """One address of a target. Breakers live here.

    `api_key` is the secret itself, resolved from its reference at start; never show this struct.
    `options` go to litellm as keyword arguments (region, endpoint) and are empty elsewhere.
    """

    deployment_id: str
    """`target_id/name`, unique in the catalog."""
    target_id: str
    kind: DeploymentKind
    upstream_model: str
    base_url: str = ""
    api_key: str | None = None
    weight: float = 1.0
    options: dict[str, str] = {}
    allow_media_links: bool = False
    """The engine may fetch media that callers link to; only asked of one's own engines."""
    adapter: str | None = None
    """The LoRA adapter that `upstream_model` is, which may have to be loaded first."""
    priority_scheduling: bool = False
    """The engine runs what has the lower `priority` first."""
    cache_isolation: CacheIsolation = "none"

    def __repr__(self) -> str:
        return f"Deployment({self.deployment_id!r}, kind={self.kind!r})"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's model with the facts that routing needs.

    `capability` is the highest complexity, in [0, 1], that this target is trusted with. `ability` names the row of the
    classifier's ability table that this target is; measured outcomes then stand before the declared `capability`.
    `price` is None when it is unknown; an unpriced target is not eligible for `auto`.
    """

    target_id: str
    provider: str
    tiers: frozenset[Tier]
    price: Price | None
    max_context_tokens: int
    max_output_tokens: int
    capabilities: frozenset[Capability]
    capability: float
    ability: str | None = None
    routing_weight: float
    deployments: tuple[Deployment, ...]
    tokenizer_ppm: int | None = None
    """Tokens that it counts where one tokenizer, chosen once for all targets, counts a million."""
    pool: str | None = None
    """The pool of our own engines that serves it. Its deployments are the pool's replicas, which come and go."""

    @property
    def own(self) -> bool:
        """It runs on our own GPUs, so it is no commercial offer."""
        return self.pool is not None or any(deployment.kind in OWN_ENGINES for deployment in self.deployments)
