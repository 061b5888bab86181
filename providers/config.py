"""The `providers` section of the configuration: models, deployments, circuit breaker, timeouts and retries."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from cost.price_book.price_config import ModelPrices
from providers.private_addresses import is_inside
from providers.shorthand import upstream_pattern, whole_deployment, whole_model
from providers.target import OWN_ENGINES, BatchApiKind, Capability, DeploymentKind, Tier
from providers.wire import PATHS
from settings.secret_ref import SecretRef, is_reference
from settings.types import Finite, Reloadable, Section, Share

_ADDED_PATHS = (*(f"/{path}" for path in PATHS.values()), "/completions", "/responses", "/messages")
"""What is added to a base URL. The longer of two that end alike comes first."""
_PLACEHOLDER = re.compile(r"[{}<>$]|//your[-_]|//[A-Z_]*(YOUR|RESOURCE|HOST)[A-Z_]*\b")
"""What examples leave for the reader to fill in."""
_SECRET_OPTION = re.compile(r"key|secret|token|password|credential", re.IGNORECASE)
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*$"
# Model ids of hubs contain slashes (`meta-llama/Llama-3-70b`).
_MODEL_ID = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]*$"
# A `*` at the end stands for the upstream's own name (`openai/*`).
_MODEL_ENTRY = r"^([A-Za-z0-9][A-Za-z0-9._:@/-]*)?\*?$"


ProviderTool = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


_KEY_HEADERS: Final = frozenset(
    {"authorization", "api-key", "x-api-key", "x-goog-api-key", "proxy-authorization", "cookie"}
)
"""Headers that say who calls."""
_OWN_HEADERS: Final = re.compile(
    r"host|connection|keep-alive|te|trailer|upgrade|transfer-encoding|expect|content-.*|accept|accept-encoding|x-request-id|"
    r"traceparent|tracestate|anthropic-version|x-weighbridge-.*|x-llm-d-.*",
    re.IGNORECASE,
)
"""Headers that the gateway sets itself."""
_SECRET_HEADER: Final = re.compile(r"auth|key|secret|token|password|credential|cookie|signature", re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(r"(bearer|basic)\s|(sk|gsk|xai|hf|ghp|nvapi|r8|pplx)[-_]", re.IGNORECASE)

HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]
HeaderValue = Annotated[str, Field(min_length=1, max_length=1_024, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]


_FOREIGN_KEYS: Final[Mapping[str, str]] = {
    "api_base": "base_url",
    "url": "base_url",
    "extra_headers": "headers",
    "model_name": "model_id",
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "timeout": "timeouts: {total_s: …}",
    "stream_timeout": "timeouts: {first_token_s: …}",
    "custom_llm_provider": "provider",
}
"""Keys of LiteLLM's configuration and others', and what they are called here."""
_AZURE_REQUEST: Final = re.compile(
    r"(https?://[^/?]+)/openai/deployments/([^/?]+)(?:/[^?]*)?(?:\?api-version=([\w.-]+))?"
)
"""What Azure's portal shows as a deployment's target."""


class DeploymentTimeouts(Section):
    """The time limits of one deployment's replies, in place of `providers.timeouts`."""

    connect_s: Finite | None = Field(default=None, gt=0, le=60, description="To get a connection.")
    first_token_s: Finite | None = Field(
        default=None,
        gt=0,
        le=3_600,
        description="To the first real token of a stream, such as 120 for an engine that loads its model first.",
    )
    idle_s: Finite | None = Field(default=None, gt=0, le=3_600, description="The longest silence within a reply.")
    total_s: Finite | None = Field(default=None, gt=0, le=86_400, description="A whole reply.")


