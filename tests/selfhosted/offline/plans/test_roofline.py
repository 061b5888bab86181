"""Step times, held against figures that others published."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.offline.plans.gpus import gpu_named
from selfhosted.offline.plans.models import model_named
from selfhosted.offline.plans.plan_errors import PlanRefused
from selfhosted.offline.plans.roofline import EFFICIENCIES, StepTimes, pairs, step_times

# NVIDIA TensorRT-LLM 1.0, Llama 3.3 70B FP8 on two H100, offline at maximal load: output tokens a second.
CEILINGS = {
    (128, 128): 6378,
    (128, 2048): 6651,
    (500, 2000): 5222,
    (1000, 1000): 4205,
    (2048, 128): 762,
    (2048, 2048): 3082,
    (5000, 500): 898,
    (20000, 2000): 437,
}
# vLLM's own latency tests of 2024: seconds for 8 prompts of 32 tokens and 128 tokens each, bf16.
LATENCIES = [
    ("llama-3.1-8b", "h100", 1, 0.9975),
    ("llama-3-70b", "h100", 4, 2.4445),
    ("mixtral-8x7b", "h100", 2, 2.3270),
    ("llama-3.1-8b", "h200", 1, 0.8334),
    ("llama-3-70b", "h200", 4, 2.0775),
    ("mixtral-8x7b", "h200", 2, 1.9174),
]


def saturated(times: StepTimes, prompt: int, answer: int) -> float:
    """Output tokens a second of two H100 whose cache is full."""
    model = model_named("llama-3.3-70b")
    cache = (2 * (80e9 * 0.95 - 2e9) - model.weight_bytes("fp8")) / model.kv_bytes_per_token("fp8")
    batch = min(2_048, 0.95 * cache / (prompt + answer / 2))
    step_s = times.step_s(
        prefill_tokens=batch * prompt / answer,
        pairs=batch / answer * pairs(prompt),
        batch=batch,
        kv_tokens=batch * (prompt + answer / 2),
    )
    return batch / step_s


def seventy(efficiency: str) -> StepTimes:
    return step_times(
        model_named("llama-3.3-70b"),
        gpu_named("h100"),
        tp=2,
        precision="fp8",
        kv_precision="fp8",
        efficiency=efficiency,
    )


def test_the_ceiling_meets_nvidias_table() -> None:
    """Each of the eight within 21 %, and 10 % in the root mean square."""
    times = seventy("ceiling")
    errors = [saturated(times, *shape) / published - 1 for shape, published in CEILINGS.items()]
    assert max(map(abs, errors)) < 0.21
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < 0.105


def test_vllm_is_within_what_is_published_of_it() -> None:
    """0.2 to 0.5 of the ceiling at 1,000 in and out, 890 to 2,000 output tokens a second; half in the geometric mean."""
    times = seventy("vllm")
    assert 0.2 <= saturated(times, 1000, 1000) / CEILINGS[1000, 1000] <= 0.5
    ratios = [math.log(saturated(times, *shape) / published) for shape, published in CEILINGS.items()]
    assert math.exp(sum(ratios) / len(ratios)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("model", "gpu", "tp", "measured_s"), LATENCIES)
def test_vllm_meets_its_own_latency_tests(model: str, gpu: str, tp: int, measured_s: float) -> None:
    """Within 12 %, on two GPUs, dense and with experts, with and without tensor parallelism."""
    times = step_times(model_named(model), gpu_named(gpu), tp=tp)
    found = times.prefill_s(8 * 32) + sum(times.decode_step_s(8, 8 * (32 + done)) for done in range(1, 128))
    assert found == pytest.approx(measured_s, rel=0.12)


def test_a_lone_stream_is_bound_by_reading_the_weights() -> None:
    """A second sequence costs next to nothing; a thousand do not."""
    times = seventy("vllm")
    assert times.decode_step_s(2, 2_000) < 1.02 * times.decode_step_s(1, 1_000)
    assert times.decode_step_s(1_000, 1_000_000) > 3 * times.decode_step_s(1, 1_000)


def test_nothing_takes_no_time() -> None:
    """A step without tokens is no step."""
    assert seventy("vllm").step_s() == 0


def test_experts_are_read_as_they_are_chosen() -> None:
    """One token reads two of Mixtral's eight experts, a large batch all of them."""
    times = step_times(model_named("mixtral-8x7b"), gpu_named("h100"), tp=2)
    alone, many = times.decode_step_s(1, 0), times.decode_step_s(64, 0)
    assert times.fixed_s + times.weights_s + 0.3 * times.experts_s > alone
    assert many > times.fixed_s + times.weights_s + 0.99 * times.experts_s


def test_an_unknown_efficiency_is_refused() -> None:
    """With the known ones; and each says where its factors are from."""
    with pytest.raises(PlanRefused, match="vllm"):
        step_times(model_named("llama-3-8b"), gpu_named("h100"), tp=1, efficiency="wishful")
    assert all(each.source for each in EFFICIENCIES.values())


@given(
    st.integers(1, 10_000), st.integers(0, 10_000), st.integers(0, 500), st.integers(0, 1_000_000), st.integers(1, 999)
)
def test_more_work_never_takes_less_time(prompt: int, context: int, batch: int, kv_tokens: int, more: int) -> None:
    """In each of its arguments."""
    times = seventy("vllm")
    base = {"prefill_tokens": prompt, "pairs": pairs(prompt, context), "batch": batch, "kv_tokens": kv_tokens}
    for name, value in base.items():
        assert times.step_s(**(base | {name: value + more})) >= times.step_s(**base)


@given(st.integers(1, 5_000), st.integers(1, 5_000))
def test_chunks_look_at_as_many_tokens_as_the_whole(first: int, second: int) -> None:
    """A prompt in two chunks has the same attention as in one."""
    assert pairs(first) + pairs(second, first) == pairs(first + second)
