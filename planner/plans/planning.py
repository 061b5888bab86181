"""The planner: from a question (model, GPU, load, targets) to replicas, flags and dollars. Pure."""

import math
from decimal import Decimal
from typing import Any, Final

import msgspec

from cost.shown import percent
from planner.plans.caveats import doubts_about
from planner.plans.comparators import Comparator
from planner.plans.economics import SAVINGS_TARGET, Cost, cost_of
from planner.plans.efficiency import Efficiency
from planner.plans.gpus import Gpu
from planner.plans.launch import KvOffload, Launch, launch_of
from planner.plans.models import KvPrecision, ModelShape, Precision
from planner.plans.plan_errors import PlanRefused
from planner.plans.published import Fit, fit_of
from planner.plans.roofline import StepTimes, step_times
from planner.plans.sizing import (
    MEMORY_UTILISATION,
    Limits,
    Memory,
    Operation,
    Targets,
    Work,
    indivisible,
    limits_for,
    memory_of,
    most_rate,
    operate,
)
from planner.plans.speculation import Profile, Speculation, speculation_for

_MOST_REPLICAS: Final = 10_000_000
_DEARER: Final = 1.2
_SLOW_LINK: Final = 100e9
_STAGED: Final = 2
"""Widest stage that is tried where GPUs talk over PCIe."""
_USUAL_CONTEXT: Final = 8_192
_CHECKPOINTS: Final = {
    "int4": "INT4 needs a checkpoint that was quantised (AWQ or GPTQ): name it with --weights",
    "int8": "INT8 needs a checkpoint that was quantised (W8A8): name it with --weights",
    "fp4": "FP4 needs a checkpoint that was quantised (NVFP4): name it with --weights",
}
_KINDS: Final = {
    "dense": "a dense model",
    "expert": "experts",
    "mla": "latent attention",
    "hybrid": "layers without keys and values",
}
_MARGIN: Final = 0.15
"""Least margin of a cautious plan: the error of the fits where there are many figures."""
_MARGIN_UNKNOWN: Final = 0.3
"""Margin where nobody published a figure of this engine on this GPU: an assumption."""
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
    pp: int | None = None
    """Pipeline stages; None: one, or several where no node holds the model or its GPUs have no fast link."""
    dp: int | None = None
    """Data-parallel ranks that share the experts between them; None: tried where the model keeps latent vectors, which every GPU of a
    tensor-parallel replica would keep whole.
    """
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
    kv_offload_gib: int = 0
    """Main memory of a replica for KV blocks that left the GPUs, in GiB; 0: none. Its cache hits are not part of the
    plan.
    """
    kv_offload: KvOffload = "native"
    spare: int = 0
    tokens_per_gpu: float | None = None
    """Measured tokens per second and GPU, prompt and completion together, instead of the roofline's."""
    margin: float | None = None
    """Part by which every step is taken to be longer; None: the error of the efficiency's fit, and none for the hopeful
    one.
    """
    weights: str | None = None
    """Repository or folder to serve, where it is not the model's usual one."""
    given_kv_bytes: int | None = None
    """KV cache bytes per token as a document states them, to be checked."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to divide the model, with what it achieves."""

    tp: int
    pp: int = 1
    dp: int = 1
    memory: Memory
    limits: Limits | None
    """Limits of one stage's or one rank's batch; a replica has one batch for each stage under way, and for each rank."""
    rate: float
    """Requests per second that one replica carries within the targets."""
    full_rate: float
    """Requests per second that one replica carries when latency does not matter."""
    replicas: int | None
    gpus: int | None
    obstacle: str | None
    """Reason why it is not possible; None when it is."""

    @property
    def layout(self) -> str:
        degrees = (("TP", self.tp), ("PP", self.pp), ("DP", self.dp))
        return " ".join(f"{name}={degree}" for name, degree in degrees if degree > 1 or name == "TP")

    @property
    def batches(self) -> int:
        """Batches that are under way at once."""
        return self.pp * self.dp

    @property
    def replica_gpus(self) -> int:
        return self.tp * self.pp * self.dp


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
    pp: int
    dp: int = 1
    nodes: int
    """Nodes that one replica takes."""
    memory: Memory
    limits: Limits
    concurrency: int
    """The most sequences that run at once in one replica, limited by cache and by target."""
    replicas: int
    spare: int
    gpus: int
    throughput_source: str
    fit: Fit | None
    """The degree to which published figures of this GPU are met; None where none was found, or where tokens were measured."""
    margin: float
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

    def as_json(self) -> dict[str, Any]:
        """Return plain values, with what a reader would otherwise have to work out."""
        plain: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(Decimal,))
        plain["model"]["parameters"] = self.model.parameters
        plain["model"]["active_parameters"] = self.model.active_parameters
        plain["launch"]["command"] = self.launch.command
        return plain