class DeploymentConfig(Section):
    """One address at which a model can be called."""

    name: str = Field(default="main", pattern=_NAME, max_length=64, description="Unique within the model.")
    provider: str | None = Field(
        default=None,
        max_length=64,
        description="A name of docs/providers.md, which has `kind`, `base_url` and `api_key`. Default, without `kind`: "
        "the model's `provider`.",
    )
    kind: DeploymentKind = Field(
        description="The API it speaks; `litellm` for all that is not OpenAI-shaped. `anthropic/` models are "
        "called directly. A provider's name stands for its kind."
    )
    base_url: str = Field(
        default="", max_length=2_048, description="For example https://api.openai.com/v1; /chat/completions is added."
    )
    api_key: SecretRef | None = Field(
        default=None,
        description="Where the key is found: env:NAME. Default: the provider's variable, at its own address.",
    )
    upstream_model: str | None = Field(
        default=None, min_length=1, max_length=256, description="The model's name there; the model_id, if left out."
    )
    weight: Finite = Field(default=1.0, gt=0, le=1_000, description="Its share of the model's traffic.")
    options: dict[str, str] = Field(
        default_factory=dict, max_length=32, description="litellm's keyword arguments, such as aws_region_name."
    )
    api_version: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9.-]*$",
        description="Kind azure: calls `/openai/deployments/{upstream_model}/…?api-version=`. Without it "
        "`base_url` ends in /openai/v1.",
    )
    batch_api: BatchApiKind | None = Field(
        default=None,
        description="The provider's batch API at this address: `openai` (kind openai) or `anthropic` (kind "
        "litellm, anthropic/…). Used while `batch.providers` is on; needs a `batch` price or "
        "`batch_discount`.",
    )
    dialect: str | None = Field(
        default=None,
        max_length=64,
        description="Kind openai: the plug-in of `plugins` that writes its requests and reads its replies. Chats only.",
    )
    headers: dict[HeaderName, HeaderValue] = Field(
        default_factory=dict,
        max_length=32,
        description="Sent with each request, such as `X-Title: My app`. Secrets as env:NAME.",
    )
    timeouts: DeploymentTimeouts = Field(default_factory=DeploymentTimeouts)
    requests_per_minute: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="No more go there in any minute; others go to another deployment or candidate. The workers divide it, and "
        "batches may use what one worker may.",
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, le=10_000_000_000, description="The same for tokens of prompts and answers."
    )
    allow_media_links: bool = Field(
        default=False,
        description="Lets callers link to media, which an own engine, or any host at a private address, fetches from inside your "
        "network; otherwise only data: URLs.",
    )

    foreign_keys: ClassVar[Mapping[str, str]] = _FOREIGN_KEYS

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, written: Any) -> Any:
        return whole_deployment(written) if isinstance(written, Mapping) else written

    @model_validator(mode="after")
    def _check_consistent(self) -> Self:
        if self.base_url:
            _check_url(self.base_url)
        elif self.kind not in {"litellm", "scripted"}:
            raise ValueError(
                f"kind {self.kind} needs a base_url, such as https://host/v1, or a `provider` that has one"
            )
        if self.kind == "litellm":
            if self.upstream_model is None or "/" not in self.upstream_model.strip("/"):
                raise ValueError("kind litellm needs an upstream_model with its provider, such as bedrock/<model id>")
        elif self.options:
            raise ValueError(f"options are litellm's; kind {self.kind} has none")
        if self.api_version and self.kind != "azure":
            raise ValueError(f"api_version is Azure's; kind {self.kind} has none")
        if self.allow_media_links and (
            self.kind == "litellm" or not (self.kind in OWN_ENGINES or is_inside(self.base_url))
        ):
            raise ValueError(
                f"allow_media_links is for engines of one's own and private addresses; kind {self.kind} fetches elsewhere or never"
            )
        for name, value in self.options.items():
            if _SECRET_OPTION.search(name) and not is_reference(value):
                raise ValueError(f"option {name[:64]} looks like a secret; write where it is found, such as env:NAME")
        return self

    @model_validator(mode="after")
    def _check_headers(self) -> Self:
        seen: set[str] = set()
        for name, value in self.headers.items():
            plain = name.lower()
            if _OWN_HEADERS.fullmatch(plain):
                raise ValueError(f"the header {name} is set by the gateway itself")
            if plain in seen:
                raise ValueError(f"the header {name} stands there twice: capitals count for nothing")
            if plain in _KEY_HEADERS and self.api_key is not None:
                raise ValueError(f"the header {name} says who calls, as `api_key` does: leave one of them out")
            if not is_reference(value) and (_SECRET_HEADER.search(plain) or _SECRET_VALUE.match(value)):
                raise ValueError(f"the header {name} looks like a secret; write where it is found, such as env:NAME")
            seen.add(plain)
        return self

    @model_validator(mode="after")
    def _check_dialect(self) -> Self:
        if self.dialect is not None and (self.kind != "openai" or self.batch_api is not None):
            raise ValueError("a dialect of a plug-in is for kind openai, without `batch_api`")
        return self

    @model_validator(mode="after")
    def _check_batch_api(self) -> Self:
        if self.batch_api == "openai" and self.kind != "openai":
            raise ValueError(f"batch_api openai is for kind openai; kind {self.kind} has none that is known")
        if self.batch_api == "anthropic" and not (self.upstream_model or "").startswith("anthropic/"):
            raise ValueError("batch_api anthropic needs kind litellm and an upstream_model such as anthropic/<model>")
        return self


