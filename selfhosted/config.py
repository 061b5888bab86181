"""The `selfhosted` section of the configuration: pools of our own engines, and how each is found, watched and scaled."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network
from typing import Annotated, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from providers.target import CacheIsolation, OwnEngine
from selfhosted.model_swap.turns import Rules
from settings.secret_ref import SecretRef, is_reference
from settings.types import Finite, Given, Seconds, Section, Share

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_SECRET_NAME: Final = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|CREDENTIALS)$", re.IGNORECASE)
_ORIGIN: Final = r"^https?://[^\s/?#@]+$"
PREFILL: Final = "prefill"
_PART_NAME: Final = 64 - len(f"/{PREFILL}")
PartDoes = Literal["all", "answers", "reads"]
"""The work of a part's replicas: whole requests, only generating where prompts are read elsewhere, or only reading prompts."""
_HOST: Final = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=_NAME)]


def _reachable(origin: str) -> str:
    """Check that the origin has a host and a valid port, so that later parsing cannot fail."""
    parts = urlsplit(origin)
    if not parts.hostname or parts.port == 0:
        raise ValueError("has no host, or no port that there is")
    return origin


Origin = Annotated[str, StringConstraints(max_length=2_048, pattern=_ORIGIN), AfterValidator(_reachable)]


# A port, or how much above the replica's own.
KvPort = (
    Annotated[int, Field(strict=True, ge=1, le=65_535)]
    | Annotated[str, StringConstraints(pattern=r"^\+[1-9][0-9]{0,4}$", max_length=6)]
)


def _network(value: str) -> str:
    ip_network(value)
    return value