def plan(question: Question) -> Plan:
    """Plan the smallest division of the model that fits and meets the targets, and as many replicas as the load needs.
    Raises PlanRefused.
    """
    precision = _precision(question)
    kv_precision = question.kv_precision or ("fp8" if precision in ("fp8", "fp4") else "bf16")
    max_context = _context(question)
    tried = [_candidate(question, *each, precision, kv_precision, max_context) for each in _layouts(question)]
    chosen = _smallest(tried)
    if chosen is None and question.tp is None and question.pp is None and question.dp is None:
        tried += [_candidate(question, *each, 1, precision, kv_precision, max_context) for each in _nodes(question)]
        chosen = _smallest(tried)
    if chosen is None or chosen.limits is None or chosen.replicas is None:
        told = "; ".join(f"{each.layout}: {each.obstacle}" for each in tried)
        raise PlanRefused(f"{question.model.name} on {question.gpu.name} cannot do this: {told}")
    tp, pp, parts = chosen.tp, chosen.pp, chosen.batches
    times = times_of(question, tp, pp, precision, kv_precision, dp=chosen.dp)
    replicas = chosen.replicas + question.spare
    operation = operate(
        times,
        question.work,
        chosen.limits,
        chosen.memory.kv_tokens // parts,
        question.requests_per_s / chosen.replicas / parts,
    )
    if operation is not None and parts > 1:
        operation = msgspec.structs.replace(operation, rate=operation.rate * parts, running=operation.running * parts)
    limits = msgspec.structs.replace(chosen.limits, sequences=chosen.limits.sequences * pp)
    guessing = speculation_for(
        times,
        question.work,
        running=0.0 if operation is None else operation.running / parts,
        rate=0.0 if operation is None else operation.rate / parts,
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
        tp=tp,
        pp=pp,
        dp=chosen.dp,
        nodes=_nodes_of(question, chosen),
        memory=chosen.memory,
        limits=limits,
        concurrency=limits.sequences * chosen.dp,
        replicas=replicas,
        spare=question.spare,
        gpus=replicas * chosen.replica_gpus,
        throughput_source=_source(question),
        fit=None
        if question.tokens_per_gpu is not None
        else fit_of(question.efficiency, question.gpu.name, question.model.architecture),
        margin=_margin(question),
        full_rate=chosen.full_rate,
        seconds_per_million=_weights(question, times, chosen),
        operation=operation,
        candidates=tuple(tried),
        speculation=guessing,
        cost=cost,
        launch=launch_of(
            repository=question.weights or question.model.repository,
            served_name=question.model.name,
            tp=tp,
            pp=pp,
            dp=chosen.dp,
            nodes=_nodes_of(question, chosen),
            precision=precision,
            kv_precision=kv_precision,
            quantised=question.weights is not None or question.model.quantised is not None,
            max_context=max_context,
            limits=limits,
            memory_utilisation=question.memory_utilisation,
            speculative=guessing.config,
            adapters=question.adapters,
            adapter_rank=question.adapter_rank,
            kv_events_port=question.kv_events_port,
            kv_offload_gib=question.kv_offload_gib,
            kv_offload=question.kv_offload,
        ),
        reasons=_reasons(question, chosen, precision, kv_precision, max_context),
        warnings=(
            *doubts_about(question.model, question.given_kv_bytes),
            *_warnings(question, chosen, precision, kv_precision, tried, replicas),
        ),
    )


def carried(found: Plan, requests_per_s: float) -> int:
    """Return the replicas of a plan, without the spare ones, that carry another rate within its targets."""
    division = (found.tp, found.pp, found.dp)
    chosen = next(
        each for each in found.candidates if (each.tp, each.pp, each.dp) == division and each.obstacle is None
    )
    return max(1, math.ceil(requests_per_s / chosen.rate - 1e-9))


