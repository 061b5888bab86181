"""Roofline model of one step of a continuously batching engine, for the planner and the simulator.

A step computes the next token of every running sequence and some tokens of prompts. Its matrices take the longer of
reading the weights and multiplying them; attention of prompts is computed, attention of running sequences is reading
their keys and values; tensor parallelism adds two all-reduces a layer; and the host needs a moment for every step.

    step = host + layers x launch + 2 x layers x latency
         + max(weights / bandwidth, prompt operations / rate + answer operations / rate)
         + prompt attention / rate + resident KV / bandwidth + state of the running sequences / bandwidth + exchanged bytes / link

The rates are what the data sheet says times the factors of an `Efficiency`, which are different for prompts, answers and experts. With
data parallelism each rank has a batch of its own, and its experts' weights lie on all ranks; a step is one rank's, and all ranks have as much to do.
"""

from typing import Final

import msgspec

from planner.plans.efficiency import Efficiency, efficiency_named
from planner.plans.gpus import Gpu
from planner.plans.models import KV_BYTES, KvPrecision, ModelShape, Precision

NETWORK: Final = 50e9
"""Bytes/s between two nodes, each way: 400 Gbit/s a GPU, as HGX machines are sold. An assumption."""
_HOP_S: Final = 30e-6
"""Seconds for handing a step to the next stage: an assumption."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The step time of one replica as coefficients, in seconds. Cheap enough for every step of a simulation."""

    fixed_s: float
    """Seconds that every step takes, however little it does."""
    weights_s: float
    """Reading the weights that every token needs."""
    experts_s: float
    """Reading all experts; a step reads those that its tokens chose."""
    expert_share: float
    """Fraction of the experts that one token chooses; 1 in a dense model."""
    prompt_s: float
    """Matrix multiplication, per token of a prompt."""
    answer_s: float
    """Matrix multiplication, per token of an answer."""
    reduce_s: float
    """All-reduces and hand-overs between stages, per token."""
    pair_s: float
    """Attention of a prompt's token to one token before it."""
    kv_s: float
    """Reading one resident token's keys and values."""
    sequence_s: float = 0.0
    """What each running sequence costs whatever its length: its state in layers without keys and values, and sampling."""
    request_s: float = 0.0
    """Seconds of every request outside of the steps."""

    def step_s(self, *, prefill_tokens: float = 0, pairs: float = 0, batch: float = 0, kv_tokens: float = 0) -> float:
        """Return the seconds of one step with `prefill_tokens` of prompts, which attend to `pairs` tokens in sum, and
        one token of each of `batch` sequences, which have `kv_tokens` resident in sum.
        """
        tokens = prefill_tokens + batch
        if tokens <= 0:
            return 0.0
        weights_s = self.weights_s
        if self.experts_s:
            weights_s += self.experts_s * (1 - (1 - self.expert_share) ** tokens)
        return (
            self.fixed_s
            + max(weights_s, self.prompt_s * prefill_tokens + self.answer_s * batch)
            + self.reduce_s * tokens
            + self.pair_s * pairs
            + self.kv_s * kv_tokens
            + self.sequence_s * batch
        )

    def mean_step_s(
        self, *, prefill_tokens: float, pairs: float, batch: float, kv_tokens: float, chunk: float
    ) -> float:
        """Return the mean seconds of steps that have so much to do on average, where prompts come in chunks of `chunk` tokens:
        most steps have none, and only those that have one hide the reading of the weights behind it.
        """
        share = min(1.0, prefill_tokens / chunk) if chunk > 0 else 0.0
        if share == 0:
            return self.step_s(batch=batch, kv_tokens=kv_tokens)
        filled = self.step_s(
            prefill_tokens=prefill_tokens / share, pairs=pairs / share, batch=batch, kv_tokens=kv_tokens
        )
        return share * filled + (1 - share) * self.step_s(batch=batch, kv_tokens=kv_tokens)

    def slower(self, factor: float) -> "StepTimes":
        """Return the same with every step `factor` times as long."""
        longer = {name: getattr(self, name) * factor for name in self.__struct_fields__ if name != "expert_share"}
        return StepTimes(**longer, expert_share=self.expert_share)

    def prefill_s(self, tokens: float, context: float = 0) -> float:
        """Return the seconds of a step that only prefills `tokens`, behind `context` tokens that are cached or were
        computed before.
        """
        return self.step_s(prefill_tokens=tokens, pairs=pairs(tokens, context), kv_tokens=context)

    def decode_step_s(self, batch: float, kv_tokens: float) -> float:
        """Return the seconds of a step that only generates: one token for each of `batch` sequences with `kv_tokens`
        resident in sum.
        """
        return self.step_s(batch=batch, kv_tokens=kv_tokens)