def _without_secrets(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Reject variables that look like secrets: the environment is shown, and written into manifests."""
    for name, value in environment.items():
        if _SECRET_NAME.search(name) or is_reference(value):
            raise ValueError(
                f"`{name[:64]}` looks like a secret, which is never written here, nor looked up: put it into the "
                "environment of `weighbridge selfhosted run`, which engines see"
            )
    return environment


class PoolUnfit(Exception):
    """The pool's configuration lacks what a command needs of it. The message says what."""


class ReplicaConfig(Section):
    """One engine process at a fixed address."""

    name: Name = Field(description="Unique within the pool.")
    url: Origin = Field(description="http(s)://host:port, without a path.")
    version: Name | None = Field(default=None, description="The model's version that it runs, for rollouts.")
    first_rank: int = Field(
        default=0,
        ge=0,
        le=1_023,
        description="Number of its first data-parallel rank, where ranks of one group stand behind several addresses "
        "(vLLM's `--data-parallel-start-rank`).",
    )


class VersionNames(Section):
    """The version that replicas run by their names, for those that cannot say it themselves, such as pods."""

    version: Name = Field(description="As in `weighbridge models add`.")
    replicas: str = Field(
        min_length=1, max_length=128, description="A pattern of replicas' names, such as llama-v2-*; `?` is one letter."
    )


class DnsConfig(Section):
    """Replicas behind one name: every address that it resolves to is one."""

    host: str = Field(min_length=1, max_length=253, pattern=_HOST, description="Such as a headless Service's name.")
    port: int = Field(ge=1, le=65_535, description="The engines' port.")
    scheme: Literal["http", "https"] = Field(default="http", description="How they are spoken to.")
    every_s: Finite = Field(default=5.0, ge=0.1, le=3_600, description="How often it is resolved.")


class KubernetesConfig(Section):
    """Replicas behind a Service, from the cluster's API, with their pods' names and whether they are terminating."""

    service: str = Field(min_length=1, max_length=63, pattern=_HOST, description="The Service's name.")
    namespace: str = Field(default="", max_length=63, description="Its namespace; the gateway's own when not set.")
    port: int | str = Field(default="http", description="The port's name or number.")
    scheme: Literal["http", "https"] = Field(default="http", description="How the engines are spoken to.")
    every_s: Finite = Field(default=2.0, ge=0.1, le=3_600, description="How often it is asked.")
    api: Origin | None = Field(default=None, description="The API server; default the own cluster's.")
    token: SecretRef | None = Field(
        default=None, description="The API's bearer token; default the pod's service account."
    )
    ca_file: Given[str | None] = Field(
        default=None,
        min_length=1,
        max_length=1_024,
        description="Certificates (PEM) of the API server; default the service account's.",
    )


class RegistrationConfig(Section):
    """Replicas that register themselves, or are registered by whatever starts them."""

    token: SecretRef = Field(description="Where the bearer token is found that they must send.")
    networks: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(
        min_length=1,
        max_length=64,
        description="Networks that their addresses must lie in, such as 10.0.0.0/8.",
    )
    ttl_s: Finite = Field(default=15.0, ge=1, le=3_600, description="A registration not renewed for this long is gone.")


class WatchConfig(Section):
    """Probing and scraping of engines."""

    every_s: Finite = Field(default=1.0, ge=0.05, le=60, description="How often each is probed and read.")
    timeout_s: Finite = Field(default=0.8, gt=0, le=60, description="How long a probe or a reading may take.")
    misses: int = Field(default=3, ge=1, le=100, description="Missed probes in a row that make a replica down.")
    stale_s: Seconds = Field(default=5.0, description="Statistics that are older are unknown, not idle.")
    silent_s: Finite = Field(
        default=5.0,
        ge=0,
        le=600,
        description="A replica with good probes but no first token for this long (and three times the expected "
        "time) loses its waiting streams to others. 0: never.",
    )
    max_bytes: int = Field(
        default=2_000_000, ge=1_000, le=50_000_000, description="Of a longer page of metrics nothing is believed."
    )
    max_suspicion_s: Seconds = Field(
        default=30.0,
        description="A replica with good probes but failing requests gets none for up to this long.",
    )
    health_path: str = Field(
        default="/health", pattern=r"^/[^\s?#]*$", max_length=256, description="Answered with 200."
    )
    metrics_path: str | None = Field(
        default=None,
        pattern=r"^/[^\s?#]*$",
        max_length=256,
        description="Prometheus's text; when not set /metrics, and /prometheus/metrics for tensorrt-llm.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Port of metrics where they have their own, such as Triton's 8002.",
    )
    gpu_metrics_url: str | None = Field(
        default=None,
        max_length=2_048,
        pattern=r"^https?://[^\s?#@]+$",
        description="A DCGM exporter's page; `{host}` is the replica's host.",
    )
    kv_events_port: KvPort | None = Field(
        default=None,
        description="Port of vLLM's KV events (ZeroMQ) on each replica's host; `+1000` is relative to the "
        "replica's port. Without it cache contents are inferred.",
    )
    kv_replay_port: KvPort | None = Field(
        default=None,
        description="Where missed KV events are requested again (`replay_endpoint`); without it a gap drops "
        "what that engine told.",
    )


class BalanceTuning(Section):
    """The tuned constants of the choice of a replica. A comment tells where each value comes from."""

    # A second of prefill and a second of waiting.
    # Prefill also delays every later request. Simulated on the conversation trace, 1 to 2 give the same first tokens
    # within 1.5 %, and 2 gives 1 to 2 points more hits; 3 costs up to 3 %, 6 up to 10 %.
    prefill_weight: Finite = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Weight of a second of the request's own prefill against a second of waiting.",
    )
    # Simulated on bursts of one prefix, 1 gives first tokens a tenth later.
    prefill_weight_beside: Finite = Field(
        default=0.8,
        ge=0,
        le=100,
        description="The same weight where the cached prefix is itself still being read.",
    )
    # By judgement.
    beside_wait_s: Finite = Field(
        default=0.1,
        ge=0,
        le=60,
        description="Seconds of waiting for such a read below which no second copy is made.",
    )
    # Load above which a second of prefill counts more.
    # By judgement.
    crowded_wait_s: Finite = Field(
        default=1.0,
        gt=0,
        le=600,
        description="Seconds of waiting at the least busy replica at which prefill counts twice as much.",
    )
    # Simulated on the conversation trace at three times its load, 1 to 4 give first tokens up to a third sooner than 0.
    gateway_wait_weight: Finite = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Seconds of such waiting that a second in the gateway's queue counts for.",
    )
    # Simulated on shared prefixes with full KV caches, 24 to 40 give first tokens sooner by a fifth than 16, and by up to two thirds
    # than 0; with 0 and 16 the conversation trace gives the same.
    hold_weight: Finite = Field(
        default=32.0,
        ge=0,
        le=1_000,
        description="Weight of the place that a prompt takes in a KV cache in full use, while it is answered, against a second of waiting.",
    )
    # By judgement.
    max_crowding: Finite = Field(
        default=30.0,
        ge=0,
        le=10_000,
        description="The most that crowding adds to prefill's weight, as a factor, so that waiting for a cache is bounded.",
    )
    # An estimate for vLLM.
    adapter_load_s: Finite = Field(default=1.5, ge=0, le=600, description="Seconds assumed for loading a LoRA adapter.")
    # Computed: 53,000 for Llama 70B, 31,000 for 8B.
    attention_tokens: int = Field(
        default=60_000,
        ge=1_000,
        le=100_000_000,
        description="Tokens of context behind which a token takes twice as long to prefill.",
    )
    # Candidates before any scores.
    # By judgement.
    roomy_kv_usage: Finite = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Part of the KV cache in use below which a replica has room enough that full ones are left alone.",
    )
    # A fleet in which all have long queues.
    # By simulation.
    saturated_wait_s: Finite = Field(
        default=8.0,
        gt=0,
        le=3_600,
        description="Seconds of waiting at the least busy replica from which on parts are weighed instead of seconds.",
    )
    # From llm-d's chart.
    saturated_prefix_weight: Finite = Field(
        default=3.0, ge=0, le=100, description="Weight there of the part of the prompt to be read."
    )
    # From llm-d's chart.
    saturated_queue_weight: Finite = Field(
        default=2.0,
        ge=0,
        le=100,
        description="Weight there of the place between the shortest and the longest queue.",
    )
    # From llm-d's chart.
    saturated_kv_weight: Finite = Field(
        default=2.0, ge=0, le=100, description="Weight there of the part of the KV cache in use."
    )
    # The estimate of a replica's load and of its prefill rate.
    replica_doubt: Finite = Field(
        default=30.0,
        gt=0,
        le=100_000,
        description="Weight, in prefills, of the assumption that replicas are equally fast, so that one that merely looks faster does "
        "not get all the work.",
    )
    # By judgement.
    rate_prior_tokens: Finite = Field(
        default=40_000.0,
        gt=0,
        le=1_000_000_000,
        description="Weight of `prefill_tokens_per_s`, in tokens that were seen to be prefilled.",
    )
    # By judgement.
    min_learned_tokens: int = Field(
        default=512,
        ge=1,
        le=1_000_000,
        description="Tokens below which a prefill teaches no rate, as fixed costs dominate its time.",
    )
    # By judgement.
    max_learned_factor: Finite = Field(
        default=8.0,
        ge=1,
        le=1_000,
        description="The most that one prefill counts above or below its expected time, as a factor.",
    )
    # By judgement.
    decode_interference: Finite = Field(
        default=0.5,
        ge=0,
        le=10,
        description="The part by which a full KV cache slows prefill, which shares each step with decoding.",
    )
    # By judgement.
    overdue_part: Finite = Field(
        default=0.15, ge=0, le=1, description="Part of a prefill assumed to remain when it is overdue."
    )
    # By judgement.
    generating_s: Finite = Field(
        default=0.05,
        ge=0,
        le=60,
        description="Seconds added for each request that generates at a replica, as all share the steps.",
    )
    # By judgement.
    seated_part: Finite = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Part of the most requests that have run at once below which an engine has seats for those who wait.",
    )
    # By judgement.
    full_kv_usage: Finite = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Part of the KV cache in use from which an engine has no seat either.",
    )
    # By judgement.
    sharing_part: Finite = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Part of the requests' tokens that others hold already, from which a queue lets in as much as engines show to hold.",
    )
    # By judgement.
    reading_part: Finite = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Part of the prompt's beginning that a request must have had cached to count as not reading it itself.",
    )
    scrape_gap_s: Finite = Field(
        default=1.0,
        gt=0,
        le=600,
        description="About the seconds between two scrapes: prefills that begin within them do not queue. By the scraper's pace.",
    )
    # Simulated: 20 s is a tenth better on shared prefixes, and a fifth worse on documents.
    first_duration_s: Finite = Field(
        default=5.0,
        gt=0,
        le=3_600,
        description="Seconds that a request is taken to last until some have ended.",
    )
    # Ties, and consistent hashing.
    # By judgement.
    tie_s: Finite = Field(
        default=0.01,
        ge=0,
        le=60,
        description="Seconds by which scores may differ and still count as equal.",
    )
    # Simulated on shared prefixes, 0.1 to 0.3 deal beginnings out evenly, and 0.03 does not; on the conversation trace 0.1 costs nothing
    # and 0.3 up to a sixth.
    place_s: Finite = Field(
        default=0.1,
        ge=0,
        le=60,
        description="Seconds by which replicas may differ and still get, by turns of what they read, prompts that are cached nowhere.",
    )
    # By judgement.
    place_visibility: Finite = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Part of the pool's requests that a process must know of for that; below it the ring decides.",
    )
    # Simulated: one of two hosts does better by its own view, one of three does not.
    min_visibility: Finite = Field(
        default=0.42,
        ge=0,
        le=1,
        description="Part of the pool's requests that a process must know of to trust its own view; below it uses consistent hashing.",
    )
    # Simulated on ten traces with four and eight hosts, 3 give first tokens a tenth sooner than 1, and 2 a little less.
    ring_choices: int = Field(
        default=3,
        ge=1,
        le=16,
        description="Replicas along the ring among which such a process chooses.",
    )
    # By simulation.
    home_cached_part: Finite = Field(
        default=0.9,
        ge=0,
        le=1,
        description="Part of the prompt not known to be cached that such a process assumes cached at the conversation's home.",
    )
    # By judgement.
    mean_decay: Finite = Field(
        default=0.98,
        gt=0,
        lt=1,
        description="What a past request counts in running means after each new one: at 0.98 about the last fifty count.",
    )


