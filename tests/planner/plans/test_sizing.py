"""What fits, and how queues are reckoned."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.roofline import step_times
from planner.plans.sizing import (
    Limits,
    Memory,
    Targets,
    Work,
    adapter_bytes,
    erlang_c,
    limits_for,
    memory_of,
    most_rate,
    operate,
)

MODEL, GPU = model_named("llama-3-70b"), gpu_named("h100")
TIMES = step_times(MODEL, GPU, tp=2, precision="fp8", kv_precision="fp8")
WORK = Work(input_tokens=1_000, output_tokens=300)
LIMITS = Limits(sequences=256, batched_tokens=2_048)
CACHE = 400_000


def bare(tp: int, reserve_bytes: int = 0) -> Memory:
    """As documents reckon: all memory, no activations."""
    return memory_of(MODEL, GPU, tp=tp, utilisation=1.0, reserve_bytes=reserve_bytes, batched_tokens=0, sequences=0)


def test_70b_on_four_gpus_keeps_about_600k_tokens() -> None:
    """With 80 GB a GPU ~180 GB would be left and ~560k resident tokens; a card has 79.2 GiB, so it is a tenth more."""
    memory = bare(4)
    assert memory.kv_bytes / 1e9 == pytest.approx(180, rel=0.11)
    assert memory.kv_tokens == pytest.approx(607_000, rel=0.01)
    assert memory.kv_tokens / 2_048 == pytest.approx(296, rel=0.01)


def test_a_node_of_eight_holds_about_300_requests() -> None:
    """680 - 141 - 140 GB, about 400 GB of cache; 4k tokens take 1.34 GB (stated as ~1.2)."""
    memory = bare(8, reserve_bytes=17_500_000_000)
    assert memory.kv_bytes / 1e9 == pytest.approx(400, rel=0.01)
    request = 4_096 * memory.kv_bytes_per_token
    assert request / 1e9 == pytest.approx(1.34, abs=0.01)
    assert memory.kv_bytes // request == pytest.approx(300, rel=0.02)


def test_int4_fits_one_a100_and_16_bits_need_four() -> None:
    """70B INT4 on one A100, as the requirements have it; in bf16 two hold the weights and little else of use."""
    a100 = gpu_named("a100")
    assert memory_of(MODEL, a100, tp=1, precision="int4").kv_tokens > 8_192
    assert 0 < memory_of(MODEL, a100, tp=2).kv_tokens < 16 * 2_048
    assert memory_of(MODEL, a100, tp=4).kv_tokens > 100 * 2_048


def test_what_does_not_fit_is_told_by_how_much() -> None:
    """Negative bytes, no tokens."""
    memory = memory_of(MODEL, GPU, tp=1)
    assert memory.kv_bytes < 0
    assert memory.kv_tokens == 0


def test_memory_adds_up() -> None:
    """What is usable goes to weights, work, reserve, adapters and the cache, and the cache is whole blocks."""
    memory = memory_of(MODEL, GPU, tp=4, adapters=8)
    spent = (
        memory.weight_bytes + memory.activation_bytes + memory.reserve_bytes + memory.adapter_bytes + memory.kv_bytes
    )
    assert spent == memory.usable_bytes
    assert memory.kv_tokens % 16 == 0
    assert memory.adapter_bytes == 8 * adapter_bytes(MODEL, 16)
    # A rank of 16 on all of Llama 70B's matrices is about 207 million parameters.
    assert adapter_bytes(MODEL, 16) == pytest.approx(2 * 207e6, rel=0.01)


def test_heads_that_cannot_be_divided_are_kept_twice() -> None:
    """Four KV heads on eight GPUs: each GPU keeps one, so half the cache is copies."""
    model = model_named("qwen2.5-7b")
    assert model.kv_bytes_per_token_per_gpu("bf16", 8) * 8 == 2 * model.kv_bytes_per_token("bf16")


@pytest.mark.parametrize(
    ("places", "load", "chance"), [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (10, 8.0, 0.4092), (5, 0.0, 0.0)]
)
def test_erlang_c(places: int, load: float, chance: float) -> None:
    """Against the textbook's values; one place is M/M/1."""
    assert erlang_c(places, load) == pytest.approx(chance, abs=1e-4)


def test_a_steady_step_finishes_as_much_as_arrives() -> None:
    """Little's law: running = arrivals x tokens x time per token."""
    found = operate(TIMES, WORK, LIMITS, CACHE, 2.0)
    assert found is not None
    assert found.running == pytest.approx(2.0 * 300 * found.tpot_s)
    assert found.kv_use == pytest.approx(found.running * 1_150 / CACHE)