def pairs(tokens: float, context: float = 0) -> float:
    """Return the number of pairs of a token and one that it attends to, for `tokens` of one prompt behind `context` others: tokens
    x context + tokens x (tokens + 1) / 2.
    """
    return tokens * context + tokens * (tokens + 1) / 2


def step_times(
    model: ModelShape,
    gpu: Gpu,
    *,
    tp: int,
    pp: int = 1,
    dp: int = 1,
    precision: Precision = "bf16",
    kv_precision: KvPrecision = "bf16",
    efficiency: Efficiency | str = "vllm",
) -> StepTimes:
    """Compute the coefficients of one replica of `model` on `tp` GPUs, or on `pp` stages of as many each, or of one of `dp` ranks of as
    many each that share the experts and have everything else for themselves.

    With stages it is the time of one of the `pp` batches that are under way at once: it passes all stages one after the
    other, so it takes as long as on `tp` GPUs that hold everything, and the hand-overs on top.
    """
    known = efficiency_named(efficiency) if isinstance(efficiency, str) else efficiency
    reach = known.reach(gpu.name)
    narrow = reach.narrow_read.get(precision, 1.0)
    bandwidth = gpu.bandwidth * reach.weight_read
    rate, wide_rate = gpu.flops(precision), gpu.bf16_flops
    # The embedding is looked up, not multiplied: a step reads one row of it per token.
    lookup = 0 if model.tied_embeddings else 2 * model.vocabulary * model.hidden
    routed = model.routed_bytes(precision)
    read = model.weight_bytes(precision) - lookup - routed
    through_experts = 2 * model.routed_parameters * model.active_experts / model.experts
    through_rest = 2 * model.active_parameters - through_experts
    rest_rate = wide_rate if model.wide_rest else rate
    # A ring passes 2 (n - 1) / n of the bytes out of each GPU, and as much in.
    passed = 2 * 2 * model.layers * model.hidden * 2 * (tp - 1) / tp
    if dp > 1:
        # Each token's hidden state goes to its experts' GPUs and comes back.
        moved = 2 * model.layers * model.hidden * 2 * min(model.active_experts, tp * dp) / tp
        passed += moved * reach.link / reach.exchange
    between = NETWORK if tp * pp * dp > gpu.per_node else gpu.link / 2 * reach.link
    handed_s = (pp - 1) * 2 * model.hidden / between
    together = tp > 1 or dp > 1
    latent = model.latent_values is not None
    kv_read = reach.latent_read if latent else reach.fp8_kv_read if kv_precision == "fp8" else reach.kv_read

    def of(table: dict[str, float]) -> float:
        return table.get(precision, table["bf16"])

    def multiplied_s(dense: float, experts: dict[str, float]) -> float:
        return (through_rest / (rest_rate * dense) + through_experts / (rate * of(experts))) / tp

    state = model.state_values * KV_BYTES["bf16"] * (1 if model.wide_rest else 2)
    return StepTimes(
        fixed_s=known.host_s
        + model.layers * (known.expert_layer_s if model.experts > 1 else known.layer_s)
        + (2 * model.layers * known.all_reduce_s if together else 0.0)
        + (pp - 1) * _HOP_S,
        weights_s=read / (bandwidth * (1.0 if model.wide_rest else narrow) * tp),
        experts_s=routed / (gpu.bandwidth * of(reach.expert_read) * tp * dp),
        expert_share=1 - (1 - model.active_experts / model.experts) ** dp,
        prompt_s=multiplied_s(reach.prefill, reach.expert_prefill),
        answer_s=multiplied_s(reach.decode, reach.expert_decode),
        reduce_s=handed_s + (passed / (gpu.link / 2 * reach.link) if together else 0.0),
        pair_s=4 * model.cached_layers * model.heads * model.head_dim / (wide_rate * reach.attention * tp),
        kv_s=model.kv_bytes_per_token_per_gpu(kv_precision, tp) / (gpu.bandwidth * kv_read),
        sequence_s=(known.expert_sequence_s if model.experts > 1 else known.sequence_s)
        + state / (gpu.bandwidth * reach.kv_read * tp),
        request_s=known.request_s,
    )