class BalanceConfig(Section):
    """The choice of a replica for a request."""

    policy: Literal["prefix", "least-loaded", "round-robin"] = Field(
        default="prefix",
        description="`prefix` weighs what is cached against load; the others are for comparison.",
    )
    block_bytes: int = Field(
        default=512, ge=64, le=16_384, description="Of the rendered prompt; prefixes are compared block by block."
    )
    max_blocks: int = Field(
        default=200_000,
        ge=1_000,
        le=10_000_000,
        description="Blocks that the index remembers of the whole pool at most.",
    )
    prompt_blocks: int = Field(
        default=512, ge=1, le=16_384, description="Of a longer prompt only so many blocks are compared."
    )
    prefill_tokens_per_s: Finite = Field(
        default=8_000.0,
        gt=0,
        le=10_000_000,
        description="What one replica prefills, until its own statistics tell better.",
    )
    load_bound: Finite = Field(
        default=1.25,
        ge=1,
        le=100,
        description="Consistent hashing skips a replica above this multiple of the mean load.",
    )
    tuning: BalanceTuning = Field(
        default=BalanceTuning(),
        description="Constants of the decision, tuned by simulation; leave them out for the tuned values.",
    )


class RoomConfig(Section):
    """Fullness of a pool, beyond which requests wait in the gateway's queue or go elsewhere."""

    kv_high: Finite = Field(
        default=0.95, gt=0, le=1, description="A replica whose KV cache is in use beyond this is full."
    )
    max_waiting: int = Field(
        default=48, ge=0, le=100_000, description="A replica with more requests in its own queue is full."
    )
    tokens: int = Field(
        default=65_536,
        ge=1,
        le=1_000_000_000,
        description="Capacity assumed for a replica whose engine does not report it, where the queue has no size.",
    )
    overcommit: Finite = Field(
        default=1.0,
        ge=0.1,
        le=100,
        description="Multiple of the caches' capacity that such a queue admits, since prompts share prefixes.",
    )


