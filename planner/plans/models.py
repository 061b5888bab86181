"""Model shapes from cards and config.json files, and the bytes and operations that follow from them.

Nothing is rounded here: a model's parameters are counted from its shape, which is how the published totals come about.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from planner.plans.plan_errors import PlanRefused

Precision = Literal["bf16", "fp8", "int8", "int4", "fp4"]
KvPrecision = Literal["bf16", "fp8"]
Architecture = Literal["dense", "expert", "mla", "hybrid"]

KV_BYTES: Final[dict[KvPrecision, int]] = {"bf16": 2, "fp8": 1}

WEIGHT_BITS: Final[dict[Precision, float]] = {
    "bf16": 16,
    "fp8": 8,
    "int8": 8,
    # AWQ and GPTQ at their usual group of 128: 4 bits, and a 16-bit scale and a 4-bit zero point a group.
    "int4": 4 + (16 + 4) / 128,
    # NVFP4: 4 bits, and an 8-bit scale for each 16.
    "fp4": 4 + 8 / 16,
}
"""Bytes per parameter of the matrices within the layers. Embeddings and the output head stay in bf16, as vLLM leaves
them."""

_BF16_BITS: Final = 16


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder-only transformer with gated feed-forward layers, such as Llama and its relatives."""

    name: str
    repository: str
    """Repository of the weights on a hub, as given to `vllm serve`."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Inner width of one feed-forward block; of one expert where there are several."""
    vocabulary: int
    max_context: int
    tied_embeddings: bool = False
    experts: int = 1
    active_experts: int = 1
    shared_experts: int = 0
    expert_layers: int | None = None
    """Layers with experts; None: all. The others are dense."""
    dense_intermediate: int = 0
    """Inner width of the feed-forward block of a dense layer, where others have experts."""
    matrices: int = 3
    """Matrices of a feed-forward block: 3 with a gate, 2 without."""
    lookup_parameters: int = 0
    """Parameters of tables that are looked up beside the vocabulary's, as Gemma has one for each layer."""
    latent_values: int | None = None
    """Values cached per token and layer by multi-head latent attention (DeepSeek), instead of keys and values; None
    without it."""
    index_bytes: int = 0
    """Bytes cached beside them per token and layer by the indexer of sparse attention, whatever the cache's precision."""
    full_layers: int | None = None
    """Layers whose keys and values grow with the text; None: all. The others are linear, or look back over a window."""
    state_values: int = 0
    """Values that each running sequence keeps in those other layers, whatever its length."""
    wide_rest: bool = False
    """True where a checkpoint narrows its experts only: the rest stays in bf16, as gpt-oss has it."""
    quantised: Precision | None = None
    """What the repository's weights are narrowed to already; None: published in 16 bits, or in FP8 where they are made FP8 anyway."""
    stated_parameters: int | None = None
    """Parameters stated by the card or counted layer by layer, where the shape does not account for everything."""
    doubts: tuple[str, ...] = ()
    """What is not certain of this shape, in sentences for whoever reads a plan with it."""
    source: str
    as_of: str

    @property
    def architecture(self) -> Architecture:
        """The kind of model, by which fits and their errors are told apart."""
        if self.full_layers is not None and self.state_values and not self.wide_rest:
            return "hybrid"
        if self.latent_values is not None:
            return "mla"
        return "expert" if self.experts > 1 else "dense"

    @property
    def gqa(self) -> bool:
        """True with grouped-query attention, where several query heads share one key and value head."""
        return self.latent_values is None and self.kv_heads < self.heads

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2) + self.lookup_parameters

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of one layer."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one feed-forward block."""
        return self.matrices * self.hidden * self.intermediate

    @property
    def routed_parameters(self) -> int:
        """Parameters of all experts that a router chooses among; 0 in a dense model."""
        return self._expert_layers * self.experts * self.expert_parameters if self.experts > 1 else 0

    @property
    def _expert_layers(self) -> int:
        return self.layers if self.expert_layers is None else self.expert_layers

    @property
    def parameters(self) -> int:
        blocks = (self.experts + self.shared_experts) * self.expert_parameters
        router = self.hidden * self.experts if self.experts > 1 else 0
        dense = (self.layers - self._expert_layers) * self.matrices * self.hidden * self.dense_intermediate
        each = self.attention_parameters + 2 * self.hidden
        counted = self.layers * each + self._expert_layers * (blocks + router) + dense
        counted += self.embedding_parameters + self.hidden
        return counted if self.stated_parameters is None else self.stated_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through, without the embedding's look-up."""
        idle = self.routed_parameters * (self.experts - self.active_experts) // self.experts
        lookup = 0 if self.tied_embeddings else self.vocabulary * self.hidden
        return self.parameters - idle - lookup - self.lookup_parameters

    def weight_bytes(self, precision: Precision) -> int:
        narrow = self.routed_parameters if self.wide_rest else self.parameters - self.embedding_parameters
        wide = self.parameters - narrow
        return math.ceil((narrow * WEIGHT_BITS[precision] + wide * _BF16_BITS) / 8)

    def routed_bytes(self, precision: Precision) -> int:
        """Return the bytes of all experts that a router chooses among."""
        return math.ceil(self.routed_parameters * WEIGHT_BITS[precision] / 8)

    @property
    def cached_layers(self) -> int:
        """Layers whose keys and values grow with the text."""
        return self.layers if self.full_layers is None else self.full_layers

    def kv_bytes_per_token(self, precision: KvPrecision) -> int:
        """Return the KV cache bytes of one token on all GPUs together: 2 x layers x KV heads x head size x bytes."""
        if self.latent_values is not None:
            return self.cached_layers * (self.latent_values * KV_BYTES[precision] + self.index_bytes)
        return 2 * self.cached_layers * self.kv_heads * self.head_dim * KV_BYTES[precision]

    def kv_bytes_per_token_per_gpu(self, precision: KvPrecision, tp: int) -> float:
        """Return the KV cache bytes of one token on each GPU. KV heads are divided, rounded up; a latent vector is kept
        by every GPU.
        """
        whole = self.kv_bytes_per_token(precision)
        if self.latent_values is not None:
            return whole
        return whole * math.ceil(self.kv_heads / tp) / self.kv_heads


