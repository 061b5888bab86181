"""The planner: from a question (model, GPU, load, targets) to replicas, flags and dollars. Pure."""

import math
from decimal import Decimal
from typing import Final

import msgspec

from selfhosted.offline.plans.caveats import doubts_about
from selfhosted.offline.plans.comparators import Comparator
from selfhosted.offline.plans.economics import SAVINGS_TARGET, Cost, cost_of
from selfhosted.offline.plans.gpus import Gpu
from selfhosted.offline.plans.launch import Launch, launch_of
from selfhosted.offline.plans.models import KvPrecision, ModelShape, Precision
from selfhosted.offline.plans.plan_errors import PlanRefused
from selfhosted.offline.plans.roofline import Efficiency, StepTimes, step_times
from selfhosted.offline.plans.sizing import (
    MEMORY_UTILISATION,
    Limits,
    Memory,
    Operation,
    Targets,
    Work,
    limits_for,
    memory_of,
    most_rate,
    operate,
)
from selfhosted.offline.plans.speculation import Profile, Speculation, speculation_for

_MOST_REPLICAS: Final = 10_000_000
_DEARER: Final = 1.5
_SLOW_LINK: Final = 100e9
_USUAL_CONTEXT: Final = 8_192
_HEADROOM: Final = 0.9
"""Largest planned fraction of a replica's full rate: nearer to it every wait grows without a bound."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The question: the model, the GPU, the load and the latency targets."""

    model: ModelShape
    gpu: Gpu
    requests_per_s: float
    work: Work
    targets: Targets
    efficiency: Efficiency
    precision: Precision | None = None
    """Weight precision; None: FP8 where the GPU has units for it, else bf16."""
    kv_precision: KvPrecision | None = None
    """KV cache precision; None: as wide as the weights, but not narrower than FP8."""
    tp: int | None = None
    """Tensor parallelism; None: the smallest that fits and meets the targets."""
    usd_per_gpu_hour: Decimal | None = None
    """Dollars per GPU-hour; None: the GPU table's price, where it has one."""
    overhead: Decimal = Decimal(1)
    max_context: int | None = None
    memory_utilisation: float = MEMORY_UTILISATION
    comparators: tuple[Comparator, ...] = ()
    saving: Decimal = SAVINGS_TARGET
    batch: bool = False
    """True for batch work, which other providers sell at half the price."""
    profile: Profile = "auto"
    draft: str | None = None
    adapters: int = 0
    adapter_rank: int = 16
    kv_events_port: int | None = None
    spare: int = 0
    tokens_per_gpu: float | None = None
    """Measured tokens per second and GPU, prompt and completion together, instead of the roofline's."""
    weights: str | None = None
    """Repository or folder to serve, where it is not the model's usual one."""
    given_kv_bytes: int | None = None
    """KV cache bytes per token as a document states them, to be checked."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One degree of tensor parallelism, with what it achieves."""

    tp: int
    memory: Memory
    limits: Limits | None
    rate: float
    """Requests per second that one replica carries within the targets."""
    full_rate: float
    """Requests per second that one replica carries when latency does not matter."""
    replicas: int | None
    gpus: int | None
    obstacle: str | None
    """Reason why it is not possible; None when it is."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Replica-seconds per million tokens, by kind of token."""

    input: float
    cached_input: float
    output: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question."""

    model: ModelShape
    gpu: Gpu
    requests_per_s: float
    work: Work
    targets: Targets
    efficiency: Efficiency
    precision: Precision
    kv_precision: KvPrecision
    max_context: int
    tp: int
    memory: Memory
    limits: Limits
    concurrency: int
    """The most sequences that run at once in one replica, limited by cache and by target."""
    replicas: int
    spare: int
    gpus: int
    throughput_source: str
    full_rate: float
    """Requests per second that one replica carries when latency does not matter."""
    seconds_per_million: Weights
    """Seconds that a full replica takes for a million tokens of each kind: `cost.pools` divides its hours by them."""
    operation: Operation | None
    """One replica at the planned load; None where measured tokens stand in for the roofline and contradict it."""
    candidates: tuple[Candidate, ...]
    speculation: Speculation
    cost: Cost | None
    """The cost; None when no price is known for these GPUs."""
    launch: Launch
    reasons: dict[str, str]
    warnings: tuple[str, ...]


def plan(question: Question) -> Plan:
    """Plans the smallest division of the model that fits and meets the targets, and as many replicas as the load needs.
    Raises PlanRefused.
    """
    precision = question.precision or ("fp8" if question.gpu.fp8_flops is not None else "bf16")
    kv_precision = question.kv_precision or ("fp8" if precision == "fp8" else "bf16")
    max_context = _context(question)
    tried = [
        _candidate(question, tp, precision, kv_precision, max_context)
        for tp in ([question.tp] if question.tp is not None else _divisions(question))
    ]
    chosen = _smallest(tried)
    if chosen is None or chosen.limits is None or chosen.replicas is None:
        told = "; ".join(f"TP={each.tp}: {each.obstacle}" for each in tried)
        raise PlanRefused(f"{question.model.name} on {question.gpu.name} cannot do this: {told}")
    times = _times(question, chosen.tp, precision, kv_precision)
    replicas = chosen.replicas + question.spare
    gpus = replicas * chosen.tp
    operation = operate(
        times, question.work, chosen.limits, chosen.memory.kv_tokens, question.requests_per_s / chosen.replicas
    )
    guessing = speculation_for(
        times,
        question.work,
        running=0.0 if operation is None else operation.running,
        rate=0.0 if operation is None else operation.rate,
        step_s=0.0 if operation is None else operation.tpot_s,
        profile=question.profile,
        draft=question.draft,
    )
    cost = _cost(question, chosen, replicas)
    return Plan(
        model=question.model,
        gpu=question.gpu,
        requests_per_s=question.requests_per_s,
        work=question.work,
        targets=question.targets,
        efficiency=question.efficiency,
        precision=precision,
        kv_precision=kv_precision,
        max_context=max_context,
        tp=chosen.tp,
        memory=chosen.memory,
        limits=chosen.limits,
        concurrency=chosen.limits.sequences,
        replicas=replicas,
        spare=question.spare,
        gpus=gpus,
        throughput_source=_source(question),
        full_rate=chosen.full_rate,
        seconds_per_million=_weights(question, times, chosen.full_rate),
        operation=operation,
        candidates=tuple(tried),
        speculation=guessing,
        cost=cost,
        launch=launch_of(
            repository=question.weights or question.model.repository,
            served_name=question.model.name,
            tp=chosen.tp,
            precision=precision,
            kv_precision=kv_precision,
            quantised=question.weights is not None,
            max_context=max_context,
            limits=chosen.limits,
            memory_utilisation=question.memory_utilisation,
            speculative=guessing.config,
            adapters=question.adapters,
            adapter_rank=question.adapter_rank,
            kv_events_port=question.kv_events_port,
        ),
        reasons=_reasons(question, chosen, precision, kv_precision, max_context),
        warnings=(
            *doubts_about(question.model, question.given_kv_bytes),
            *_warnings(question, chosen, precision, kv_precision, tried, replicas),
        ),
    )


def _smallest(tried: list[Candidate]) -> Candidate | None:
    """The smallest possible division, as it loses the least when one replica fails, unless it needs far more GPUs in
    all.
    """
    counts = [each.gpus for each in tried if each.gpus is not None]
    return next((each for each in tried if each.gpus is not None and each.gpus <= _DEARER * min(counts)), None)


def _context(question: Question) -> int:
    most, whole = question.model.max_context, question.work.whole
    if whole > most:
        raise PlanRefused(f"{question.model.name} takes {most:,} tokens, and a request has {whole:,}")
    if question.max_context is None:
        return min(most, max(_USUAL_CONTEXT, 1 << (2 * whole - 1).bit_length()))
    if not whole <= question.max_context <= most:
        raise PlanRefused(f"--max-context is from {whole:,}, one mean request, to {most:,}, what the model takes")
    return question.max_context


def _divisions(question: Question) -> list[int]:
    """Degrees of tensor parallelism that stay within a node and divide the KV heads, so that no head is kept twice."""
    model, most = question.model, question.gpu.per_node
    found = [tp for tp in (1, 2, 4, 8) if tp <= most and not _indivisible(model, tp)]
    return found or [1]


def _indivisible(model: ModelShape, tp: int) -> str | None:
    if model.heads % tp:
        return f"{model.heads} heads cannot be divided by {tp}"
    if model.latent_values is None and model.kv_heads % tp:
        return f"{model.kv_heads} KV heads cannot be divided by {tp}, so some would be kept more than once"
    return None


def _times(question: Question, tp: int, precision: Precision, kv_precision: KvPrecision) -> StepTimes:
    return step_times(
        question.model,
        question.gpu,
        tp=tp,
        precision=precision,
        kv_precision=kv_precision,
        efficiency=question.efficiency,
    )


def _candidate(
    question: Question, tp: int, precision: Precision, kv_precision: KvPrecision, max_context: int
) -> Candidate:
    def memory(limits: Limits) -> Memory:
        return memory_of(
            question.model,
            question.gpu,
            tp=tp,
            precision=precision,
            kv_precision=kv_precision,
            utilisation=question.memory_utilisation,
            batched_tokens=limits.batched_tokens,
            sequences=limits.sequences,
            adapters=question.adapters,
            adapter_rank=question.adapter_rank,
        )

    times = _times(question, tp, precision, kv_precision)
    # What a step may hold depends on the room, and the room a little on the step: two rounds are enough.
    guess = memory(Limits(sequences=256, batched_tokens=2_048))
    limits = limits_for(times, question.work, guess.kv_tokens, question.targets)
    exact = guess if limits is None else memory(limits)
    obstacle = _obstacle(question, tp, exact, max_context)
    if obstacle is None and limits is None:
        obstacle = f"even one stream takes longer than {question.targets.tpot_p99_s} s a token"
    rate = full = 0.0
    if obstacle is None and limits is not None:
        rate, full, obstacle = _rates(question, times, limits, exact, tp)
    replicas = None if obstacle is not None else max(1, math.ceil(question.requests_per_s / rate - 1e-9))
    if replicas is not None and replicas > _MOST_REPLICAS:
        raise PlanRefused(f"that would be {replicas:,} replicas; is --qps right?")
    return Candidate(
        tp=tp,
        memory=exact,
        limits=limits,
        rate=rate,
        full_rate=full,
        replicas=replicas,
        gpus=None if replicas is None else (replicas + question.spare) * tp,
        obstacle=obstacle,
    )


def _obstacle(question: Question, tp: int, memory: Memory, max_context: int) -> str | None:
    if tp > question.gpu.per_node:
        return f"a node has {question.gpu.per_node} GPUs, and tensor parallelism over a network is slow"
    odd = _indivisible(question.model, tp)
    if odd is not None:
        return odd
    if memory.kv_bytes <= 0:
        needed = memory.weight_bytes + memory.activation_bytes + memory.reserve_bytes + memory.adapter_bytes
        return f"{_gb(needed)} for weights and work do not fit into the usable {_gb(memory.usable_bytes)}"
    if memory.kv_tokens < max_context:
        return f"the {memory.kv_tokens:,} tokens of cache that are left do not hold one request of {max_context:,}"
    return None


def _rates(
    question: Question, times: StepTimes, limits: Limits, memory: Memory, tp: int
) -> tuple[float, float, str | None]:
    """Requests per second within the targets, and in all; and the obstacle, if any."""
    kv_tokens = memory.kv_tokens
    full = most_rate(times, question.work, limits, kv_tokens, Targets())
    rate = most_rate(times, question.work, limits, kv_tokens, question.targets)
    if question.tokens_per_gpu is not None:
        full = rate = question.tokens_per_gpu * tp / question.work.whole
        return rate, full, None
    if rate > 0:
        return min(rate, _HEADROOM * full), full, None
    alone = operate(times, question.work, limits, kv_tokens, 1e-6)
    if alone is None:
        return 0.0, full, "not even one request at a time is carried"
    alone_ms = alone.tpot_p99_s * 1e3
    return 0.0, full, f"alone, a request waits {alone.ttft_p99_s:.2f} s (p99), then {alone_ms:.0f} ms a token"


def _weights(question: Question, times: StepTimes, full_rate: float) -> Weights:
    """Replica-seconds per million tokens: prompt tokens bear what they add to a step, output tokens the rest of a full
    replica's time.

    Where the rest is less than a fifth, both are scaled alike: measured throughput may be above what the roofline says.
    """
    work = question.work
    each_s = times.linear_s + times.reduce_s + times.pair_s * work.pairs / work.uncached
    share = min(0.8, full_rate * work.uncached * each_s)
    return Weights(
        input=share / (full_rate * work.uncached) * 1e6,
        cached_input=0.0,
        output=(1 - share) / (full_rate * work.output_tokens) * 1e6,
    )


def _source(question: Question) -> str:
    if question.tokens_per_gpu is None:
        return f"roofline with the efficiency `{question.efficiency.name}`"
    return f"{question.tokens_per_gpu:g} tokens a second and GPU, as given"


def _cost(question: Question, chosen: Candidate, replicas: int) -> Cost | None:
    rate = question.gpu.usd_per_hour if question.usd_per_gpu_hour is None else question.usd_per_gpu_hour
    if rate is None:
        return None
    return cost_of(
        gpus=replicas * chosen.tp,
        usd_per_gpu_hour=rate,
        price_source=question.gpu.price_source if question.usd_per_gpu_hour is None else "as given",
        overhead=question.overhead,
        requests_per_s=Decimal(repr(question.requests_per_s)),
        full_requests_per_s=Decimal(repr(chosen.full_rate)) * replicas,
        input_tokens=question.work.input_tokens,
        output_tokens=question.work.output_tokens,
        comparators=question.comparators,
        cached_share=Decimal(repr(question.work.prefix_hit_rate)),
        saving=question.saving,
        batch=question.batch,
    )


def _reasons(
    question: Question, chosen: Candidate, precision: Precision, kv_precision: KvPrecision, max_context: int
) -> dict[str, str]:
    """Explanations of each choice, for people."""
    model, gpu = question.model, question.gpu
    limits = chosen.limits
    shape = (
        f"{model.layers} layers x {model.latent_values} latent values"
        if model.latent_values is not None
        else f"2 x {model.layers} layers x {model.kv_heads} KV heads x {model.head_dim}"
    )
    return {
        "precision": _why_precision(question, precision),
        "kv_precision": "as asked for"
        if question.kv_precision is not None
        else ("as the weights: twice the tokens of bf16" if kv_precision == "fp8" else "as the weights are computed"),
        "kv_bytes_per_token": f"{shape} x {2 if kv_precision == 'bf16' else 1} B",
        "tp": "as asked for"
        if question.tp is not None
        else f"the smallest that fits {gpu.title} and meets the targets, at no more than {_DEARER:g} times the fewest GPUs",
        "max_context": "as asked for"
        if question.max_context is not None
        else f"twice a mean request and at least {_USUAL_CONTEXT:,}, but not beyond the model's {model.max_context:,}"
        if max_context < model.max_context
        else "all that the model takes",
        "max_num_seqs": "what the cache holds at full length, and what the time per output token allows",
        "max_num_batched_tokens": "the largest step that holds no stream up for longer than "
        + ("0.25 s" if question.targets.tpot_p99_s is None else f"five times {question.targets.tpot_p99_s * 1e3:g} ms")
        + (" (at least two tokens a sequence)" if limits is not None else ""),
        "replicas": f"{question.requests_per_s:g} requests/s, {chosen.rate:.3g} a replica within the targets and {_HEADROOM:.0%} of full use"
        + (f", and {question.spare} spare" if question.spare else ""),
    }


def _why_precision(question: Question, precision: Precision) -> str:
    if question.precision is not None:
        return "as asked for"
    if precision == "fp8":
        return f"{question.gpu.name} multiplies FP8 twice as fast, and half the bytes are read"
    return f"{question.gpu.name} has no FP8 units"


def _warnings(
    question: Question,
    chosen: Candidate,
    precision: Precision,
    kv_precision: KvPrecision,
    tried: list[Candidate],
    replicas: int,
) -> list[str]:
    gpu = question.gpu
    told = {
        "one replica is down while it restarts, for minutes; --spare 1 keeps the pool up": replicas == 1,
        f"{gpu.name} has no FP8 units: FP8 weights save memory there, no operations": precision == "fp8"
        and gpu.fp8_flops is None,
        "INT4 needs a checkpoint that was quantised (AWQ or GPTQ): name it with --weights": precision == "int4"
        and question.weights is None,
        "an FP8 cache costs a little accuracy, more without calibrated scales: compare answers before it serves": kv_precision
        == "fp8",
        f"the GPUs of {gpu.title} talk over PCIe: tensor parallelism is slow there": chosen.tp > 1
        and gpu.link < _SLOW_LINK,
        f"that {question.work.prefix_hit_rate:.0%} of prompts are cached is taken as given; without it this is too small": (
            question.work.prefix_hit_rate > 0
        ),
        f"no price is known for {gpu.name}: give --gpu-usd-hour to see dollars": question.usd_per_gpu_hour is None
        and gpu.usd_per_hour is None,
        "experts' weights are read as chosen at random; real routers are less even": question.model.experts > 1,
        "latent attention keeps its whole cache on every GPU of a replica": question.model.latent_values is not None
        and chosen.tp > 1,
    }
    warnings = [text for text, true in told.items() if true]
    cheaper = [each for each in tried if each.gpus is not None and chosen.gpus is not None and each.gpus < chosen.gpus]
    if cheaper:
        best = min(cheaper, key=lambda each: each.gpus or 0)
        warnings.append(f"TP={best.tp} would need {best.gpus} GPUs instead of {chosen.gpus}: --tp {best.tp}")
    warnings += [
        f"{each.title} {each.state}: a saving against it is one against a price that nobody pays for long, or at all"
        for each in question.comparators
        if each.gone or "leaves" in each.state
    ]
    return warnings


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