class AdapterConfig(Section):
    """A LoRA adapter that the pool can serve, as a model of its own."""

    name: Name = Field(description="As the engine knows it.")
    target: str = Field(min_length=1, max_length=128, description="The model_id that callers ask for.")
    path: str = Field(min_length=1, max_length=1_024, description="Where the engine finds it.")


class ScaleConfig(Section):
    """Autoscaling of a pool. The defaults scale up at 70 % and down at 20 % of GPU memory."""

    min_replicas: int = Field(default=1, ge=0, le=10_000, description="Never fewer.")
    max_replicas: int = Field(default=10, ge=0, le=10_000, description="Never more.")
    cold_start_s: Finite = Field(default=300.0, ge=0, le=7_200, description="From the decision to the first answer.")
    waiting_high: Finite = Field(
        default=5.0, gt=0, le=100_000, description="Waiting requests a replica, above which it grows."
    )
    kv_high: Finite = Field(default=0.8, gt=0, le=1, description="Mean KV use above which it grows.")
    memory_high: Finite = Field(
        default=0.7, gt=0, le=1, description="Mean use of what memory is left for work above which it grows."
    )
    memory_low: Share = Field(default=0.2, description="The same, below which it shrinks.")
    ttft_target_s: Finite = Field(
        default=1.0, gt=0, le=600, description="The first token's target; it grows when it is missed."
    )
    ttft_attainment: Finite = Field(
        default=0.9, ge=0.5, lt=1, description="The part of first tokens, and of answers, that should meet its target."
    )
    tpot_target_s: Finite = Field(
        default=0.05, gt=0, le=60, description="A further token's target; it grows when answers are slower."
    )
    objective: Literal["latency", "economic"] | None = Field(
        default=None,
        description="`latency`: enough replicas for first tokens in time; `economic`: those whose hours cost "
        "less than the same work elsewhere. Default: `economic` where `cost.pools` has the price "
        "and a model elsewhere is capable.",
    )
    forecast: bool = Field(
        default=True, description="Expects what the same time of earlier days brought, one cold start ahead."
    )
    up_stabilisation_s: Finite = Field(
        default=0.0, ge=0, le=3_600, description="Growth must have been wanted for so long."
    )
    down_stabilisation_s: Finite = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="Shrinking must have been wanted for so long; and for 1.5 cold starts, unless `economic`.",
    )
    cooldown_s: Finite = Field(default=60.0, ge=0, le=86_400, description="Between two steps down.")
    max_step_up: int = Field(default=4, ge=1, le=10_000, description="Replicas that one decision adds at most.")
    max_step_down: int = Field(default=1, ge=1, le=10_000, description="Replicas that one decision takes away at most.")
    max_step_down_share: Share = Field(
        default=0.2,
        description="The same as a share of the pool, where that is more.",
    )
    max_usd_per_hour: Finite | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        description="Bound on the pool's cost an hour, by `cost.pools`.",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas is above max_replicas")
        if self.memory_low >= self.memory_high:
            raise ValueError("memory_low must be below memory_high, or the pool would grow and shrink at once")
        return self


