"""Targets and their deployments: address, capabilities and price of what can be called."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from cost.prices import Price, ServiceTier
from cost.savings.comparators import Comparator
from cost.told_cost import ToldCost
from providers.private_addresses import is_inside
from providers.quirks import Quirks, quirks_of

Tier = Literal["interactive", "batch"]
Capability = Literal[
    "vision", "tools", "json", "embeddings", "rerank", "moderation", "images", "speech", "transcription"
]
CHAT_CAPABILITIES: frozenset[Capability] = frozenset({"vision", "tools", "json"})
"""Capabilities that a model is taken to have when nobody names its own."""
METERED_CAPABILITIES: frozenset[Capability] = frozenset({"rerank", "moderation", "images", "speech", "transcription"})
"""Capabilities with a route of their own, asked only of models that are said to have them."""
NOT_CHAT: frozenset[Capability] = METERED_CAPABILITIES | {"embeddings"}
"""Capabilities that a model has instead of answering chats."""
UNKNOWN_CONTEXT_TOKENS = 100_000_000
"""The context of a model that nobody knows the context of: nothing is refused for it here."""
ASSUMED_OUTPUT_TOKENS = 4_096
"""The longest answer of a model that nobody knows one of, as far as money is held for it."""
Fact = Literal["capabilities", "max_context_tokens", "max_output_tokens"]
CacheIsolation = Literal["none", "organisation", "team"]
"""Scope within which callers share an engine's prefix cache."""
Dialect = Literal["responses", "messages"]
"""A dialect beside chat's that a provider is asked in: OpenAI's responses, Anthropic's messages."""
OwnEngine = Literal["vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp"]
"""Engines that a pool can run."""
DesktopEngine = Literal["ollama", "lmstudio"]
"""Engines that are called at an address alone: they tell no statistics by which a pool could balance."""
DeploymentKind = Literal["openai", "azure", OwnEngine, DesktopEngine, "litellm", "scripted"]
BatchApiKind = Literal["openai", "anthropic"]

ANTHROPIC = "anthropic/"
"""The beginning of litellm's names of Anthropic's models."""
OWN_ENGINES: frozenset[DeploymentKind] = frozenset((*get_args(OwnEngine), *get_args(DesktopEngine)))
"""Kinds of engines that run in the operator's network, where a link they fetch would be resolved."""


class OwnTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """The time-outs of one deployment in seconds; None where all have the same."""

    connect_s: float | None = None
    first_token_s: float | None = None
    idle_s: float | None = None
    total_s: float | None = None


NO_OWN_TIMEOUTS: Final = OwnTimeouts()


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """One address of a target, with a circuit breaker of its own.

    `api_key` is the secret itself, resolved from its reference at start; never show this struct. `options` go to
    litellm as keyword arguments (region, endpoint) and are empty elsewhere.
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
    headers: Mapping[str, str] = {}
    """Headers that each request has besides those of the wire."""
    timeouts: OwnTimeouts = NO_OWN_TIMEOUTS
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    allow_media_links: bool = False
    """It may be sent links to media also where `fetches_inside`."""
    api_version: str = ""
    """API version of a deployment at Azure's older addresses, which have the model in their path; empty elsewhere."""
    batch_api: BatchApiKind | None = None
    """The provider's own batch API at this address; None where there is none, or none is to be used."""
    adapter: str | None = None
    """The LoRA adapter that `upstream_model` names, which may have to be loaded first."""
    priority_scheduling: bool = False
    """The engine schedules requests of lower `priority` values first."""
    cache_isolation: CacheIsolation = "none"
    dialect: str = ""
    """The plug-in that writes its requests and reads its replies; empty where the gateway does."""
    told_cost: ToldCost | None = None
    """Where the provider's usage tells what the request costs; None where it does not, or is not trusted to."""
    speaks_messages: bool = False
    """True for a model of Anthropic's own API, which is called without litellm, whatever wire a request came by; what only
    litellm's options can say is called through it. Follows from the fields above.
    """
    quirks: Quirks = Quirks()
    """What it takes otherwise than the specification says; follows from its kind, address and model."""

    fetches_inside: bool = False
    """True for an engine of one's own, and for what stands in a network of one's own whatever its kind: a link would be fetched from
    inside. Follows from the fields above.
    """

    def __post_init__(self) -> None:
        # Each request asks several times.
        inside = self.kind in OWN_ENGINES or is_inside(self.base_url)
        msgspec.structs.force_setattr(self, "fetches_inside", inside)
        anthropic = self.kind == "litellm" and self.upstream_model.startswith(ANTHROPIC)
        msgspec.structs.force_setattr(self, "speaks_messages", anthropic and not self.options)
        msgspec.structs.force_setattr(self, "quirks", quirks_of(self.kind, self.base_url, self.upstream_model))

    def __repr__(self) -> str:
        return f"Deployment({self.deployment_id!r}, kind={self.kind!r})"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most of a request's things that a target takes; None where nobody says."""

    stops: int | None = None
    tools: int | None = None
    images: int | None = None


