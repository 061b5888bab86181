"""The sections of the configuration file. Each folder types its own section; here they meet."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from accounts.config import AccountsSection
from accounts.people.sign_in_config import SignInSection
from api.webhooks.webhooks_config import WebhooksSection
from classifier.config import ClassifierSection
from cost.config import CostSection
from gateway.configuration.events_config import EventsSection
from gateway.configuration.plugins_config import PluginConfig
from guard.guard_config import GuardSection
from providers.config import ProvidersSection
from proxy.admit.idempotency.idempotency_config import IdempotencySection
from proxy.admit.limits.limits_config import LimitsSection
from proxy.admit.queues.queues_config import QueuesSection
from proxy.batch.batch_config import BatchSection
from proxy.cache.cache_config import CacheSection
from proxy.plan.routing_config import PolicyConfig
from proxy.responses.stored.stored_responses_config import ResponsesSection
from proxy.shared.deadline import DeadlinesSection
from proxy.shared.redis.redis_config import RedisSection
from selfhosted.config import SelfhostedSection
from settings.secret_ref import SecretRef
from settings.types import Finite, Given, Reloadable, Section


class TlsSection(Section):
    """The certificate of the public socket."""

    certificate: Given[Path] = Field(description="The certificate and its chain, a PEM file. Read at the start.")
    key: Given[Path] = Field(description="The certificate's private key, a PEM file without a password.")


class ServerConfig(Section):
    """The settings of the HTTP server."""

    host: str = Field(default="127.0.0.1", min_length=1, description="The address to listen on; `0.0.0.0` for all.")
    port: int = Field(default=8080, ge=0, le=65_535, description="The port to listen on; 0 lets the system choose.")
    workers: int = Field(default=1, ge=1, le=128, description="Processes that serve; about one a core.")
    max_body_bytes: Reloadable[int] = Field(
        default=20_000_000, ge=1_000, le=200_000_000, description="A larger request body is refused with 413."
    )
    max_upload_bytes: Reloadable[int] = Field(
        default=32_000_000,
        ge=1_000,
        le=1_000_000_000,
        description="A larger file is refused with 413. Uploads wait on disk (`TMPDIR`).",
    )
    max_bodies_bytes: int = Field(
        default=256_000_000,
        ge=1_000,
        le=64_000_000_000,
        description="Bytes of request bodies that one worker holds at once; more gets 503.",
    )
    max_replies_bytes: int = Field(
        default=256_000_000,
        ge=1_000_000,
        le=64_000_000_000,
        description="Bytes of answers that one process holds at once; more gets 503. One answer may have half "
        "of it; the first 64 KiB of each are not counted.",
    )
    tls: TlsSection | None = Field(
        default=None,
        description="With it the public socket speaks HTTPS. Without, something before it does, or nothing.",
    )
    cors_origins: list[Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]] = Field(
        default_factory=list,
        max_length=100,
        description="Origins whose pages may call the API from a browser; `*` for all.",
    )
    body_timeout_s: Reloadable[float] = Field(
        default=30.0, gt=0, le=600, description="A body that takes longer to arrive is refused with 408."
    )
    slow_reader_s: Reloadable[float] = Field(
        default=30.0, gt=0, le=600, description="A caller that reads nothing of its stream for this long is cut off."
    )
    ping_after_s: Reloadable[Finite] = Field(
        default=15.0,
        ge=0,
        le=600,
        description="After so long without a byte a stream gets a line or event without a meaning, also before its first token "
        "(status 200 is out then). 0 turns it off.",
    )
    keep_alive_s: Reloadable[float] = Field(
        default=75.0,
        ge=1,
        le=4_000,
        description="How long a connection is kept without a request. Longer than the balancer in front keeps it, or that may send a "
        "request just as it is closed: ALB and nginx have 60, Google's 600, Envoy 3600.",
    )
    drain_s: float = Field(
        default=30.0, ge=1, le=3_600, description="After a stop signal, how long requests under way may go on."
    )
    leave_s: Finite = Field(
        default=0.0,
        ge=0,
        le=600,
        description="The first part of `drain_s`, in which `/readyz` says 503 already and new requests are still served: two or three "
        "looks of the balancer in front.",
    )
    max_in_flight: Reloadable[int] = Field(
        default=10_000, ge=1, le=1_000_000, description="Requests that one worker holds at once; more get 503."
    )
    max_lag_s: Reloadable[Finite] = Field(
        default=0.25,
        ge=0,
        le=60,
        description="An event loop later than this for about a second, or connections unaccepted for half a "
        "second (Linux), means overload: some requests get 503. 0 turns it off.",
    )

    @model_validator(mode="after")
    def _leaves_time(self) -> Self:
        if self.leave_s and self.leave_s >= self.drain_s:
            raise ValueError("`leave_s` is a part of `drain_s` and has to be shorter")
        return self


class TelemetryConfig(Section):
    """The settings of logs and traces."""

    otlp_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Where traces go, over OTLP/HTTP. OTEL_EXPORTER_OTLP_ENDPOINT comes first; no traces without either.",
    )
    metrics_token: SecretRef | None = Field(
        default=None,
        description="Where /metrics' bearer token is found: env:NAME. Without one it is closed, unless "
        "`metrics_local`.",
    )
    metrics_local: Reloadable[bool] = Field(
        default=False,
        description="Opens /metrics without `metrics_token` to this machine's processes, also to a local proxy "
        "that adds no forwarding header.",
    )
    prompt_caches: bool = Field(
        default=True,
        description="Compares prompts of each key, as hashes and after their answers, and says on the team's page why providers' caches "
        "had less of them than they could.",
    )
    metrics_listen: str | None = Field(
        default=None,
        pattern=r"^(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/]+):[0-9]{1,5}$",
        description="A second address that serves /metrics only, such as `127.0.0.1:9464`: open to whoever "
        "reaches it, unless `metrics_token` is set.",
    )
    log_success_share: float = Field(
        default=0.01, ge=0, le=1, description="The share of successful requests that is logged. Failures all are."
    )


class GatewayConfig(Section):
    """The whole configuration file."""

    server: ServerConfig = Field(default=ServerConfig(), description="The listening side.")
    providers: ProvidersSection = Field(description="The models that can be called, and how to call them.")
    policy: Reloadable[PolicyConfig] = Field(default=PolicyConfig(), description="How names become targets.")
    limits: Reloadable[LimitsSection] = Field(
        default=LimitsSection(),
        description="What each organisation, team, key and model may use in a minute and at once.",
    )
    guard: Reloadable[GuardSection] = Field(
        default=GuardSection(), description="What must not leave in a request, or come back in an answer."
    )
    redis: RedisSection = Field(default=RedisSection(), description="The Redis that all processes share.")
    accounts: AccountsSection = Field(default=AccountsSection(), description="Teams, keys and their peppers.")
    sign_in: SignInSection = Field(default=SignInSection(), description="How people sign in to the pages.")
    classifier: ClassifierSection = Field(default=ClassifierSection(), description="How prompts are classified.")
    cost: CostSection = Field(default=CostSection(), description="The ledger, and what savings are measured against.")
    selfhosted: SelfhostedSection = Field(default=SelfhostedSection(), description="Own engines: pools of replicas.")
    queues: Reloadable[QueuesSection] = Field(
        default_factory=dict,
        description="Queues before own targets.",
    )
    deadlines: Reloadable[DeadlinesSection] = Field(
        default=DeadlinesSection(), description="How late an answer may be, where the caller does not say."
    )
    idempotency: IdempotencySection = Field(
        default=IdempotencySection(), description="Requests that are sent with an Idempotency-Key."
    )
    batch: BatchSection = Field(
        default=BatchSection(), description="Files of requests, answered in the background until a deadline."
    )
    responses: Reloadable[ResponsesSection] = Field(
        default=ResponsesSection(), description="Responses that are kept, so that conversations can go on from them."
    )
    cache: CacheSection | None = Field(
        default=None, description="Answers that are given again to equal requests of the same team. None unless set."
    )
    webhooks: WebhooksSection = Field(default=WebhooksSection(), description="Where warnings and reports are sent.")
    events: EventsSection = Field(
        default=EventsSection(), description="Who is told of each finished request: [events](events.md)."
    )
    telemetry: TelemetryConfig = Field(default=TelemetryConfig(), description="Logs and traces.")
    plugins: list[PluginConfig] = Field(
        default_factory=list,
        max_length=64,
        description="Code of others that runs in the gateway: [plugins](plugins.md). In order; nothing runs that is not named here.",
    )
