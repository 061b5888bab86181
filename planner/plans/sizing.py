"""Sizing of one replica: memory, requests per second, and latency, by queueing theory.

The engine is taken as a server that works in steps. At a rate of arrivals there is one length of step at which as much
is finished as arrives; that step is the mean time per output token. A prompt waits for those before it (M/G/1, since
chunked prefill works on prompts one after another) and for a free place among the running sequences (M/G/k after Allen
and Cunneen, k being the concurrency). Arrivals are Poisson at each replica, as if they were sent there blindly; a
balancer that looks at queues does better, so these waits are on the safe side.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from planner.plans.gpus import Gpu
from planner.plans.models import KvPrecision, ModelShape, Precision
from planner.plans.plan_errors import PlanRefused
from planner.plans.roofline import StepTimes, pairs

BLOCK_TOKENS: Final = 16
"""Tokens in vLLM's block of the KV cache."""
MEMORY_UTILISATION: Final = 0.92
"""Default of vLLM's `--gpu-memory-utilization`."""
RESERVE_BYTES: Final = 2**30
"""Bytes per GPU for NCCL's buffers and what else the engine takes before it counts its blocks; contexts and captured graphs are in what
`MEMORY_UTILISATION` leaves. Qwen3 32B in bf16 with 32,768 tokens on one A100 of 80 GB, as GPUStack serves it, leaves no more
than 2.0 GB at 90 %. vLLM logs what is left when it starts."""