def _check_url(url: str) -> None:
    if url != url.strip():
        raise ValueError("base_url has blanks at its beginning or end: remove them")
    if _PLACEHOLDER.search(url) is not None:
        raise ValueError("base_url still has a placeholder (`{…}`, `<…>`, `$NAME`, `your-…`): write what belongs there")
    if "://" not in url:
        raise ValueError("base_url has no scheme: write http:// or https:// before it")
    if (request := _AZURE_REQUEST.fullmatch(url)) is not None:
        raise ValueError(
            f"base_url is a whole request to Azure: write `kind: azure`, `base_url: {request[1]}`, the deployment's name "
            f'{request[2]} as model, and `api_version: "{request[3] or "2024-10-21"}"`'
        )
    try:
        port = urlsplit(url).port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("base_url has a port that there is not: 1 to 65535 can be written")
    if re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", url) is None:
        raise ValueError("base_url must be http(s)://host[:port][/path], without a user, a query or a fragment")
    for path in _ADDED_PATHS:
        if url.rstrip("/").endswith(path):
            raise ValueError(f"base_url is what {path} is added to: write {url.rstrip('/').removesuffix(path)}")


class ModelConfig(Section):
    """A provider's model, with the facts that routing needs."""

    model_id: str = Field(
        pattern=_MODEL_ENTRY,
        min_length=1,
        max_length=128,
        description="The name that callers send. A trailing `*` (`openai/*`) stands for the upstream's name; "
        "`auto` never chooses those.",
    )
    provider: str = Field(pattern=_NAME, max_length=64, description="Who runs it, as finance should see it.")
    tier_eligibility: frozenset[Tier] = Field(
        default=frozenset({"interactive", "batch"}), min_length=1, description="The tiers it may serve."
    )
    prices: ModelPrices | None = Field(
        default=None,
        description="One price, a list of prices with their dates, or a name in litellm's table. Left out, they are what "
        "that table says of the provider's model; where it says nothing the cost is unknown, and `auto` never chooses the model. "
        "A token of an own engine then costs nothing.",
    )
    max_context_tokens: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="Prompt and answer together. Default: litellm's table, else unbounded.",
    )
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="The longest answer; longer ones go elsewhere. Default: litellm's table.",
    )
    template_tokens: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="The most tokens that its host adds to a prompt, such as a hidden system message. Hard budgets hold "
        "them, and what is told beyond them is disputed. Default: nothing is held, and more than 2,000 are disputed.",
    )
    capabilities: frozenset[Capability] | None = Field(
        default=None,
        description="What else it can do. Default: litellm's table, else everything.",
    )
    known_as: str | None = Field(
        default=None,
        max_length=256,
        pattern=r"^\S*$",
        description="Its name in litellm's and the classifier's tables; empty to look nothing up in litellm's.",
    )
    provider_tools: frozenset[ProviderTool] | None = Field(
        default=None,
        max_length=64,
        description="Server-side tools of its provider, by the names in docs/wires.md. Default: those of OpenAI "
        "and Anthropic at their own addresses.",
    )
    capability: Share | None = Field(
        default=None,
        description="The highest complexity it is trusted with, for a model without a row in the classifier.",
    )
    ability: str | None = Field(
        default=None,
        pattern=_MODEL_ID,
        max_length=128,
        description="The model's row in the classifier's table, or `none`. Default: found by `known_as`, "
        "`upstream_model` and `model_id`. A row goes before `capability`.",
    )
    tokenizer_ratio: Decimal | None = Field(
        default=None,
        gt=Decimal("0.1"),
        lt=Decimal(10),
        max_digits=7,
        decimal_places=6,
        json_schema_extra={"unit": "number"},
        description="Its tokens for a text, relative to one reference tokenizer; converts counts for baselines "
        "where both models have it.",
    )
    hedging: frozenset[Tier] | None = Field(
        default=None,
        description="Tiers in which this model is hedged; default `providers.hedging.tiers`.",
    )
    routing_weight: Finite = Field(
        default=1.0, ge=0, le=1_000, description="At 2 it counts as half as expensive; 0 keeps it from `auto`."
    )
    deployments: tuple[DeploymentConfig, ...] = Field(
        default=(),
        max_length=256,
        description="Where it is called. None for a model that a pool of `selfhosted.pools` serves: its replicas are. With "
        "`model: NAME` the entry is its only deployment, and has that one's keys itself.",
    )
    foreign_keys: ClassVar[Mapping[str, str]] = _FOREIGN_KEYS
    short_keys: ClassVar[Mapping[str, frozenset[str]]] = {"model": frozenset(DeploymentConfig.model_fields)}
    """Further keys of an entry that has this one: it is its own only deployment."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, written: Any) -> Any:
        return (
            whole_model(written, frozenset(DeploymentConfig.model_fields)) if isinstance(written, Mapping) else written
        )

    @model_validator(mode="after")
    def _check_consistent(self) -> Self:
        most, context = self.max_output_tokens, self.max_context_tokens
        if most is not None and context is not None and most > context:
            raise ValueError("max_output_tokens is above max_context_tokens, which holds prompt and answer together")
        repeated = _first_repeated(deployment.name for deployment in self.deployments)
        if repeated is not None:
            raise ValueError(f"two deployments are named {repeated}; give each its own `name`")
        if not self.is_wildcard and any("*" in (each.upstream_model or "") for each in self.deployments):
            raise ValueError("an upstream_model with a `*` needs a model_id with one, such as openai/*")
        return self

    @property
    def is_wildcard(self) -> bool:
        """True when it stands for every name that begins with its own."""
        return self.model_id.endswith("*")

    @property
    def is_own(self) -> bool:
        """True when it runs on engines of the operator's own: all its deployments are some, or a pool serves it."""
        return all(each.kind in OWN_ENGINES for each in self.deployments)

    def upstream_of(self, deployment: DeploymentConfig, rest: str | None = None) -> str:
        """Return the model's name at a deployment; of a wildcard for what its `*` stands for, or with a `*` itself."""
        pattern = deployment.upstream_model or upstream_pattern(self.model_id)
        return pattern if rest is None else pattern.replace("*", rest, 1)


