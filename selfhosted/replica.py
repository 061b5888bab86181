"""What is known of our own engines: where they are, how they are, and what they say of themselves.

Everything here is a frozen value. A snapshot of a pool is what the balancer, the admission and the autoscaler decide on;
the simulator makes the same values, so that they decide the same there.
"""

from typing import Literal

import msgspec

from providers.target import DeploymentKind

Source = Literal["configured", "dns", "kubernetes", "registered"]
"""Who says that a replica is there."""

Why = Literal["prefix", "adapter", "ring", "load", "only"]
"""What decided which replica a request goes to."""
ReplicaState = Literal["starting", "ready", "suspect", "draining", "down"]
"""`starting`: it has never answered a probe. `ready`: it takes work. `suspect`: a request failed there, or a probe was
missed; it gets no work until a probe answered. `draining`: it finishes what runs and takes nothing new. `down`: several
probes in a row were not answered, or its address is not usable."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process, by its name within the pool."""

    pool: str
    name: str
    url: str
    """`http(s)://host:port`, without a path: health, metrics and the OpenAI wire lie below it."""
    kind: DeploymentKind
    source: Source
    draining: bool = False


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape of an engine, in one vocabulary for all kinds. None: this engine does not tell, or told nonsense."""

    at: float
    """Of the monotonic clock, when it was read."""
    running: int
    """Requests that generate now."""
    waiting: int
    """Requests in the engine's own queue."""
    kv_usage: float | None = None
    """The part of the KV cache that running requests occupy, 0 to 1."""
    kv_tokens: int | None = None
    """Tokens that the KV cache holds in all."""
    block_tokens: int | None = None
    """Tokens a block of the KV cache."""
    max_running: int | None = None
    """Requests that the engine runs at once at most (llama.cpp: its slots)."""
    prefix_queries: float | None = None
    """Counter: prompt tokens looked up in the prefix cache."""
    prefix_hits: float | None = None
    """Counter: of those found there."""
    prompt_tokens: float | None = None
    """Counter: tokens of prompts, cached or not."""
    output_tokens: float | None = None
    """Counter: tokens generated."""
    preemptions: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    tpot_sum_s: float | None = None
    tpot_count: float | None = None
    adapters: frozenset[str] | None = None
    """LoRA adapters that run or wait there now, which says nothing of those that are loaded and idle."""
    max_adapters: int | None = None
    gpu_memory: float | None = None
    """The part of the GPUs' memory that is in use, 0 to 1, where an exporter was configured."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process as it is known now."""

    address: Address
    state: ReplicaState
    since: float
    """Of the monotonic clock, since when it is in this state."""
    why: str = ""
    """For people: why it is not ready, or why its statistics are unknown. Never what the engine sent, at most in part."""
    stats: EngineStats | None = None
    """None when they are unknown: never read, or too old. Unknown is not idle."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that are loaded there, as far as is known."""

    @property
    def name(self) -> str:
        return self.address.name


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment, in the order of the replicas' names."""

    pool: str
    at: float
    replicas: tuple[Replica, ...]

    @property
    def ready(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.replicas if replica.state == "ready")

    @property
    def taking(self) -> tuple[Replica, ...]:
        """Those that get work. Where nobody is ready, a suspect one is better than none."""
        return self.ready or tuple(replica for replica in self.replicas if replica.state == "suspect")


class ReplicaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the balancer sees it."""

    blocks: tuple[int, ...]
    """Hashes of the rendered prompt's blocks, each of the prompt up to its end: equal hash, equal prefix."""
    block_tokens: float
    """About how many tokens a block has."""
    root: int
    """Names the conversation, the same in every process: where nothing is known yet, they agree on where it goes."""
    tokens: int
    """Of the prompt, estimated."""
    output_tokens: int
    """Of the answer, expected."""
    adapter: str | None = None
    rendered_bytes: int = 0
    """Of the whole rendered prompt; 0 when it was cut off, so that `blocks` are not all of it."""


class ReplicaChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The replica that a request goes to, and why."""

    replica: str
    why: Why
    """`prefix`: most of it is cached there; `adapter`: it has the adapter; `ring`: consistent hashing; `load`: the least
    loaded of those that were compared; `only`: there was no other."""
    matched_tokens: int
    """Of the prompt, believed to be cached there."""


class PoolFullness(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of which no replica takes more, told to who is refused."""

    pool: str
    running: int
    waiting: int
    """In the engines' own queues."""
    kv_tokens: int
    """What the caches of its replicas hold, 0 where they do not tell."""
    retry_after_s: float