MOST_SEQUENCES: Final = 1_024
_BUDGETS: Final = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
_FEW: Final = 16
_STEPS: Final = 60
_Z99: Final = 2.326
_TAIL: Final = 0.01


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory budget of one replica in bytes, over all its GPUs except where it says otherwise."""

    gpus: int
    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    reserve_bytes: int
    adapter_bytes: int
    kv_bytes: int
    """Bytes left for the KV cache; negative when not even the rest fits."""
    kv_bytes_per_token: int
    kv_tokens: int
    """The most resident tokens, in whole blocks."""


def memory_of(
    model: ModelShape,
    gpu: Gpu,
    *,
    tp: int,
    pp: int = 1,
    dp: int = 1,
    precision: Precision = "bf16",
    kv_precision: KvPrecision = "bf16",
    utilisation: float = MEMORY_UTILISATION,
    reserve_bytes: int = RESERVE_BYTES,
    batched_tokens: int = 8_192,
    sequences: int = 256,
    adapters: int = 0,
    adapter_rank: int = 16,
) -> Memory:
    """Compute the memory budget of a replica on `pp` stages of `tp` GPUs, or on `dp` ranks of as many that share the experts."""
    gpus = tp * pp * dp
    usable = math.floor(gpu.memory_bytes * utilisation) * gpus
    routed = model.routed_bytes(precision)
    weights = routed + (model.weight_bytes(precision) - routed) * dp
    activations = activation_bytes(model, tp, batched_tokens, sequences) * gpus
    # Each rank has its own copy.
    loras = adapters * adapter_bytes(model, adapter_rank) * dp
    left = usable - weights - activations - reserve_bytes * gpus - loras
    per_gpu = model.kv_bytes_per_token_per_gpu(kv_precision, tp)
    fitting = max(0, left) / tp / per_gpu
    return Memory(
        gpus=gpus,
        usable_bytes=usable,
        weight_bytes=weights,
        activation_bytes=activations,
        reserve_bytes=reserve_bytes * gpus,
        adapter_bytes=loras,
        kv_bytes=left,
        kv_bytes_per_token=model.kv_bytes_per_token(kv_precision),
        kv_tokens=math.floor(fitting / BLOCK_TOKENS) * BLOCK_TOKENS,
    )


def indivisible(model: ModelShape, tp: int) -> str | None:
    """Return why a model cannot be divided over so many GPUs; None where it can."""
    if model.heads % tp:
        return f"{model.heads} heads cannot be divided by {tp}"
    if model.latent_values is None and model.kv_heads % tp:
        return f"{model.kv_heads} KV heads cannot be divided by {tp}, so some would be kept more than once"
    return None


def activation_bytes(model: ModelShape, tp: int, batched_tokens: int, sequences: int) -> int:
    """Return the bytes that one GPU needs for a full step: some hidden states, one feed-forward block, and the logits."""
    inner = 2 * model.intermediate * model.active_experts / tp
    return math.ceil(batched_tokens * (6 * model.hidden + inner) * 2 + sequences * model.vocabulary * 4)


def adapter_bytes(model: ModelShape, rank: int) -> int:
    """Return the bytes of a LoRA adapter on every matrix of every layer, in bf16."""
    attention = 2 * (model.hidden + model.head_dim * model.heads) + 2 * (model.hidden + model.head_dim * model.kv_heads)
    feed_forward = 3 * (model.hidden + model.intermediate)
    return 2 * rank * model.layers * (attention + feed_forward * model.experts)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The mean request, and the variation between requests."""

    input_tokens: int
    output_tokens: int
    prefix_hit_rate: float = 0.0
    variation: float = 0.5
    """Coefficient of variation of the lengths: standard deviation by mean."""

    @property
    def cached(self) -> float:
        return self.input_tokens * self.prefix_hit_rate

    @property
    def uncached(self) -> float:
        # The last block of a prompt is always computed, since its logits are needed.
        return max(1.0, self.input_tokens - self.cached)

    @property
    def whole(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def resident(self) -> float:
        """Resident tokens of a running sequence, as a mean over its life."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def pairs(self) -> float:
        return pairs(self.uncached, self.cached)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduler limits: vLLM's `--max-num-seqs` and `--max-num-batched-tokens`."""

    sequences: int
    batched_tokens: int


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """Latency targets at the 99th percentile; None promises nothing."""

    ttft_p99_s: float | None = None
    tpot_p99_s: float | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The operating point of one replica at one rate of arrivals."""

    rate: float
    """Requests per second."""
    running: float
    """Mean number of sequences that generate."""
    kv_use: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_s: float
    tpot_p99_s: float
    stall_s: float
    """Seconds of the longest step, full of prompts, in which no stream of this replica moves."""

    def meets(self, targets: Targets) -> bool:
        late = targets.ttft_p99_s is not None and self.ttft_p99_s > targets.ttft_p99_s
        slow = targets.tpot_p99_s is not None and self.tpot_p99_s > targets.tpot_p99_s
        return not (late or slow)


def limits_for(times: StepTimes, work: Work, kv_tokens: int, targets: Targets) -> Limits | None:
    """Return the scheduler limits with as many sequences as the cache holds at full length and the target allows; None
    when not even one does.

    A step holds as many tokens of prompts as can be computed without holding up streams for longer than a quarter of a
    second, or five tokens' time where that was promised.
    """
    most = min(MOST_SEQUENCES, kv_tokens // max(1, work.whole))
    if targets.tpot_p99_s is not None:
        most = _largest(
            most, lambda batch: times.decode_step_s(batch, batch * work.resident) <= (targets.tpot_p99_s or 0)
        )
    if most < 1:
        return None
    if most >= _FEW:
        most -= most % 8
    stall_s = 0.25 if targets.tpot_p99_s is None else 5 * targets.tpot_p99_s
    fitting = [each for each in _BUDGETS if times.prefill_s(each) <= stall_s]
    budget = max([_BUDGETS[0], *fitting])
    while budget < 2 * most and budget < _BUDGETS[-1]:
        budget *= 2
    return Limits(sequences=most, batched_tokens=budget)


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` for which `holds`, which must hold for all smaller ones too; 0 when for none."""
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def operate(times: StepTimes, work: Work, limits: Limits, kv_tokens: int, rate: float) -> Operation | None:
    """Return the operating point at `rate` requests per second; None when the replica cannot keep up."""
    step_s = _steady_step(times, work, limits, kv_tokens, rate)
    if step_s is None:
        return None
    running = rate * work.output_tokens * step_s
    batch = max(1.0, running)
    room = limits.batched_tokens - running
    share = work.pairs / work.uncached
    resident = batch * work.resident
    full_s = times.step_s(prefill_tokens=room, pairs=room * share, batch=batch, kv_tokens=resident)
    service_s = work.uncached * full_s / room
    busy = rate * service_s
    if busy >= 1:
        return None
    waits = [
        _Wait.behind(service_s, busy, work.variation),
        _Wait.for_place(work, limits, kv_tokens, running, step_s * work.output_tokens),
    ]
    own = _own(times, work, room, full_s, batch)
    residual = _Wait(mean=step_s / 2, median=step_s / 2, high=step_s)
    outside = _Wait(mean=times.request_s, median=times.request_s, high=times.request_s)
    parts = [*waits, own, residual, outside]
    mean_s = sum(part.mean for part in parts)
    return Operation(
        rate=rate,
        running=running,
        kv_use=running * work.resident / kv_tokens,
        ttft_p50_s=sum(part.median for part in parts),
        ttft_p99_s=mean_s + math.sqrt(sum((part.high - part.mean) ** 2 for part in parts)),
        tpot_s=step_s,
        tpot_p99_s=max(step_s, _slow_step(times, work, limits, rate, step_s)),
        stall_s=full_s,
    )


def _steady_step(times: StepTimes, work: Work, limits: Limits, kv_tokens: int, rate: float) -> float | None:
    """Return the seconds of the steady step, in which as much is done as arrives meanwhile; None when there is none."""
    arriving, generating = rate * work.uncached, rate * work.output_tokens
    places = min(limits.sequences, kv_tokens / work.resident)
    # Beyond this there would be more sequences than places, or more tokens than a step takes.
    longest_s = min(places / generating, limits.batched_tokens / (arriving + generating))

    def taken(step_s: float) -> float:
        batch = max(1.0, generating * step_s)
        return times.mean_step_s(
            prefill_tokens=arriving * step_s,
            pairs=rate * work.pairs * step_s,
            batch=batch,
            kv_tokens=batch * work.resident,
            chunk=_chunk(work, limits, batch),
        )

    if taken(longest_s) > longest_s:
        return None
    low, high = 0.0, longest_s
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle) > middle else (low, middle)
    return high


