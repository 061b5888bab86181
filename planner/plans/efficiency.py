"""Fractions of a data sheet's rates that engines reach, by engine and GPU, fitted to published figures.

Prefill and decode have factors of their own: the matrices of a long prompt are multiplied at more of the sheet's rate than
those of a batch of single tokens. `published` has the figures, and tells how far each fit is off.
"""

from typing import Final

import msgspec

from planner.plans.plan_errors import PlanRefused


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Fractions of one GPU's data sheet."""

    prefill: float
    """Fraction of the operations/s, for tokens of prompts."""
    decode: float
    """Fraction of the operations/s, for tokens of answers."""
    attention: float
    """Fraction of the bf16 operations/s, for a prompt's attention."""
    kv_read: float
    """Fraction of the memory bandwidth, for reading keys and values of running sequences."""
    narrow_read: float
    """Fraction of the rate of reading other weights, for INT4 weights."""
    link: float
    """Fraction of the bandwidth to neighbours."""


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a data sheet that an engine reaches, and its fixed times."""

    name: str
    title: str
    hopeful: bool
    """True where the figures are a ceiling: a plan then has no margin of its own."""
    reaches: dict[str, Reach]
    """Fractions by GPU; `h100` stands for GPUs without their own."""
    weight_read: float
    """Fraction of the memory bandwidth, for reading weights."""
    host_s: float
    """Seconds for every step: scheduling and launching."""
    all_reduce_s: float
    """Latency in seconds of an all-reduce of next to nothing."""
    source: str

    def reach(self, gpu: str) -> Reach:
        return self.reaches.get(gpu) or self.reaches[_LIKE.get(gpu, _USUAL)]


_USUAL: Final = "h100"
_LIKE: Final = {"a100-40gb": "a100", "l4": "l40s"}
"""The same architecture with less of everything."""
_HOPPER: Final = Reach(prefill=0.57, decode=0.40, attention=0.46, kv_read=0.91, narrow_read=0.43, link=0.7)
_HOPPER_VLLM: Final = msgspec.structs.replace(_HOPPER, decode=0.46, kv_read=0.35)


def _as_vllm(reach: Reach) -> Reach:
    """Return the factors of a GPU of which nobody published vLLM's figures: NVIDIA's there, with vLLM's reading of the cache."""
    return msgspec.structs.replace(reach, kv_read=reach.kv_read * _HOPPER_VLLM.kv_read / _HOPPER.kv_read)


_B200: Final = Reach(prefill=0.45, decode=0.29, attention=0.46, kv_read=0.56, narrow_read=0.43, link=0.7)
_L40S: Final = Reach(prefill=0.55, decode=0.42, attention=0.46, kv_read=0.59, narrow_read=0.43, link=0.4)

EFFICIENCIES: Final[dict[str, Efficiency]] = {
    each.name: each
    for each in (
        Efficiency(
            name="vllm",
            title="vLLM as measured",
            hopeful=False,
            reaches={
                "h100": _HOPPER_VLLM,
                "a100": Reach(prefill=0.83, decode=0.34, attention=0.46, kv_read=0.31, narrow_read=0.62, link=0.7),
                "b200": _as_vllm(_B200),
                "l40s": _as_vllm(_L40S),
            },
            weight_read=0.95,
            host_s=0.0031,
            all_reduce_s=35e-6,
            source="vLLM 0.7.2 with Llama 70B in bf16, FP8, INT8 and INT4 on H100 and A100 (lone streams and full load, a card of "
            "Neural Magic's, February 2025) and vLLM's own latency tests of 2024; a prompt's factors on H100 are NVIDIA's, "
            "since nobody publishes vLLM's first tokens alone. Newer versions may well be faster: measure yours",
        ),
        Efficiency(
            name="ceiling",
            title="NVIDIA's own engines",
            hopeful=True,
            reaches={
                "h100": _HOPPER,
                "a100": Reach(prefill=0.78, decode=0.39, attention=0.46, kv_read=0.74, narrow_read=0.62, link=0.7),
                "b200": _B200,
                "l40s": _L40S,
            },
            weight_read=0.95,
            host_s=0.0031,
            all_reduce_s=35e-6,
            source="NVIDIA NIM 1.8 (Llama 3.3 70B FP8 on two H100, by concurrency), TensorRT-LLM 1.0 at full load (H100, H200 and, "
            "in FP4, B200) and 0.12 (A100, L40S); no latency objective, so nearer to a ceiling than to a service",
        ),
    )
}


def efficiency_named(name: str) -> Efficiency:
    """Return the efficiency of that name. Raises PlanRefused for an unknown one."""
    if name not in EFFICIENCIES:
        raise PlanRefused(f"`{name}` is no efficiency; there are {', '.join(EFFICIENCIES)}")
    return EFFICIENCIES[name]
