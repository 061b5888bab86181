"""From a question to a plan."""

import math
from decimal import Decimal

import msgspec
import pytest

from selfhosted.offline.plans.comparators import comparator_named
from selfhosted.offline.plans.gpus import gpu_named
from selfhosted.offline.plans.models import model_named
from selfhosted.offline.plans.plan_errors import PlanRefused
from selfhosted.offline.plans.planning import Plan, plan
from selfhosted.offline.plans.roofline import efficiency_named
from selfhosted.offline.plans.sizing import Targets, Work
from tests.selfhosted.offline.plans.questions import question


def test_the_smallest_division_that_does_is_chosen() -> None:
    """70B in FP8 does not fit one H100; two do, within both targets."""
    found = plan(question())
    assert found.tp == 2
    assert found.candidates[0].obstacle is not None
    assert "do not fit" in found.candidates[0].obstacle
    assert found.operation is not None
    assert found.operation.meets(found.targets)
    assert found.gpus == 2 * found.replicas
    assert found.precision == found.kv_precision == "fp8"


def test_latency_may_ask_for_a_wider_division() -> None:
    """A quarter of a second to the first token is too soon for two GPUs at 2,000 tokens."""
    work = Work(input_tokens=2_000, output_tokens=300)
    found = plan(question(work=work, targets=Targets(ttft_p99_s=0.6)))
    assert found.tp > 2
    assert "alone, a request waits" in (found.candidates[1].obstacle or "")


def test_16_bits_need_four() -> None:
    """TP=4, as the requirements plan with."""
    assert plan(question(precision="bf16")).tp == 4


def test_1000_users_need_about_32_gpus_at_the_stated_throughput() -> None:
    """30,000 tokens/s at 4,000 a replica of four GPUs: 8 replicas, 32 H100s."""
    work = Work(input_tokens=1, output_tokens=299)
    found = plan(
        question(requests_per_s=100.0, work=work, tokens_per_gpu=1_000.0, tp=4, precision="bf16", targets=Targets())
    )
    assert (found.replicas, found.gpus) == (8, 32)


def test_a_replicas_stated_throughput_is_plausible() -> None:
    """The ceiling of 70B bf16 on four H100 for short prompts lies in the stated 3,000 to 6,000 tokens/s."""
    found = plan(
        question(
            work=Work(input_tokens=200, output_tokens=300),
            precision="bf16",
            tp=4,
            efficiency=efficiency_named("ceiling"),
            targets=Targets(),
        )
    )
    assert 3_000 <= found.full_rate * 300 <= 6_000


def test_ten_million_users_can_be_planned() -> None:
    """5,000 requests/s of 3k + 400 tokens, 700 ms and 40 ms at p99: some thousands of GPUs, and both targets are met."""
    found = plan(
        question(
            requests_per_s=5_000.0,
            work=Work(input_tokens=3_000, output_tokens=400, prefix_hit_rate=0.8),
            targets=Targets(ttft_p99_s=0.7, tpot_p99_s=0.04),
        )
    )
    assert found.operation is not None
    assert found.operation.ttft_p99_s <= 0.7
    assert found.operation.tpot_p99_s <= 0.04
    assert 1_000 < found.gpus < 10_000
    assert any("80%" in warning for warning in found.warnings)


def test_what_cannot_be_is_refused_with_each_obstacle() -> None:
    """405B in bf16 fits no node of A100s."""
    with pytest.raises(PlanRefused, match="TP=8"):
        plan(question(model=model_named("llama-3.1-405b"), gpu=gpu_named("a100"), precision="bf16"))


@pytest.mark.parametrize(("tp", "told"), [(3, "cannot be divided"), (16, "a node has 8 GPUs"), (1, "do not fit")])
def test_a_division_that_was_asked_for_must_be_possible(tp: int, told: str) -> None:
    """Within a node, and dividing the KV heads."""
    with pytest.raises(PlanRefused, match=told):
        plan(question(tp=tp))