class LaunchConfig(Section):
    """Launching of engines on one machine by `weighbridge selfhosted run`."""

    command: tuple[str, ...] = Field(
        min_length=1,
        max_length=256,
        description="Program and arguments; `{port}`, `{host}` and `{name}` are filled in. No shell.",
    )
    environment: Annotated[dict[str, str], AfterValidator(_without_secrets)] = Field(
        default_factory=dict,
        max_length=256,
        description="Added to its environment as written, so no secrets.",
    )
    low_load_arguments: tuple[str, ...] = Field(
        default=(),
        max_length=64,
        description="Added when an engine starts below `scale.memory_low`, such as speculative decoding.",
    )
    host: str = Field(default="127.0.0.1", min_length=1, max_length=253, pattern=_HOST, description="Where it listens.")
    address: str | None = Field(
        default=None,
        max_length=45,
        description="IP address for the gateway, where it is not `host`.",
    )
    first_port: int = Field(default=8100, ge=1, le=65_535, description="Ports are taken from here on.")
    ready_s: Finite = Field(default=600.0, gt=0, le=7_200, description="One that is not ready by then is ended.")
    drain_s: Finite = Field(
        default=600.0, ge=0, le=86_400, description="How long one that is drained may finish its work."
    )
    version: Name | None = Field(
        default=None, description="The model's version that the command starts, which each engine registers with."
    )
    keep_asleep: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Surplus engines that sleep instead of ending: vLLM's, with `--enable-sleep-mode` and "
        "VLLM_SERVER_DEV_MODE=1 (behind a firewall). Weights stay in main memory.",
    )
    warm: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Engines started ahead of demand and put to sleep, as `keep_asleep`. Each needs free GPUs "
        "only while it starts.",
    )
    grace_s: Finite = Field(
        default=30.0, ge=0, le=600, description="How long one may take to end after SIGTERM, before it is killed."
    )
    log_bytes: int = Field(
        default=50_000_000, ge=10_000, le=10_000_000_000, description="What each engine's output may take on the disk."
    )

    @property
    def sleeps(self) -> bool:
        """True where some engines sleep."""
        return self.keep_asleep > 0 or self.warm > 0

    @field_validator("address")
    @classmethod
    def _ip_literal(cls, value: str | None) -> str | None:
        if value is not None:
            ip_address(value)
        return value


class PrefillConfig(Section):
    """Replicas that read prompts for the others of their pool, which fetch what was read (vLLM's NixlConnector)."""

    replicas: str = Field(
        min_length=1,
        max_length=128,
        description="A pattern of their names, such as llama-prefill-*; `?` is one letter.",
    )
    scale: ScaleConfig | None = Field(
        default=None,
        description="How many of them there should be, by the prompts that they read and that wait there, and by first tokens; the "
        "pool's own `scale` is about those that answer.",
    )
    launch: LaunchConfig | None = Field(
        default=None,
        description="How one of them is started on one machine, whose name goes where `replicas` has its star; the pool's own "
        "`launch` starts those that answer.",
    )
    from_tokens: int = Field(
        default=512,
        ge=1,
        le=10_000_000,
        description="Prompts with fewer uncached tokens are read by the answering replica.",
    )

    def reads(self, replica: str) -> bool:
        """Return True for the name of one that only reads."""
        return fnmatchcase(replica, self.replicas)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.launch is not None and self.replicas.count("*") != 1:
            raise ValueError(
                "prefill.launch needs a pattern with one `*`, where it puts this machine's name and a number"
            )
        if self.launch is not None and self.launch.sleeps:
            raise ValueError(
                "prefill.launch starts and ends replicas, which do not sleep; leave keep_asleep and warm out"
            )
        return self