def _first_repeated(names: Any) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return str(name)
        seen.add(name)
    return None


class BreakerConfig(Section):
    """The ejection of failing deployments, after Envoy's outlier detection."""

    consecutive_failures: int = Field(default=5, ge=1, le=1_000, description="Gateway failures in a row that eject it.")
    base_ejection_s: float = Field(
        default=30.0, gt=0, le=3_600, description="How long the first ejection lasts; the nth lasts n times as long."
    )
    max_ejection_s: float = Field(default=300.0, gt=0, le=86_400, description="No ejection lasts longer.")
    max_ejected_share: float = Field(
        default=0.5, gt=0, le=1, description="Of a model's several deployments, never more than this share is ejected."
    )


class TimeoutsConfig(Section):
    """The time limits of an upstream's reply."""

    connect_s: float = Field(default=5.0, gt=0, le=60, description="To get a connection.")
    first_token_interactive_s: float = Field(
        default=15.0, gt=0, le=3_600, description="To the first real token of a stream, tier interactive."
    )
    first_token_batch_s: float = Field(
        default=120.0, gt=0, le=3_600, description="To the first real token of a stream, tier batch."
    )
    idle_s: float = Field(default=60.0, gt=0, le=3_600, description="The longest silence within a reply.")
    total_s: float = Field(default=600.0, gt=0, le=86_400, description="A whole reply.")

    def first_token_s(self, tier: Tier) -> float:
        """Return seconds to the first token of a stream, by tier."""
        return self.first_token_interactive_s if tier == "interactive" else self.first_token_batch_s


class RetryConfig(Section):
    """The attempts, and the retry budget of each model that keeps an outage from being multiplied."""

    attempts: int = Field(default=2, ge=1, le=10, description="Attempts at one model before the next candidate.")
    budget_share: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="Retries at a failing model, as a share of its requests. Moving on to a healthy model or "
        "deployment is free.",
    )
    budget_floor: int = Field(
        default=3,
        ge=0,
        le=1_000,
        description="Retries of each model allowed even at low traffic.",
    )
    budget_window_s: float = Field(default=10.0, gt=0, le=3_600, description="Requests within it earn the budget.")


class HedgingConfig(Section):
    """The second attempts beside one whose first token is later than nearly all of its model's."""

    tiers: frozenset[Tier] = Field(
        default=frozenset(),
        description="Tiers in which a request without a reply after the 95th percentile is sent to a second "
        "deployment or candidate; the first to begin answers, both are paid for.",
    )
    budget_share: float = Field(
        default=0.05, ge=0, le=0.2, description="Second attempts, as a share of the requests that may have one."
    )


class ProvidersSection(Section):
    """The models that can be called, and how failures are handled."""

    models: Reloadable[tuple[ModelConfig, ...]] = Field(min_length=1, max_length=1_000, description="The catalog.")
    breaker: Reloadable[BreakerConfig] = Field(default_factory=BreakerConfig)
    timeouts: Reloadable[TimeoutsConfig] = Field(default_factory=TimeoutsConfig)
    retry: Reloadable[RetryConfig] = Field(default_factory=RetryConfig)
    hedging: Reloadable[HedgingConfig] = Field(default_factory=HedgingConfig)

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        repeated = _first_repeated(model.model_id for model in self.models)
        if repeated is not None:
            raise ValueError(f"two models are called {repeated}; a model_id is unique")
        return self
