"""Roofline model of one step of a continuously batching engine, for the planner and the simulator.

A step computes the next token of every running sequence and some tokens of prompts. Its matrices take the longer of
reading the weights and multiplying them; attention of prompts is computed, attention of running sequences is reading
their keys and values; tensor parallelism adds two all-reduces a layer; and the host needs a moment for every step.

    step = host + 2 x layers x latency + max(weights / bandwidth, operations / rate)
         + prompt attention / rate + resident KV / bandwidth + all-reduced bytes / link

The rates are what the data sheet says times an `Efficiency`, which says where its factors come from.
"""

from typing import Final

import msgspec

from selfhosted.offline.plans.gpus import Gpu
from selfhosted.offline.plans.models import KvPrecision, ModelShape, Precision
from selfhosted.offline.plans.plan_errors import PlanRefused


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of a data sheet's rates that an engine reaches, and its fixed times."""

    name: str
    compute: float
    bandwidth: float
    link: float
    host_s: float
    """Seconds for every step: scheduling and launching."""
    sequence_s: float
    """Seconds for every running sequence of a step: sampling, and handing out its token."""
    all_reduce_s: float
    """Latency in seconds of an all-reduce of next to nothing."""
    source: str


EFFICIENCIES: Final[dict[str, Efficiency]] = {
    each.name: each
    for each in (
        Efficiency(
            name="vllm",
            compute=0.21,
            bandwidth=0.8,
            link=0.7,
            host_s=0.0022,
            sequence_s=62e-6,
            all_reduce_s=25e-6,
            source="bandwidth, host and all-reduce follow vLLM's own latency tests of 2024 (batch 8, 32 in, 128 out: Llama 8B, "
            "70B TP=4 and Mixtral TP=2 in bf16 on H100 and H200), which they meet within 10 %; compute and the cost of a "
            "sequence are the ceiling's with 0.4 of its pace, so that a full replica reaches half of NVIDIA's ceilings, the "
            "upper end of what is published of vLLM (0.2 to 0.5). Newer versions may well be faster: measure yours",
        ),
        Efficiency(
            name="ceiling",
            compute=0.53,
            bandwidth=0.8,
            link=0.7,
            host_s=0.0022,
            sequence_s=25e-6,
            all_reduce_s=8e-6,
            source="compute and the cost of a sequence are fitted to NVIDIA's eight figures of TensorRT-LLM 1.0 (Llama 3.3 70B "
            "FP8 on two H100, no latency objective), which they meet within 21 % each and 10 % in the root mean square",
        ),
    )
}


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The step time of one replica as coefficients, in seconds. Cheap enough for every step of a simulation."""

    fixed_s: float
    """For every step, however little it does."""
    weights_s: float
    """Reading the weights that every token needs."""
    experts_s: float
    """Reading all experts; a step reads those that its tokens chose."""
    expert_share: float
    """Fraction of the experts that one token chooses; 1 in a dense model."""
    linear_s: float
    """Matrix multiplication, per token."""
    reduce_s: float
    """All-reduces, per token."""
    pair_s: float
    """Attention of a prompt's token to one token before it."""
    kv_s: float
    """Reading one resident token's keys and values."""
    sequence_s: float = 0.0
    """Sampling, and handing out the token, per running sequence."""

    def step_s(self, *, prefill_tokens: float = 0, pairs: float = 0, batch: float = 0, kv_tokens: float = 0) -> float:
        """Seconds of one step with `prefill_tokens` of prompts, which attend to `pairs` tokens in sum, and one token of
        each of `batch` sequences, which have `kv_tokens` resident in sum.
        """
        tokens = prefill_tokens + batch
        if tokens <= 0:
            return 0.0
        weights_s = self.weights_s
        if self.experts_s:
            weights_s += self.experts_s * (1 - (1 - self.expert_share) ** tokens)
        return (
            self.fixed_s
            + max(weights_s, self.linear_s * tokens)
            + self.reduce_s * tokens
            + self.pair_s * pairs
            + self.kv_s * kv_tokens
            + self.sequence_s * batch
        )

    def prefill_s(self, tokens: float, context: float = 0) -> float:
        """Seconds of a step that only prefills `tokens`, behind `context` tokens that are cached or were computed
        before.
        """
        return self.step_s(prefill_tokens=tokens, pairs=pairs(tokens, context), kv_tokens=context)

    def decode_step_s(self, batch: float, kv_tokens: float) -> float:
        """Seconds of a step that only generates: one token for each of `batch` sequences with `kv_tokens` resident in
        sum.
        """
        return self.step_s(batch=batch, kv_tokens=kv_tokens)


def pairs(tokens: float, context: float = 0) -> float:
    """Number of pairs of a token and one that it attends to, for `tokens` of one prompt behind `context` others: tokens
    x context + tokens x (tokens + 1) / 2.
    """
    return tokens * context + tokens * (tokens + 1) / 2


def step_times(
    model: ModelShape,
    gpu: Gpu,
    *,
    tp: int,
    precision: Precision = "bf16",
    kv_precision: KvPrecision = "bf16",
    efficiency: Efficiency | str = "vllm",
) -> StepTimes:
    """Computes the coefficients of one replica of `model` on `tp` GPUs."""
    reached = efficiency_named(efficiency) if isinstance(efficiency, str) else efficiency
    bandwidth = gpu.bandwidth * reached.bandwidth
    rate = gpu.flops(precision) * reached.compute * tp
    attention_rate = gpu.bf16_flops * reached.compute * tp
    # The embedding is looked up, not multiplied: a step reads one row of it per token.
    lookup = 0 if model.tied_embeddings else 2 * model.vocabulary * model.hidden
    read = model.weight_bytes(precision) - lookup
    inner = model.parameters - model.embedding_parameters
    routed = model.routed_parameters / inner * (model.weight_bytes(precision) - 2 * model.embedding_parameters)
    # A ring passes 2 (n - 1) / n of the bytes out of each GPU, and as much in.
    passed = 2 * 2 * model.layers * model.hidden * 2 * (tp - 1) / tp
    reduce_s = 0.0 if tp == 1 else passed / (gpu.link / 2 * reached.link)
    latency_s = 0.0 if tp == 1 else 2 * model.layers * reached.all_reduce_s
    return StepTimes(
        fixed_s=reached.host_s + latency_s,
        weights_s=(read - routed) / (bandwidth * tp),
        experts_s=routed / (bandwidth * tp),
        expert_share=model.active_experts / model.experts,
        linear_s=2 * model.active_parameters / rate,
        reduce_s=reduce_s,
        pair_s=4 * model.layers * model.heads * model.head_dim / attention_rate,
        kv_s=model.kv_bytes_per_token_per_gpu(kv_precision, tp) / bandwidth,
        sequence_s=reached.sequence_s,
    )


def efficiency_named(name: str) -> Efficiency:
    if name not in EFFICIENCIES:
        raise PlanRefused(f"`{name}` is no efficiency; there are {', '.join(EFFICIENCIES)}")
    return EFFICIENCIES[name]
