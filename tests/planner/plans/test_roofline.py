"""Step times, held against figures that others published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.efficiency import EFFICIENCIES
from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.roofline import StepTimes, pairs, step_times


def seventy(efficiency: str) -> StepTimes:
    return step_times(
        model_named("llama-3.3-70b"),
        gpu_named("h100"),
        tp=2,
        precision="fp8",
        kv_precision="fp8",
        efficiency=efficiency,
    )


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


def test_a_prompts_token_costs_less_than_an_answers() -> None:
    """Matrices of many rows are multiplied at more of the data sheet's rate."""
    times = seventy("ceiling")
    assert times.prompt_s < times.answer_s
    assert times.step_s(prefill_tokens=4_096) < times.step_s(batch=4_096)


def test_stages_hand_over_what_one_node_does_not() -> None:
    """A token passes both, so it comes no sooner; between nodes a little later."""
    model, gpu = model_named("llama-3.1-405b"), gpu_named("h100")
    one, two = (step_times(model, gpu, tp=8, pp=stages) for stages in (1, 2))
    assert one.decode_step_s(8, 8_000) < two.decode_step_s(8, 8_000) < 1.05 * one.decode_step_s(8, 8_000)
    assert two.weights_s == one.weights_s


def test_a_margin_makes_every_step_longer() -> None:
    """In proportion, whatever it does; what experts a token chooses stays."""
    times = step_times(model_named("mixtral-8x7b"), gpu_named("h100"), tp=2)
    slow = times.slower(1.5)
    for work in ({"prefill_tokens": 100.0, "pairs": 5_000.0}, {"batch": 9.0, "kv_tokens": 9_000.0}):
        assert slow.step_s(**work) == pytest.approx(1.5 * times.step_s(**work))


def test_prompts_hide_the_weights_only_in_steps_that_have_some() -> None:
    """Ten tokens of prompts a step on average, in chunks of a hundred: one step of ten is longer, the others read weights all the same."""
    steps = StepTimes(
        fixed_s=1.0, weights_s=2.0, experts_s=0.0, expert_share=1.0, prompt_s=0.05, answer_s=0.0, reduce_s=0.0, pair_s=0.0,
        kv_s=0.0,
    )  # fmt: skip
    assert steps.mean_step_s(prefill_tokens=10, pairs=0, batch=1, kv_tokens=0, chunk=100) == pytest.approx(
        0.1 * (1 + 5) + 0.9 * (1 + 2)
    )
    assert steps.mean_step_s(prefill_tokens=0, pairs=0, batch=1, kv_tokens=0, chunk=100) == 3.0
    assert steps.mean_step_s(prefill_tokens=200, pairs=0, batch=1, kv_tokens=0, chunk=100) == pytest.approx(11.0)


def test_ranks_read_their_part_of_the_experts() -> None:
    """Each rank reads an eighth of the experts, of which the tokens of all ranks choose; the rest it reads whole, as one GPU does."""
    model, b200 = model_named("deepseek-r1"), gpu_named("b200")
    alone, ranks = (step_times(model, b200, tp=1, dp=dp, precision="fp8") for dp in (1, 8))
    assert ranks.experts_s == pytest.approx(alone.experts_s / 8)
    assert ranks.weights_s == alone.weights_s
    assert ranks.kv_s == alone.kv_s
    assert ranks.expert_share > 7 * alone.expert_share
    assert ranks.reduce_s > alone.reduce_s == 0