def test_too_much_is_told() -> None:
    """Beyond what a replica carries there is no steady step."""
    assert operate(TIMES, WORK, LIMITS, CACHE, 1_000.0) is None
    assert most_rate(TIMES, WORK, LIMITS, CACHE, Targets()) < 1_000


def test_targets_that_even_a_lone_request_misses_have_no_rate() -> None:
    """1 ms to the first token is impossible."""
    assert most_rate(TIMES, WORK, LIMITS, CACHE, Targets(ttft_p99_s=0.001)) == 0


def test_the_most_that_meets_a_target_meets_it_just_so() -> None:
    """And a little more does not."""
    targets = Targets(ttft_p99_s=0.8, tpot_p99_s=0.05)
    rate = most_rate(TIMES, WORK, LIMITS, CACHE, targets)
    within, beyond = (operate(TIMES, WORK, LIMITS, CACHE, rate * factor) for factor in (1.0, 1.01))
    assert within is not None
    assert within.meets(targets)
    assert beyond is None or not beyond.meets(targets)


def test_a_cache_that_hits_carries_more() -> None:
    """80 % of the prompt cached: at least twice the requests, and a sooner first token."""
    warm = Work(input_tokens=3_000, output_tokens=100, prefix_hit_rate=0.8)
    cold = Work(input_tokens=3_000, output_tokens=100)
    assert most_rate(TIMES, warm, LIMITS, CACHE, Targets()) > 2 * most_rate(TIMES, cold, LIMITS, CACHE, Targets())
    one, other = (operate(TIMES, work, LIMITS, CACHE, 0.5) for work in (warm, cold))
    assert one is not None
    assert other is not None
    assert one.ttft_p99_s < other.ttft_p99_s


def test_lengths_that_vary_more_make_for_longer_waits() -> None:
    """M/G/1: the variance of the service counts."""
    even, uneven = (
        operate(TIMES, Work(input_tokens=1_000, output_tokens=300, variation=variation), LIMITS, CACHE, 2.5)
        for variation in (0.0, 2.0)
    )
    assert even is not None
    assert uneven is not None
    assert uneven.ttft_p99_s > even.ttft_p99_s


def test_concurrency_is_bounded_by_cache_and_by_target() -> None:
    """What the cache holds at full length; fewer where the time per token would be missed; none when one is too slow."""
    free = limits_for(TIMES, WORK, 100 * 1_300, Targets())
    assert free is not None
    assert free.sequences == 96
    tight = limits_for(TIMES, WORK, CACHE, Targets(tpot_p99_s=0.025))
    assert tight is not None
    assert TIMES.decode_step_s(tight.sequences, tight.sequences * WORK.resident) <= 0.025
    assert tight.sequences < CACHE // 1_300
    assert limits_for(TIMES, WORK, CACHE, Targets(tpot_p99_s=0.001)) is None
    assert limits_for(TIMES, WORK, 100, Targets()) is None


def test_a_full_step_holds_no_stream_up_for_long() -> None:
    """A quarter of a second, or five tokens' time where that was promised."""
    limits = limits_for(TIMES, WORK, CACHE, Targets())
    assert limits is not None
    assert TIMES.prefill_s(limits.batched_tokens) <= 0.25
    assert limits.batched_tokens >= 2 * limits.sequences


def test_no_bound_is_refused_rather_than_searched_for() -> None:
    """Figures under which a replica does everything at once are wrong ones."""
    instant = step_times(MODEL, GPU, tp=1)
    free = type(instant)(
        fixed_s=0, weights_s=0, experts_s=0, expert_share=1, prompt_s=0, answer_s=0, reduce_s=0, pair_s=0, kv_s=0
    )
    with pytest.raises(PlanRefused):
        most_rate(free, WORK, LIMITS, CACHE, Targets())


@given(st.floats(0.01, 3.9), st.floats(1.01, 2.0))
def test_more_arrivals_never_make_anything_sooner(rate: float, factor: float) -> None:
    """Each expected time and the part of the cache in use grow with the rate."""
    one, more = (operate(TIMES, WORK, LIMITS, CACHE, each) for each in (rate, min(rate * factor, 3.95)))
    if one is None or more is None:
        assert more is None
        return
    slack = 1 + 1e-9
    for name in ("tpot_s", "tpot_p99_s", "ttft_p50_s", "ttft_p99_s", "running", "kv_use"):
        assert getattr(one, name) <= getattr(more, name) * slack
    assert all(math.isfinite(getattr(more, name)) for name in ("ttft_p99_s", "tpot_p99_s", "stall_s"))