_AS_OF: Final = "2026-11"


def _known(
    repository: str, shape: tuple[int, int, int, int, int, int], vocabulary: int, max_context: int, **more: Any
) -> ModelShape:
    layers, hidden, heads, kv_heads, head_dim, intermediate = shape
    return ModelShape(
        repository=repository,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocabulary=vocabulary,
        max_context=max_context,
        source=f"config.json of {repository}",
        as_of=_AS_OF,
        **more,
    )


_K2: Final = 1_026_400_000_000
"""Parameters of Kimi K2's language model, counted from its shape; its vision tower is not read for text."""
_8B: Final = (32, 4_096, 32, 8, 128, 14_336)
_70B: Final = (80, 8_192, 64, 8, 128, 28_672)
_405B: Final = (126, 16_384, 128, 8, 128, 53_248)
_LLAMA_3: Final = 128_256

# fmt: off
MODELS: Final[Mapping[str, ModelShape]] = {
    shape.name: shape
    for shape in (
        _known("meta-llama/Meta-Llama-3-8B-Instruct", _8B, _LLAMA_3, 8_192, name="llama-3-8b"),
        _known("meta-llama/Meta-Llama-3-70B-Instruct", _70B, _LLAMA_3, 8_192, name="llama-3-70b"),
        _known("meta-llama/Llama-3.1-8B-Instruct", _8B, _LLAMA_3, 131_072, name="llama-3.1-8b"),
        _known("meta-llama/Llama-3.1-70B-Instruct", _70B, _LLAMA_3, 131_072, name="llama-3.1-70b"),
        _known("meta-llama/Llama-3.1-405B-Instruct", _405B, _LLAMA_3, 131_072, name="llama-3.1-405b"),
        _known("meta-llama/Llama-3.3-70B-Instruct", _70B, _LLAMA_3, 131_072, name="llama-3.3-70b"),
        _known("meta-llama/Llama-2-7b-chat-hf", (32, 4_096, 32, 32, 128, 11_008), 32_000, 4_096, name="llama-2-7b"),
        _known("meta-llama/Llama-2-13b-chat-hf", (40, 5_120, 40, 40, 128, 13_824), 32_000, 4_096, name="llama-2-13b"),
        _known("meta-llama/Llama-2-70b-chat-hf", (80, 8_192, 64, 8, 128, 28_672), 32_000, 4_096, name="llama-2-70b"),
        _known("mistralai/Mistral-7B-Instruct-v0.3", (32, 4_096, 32, 8, 128, 14_336), 32_768, 32_768, name="mistral-7b"),
        _known("mistralai/Mixtral-8x7B-Instruct-v0.1", (32, 4_096, 32, 8, 128, 14_336), 32_000, 32_768,
            name="mixtral-8x7b", experts=8, active_experts=2),
        _known("Qwen/Qwen3-30B-A3B", (48, 2_048, 32, 4, 128, 768), 151_936, 40_960, name="qwen3-30b-a3b", experts=128,
            active_experts=8),
        _known("Qwen/Qwen3-235B-A22B", (94, 4_096, 64, 4, 128, 1_536), 151_936, 40_960, name="qwen3-235b-a22b",
            experts=128, active_experts=8),
        _known("openai/gpt-oss-20b", (24, 2_880, 64, 8, 64, 2_880), 201_088, 131_072, name="gpt-oss-20b", experts=32,
            quantised="fp4", active_experts=4, full_layers=12, state_values=12 * 128 * 2 * 8 * 64, wide_rest=True),
        _known("openai/gpt-oss-120b", (36, 2_880, 64, 8, 64, 2_880), 201_088, 131_072, name="gpt-oss-120b", experts=128,
            quantised="fp4", active_experts=4, full_layers=18, state_values=18 * 128 * 2 * 8 * 64, wide_rest=True),
        _known("MiniMaxAI/MiniMax-M2.5", (62, 3_072, 48, 8, 128, 1_536), 200_064, 196_608, name="minimax-m2.5", experts=256,
            active_experts=8),
        _known("deepseek-ai/DeepSeek-R1-0528", (61, 7_168, 128, 128, 160, 2_048), 129_280, 163_840, name="deepseek-r1",
            experts=256, active_experts=8, shared_experts=1, expert_layers=58, dense_intermediate=18_432,
            latent_values=576, stated_parameters=671_026_419_200),
        _known("moonshotai/Kimi-K2.5", (61, 7_168, 64, 64, 160, 2_048), 163_840, 262_144, name="kimi-k2.5", experts=384,
            active_experts=8, shared_experts=1, expert_layers=60, dense_intermediate=18_432, latent_values=576,
            stated_parameters=_K2, wide_rest=True, quantised="int4"),
        _known("Qwen/Qwen3-8B", (36, 4_096, 32, 8, 128, 12_288), 151_936, 40_960, name="qwen3-8b"),
        _known("Qwen/Qwen3-14B", (40, 5_120, 40, 8, 128, 17_408), 151_936, 40_960, name="qwen3-14b"),
        _known("Qwen/Qwen3-32B", (64, 5_120, 64, 8, 128, 25_600), 151_936, 40_960, name="qwen3-32b"),
        _known("Qwen/Qwen3.5-9B", (32, 4_096, 16, 4, 256, 12_288), 248_320, 262_144, name="qwen3.5-9b", full_layers=8,
            state_values=24 * 32 * 128 * 128, stated_parameters=9_000_000_000),
        _known("Qwen/Qwen3.5-35B-A3B", (40, 2_048, 16, 2, 256, 512), 248_320, 262_144, name="qwen3.5-35b-a3b",
            experts=256, active_experts=8, shared_experts=1, full_layers=10, state_values=30 * 32 * 128 * 128,
            stated_parameters=35_000_000_000),
        _known("Qwen/Qwen2.5-7B-Instruct", (28, 3_584, 28, 4, 128, 18_944), 152_064, 32_768, name="qwen2.5-7b"),
        _known("Qwen/Qwen2.5-72B-Instruct", (80, 8_192, 64, 8, 128, 29_568), 152_064, 32_768, name="qwen2.5-72b"),
    )
}
# fmt: on


def model_named(name: str) -> ModelShape:
    """Return the built-in model of that name. Raises PlanRefused for an unknown one."""
    if name not in MODELS:
        raise PlanRefused(
            f"`{name}` is not among the models that are known ({', '.join(sorted(MODELS))}); "
            "`weighbridge selfhosted plan` takes another one's config.json with --config-json FILE"
        )
    return MODELS[name]