class PoolPart(NamedTuple):
    """Replicas of a pool that do the same, and whose number is decided apart from that of others."""

    name: str
    """As in the table of decisions and in metrics: the pool's, or POOL/prefill, which is no pool's name."""
    does: PartDoes
    scale: ScaleConfig | None
    launch: LaunchConfig | None


class HardwareConfig(Section):
    """The most that a pool's GPUs could do by their data sheet, for an estimate of how much of it is used."""

    flops_per_token: Finite = Field(
        gt=0, le=1e15, description="Operations that one token takes: twice the parameters that it passes."
    )
    peak_flops: Finite = Field(
        gt=0,
        le=1e20,
        description="Dense operations a second of a replica's GPUs, at the weights' precision.",
    )


class PoolConfig(Section):
    """The replicas that serve one model, and its adapters."""

    name: Name = Field(description="The same as in `cost.pools`, where its hours cost something.")
    targets: tuple[str, ...] = Field(min_length=1, max_length=100, description="The model_ids that it serves.")
    engine: OwnEngine = Field(default="vllm", description="What its replicas run.")
    upstream_model: str | None = Field(
        default=None, min_length=1, max_length=256, description="The model's name there; the model_id, if left out."
    )
    api_key: SecretRef | None = Field(default=None, description="Where the engines' key is found.")
    allow_media_links: bool = Field(
        default=False, description="Lets callers link to media, which the engines fetch from inside your network."
    )
    replicas: tuple[ReplicaConfig, ...] = Field(default=(), max_length=1_000, description="Fixed addresses.")
    dns: DnsConfig | None = Field(default=None, description="Or behind a name.")
    kubernetes: KubernetesConfig | None = Field(default=None, description="Or behind a Service.")
    registration: RegistrationConfig | None = Field(default=None, description="Or as they say themselves.")
    versions: tuple[VersionNames, ...] = Field(
        default=(),
        max_length=100,
        description="The version that a replica runs, by its name; the first pattern counts.",
    )
    prefill: PrefillConfig | None = Field(
        default=None,
        description="Some of the replicas only read prompts, and the gateway asks one of them before the one that answers.",
    )
    spot: bool = Field(
        default=False,
        description="Its nodes may be reclaimed at any moment, so its models serve batch work only "
        "(`tier_eligibility: [batch]`).",
    )
    priority_scheduling: bool = Field(
        default=False,
        description="The engines run with vLLM's `--scheduling-policy priority`: interactive work overtakes batch inside them.",
    )
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="vLLM's `--max-num-seqs`, where the engine does not report it. Batch work leaves a tenth "
        "free unless a queue has `requests_in_flight`.",
    )
    data_parallel_ranks: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Ranks behind each address (vLLM's `--data-parallel-size`, of one node `-local`). Each has a KV cache of its own "
        "and counts as a replica, NAME-dp0 and on; requests name theirs by `X-data-parallel-rank`.",
    )
    read_ahead_tokens: int = Field(
        default=0,
        ge=0,
        le=8_192,
        description="Chunk size in which prompts of batch work are prefilled (docs/fleet.md); a multiple of the "
        "engine's block size; 0 is off.",
    )
    cache_isolation: CacheIsolation = Field(
        default="none",
        description="Who shares cached prefixes; with `organisation` or `team` timing tells nothing to others "
        "(vLLM's cache_salt).",
    )
    adapters: tuple[AdapterConfig, ...] = Field(default=(), max_length=1_000, description="LoRA adapters.")
    watch: WatchConfig = Field(default=WatchConfig(), description="How engines are probed and read.")
    balance: BalanceConfig = Field(default=BalanceConfig(), description="How a replica is chosen.")
    room: RoomConfig = Field(default=RoomConfig(), description="When the pool takes no more.")
    scale: ScaleConfig | None = Field(
        default=None, description="How many replicas there should be; not decided when not set."
    )
    launch: LaunchConfig | None = Field(default=None, description="How an engine is started on one machine.")
    hardware: HardwareConfig | None = Field(
        default=None,
        description="What the GPUs could do; `weighbridge selfhosted render gateway` writes it. Without it MFU is not known.",
    )

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        names = [replica.name for replica in self.replicas]
        if len(set(names)) != len(names):
            raise ValueError("two replicas have one name; give each its own")
        urls = [replica.url for replica in self.replicas]
        if len(set(urls)) != len(urls):
            raise ValueError("two replicas have one address; each is one process")
        if self.launch is not None and self.launch.sleeps and self.engine != "vllm":
            raise ValueError("launch.keep_asleep and launch.warm are for vLLM, which can sleep")
        if self.prefill is not None and self.engine != "vllm":
            raise ValueError("prefill is for vLLM, whose connectors hand a prompt over")
        if self.read_ahead_tokens and (self.engine != "vllm" or self.prefill is not None):
            raise ValueError("read_ahead_tokens is for vLLM, in a pool whose replicas read their prompts themselves")
        if self.adapters and self.engine != "vllm":
            raise ValueError("adapters are loaded through vLLM's runtime API; another engine serves them as targets")
        if (self.priority_scheduling or self.cache_isolation != "none") and self.engine != "vllm":
            raise ValueError("priority_scheduling and cache_isolation are vLLM's")
        if len({adapter.name for adapter in self.adapters}) != len(self.adapters):
            raise ValueError("two adapters have one name")
        return self

    @model_validator(mode="after")
    def _ranks_coherent(self) -> Self:
        if self.data_parallel_ranks == 1:
            return self
        obstacles = {
            f"{self.engine} takes no rank from a request; it is for vllm and sglang": self.engine
            not in {"vllm", "sglang"},
            "`adapters` are loaded by the process, for all its ranks at once": bool(self.adapters),
            "`prefill` hands prompts from replica to replica, not from rank to rank": self.prefill is not None,
        }
        for told, is_so in obstacles.items():
            if is_so:
                raise ValueError(f"data_parallel_ranks: {told}; leave one of the two out")
        return self

    @model_validator(mode="after")
    def _parts_coherent(self) -> Self:
        prefill = self.prefill
        if prefill is not None and (prefill.scale is None) != (self.scale is None):
            raise ValueError("with prefill both kinds of replicas are scaled, or none: `scale` and `prefill.scale`")
        scales = [] if prefill is None else [self.scale, prefill.scale]
        if any(scale is not None and scale.objective == "economic" for scale in scales):
            raise ValueError(
                "with prefill the objective is `latency`: what an hour of either kind saves is not known apart"
            )
        if prefill is not None and prefill.launch is None and self.launch is not None:
            raise ValueError(
                "with prefill, `launch` starts those that answer; `prefill.launch` says how one that reads is started"
            )
        if prefill is not None and prefill.scale is not None and len(self.name) > _PART_NAME:
            raise ValueError(f"the name of a pool whose prefill is scaled has at most {_PART_NAME} characters")
        return self

    @property
    def parts(self) -> tuple["PoolPart", ...]:
        """The kinds of replicas whose number is decided apart: one, or with `prefill` those that answer and those that read."""
        if self.prefill is None:
            return (PoolPart(self.name, "all", self.scale, self.launch),)
        reading = self.prefill
        return (
            PoolPart(self.name, "answers", self.scale, self.launch),
            PoolPart(f"{self.name}/{PREFILL}", "reads", reading.scale, reading.launch),
        )

    def is_in(self, part: "PoolPart", replica: str) -> bool:
        """Return whether a replica of that name is of this part."""
        return self.prefill is None or self.prefill.reads(replica) is (part.does == "reads")

    @property
    def served(self) -> tuple[str, ...]:
        """Every target that the pool serves, adapters included."""
        return (*self.targets, *(adapter.target for adapter in self.adapters))


