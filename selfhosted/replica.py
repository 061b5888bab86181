"""Values that describe self-hosted engines: addresses, health states and engine statistics.

Everything here is a frozen value. A snapshot of a pool is what the balancer, the admission and the autoscaler decide
on; the simulator makes the same values, so that they decide the same there.
"""

from functools import cached_property
from typing import Final, Literal

import msgspec

from providers.target import DeploymentKind

Source = Literal["configured", "dns", "kubernetes", "registered"]
"""The kind of source that named a replica: the configuration, DNS, Kubernetes, or the replica's own registration."""

Why = Literal["prefix", "adapter", "ring", "load", "only"]
"""The reason for choosing a replica; `ReplicaChoice.why` explains each."""
ReplicaState = Literal["starting", "ready", "suspect", "draining", "down"]
"""`starting`: it has never answered a probe. `ready`: it takes work. `suspect`: a request failed there, or a probe was
missed; it gets no work until a probe answered. `draining`: it finishes what runs and takes nothing new. `down`: several
probes in a row were not answered, or its address is not usable."""


NOT_READ_YET: Final = "its statistics were not read yet"
"""The reason why statistics are unknown in the first moments of a replica."""


def rank_suffix(rank: int) -> str:
    """Return what the name of a data-parallel rank has after its process's."""
    return f"-dp{rank}"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of one engine process, by its name within the pool."""

    pool: str
    name: str
    url: str
    """`http(s)://host:port`, without a path: health, metrics and the OpenAI wire lie below it."""
    kind: DeploymentKind
    source: Source
    draining: bool = False
    version: str = ""
    """The model's version that it runs, as it or its configuration says; empty when nobody says."""
    rank: int | None = None
    """Data-parallel rank behind the address that this is, as requests name it; None for a whole engine."""
    first_rank: int = 0
    """Number of the first rank behind the address, by which the engine counts its ports and statistics."""

    @property
    def process(self) -> str:
        """The name of the process that answers at the address: that of all its ranks together."""
        return self.name if self.rank is None else self.name.removesuffix(rank_suffix(self.rank))

    @property
    def engine_rank(self) -> int | None:
        """The rank as the engine counts, over all addresses of a group; None for a whole engine."""
        return None if self.rank is None else self.first_rank + self.rank


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of one engine at one scrape, in one vocabulary for all kinds of engine. A field is None where the
    engine does not expose it, or exposed an impossible value.
    """

    at: float
    """Monotonic clock, in seconds, when it was read."""
    running: int
    """Requests in the engine's running batch."""
    waiting: int
    """Requests in the engine's own queue."""
    kv_usage: float | None = None
    """Fraction of the KV cache that running requests occupy, 0 to 1."""
    kv_tokens: int | None = None
    """Capacity of the KV cache, in tokens."""
    block_tokens: int | None = None
    """Size of a block of the KV cache, in tokens."""
    max_running: int | None = None
    """The most requests that the engine runs at once (llama.cpp: its slots)."""
    prefix_queries: float | None = None
    """Counter: prompt tokens looked up in the prefix cache."""
    prefix_hits: float | None = None
    """Counter: those of `prefix_queries` that were found there."""
    prompt_tokens: float | None = None
    """Counter: prompt tokens, cached or not."""
    output_tokens: float | None = None
    """Counter: generated tokens."""
    preemptions: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    tpot_sum_s: float | None = None
    tpot_count: float | None = None
    adapters: frozenset[str] | None = None
    """LoRA adapters with requests running or waiting now. Adapters that are loaded but idle are not among them."""
    max_adapters: int | None = None
    gpu_memory: float | None = None
    """Fraction of the GPUs' memory in use, 0 to 1; known only where a GPU exporter is configured."""
    gpu_utilisation: float | None = None
    """Fraction of the time in which a kernel ran on the GPUs, 0 to 1; known only where a GPU exporter is configured."""
    tokens_per_s: float | None = None
    """Prompt and completion tokens a second, as a mean of the last minute. So are the three below."""
    computed_per_s: float | None = None
    """Prompt tokens a second that were not found in the prefix cache."""
    output_per_s: float | None = None
    preemptions_per_s: float | None = None


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of one engine process."""

    address: Address
    state: ReplicaState
    since: float
    """Monotonic clock, in seconds, when it entered this state."""
    why: str = ""
    """Explanation for people of why it is not ready, or why its statistics are unknown. Quotes at most a part of what
    the engine sent."""
    stats: EngineStats | None = None
    """Statistics of the last scrape; None when unknown, that is never read or too old. Unknown does not mean idle."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters known to be loaded there."""

    @property
    def name(self) -> str:
        return self.address.name


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All replicas of a pool at one moment, sorted by name."""

    pool: str
    at: float
    replicas: tuple[Replica, ...]

    @cached_property
    def ready(self) -> tuple[Replica, ...]:
        return tuple([replica for replica in self.replicas if replica.state == "ready"])

    @cached_property
    def taking(self) -> tuple[Replica, ...]:
        """Replicas that receive requests: the ready ones or, where there are none, the suspect ones."""
        return self.ready or tuple([replica for replica in self.replicas if replica.state == "suspect"])


class ReplicaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the balancer sees it."""

    blocks: tuple[int, ...]
    """Chained hashes of the rendered prompt's whole blocks: equal hashes mean an equal prefix up to the end of that
    block."""
    block_tokens: float
    """Estimated prompt tokens in one block."""
    root: int
    """Hash of the conversation, the same in every process: key of the consistent-hashing ring."""
    tokens: int
    """Prompt tokens, estimated."""
    output_tokens: int
    """Completion tokens, expected."""
    adapter: str | None = None
    rendered_bytes: int = 0
    """Length of the whole rendered prompt in bytes; 0 when it was cut off, so that `blocks` do not cover all of it."""
    waited_s: float = 0.0
    """Seconds for which it waited at the gateway for the fleet to have room."""
    version: str = ""
    """The version that began the answer, where the request asks for the rest of it; empty otherwise."""


class ReplicaChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The replica chosen for a request, and the reason."""

    replica: str
    why: Why
    """`prefix`: most of the prompt is cached there; `adapter`: it has the LoRA adapter; `ring`: consistent hashing;
    `load`: the least loaded of those compared; `only`: there was no other candidate."""
    matched_tokens: int
    """Prompt tokens believed to be cached there."""
    other_version: bool = False
    """True when a rollout meant another version for the conversation, which no replica could serve now."""


class PoolRoom(msgspec.Struct, frozen=True):
    """The room of a pool for one more request."""

    wait_s: float
    """Expected seconds until its prompt would be read."""
    fill: float
    """The share of the room that is taken at the replica that has most; from 1 on all are full."""


class PoolReading(msgspec.Struct, frozen=True):
    """The reading of prompts at a pool's replicas."""

    clear: int
    """Lines whose prompts may be read by replicas that have read all that they have."""
    wait_s: float
    """Expected seconds until the first replica has; 0 where one has already."""


class PoolFullness(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a pool whose replicas are all full, for the refusal sent to the caller."""

    pool: str
    running: int
    waiting: int
    """Requests in the engines' own queues."""
    kv_tokens: int
    """Total KV cache capacity of the replicas that take requests, in tokens; a replica that does not report it counts
    as `room.tokens`."""
    retry_after_s: float