def _slow_step(times: StepTimes, work: Work, limits: Limits, rate: float, step_s: float) -> float:
    """Return the mean step in seconds of the slowest request in a hundred: it has more neighbours, and more prompts
    during its answer.
    """
    running = rate * work.output_tokens * step_s
    batch = min(float(limits.sequences), max(1.0, running + _Z99 * math.sqrt(running)))
    prompts = max(rate * step_s * work.output_tokens, 1e-9)
    more = 1 + _Z99 * math.sqrt((1 + work.variation**2) / prompts)
    arriving = min(rate * work.uncached * step_s * more, max(0.0, limits.batched_tokens - batch))
    return times.mean_step_s(
        prefill_tokens=arriving,
        pairs=arriving * work.pairs / work.uncached,
        batch=batch,
        kv_tokens=batch * work.resident,
        chunk=_chunk(work, limits, batch),
    )


def _chunk(work: Work, limits: Limits, batch: float) -> float:
    """Return the tokens of a prompt that one step takes: all, or what the running sequences leave of its budget."""
    return max(1.0, min(work.uncached, limits.batched_tokens - batch))


class _Wait(msgspec.Struct, frozen=True):
    """One part of the time to the first token: its mean and percentiles, in seconds."""

    mean: float
    median: float
    high: float
    """99th percentile."""

    @classmethod
    def exponential(cls, chance: float, scale_s: float) -> "_Wait":
        """Return a wait that occurs with `chance`, and then is exponential with mean `scale_s`."""
        if chance <= 0:
            return cls(0.0, 0.0, 0.0)
        return cls(
            chance * scale_s,
            scale_s * max(0.0, math.log(chance / 0.5)),
            scale_s * max(0.0, math.log(chance / _TAIL)),
        )

    @classmethod
    def behind(cls, service_s: float, busy: float, variation: float) -> "_Wait":
        """Return the wait for earlier prompts: M/G/1."""
        return cls.exponential(busy, service_s * (1 + variation**2) / 2 / (1 - busy))

    @classmethod
    def for_place(cls, work: Work, limits: Limits, kv_tokens: int, running: float, answer_s: float) -> "_Wait":
        """Return the wait for a place among the running sequences: M/G/k."""
        places = max(1, min(limits.sequences, math.floor(kv_tokens / work.resident)))
        if running >= places:
            return cls.exponential(1.0, answer_s)
        scale_s = answer_s * (1 + work.variation**2) / 2 / (places - running)
        return cls.exponential(erlang_c(places, running), scale_s)


def erlang_c(places: int, load: float) -> float:
    """Return Erlang's C formula: probability that all `places` are taken when `load` of them are on average."""
    blocked = 1.0
    for used in range(1, places + 1):
        blocked = load * blocked / (used + load * blocked)
    return blocked / (1 - load / places * (1 - blocked))


def _own(times: StepTimes, work: Work, room: float, full_s: float, batch: float) -> _Wait:
    """Return the request's own prefill. Lengths are taken as log-normal, which gives their 99th percentile from the mean and
    variation.
    """
    sigma2 = math.log(1 + work.variation**2)

    def prefill(tokens: float) -> float:
        steps, rest = divmod(tokens, room)
        last_s = times.step_s(
            prefill_tokens=rest,
            pairs=rest * work.pairs / work.uncached,
            batch=batch,
            kv_tokens=batch * work.resident,
        )
        return steps * full_s + last_s

    longest = work.uncached * math.exp(_Z99 * math.sqrt(sigma2) - sigma2 / 2)
    return _Wait(
        prefill(work.uncached),
        prefill(work.uncached * math.exp(-sigma2 / 2)),
        max(prefill(longest), prefill(work.uncached)),
    )


def most_rate(times: StepTimes, work: Work, limits: Limits, kv_tokens: int, targets: Targets) -> float:
    """Return the most requests per second at which the targets are met; 0 when they never are. Raises PlanRefused when there
    is no bound.
    """

    def holds(rate: float) -> bool:
        found = operate(times, work, limits, kv_tokens, rate)
        return found is not None and found.meets(targets)

    low, high = 1e-6, 1.0
    if not holds(low):
        return 0.0
    while holds(high):
        low, high = high, high * 2
        if high > 1e9:  # noqa: PLR2004 - no replica answers a billion requests a second
            raise PlanRefused("these figures have no bound; are the tokens of a request right?")
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