def _must_take_turns(pool: PoolConfig) -> None:
    """Check that a pool can share its GPUs. Raises ValueError."""
    obstacles = {
        f"runs {pool.engine}; only vLLM sleeps": pool.engine != "vllm",
        "has `data_parallel_ranks`, which sleep together": pool.data_parallel_ranks > 1,
        "has `scale`; on shared GPUs there is room for no more replicas, so leave it out": pool.scale is not None,
        "has `prefill`, whose two kinds of replicas would have to be awake together": pool.prefill is not None,
        "has `launch.keep_asleep` or `launch.warm`; on shared GPUs all that are not awake sleep, so leave it out": pool.launch
        is not None
        and pool.launch.sleeps,
    }
    for told, is_so in obstacles.items():
        if is_so:
            raise ValueError(f"pool `{pool.name}` shares its GPUs and {told}")


def _unique_names(pools: Sequence[PoolConfig]) -> Sequence[PoolConfig]:
    """Check that no two pools share a name or a target."""
    names: set[str] = set()
    owners: dict[str, str] = {}
    for pool in pools:
        if pool.name in names:
            raise ValueError(f"two pools are called `{pool.name}`")
        names.add(pool.name)
        for target in pool.served:
            if target in owners:
                raise ValueError(
                    f"`{target}` is served by `{owners[target]}` and `{pool.name}`, or twice by one; it needs one"
                )
            owners[target] = pool.name
    return pools