NO_LIMITS = Limits()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's model with the facts that routing needs.

    `capability` is the highest complexity, in [0, 1], that its operator trusts it with; None where nobody said. `ability`
    names this target's row in the classifier's ability table, which takes precedence over the declared `capability`.
    `price` is None when it is unknown; an unpriced target is not eligible for `auto`. `assumed` names the facts that
    nobody gave: the target is then taken to be able to do everything.
    """

    target_id: str
    provider: str
    tiers: frozenset[Tier]
    price: Price | None
    max_context_tokens: int
    max_output_tokens: int
    capabilities: frozenset[Capability]
    capability: float | None = None
    ability: str | None = None
    efforts: Mapping[str, str] = {}
    """The names of its rows at other reasoning efforts than its usual one, by effort."""
    routing_weight: float
    deployments: tuple[Deployment, ...]
    tokenizer_ppm: int | None = None
    """Its tokens for a text that the common reference tokenizer counts as a million; None when unknown."""
    pool: str | None = None
    """The pool of our own engines that serves it. Its deployments are the pool's replicas, which come and go."""
    assumed: frozenset[Fact] = frozenset()
    template_tokens: int | None = None
    """The most tokens that its host adds to a prompt beside the chat template; None where nobody said."""
    answer_beside: bool = False
    """True when `max_context_tokens` is known as the longest prompt: whether the answer counts too is the upstream's to say.
    """
    service_tiers: frozenset[ServiceTier] = frozenset()
    """The service tiers that its provider sells."""
    lacks: frozenset[str] = frozenset()
    """OpenAI's parameters that it cannot take, and other things by the words of `providers.parameters`."""
    lacks_thinking: frozenset[str] | None = None
    """The same for a request that asks it to reason, where that differs."""
    lacks_unthinking: frozenset[str] | None = None
    """The same for a request that asks it not to, where that differs."""
    excludes: tuple[tuple[str, ...], ...] = ()
    """Groups of parameters of which it takes one alone."""
    limits: Limits = NO_LIMITS
    searches: str = ""
    """The search that it makes for each answer unasked, as prices of tool calls name it; empty for none."""
    hedged_tiers: frozenset[Tier] = frozenset()
    """The tiers in which a late first token is answered by a second attempt beside the first."""
    dialect: Dialect | None = None
    """The dialect that it can be asked in where chat does not do."""
    provider_tools: frozenset[str] = frozenset()
    """The tools that its provider runs for it, by the names of `providers.provider_tools`."""
    pattern: str = ""
    """The wildcard entry that it follows from, such as `openai/*`; empty for a model with an entry of its own."""
    own: bool = False
    """True when it runs on our own engines rather than at a commercial provider; follows from the fields above."""
    chats: bool = True
    """True when it answers chats; follows from its capabilities."""
    entry: str = ""
    """The `model_id` of its entry in the configuration: the wildcard's, or its own; follows from `pattern`."""
    comparator: Comparator | None = None
    """Itself at its price, for others to be compared with; None without a price. Follows from the fields above."""

    def __post_init__(self) -> None:
        # They are asked for several times a request.
        own = self.pool is not None or any(deployment.kind in OWN_ENGINES for deployment in self.deployments)
        msgspec.structs.force_setattr(self, "own", own)
        msgspec.structs.force_setattr(self, "chats", self.capabilities.isdisjoint(NOT_CHAT))
        msgspec.structs.force_setattr(self, "entry", self.pattern or self.target_id)
        comparator = None
        if self.price is not None:
            comparator = Comparator(target_id=self.target_id, price=self.price, tokenizer_ppm=self.tokenizer_ppm)
        msgspec.structs.force_setattr(self, "comparator", comparator)

    def lacks_at(self, effort: str) -> frozenset[str]:
        """Return what it cannot take of a request with this reasoning effort; an empty one is its usual one."""
        other = self.lacks_unthinking if effort == "none" else self.lacks_thinking
        return self.lacks if other is None or not effort else other

    def known(self, fact: Fact) -> int | frozenset[Capability] | None:
        """Return a fact, or None where it is assumed."""
        if fact in self.assumed:
            return None
        return getattr(self, fact)  # type: ignore[no-any-return]
