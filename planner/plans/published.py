"""Figures that others published of their engines, and how far the roofline with an efficiency is from them.

Each is a throughput at full load or at a stated number of streams, or the time of one stream. Caches are taken as the
publisher's settings leave them. What nobody published is not here: of vLLM nothing was found on B200, H200, L40S or L4 in a
form that can be computed, and of L4 nothing at all.
"""

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from planner.plans.efficiency import Efficiency
from planner.plans.gpus import Gpu, gpu_named
from planner.plans.models import KvPrecision, ModelShape, Precision, model_named
from planner.plans.roofline import StepTimes, pairs, step_times

_RESERVE_BYTES: Final = 2e9
_TRT_SEQUENCES: Final = 2_048
_VLLM_SEQUENCES: Final = 256

Lengths = tuple[tuple[int, int], ...]
Table = dict[tuple[str, str, int, Precision], tuple[float, ...]]
"""Figures by model, GPU, number of GPUs and precision, one for each pair of lengths."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure, with what the roofline says in its place."""

    source: str
    what: str
    model: str
    gpu: str
    published: float
    computed: float

    @property
    def error(self) -> float:
        """Relative: 0.1 is 10 % too much."""
        return self.computed / self.published - 1


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The fit of an efficiency to the figures published of one GPU."""

    figures: int
    rms: float
    """Root mean square of the relative errors."""
    worst: float


# NVIDIA, NIM LLM benchmarking guide 1.0.0, "Performance": Llama 3.3 70B, NIM 1.8.0, two H100, FP8 (docs.nvidia.com/nim/benchmarking/llm/1.0.0/
# performance). Prompt, answer, streams, first token ms, further token ms, output tokens/s.
_NIM: Final = (
    (200, 200, 1, 31.22, 18.8, 53), (200, 200, 5, 88.7, 18.83, 260.67), (200, 200, 25, 138.98, 20.61, 1178.68),
    (200, 200, 50, 156.28, 23.33, 2081.24), (200, 200, 100, 176.8, 29.87, 3263.31), (200, 200, 150, 195.51, 37.75, 3883.1),
    (200, 200, 200, 253.36, 42.95, 4534.54), (200, 200, 250, 264.22, 48.16, 5067.05),
    (500, 2000, 1, 47.77, 18.91, 52.85), (500, 2000, 5, 126.53, 19.04, 261.83), (500, 2000, 25, 147.63, 21.69, 1149.05),
    (500, 2000, 50, 181.64, 23.97, 2078.43), (500, 2000, 100, 229.77, 29.98, 3322.87), (500, 2000, 150, 296.74, 37.85, 3948.26),
    (500, 2000, 200, 4867.89, 40.72, 4624.14),
    (1000, 1000, 1, 82.46, 18.67, 53.37), (1000, 1000, 5, 145.62, 19.07, 260.48), (1000, 1000, 25, 250.49, 22.45, 1102.23),
    (1000, 1000, 50, 278.62, 25.87, 1912.93), (1000, 1000, 100, 334.23, 34.21, 2895.49), (1000, 1000, 150, 428.54, 44.44, 3342.67),
    (1000, 1000, 200, 558.23, 50.66, 3901.74), (1000, 1000, 250, 3499.83, 56.3, 4167.39),
    (5000, 500, 1, 406.77, 18.58, 51.67), (5000, 500, 5, 546.7, 21.83, 218.48), (5000, 500, 25, 688.69, 38.75, 623.4),
    (5000, 500, 50, 834.51, 59.73, 814.37), (5000, 500, 100, 7996.25, 92.91, 917.26), (5000, 500, 150, 34794.22, 92.86, 920.9),
    (20000, 2000, 1, 1833.01, 19.58, 48.8), (20000, 2000, 5, 2910.33, 25.24, 186.8), (20000, 2000, 25, 18781.26, 48.26, 415.33),
    (20000, 2000, 50, 123969.71, 49.22, 418.65),
)  # fmt: skip

# NVIDIA, TensorRT-LLM 1.0, docs/source/performance/perf-overview.md: output tokens/s of all GPUs together, offline at full load.
_TRT_10_LENGTHS: Final[Lengths] = (
    (128, 128), (128, 2048), (128, 4096), (500, 2000), (1000, 1000), (1000, 2000), (2048, 128), (2048, 2048), (5000, 500), (20000, 2000),
)  # fmt: skip
_TRT_10: Final[Table] = {
    ("llama-3.3-70b", "h100", 2, "fp8"): (6378, 6651, 4199, 5222, 4205, 4146, 762, 3082, 898, 437),
    ("llama-3.1-405b", "h100", 8, "fp8"): (3627, 4340, 3116, 3994, 2919, 2895, 453, 2296, 610, 345),
    ("llama-3.1-8b", "h100", 1, "fp8"): (28312, 22714, 14325, 17660, 15220, 13899, 3450, 9305, 3459, 1351),
    ("llama-3.3-70b", "h200", 1, "fp8"): (3803, 4336, 2872, 3666, 2909, 2994, 442, 2003, 566, 283),
    ("llama-3.1-405b", "h200", 8, "fp8"): (3814, 5348, 4741, 4724, 3330, 3722, 456, 2948, 650, 505),
    ("llama-3.1-8b", "h200", 1, "fp8"): (27911, 26221, 18027, 20770, 17744, 16828, 3538, 12194, 3902, 1804),
    ("llama-3.3-70b", "b200", 1, "fp4"): (11147, 9922, 6831, 7762, 7007, 6271, 1339, 4783, 1459, 665),
    ("llama-3.1-405b", "b200", 4, "fp4"): (6281, 8020, 6345, 6244, 5209, 4933, 749, 4212, 1048, 672),
}
# NVIDIA, TensorRT-LLM 0.12.0, docs/source/performance/perf-overview.md ("Mixed" is 16 bits there).
_TRT_012_LENGTHS: Final[Lengths] = ((128, 128), (128, 2048), (128, 4096), (2048, 128), (2048, 2048))
_TRT_012: Final[Table] = {
    ("llama-3.1-8b", "a100", 1, "bf16"): (6586.88, 4882.13, 3079.90, 781.63, 2268.13),
    ("mistral-7b", "a100", 1, "bf16"): (6807.02, 5296.02, 3241.33, 786.43, 2363.25),
    ("llama-3-70b", "a100", 4, "bf16"): (2413.95, 2380.02, 1634.82, 278.76, 1209.69),
    ("llama-3-70b", "a100", 8, "bf16"): (4548.32, 3815.08, 2847.54, 543.73, 2192.28),
    ("mixtral-8x7b", "a100", 4, "bf16"): (11414.95, 10974.83, 7278.89, 1362.93, 5221.74),
    ("llama-3.1-8b", "l40s", 1, "fp8"): (8745.80, 5084.49, 2755.13, 980.86, 2051.79),
    ("mistral-7b", "l40s", 1, "fp8"): (9612.58, 5444.89, 2931.17, 1002.49, 2154.26),
    ("llama-3-70b", "l40s", 8, "fp8"): (1364.08, 1809.40, 1313.78, 163.36, 895.23),
    ("mixtral-8x7b", "l40s", 4, "fp8"): (6820.26, 7467.15, 5233.43, 805.49, 3616.30),
}
# Neural Magic, card of DeepSeek-R1-Distill-Llama-70B-quantized.w4a16 (and its w8a8 and FP8 twins), vLLM 0.7.2, GuideLLM: seconds of a
# lone request (its longest use case is left out: its answers ended early), and requests/s of four GPUs at full load, taken as one
# replica of four, which the card does not say.
_VLLM_LENGTHS: Final[Lengths] = (
    (256, 128), (512, 256), (768, 128), (1024, 128), (256, 1024), (1024, 1024), (4096, 512), (10240, 1536),
)  # fmt: skip
_VLLM_ALONE: Final[Table] = {
    ("llama-3.3-70b", "h100", 2, "bf16"): (3.8, 7.6, 3.9, 3.9, 30.0, 30.4, 16.1),
    ("llama-3.3-70b", "h100", 2, "fp8"): (2.7, 5.3, 2.7, 2.8, 21.1, 21.4, 11.5),
    ("llama-3.3-70b", "h100", 1, "int4"): (4.0, 7.9, 4.1, 4.2, 31.2, 31.8, 17.8),
    ("llama-3.3-70b", "a100", 2, "bf16"): (6.4, 12.8, 6.6, 6.7, 50.4, 50.8, 27.0),
    ("llama-3.3-70b", "a100", 2, "int8"): (4.1, 8.2, 4.2, 4.3, 32.4, 32.8, 17.6),
    ("llama-3.3-70b", "a100", 1, "int4"): (4.6, 9.2, 4.9, 5.2, 35.3, 36.3, 21.2),
}
_VLLM_FULL: Final[Table] = {
    ("llama-3.3-70b", "h100", 4, "bf16"): (14.04, 10.85, 12.25, 9.93, 3.68, 2.82, 1.81, 0.35),
    ("llama-3.3-70b", "h100", 4, "fp8"): (41.44, 19.64, 21.03, 16.72, 6.01, 4.46, 2.55, 0.49),
    ("llama-3.3-70b", "h100", 4, "int4"): (36.61, 15.12, 16.24, 13.22, 5.48, 3.01, 2.07, 0.43),
    ("llama-3.3-70b", "a100", 4, "bf16"): (10.41, 5.10, 5.50, 4.36, 1.49, 1.21, 0.89, 0.19),
    ("llama-3.3-70b", "a100", 4, "int8"): (18.11, 8.90, 9.41, 7.42, 2.44, 1.89, 1.26, 0.30),
    ("llama-3.3-70b", "a100", 4, "int4"): (12.63, 5.32, 5.58, 4.27, 2.30, 1.45, 0.76, 0.22),
}
# vLLM's own latency tests of 2024: seconds for 8 prompts of 32 tokens with 128 more each, bf16.
_VLLM_LATENCIES: Final[Table] = {
    ("llama-3.1-8b", "h100", 1, "bf16"): (0.9975,),
    ("llama-3-70b", "h100", 4, "bf16"): (2.4445,),
    ("mixtral-8x7b", "h100", 2, "bf16"): (2.3270,),
    ("llama-3.1-8b", "h200", 1, "bf16"): (0.8334,),
    ("llama-3-70b", "h200", 4, "bf16"): (2.0775,),
    ("mixtral-8x7b", "h200", 2, "bf16"): (1.9174,),
}


def figures(efficiency: Efficiency) -> Iterator[Figure]:
    """Return all figures that were published of the engine that this efficiency stands for, computed beside them."""
    if efficiency.name == "ceiling":
        yield from _nim(efficiency)
        yield from _full("TensorRT-LLM 1.0", efficiency, _TRT_10, _TRT_10_LENGTHS)
        yield from _full("TensorRT-LLM 0.12", efficiency, _TRT_012, _TRT_012_LENGTHS)
    else:
        yield from _alone(efficiency)
        yield from _full("vLLM 0.7.2, full load", efficiency, _VLLM_FULL, _VLLM_LENGTHS)
        yield from _latencies(efficiency)


def fit_of(efficiency: Efficiency, gpu: str) -> Fit | None:
    """Return the fit to the figures of one GPU; None where no figure was found."""
    errors = [each.error for each in figures(efficiency) if each.gpu == gpu]
    if not errors:
        return None
    rms = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return Fit(figures=len(errors), rms=rms, worst=max(errors, key=abs))


def _cache_tokens(model: ModelShape, gpu: Gpu, gpus: int, precision: Precision, kv: KvPrecision, share: float) -> float:
    left = gpus * (gpu.memory_bytes * share - _RESERVE_BYTES) - model.weight_bytes(precision)
    return left / model.kv_bytes_per_token(kv)


def _mixed_step_s(times: StepTimes, prompt: int, answer: int, batch: float) -> float:
    """Return the seconds of a step of a replica on which `batch` sequences generate, and as many prompts come as
    answers end.
    """
    return times.step_s(
        prefill_tokens=batch * prompt / answer,
        pairs=batch / answer * pairs(prompt),
        batch=batch,
        kv_tokens=batch * (prompt + answer / 2),
    )


def _nim(efficiency: Efficiency) -> Iterator[Figure]:
    model, gpu = model_named("llama-3.3-70b"), gpu_named("h100")
    times = step_times(model, gpu, tp=2, precision="fp8", kv_precision="fp8", efficiency=efficiency)
    cache = _cache_tokens(model, gpu, 2, "fp8", "fp8", 0.9)
    for prompt, answer, streams, first_ms, further_ms, tokens_per_s in _NIM:
        batch = min(streams, cache / (prompt + answer))
        rate = batch / _mixed_step_s(times, prompt, answer, batch)
        named = f"{prompt}/{answer}, {streams} streams"
        if streams == 1:
            # Alone, a prompt and its answer never share a step.
            first_s, further_s = times.prefill_s(prompt), times.decode_step_s(1, prompt + answer / 2)
            rate = answer / (first_s + (answer - 1) * further_s)
            yield _figure("NIM 1.8, first token", named, model.name, gpu.name, first_ms, first_s * 1e3)
            yield _figure("NIM 1.8, further token", named, model.name, gpu.name, further_ms, further_s * 1e3)
        yield _figure("NIM 1.8, tokens/s", named, model.name, gpu.name, tokens_per_s, rate)


def _full(source: str, efficiency: Efficiency, table: Table, lengths: Lengths) -> Iterator[Figure]:
    """Return figures at full load, in output tokens/s for TensorRT-LLM and in requests/s for vLLM."""
    own = efficiency.name == "ceiling"
    for (name, card, gpus, precision), row in table.items():
        model, gpu = model_named(name), gpu_named(card)
        kv: KvPrecision = "bf16" if precision == "bf16" or not own else "fp8"
        times = step_times(model, gpu, tp=gpus, precision=precision, kv_precision=kv, efficiency=efficiency)
        cache = _cache_tokens(model, gpu, gpus, precision, kv, 0.95 if own else 0.9)
        for (prompt, answer), published in zip(lengths, row, strict=True):
            most = 0.95 * cache / (prompt + answer / 2) if own else cache / (prompt + answer / 2)
            batch = min(_TRT_SEQUENCES if own else _VLLM_SEQUENCES, most)
            tokens_per_s = batch / _mixed_step_s(times, prompt, answer, batch)
            computed = tokens_per_s if own else tokens_per_s / answer
            yield _figure(source, f"{prompt}/{answer}, {gpus} GPUs, {precision}", name, card, published, computed)


def _alone(efficiency: Efficiency) -> Iterator[Figure]:
    for (name, card, gpus, precision), row in _VLLM_ALONE.items():
        times = step_times(model_named(name), gpu_named(card), tp=gpus, precision=precision, efficiency=efficiency)
        for (prompt, answer), seconds in zip(_VLLM_LENGTHS, row, strict=False):
            computed = times.prefill_s(prompt) + (answer - 1) * times.decode_step_s(1, prompt + answer / 2)
            named = f"{prompt}/{answer}, {gpus} GPUs, {precision}"
            yield _figure("vLLM 0.7.2, a lone stream", named, name, card, seconds, computed)


def _latencies(efficiency: Efficiency) -> Iterator[Figure]:
    streams, prompt, answer = 8, 32, 128
    for (name, card, gpus, precision), (seconds,) in _VLLM_LATENCIES.items():
        times = step_times(model_named(name), gpu_named(card), tp=gpus, precision=precision, efficiency=efficiency)
        first_s = times.step_s(prefill_tokens=streams * prompt, pairs=streams * pairs(prompt))
        further_s = sum(times.decode_step_s(streams, streams * (prompt + done)) for done in range(1, answer))
        yield _figure(
            "vLLM's latency tests of 2024", f"{gpus} GPUs, {precision}", name, card, seconds, first_s + further_s
        )


def _figure(source: str, what: str, model: str, gpu: str, published: float, computed: float) -> Figure:
    return Figure(source=source, what=what, model=model, gpu=gpu, published=published, computed=computed)