class SharedGpusConfig(Section):
    """Pools whose engines stand on the same GPUs, so that one of the pools is awake at a time (vLLM's sleep mode)."""

    name: Name = Field(description="Its name in metrics and pages; no pool's name.")
    pools: tuple[Name, ...] = Field(
        min_length=2, max_length=8, description="Their names. The first is awake to begin with."
    )
    level: Literal[1, 2] = Field(
        default=1,
        description="Where sleeping weights are: 1 in main memory, 2 on disk only.",
    )
    least_awake_s: Finite = Field(
        default=30.0, ge=0, le=86_400, description="A pool that was woken, and works, is not put to sleep sooner."
    )
    most_wait_s: Finite = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="After this wait a pool is next in any case.",
    )
    drain_s: Finite = Field(
        default=120.0, ge=0, le=86_400, description="How long a pool may finish its work before its engines sleep."
    )
    settle_s: Finite = Field(
        default=4.0,
        ge=0.2,
        le=60,
        description="Time in which every gateway notices a drain and engine statistics are current.",
    )
    switch_s: Finite = Field(
        default=20.0,
        ge=0.1,
        le=3_600,
        description="Estimated switch time until it has been measured.",
    )

    @field_validator("pools")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("a pool is named twice")
        return value

    @property
    def rules(self) -> Rules:
        """The rules by which its pools take turns."""
        return Rules(
            pools=self.pools,
            least_awake_s=self.least_awake_s,
            most_wait_s=self.most_wait_s,
            drain_s=self.drain_s,
            settle_s=self.settle_s,
            switch_s=self.switch_s,
        )


class SelfhostedSection(Section):
    """The `selfhosted` section: pools of self-hosted engines."""

    pools: Annotated[tuple[PoolConfig, ...], AfterValidator(_unique_names)] = Field(
        default=(), max_length=100, description="Each serves one model."
    )
    tells_other_hosts: bool = Field(
        default=True,
        description="With Redis, hosts tell each other which prompts went where, as sealed hashes and counts.",
    )
    shared_gpus: tuple[SharedGpusConfig, ...] = Field(
        default=(), max_length=50, description="Pools that share GPUs, of which one is awake at a time."
    )

    @model_validator(mode="after")
    def _shared_coherently(self) -> Self:
        pools, owners = {pool.name: pool for pool in self.pools}, dict[str, str]()
        for group in self.shared_gpus:
            if group.name in pools or group.name in owners.values():
                raise ValueError(
                    f"`{group.name}` of shared_gpus is the name of a pool or of other shared GPUs; give it its own"
                )
            for name in group.pools:
                if name not in pools:
                    raise ValueError(f"`{name}` shares the GPUs `{group.name}`, and is no pool of `selfhosted.pools`")
                if name in owners:
                    raise ValueError(
                        f"`{name}` shares the GPUs `{owners[name]}` and `{group.name}`; engines stand on one of them"
                    )
                owners[name] = group.name
                _must_take_turns(pools[name])
        return self

    def shared_by(self, pool: str) -> SharedGpusConfig | None:
        """Return the shared GPUs that the pool's engines stand on; None where they have theirs for themselves."""
        return next((group for group in self.shared_gpus if pool in group.pools), None)

    def pool_of_target(self) -> dict[str, str]:
        """Name of the pool that serves each target, by target id."""
        return {target: pool.name for pool in self.pools for target in pool.served}

    def upstream_models(self) -> dict[str, str]:
        """Return the name by which its pool's engines have each target's model, by target id; adapters are models of their own."""
        return {
            target: pool.upstream_model
            for pool in self.pools
            if pool.upstream_model is not None
            for target in pool.targets
        }