def test_a_request_longer_than_the_model_takes_is_refused() -> None:
    """Llama 3 takes 8,192 tokens."""
    with pytest.raises(PlanRefused, match="8,192"):
        plan(question(work=Work(input_tokens=8_000, output_tokens=300)))


def test_without_a_price_there_are_no_dollars() -> None:
    """None and a warning, never 0."""
    found = plan(question(gpu=gpu_named("h200")))
    assert found.cost is None
    assert any("--gpu-usd-hour" in warning for warning in found.warnings)


def test_dollars_follow_from_replicas() -> None:
    """Spare ones cost as well, and what is saved is told by name and date."""
    found = plan(question(spare=1, overhead=Decimal("1.3"), comparators=(comparator_named("gpt-6-luna"),)))
    assert found.cost is not None
    assert found.cost.usd_per_hour == found.gpus * Decimal("2.95") * Decimal("1.3")
    saving = found.cost.savings[0]
    assert (saving.verdict, saving.as_of) == ("impossible", "2026-11")


def test_one_replica_is_warned_of() -> None:
    """And a spare one quiets it."""
    quiet = question(requests_per_s=0.5)
    assert any("--spare" in warning for warning in plan(quiet).warnings)
    assert not any("--spare" in warning for warning in plan(msgspec.structs.replace(quiet, spare=1)).warnings)


def test_batch_work_is_not_planned_at_the_brink() -> None:
    """Without targets a tenth of what a replica carries stays free, so waits are bounded."""
    found = plan(question(targets=Targets()))
    assert found.operation is not None
    assert found.operation.rate <= 0.9 * found.full_rate * (1 + 1e-9)


def test_old_gpus_are_told_of() -> None:
    """FP8 on an A100 saves memory only; INT4 needs weights that were made so."""
    a100 = plan(question(gpu=gpu_named("a100"), precision="fp8", targets=Targets(ttft_p99_s=5)))
    assert any("no FP8 units" in warning for warning in a100.warnings)
    int4 = plan(question(precision="int4", targets=Targets()))
    assert any("--weights" in warning for warning in int4.warnings)
    assert int4.tp == 1


def test_a_division_that_is_just_possible_but_far_dearer_is_passed_over() -> None:
    """INT4 on two GPUs meets a second only when nearly idle: hundreds of GPUs, where wider ones need a fraction."""
    found = plan(question(precision="int4"))
    counts = {each.tp: each.gpus for each in found.candidates if each.gpus is not None}
    assert counts[2] > 3 * found.gpus
    assert found.gpus <= 1.5 * min(counts.values())


def test_the_hours_weights_fill_a_replica() -> None:
    """At full use the tokens of a second take a second: so the pool's hours are shared without a rest."""
    found = plan(question())
    tokens = found.work.uncached * found.seconds_per_million.input + 300 * found.seconds_per_million.output
    assert found.full_rate * tokens / 1e6 == pytest.approx(1.0)


def test_a_plan_is_the_same_after_json() -> None:
    """So that `render` takes what `plan --json` printed."""
    found = plan(question(comparators=(comparator_named("gpt-4o"),), kv_events_port=5557))
    wire = msgspec.json.Encoder(decimal_format="number").encode(found)
    assert msgspec.json.decode(wire, type=Plan).launch == found.launch
    again = msgspec.json.decode(wire, type=Plan)
    assert again.cost is not None
    assert found.cost is not None
    assert again.cost.usd_per_year == found.cost.usd_per_year


@pytest.mark.parametrize("name", ["llama-3-8b", "mistral-7b", "mixtral-8x7b", "qwen2.5-72b", "llama-2-7b"])
def test_every_known_model_can_be_planned(name: str) -> None:
    """With finite times and a command line."""
    found = plan(question(model=model_named(name)))
    assert found.operation is not None
    assert math.isfinite(found.operation.ttft_p99_s)
    assert found.launch.arguments[0] == found.model.repository