def _smallest(tried: list[Candidate]) -> Candidate | None:
    """Return the smallest possible division, as it loses the least when one replica fails, unless it needs far more GPUs in
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


def _divisions(question: Question) -> list[tuple[int, int]]:
    """Return the degrees of tensor parallelism that stay within a node and divide the KV heads, so that no head is kept
    twice, each with the stages that were asked for. Where GPUs talk over PCIe, stages are tried too: they exchange far
    less.
    """
    model, most = question.model, question.gpu.per_node
    fitting = [tp for tp in (1, 2, 4, 8) if tp <= most and not indivisible(model, tp)] or [1]
    degrees = fitting if question.tp is None else [question.tp]
    if question.pp is not None:
        return [(tp, question.pp) for tp in degrees]
    found = [(tp, 1) for tp in degrees]
    if question.tp is None and question.gpu.link < _SLOW_LINK:
        found += [(tp, pp) for tp in degrees for pp in (2, 4) if tp <= _STAGED and tp * pp <= most]
    return sorted(found, key=lambda each: (each[0] * each[1], each[1]))


def _layouts(question: Question) -> list[tuple[int, int, int]]:
    """Return what is tried: tensor parallelism, stages, and data-parallel ranks. Raises PlanRefused."""
    model, per_node = question.model, question.gpu.per_node
    if question.dp is not None and question.dp > 1 and (model.experts == 1 or (question.pp or 1) > 1):
        raise PlanRefused("--dp is for models with experts, without stages: whole replicas are as good for others")
    ranks = [question.dp] if question.dp is not None else [1]
    if question.dp is None and question.pp is None and model.experts > 1 and model.latent_values is not None:
        ranks += [dp for dp in (2, 4, 8) if dp <= per_node]
    found = [
        (tp, pp, dp)
        for dp in ranks
        for tp, pp in _divisions(question)
        if dp == 1 or (pp == 1 and (tp * dp <= per_node or question.dp is not None))
    ]
    return sorted(found, key=lambda each: (math.prod(each), each[1], each[2]))


def _nodes(question: Question) -> list[tuple[int, int]]:
    """Return whole nodes as stages, for what no node holds."""
    tp = max(tp for tp, _ in _divisions(question))
    return [(tp, stages) for stages in (2, 4) if tp == question.gpu.per_node]


def _nodes_of(question: Question, chosen: Candidate) -> int:
    return math.ceil(chosen.replica_gpus / question.gpu.per_node)


def times_of(
    question: Question, tp: int, pp: int, precision: Precision, kv_precision: KvPrecision, dp: int = 1
) -> StepTimes:
    """Return the step times of a replica that is divided so, or of one of its ranks, the margin included."""
    times = step_times(
        question.model,
        question.gpu,
        tp=tp,
        pp=pp,
        dp=dp,
        precision=precision,
        kv_precision=kv_precision,
        efficiency=question.efficiency,
    )
    return times.slower(1 + _margin(question))


def _margin(question: Question) -> float:
    """Return the part by which steps are taken to be longer than the roofline says."""
    if question.margin is not None:
        return question.margin
    if question.efficiency.hopeful or question.tokens_per_gpu is not None:
        return 0.0
    fit = fit_of(question.efficiency, question.gpu.name, question.model.architecture)
    return _MARGIN_UNKNOWN if fit is None else max(_MARGIN, fit.rms)


def _candidate(
    question: Question, tp: int, pp: int, dp: int, precision: Precision, kv_precision: KvPrecision, max_context: int
) -> Candidate:
    parts = pp * dp

    def memory(limits: Limits) -> Memory:
        return memory_of(
            question.model,
            question.gpu,
            tp=tp,
            pp=pp,
            dp=dp,
            precision=precision,
            kv_precision=kv_precision,
            utilisation=question.memory_utilisation,
            batched_tokens=limits.batched_tokens,
            sequences=limits.sequences,
            adapters=question.adapters,
            adapter_rank=question.adapter_rank,
        )

    times = times_of(question, tp, pp, precision, kv_precision, dp)
    # What a step may hold depends on the room, and the room a little on the step: two rounds are enough.
    guess = memory(Limits(sequences=256, batched_tokens=2_048))
    limits = limits_for(times, question.work, guess.kv_tokens // parts, question.targets)
    exact = guess if limits is None else memory(limits)
    obstacle = _obstacle(question, tp, pp, dp, exact, max_context)
    if obstacle is None and limits is None:
        obstacle = f"even one stream takes longer than {question.targets.tpot_p99_s} s a token"
    rate = full = 0.0
    if obstacle is None and limits is not None:
        rate, full, obstacle = _rates(question, times, limits, exact, tp, parts)
    replicas = None if obstacle is not None else max(1, math.ceil(question.requests_per_s / rate - 1e-9))
    if replicas is not None and replicas > _MOST_REPLICAS:
        # Another division may carry far more: one that meets its targets only while idle does not speak for it.
        replicas, obstacle = None, f"that would be {replicas:,} replicas; is --qps right?"
    return Candidate(
        tp=tp,
        pp=pp,
        dp=dp,
        memory=exact,
        limits=limits,
        rate=rate,
        full_rate=full,
        replicas=replicas,
        gpus=None if replicas is None else (replicas + question.spare) * tp * parts,
        obstacle=obstacle,
    )


def _obstacle(question: Question, tp: int, pp: int, dp: int, memory: Memory, max_context: int) -> str | None:
    if tp * dp > question.gpu.per_node:
        what = (
            "data-parallel ranks on several are not planned" if dp > 1 else "tensor parallelism over a network is slow"
        )
        return f"a node has {question.gpu.per_node} GPUs, and {what}"
    odd = indivisible(question.model, tp)
    if odd is not None:
        return odd
    if pp > question.model.layers:
        return f"{question.model.layers} layers cannot be divided between {pp} stages"
    if memory.kv_bytes <= 0:
        needed = memory.weight_bytes + memory.activation_bytes + memory.reserve_bytes + memory.adapter_bytes
        return f"{_gb(needed)} for weights and work do not fit into the usable {_gb(memory.usable_bytes)}"
    room = memory.kv_tokens // dp
    if room < max_context:
        return f"the {room:,} tokens of cache that are left do not hold one request of {max_context:,}"
    return None


def _rates(
    question: Question, times: StepTimes, limits: Limits, memory: Memory, tp: int, parts: int
) -> tuple[float, float, str | None]:
    """Return the requests per second within the targets, and in all; and the obstacle, if any. Each stage's batch, and each rank,
    has its part of the cache.
    """
    kv_tokens = memory.kv_tokens // parts
    full = parts * most_rate(times, question.work, limits, kv_tokens, Targets())
    rate = parts * most_rate(times, question.work, limits, kv_tokens, question.targets)
    if question.tokens_per_gpu is not None:
        full = rate = question.tokens_per_gpu * tp * parts / question.work.whole
        return rate, full, None
    if rate > 0:
        return min(rate, _HEADROOM * full), full, None
    alone = operate(times, question.work, limits, kv_tokens, 1e-6)
    if alone is None:
        return 0.0, full, "not even one request at a time is carried"
    alone_ms = alone.tpot_p99_s * 1e3
    return 0.0, full, f"alone, a request waits {alone.ttft_p99_s:.2f} s (p99), then {alone_ms:.0f} ms a token"


def _weights(question: Question, times: StepTimes, chosen: Candidate) -> Weights:
    """Return the replica-seconds per million tokens: prompt tokens bear what they add to a step, output tokens the rest
    of a full replica's time.

    Where the rest is less than a fifth, both are scaled alike: measured throughput may be above what the roofline says.
    """
    work, full_rate = question.work, chosen.full_rate
    each_s = times.prompt_s + times.reduce_s + times.pair_s * work.pairs / work.uncached
    share = min(0.8, full_rate / chosen.batches * work.uncached * each_s)
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
        gpus=replicas * chosen.replica_gpus,
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
    """Return the explanations of each choice, for people."""
    model, gpu = question.model, question.gpu
    limits = chosen.limits
    layers = f"{model.cached_layers} layers"
    if model.cached_layers < model.layers:
        layers = f"{model.cached_layers} of {model.layers} layers"
    shape = (
        f"{layers} x {model.latent_values} latent values"
        if model.latent_values is not None
        else f"2 x {layers} x {model.kv_heads} KV heads x {model.head_dim}"
    )
    return {
        "precision": _why_precision(question, precision),
        "kv_precision": "as asked for"
        if question.kv_precision is not None
        else ("as the weights: twice the tokens of bf16" if kv_precision == "fp8" else "as the weights are computed"),
        "kv_bytes_per_token": f"{shape} x {2 if kv_precision == 'bf16' else 1} B"
        + (f", and {layers} x {model.index_bytes} B of the indexer" if model.index_bytes else ""),
        "tp": "as asked for"
        if question.tp is not None
        else f"the smallest that fits {gpu.title} and meets the targets, at no more than {_DEARER:g} times the fewest GPUs",
        "pp": "as asked for"
        if question.pp is not None
        else ("no node holds the model" if _nodes_of(question, chosen) > 1 else "stages exchange less over PCIe"),
        "max_context": "as asked for"
        if question.max_context is not None
        else f"twice a mean request and at least {_USUAL_CONTEXT:,}, but not beyond the model's {model.max_context:,}"
        if max_context < model.max_context
        else "all that the model takes",
        "max_num_seqs": "what the cache holds at full length, and what the time per output token allows",
        "max_num_batched_tokens": "the largest step that holds no stream up for longer than "
        + ("0.25 s" if question.targets.tpot_p99_s is None else f"five times {question.targets.tpot_p99_s * 1e3:g} ms")
        + (" (at least two tokens a sequence)" if limits is not None else ""),
        "replicas": f"{question.requests_per_s:g} requests/s, {chosen.rate:.3g} a replica within the targets and {percent(_HEADROOM, 0)} of full use"
        + (f", and {question.spare} spare" if question.spare else ""),
    }


def _precision(question: Question) -> Precision:
    """Return the precision of the weights. Raises PlanRefused where another one is asked for than the checkpoint has."""
    has = question.model.quantised
    if has is not None and question.weights is None and question.precision not in {None, has}:
        raise PlanRefused(
            f"the weights of {question.model.repository} are {has.upper()} already, and no engine makes {question.precision} of them: leave "
            "--precision out, or name other weights with --weights"
        )
    return question.precision or has or ("fp8" if question.gpu.fp8_flops is not None else "bf16")


def _why_precision(question: Question, precision: Precision) -> str:
    if question.precision is not None:
        return "as asked for"
    if question.model.quantised is not None:
        return "as the checkpoint is"
    if precision == "fp8":
        return f"{question.gpu.name} multiplies FP8 twice as fast, and half the bytes are read"
    return f"{question.gpu.name} has no FP8 units; INT8 weights (--precision int8) would use its INT8 ones"


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
        f"{gpu.name} has no FP4 units: FP4 weights save memory there, no operations": precision == "fp4"
        and gpu.fp4_flops is None,
        _CHECKPOINTS.get(precision, ""): precision in _CHECKPOINTS
        and question.weights is None
        and question.model.quantised is None,
        f"`{question.model.repository}` is a name and no repository: --weights says where `vllm serve` finds the weights": (
            question.weights is None and "/" not in question.model.repository
        ),
        "an FP8 cache costs a little accuracy, more without calibrated scales: compare answers before it serves": kv_precision
        == "fp8",
        f"the GPUs of {gpu.title} talk over PCIe: tensor parallelism is slow there": chosen.tp > 1
        and gpu.link < _SLOW_LINK,
        f"that {percent(question.work.prefix_hit_rate, 0)} of prompts are cached is taken as given; without it this is too small": (
            question.work.prefix_hit_rate > 0
        ),
        f"no price is known for {gpu.name}: give --gpu-usd-hour to see dollars": question.usd_per_gpu_hour is None
        and gpu.usd_per_hour is None,
        "experts' weights are read as chosen at random; real routers are less even": question.model.experts > 1,
        "latent attention keeps its whole cache on every GPU of a tensor-parallel replica": question.model.latent_values
        is not None
        and chosen.tp > 1,
    }
    told |= {
        "a replica of several nodes lives and dies as one, and needs RDMA between them": _nodes_of(question, chosen)
        > 1,
        f"nobody published what this engine does with {_KINDS[question.model.architecture]} on {gpu.name}: its factors are a relative's, so "
        "measure before you buy": (
            question.tokens_per_gpu is None
            and fit_of(question.efficiency, gpu.name, question.model.architecture) is None
        ),
    }
    warnings = [text for text, true in told.items() if true]
    cheaper = [each for each in tried if each.gpus is not None and chosen.gpus is not None and each.gpus < chosen.gpus]
    if cheaper:
        best = min(cheaper, key=lambda each: each.gpus or 0)
        warnings.append(
            f"{best.layout} would need {best.gpus} GPUs instead of {chosen.gpus}: --tp {best.tp} --pp {best.pp}"
            + (f" --dp {best.dp}" if best.dp > 1 else "")
        )
    warnings += [
        f"{each.title} {each.state}: a saving against it is one against a price that nobody pays for long, or at all"
        for each in question.comparators
        if each.gone or "leaves" in each.state
    ]
    return warnings


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
