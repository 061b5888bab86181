"""From a question to a plan."""

import math
from decimal import Decimal

import msgspec
import pytest

from planner.plans.comparators import comparator_named
from planner.plans.efficiency import efficiency_named
from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.outlook import outlook_of
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, carried, plan, times_of
from planner.plans.rendering import documents_of, serving_of_plan
from planner.plans.sizing import Targets, Work, memory_of, operate
from tests.planner.plans.questions import question


def test_the_smallest_division_that_does_is_chosen() -> None:
    """70B in FP8 fits one H100, but leaves so little cache that pairs need far fewer, within both targets."""
    found = plan(question())
    assert found.tp == 2
    assert found.candidates[0].obstacle is None
    assert (found.candidates[0].gpus or 0) > 2 * found.gpus
    assert found.operation is not None
    assert found.operation.meets(found.targets)
    assert found.gpus == 2 * found.replicas
    assert found.precision == found.kv_precision == "fp8"


def test_latency_may_ask_for_a_wider_division() -> None:
    """A third of a second to the first token is too soon for two GPUs at 2,000 tokens."""
    work = Work(input_tokens=2_000, output_tokens=300)
    found = plan(question(work=work, targets=Targets(ttft_p99_s=0.35)))
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
    assert any("80 %" in warning for warning in found.warnings)


def test_what_cannot_be_is_refused_with_each_obstacle() -> None:
    """405B in bf16 fits no node of A100s, and one stage was asked for."""
    with pytest.raises(PlanRefused, match="TP=8"):
        plan(question(model=model_named("llama-3.1-405b"), gpu=gpu_named("a100"), precision="bf16", pp=1))


@pytest.mark.parametrize(("tp", "told"), [(3, "cannot be divided"), (16, "a node has 8 GPUs")])
def test_a_division_that_was_asked_for_must_be_possible(tp: int, told: str) -> None:
    """Within a node, and dividing the KV heads."""
    with pytest.raises(PlanRefused, match=told):
        plan(question(tp=tp))


def test_cards_hold_what_they_hold_in_public() -> None:
    """GPUStack serves Qwen3 32B in bf16 with 32,768 tokens on one A100 of 80 GB, and 70B in FP8 stands on one H100."""
    alone = {"requests_per_s": 0.05, "targets": Targets(ttft_p99_s=10.0), "tp": 1, "kv_precision": "bf16"}
    qwen = model_named("qwen3-32b")
    found = plan(question(model=qwen, gpu=gpu_named("a100"), precision="bf16", max_context=32_768, **alone))
    assert found.memory.kv_tokens >= 32_768
    assert plan(question(precision="fp8", **alone)).memory.kv_tokens >= 8_192
    with pytest.raises(PlanRefused, match="do not fit"):
        plan(question(precision="bf16", **alone))


def test_ranks_share_the_experts_only() -> None:
    """Eight ranks keep eight caches and eight copies of the rest; dense models are not divided so."""
    deepseek = {"model": model_named("deepseek-r1"), "gpu": gpu_named("b200"), "targets": Targets(ttft_p99_s=5.0)}
    ranks, wide = plan(question(tp=1, dp=8, **deepseek)), plan(question(tp=8, dp=1, **deepseek))
    assert ranks.gpus / ranks.replicas == wide.gpus / wide.replicas == 8
    assert ranks.memory.kv_tokens > 3 * wide.memory.kv_tokens
    assert ranks.memory.weight_bytes > wide.memory.weight_bytes
    assert ranks.full_rate > wide.full_rate
    assert "--data-parallel-size 8 --enable-expert-parallel" in " ".join(ranks.launch.arguments)
    assert ranks.launch.gpus == 8
    assert "--data-parallel-size" not in wide.launch.arguments
    with pytest.raises(PlanRefused, match="experts"):
        plan(question(dp=2))
    with pytest.raises(PlanRefused, match="a node has 8 GPUs"):
        plan(question(tp=2, dp=8, **deepseek))


def test_amd_is_planned_but_not_rendered_and_has_no_hopeful_plan() -> None:
    """NVIDIA's own engines do not run there, and manifests name NVIDIA's device plugin."""
    asked = question(gpu=gpu_named("mi300x"), targets=Targets(ttft_p99_s=5.0))
    found = plan(asked)
    assert outlook_of(asked, found) is None
    serving = serving_of_plan(found, "amd")
    with pytest.raises(PlanRefused, match="NVIDIA's GPUs only"):
        documents_of("k8s", serving, found, one_machine=False)
    assert documents_of("gateway", serving, found, one_machine=False)


def test_a_request_longer_than_the_model_takes_is_refused() -> None:
    """Llama 3 takes 8,192 tokens."""
    with pytest.raises(PlanRefused, match="8,192"):
        plan(question(work=Work(input_tokens=8_000, output_tokens=300)))


def test_without_a_price_there_are_no_dollars() -> None:
    """None and a warning, never 0."""
    found = plan(question(gpu=gpu_named("a100-40gb"), targets=Targets()))
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
    """FP8 on two GPUs meets 400 ms at 2,000 tokens only when nearly idle: wider ones need a fraction of the GPUs."""
    work = Work(input_tokens=2_000, output_tokens=300)
    found = plan(question(work=work, targets=Targets(ttft_p99_s=0.55)))
    counts = {each.tp: each.gpus for each in found.candidates if each.gpus is not None}
    assert counts[2] > 3 * found.gpus
    assert found.gpus <= 1.2 * min(counts.values())


def test_405b_in_16_bits_takes_two_nodes() -> None:
    """810 GB and eight of 80 GB: two nodes as stages, and twice the batches of one; each node starts the same command."""
    found = plan(
        question(
            model=model_named("llama-3.1-405b"), precision="bf16", requests_per_s=1.0, targets=Targets(ttft_p99_s=3)
        )
    )
    assert (found.tp, found.pp, found.nodes) == (8, 2, 2)
    assert found.gpus == 16 * found.replicas
    assert found.memory.usable_bytes > found.memory.weight_bytes > 8 * 80e9
    assert "--pipeline-parallel-size" in found.launch.arguments
    assert (found.launch.gpus, found.launch.nodes) == (16, 2)
    assert found.limits.sequences % 2 == 0
    assert any("RDMA" in warning for warning in found.warnings)


def test_stages_carry_as_much_as_a_wide_replica() -> None:
    """Two stages of four GPUs: a token takes longer than on eight, and in all it is about as much."""
    wide, staged = (plan(question(tp=tp, pp=pp, targets=Targets(), margin=0.0)) for tp, pp in ((8, 1), (4, 2)))
    assert staged.operation is not None
    assert wide.operation is not None
    assert staged.operation.tpot_s > wide.operation.tpot_s
    assert 0.7 < staged.full_rate / wide.full_rate < 2
    assert staged.full_rate == pytest.approx(
        2 * plan(question(tp=4, pp=1, targets=Targets(), margin=0.0)).full_rate, rel=0.15
    )


def test_stages_are_tried_where_gpus_talk_over_pcie() -> None:
    """70B on L40S: an all-reduce a layer over PCIe is slower than handing over."""
    found = plan(question(gpu=gpu_named("l40s"), targets=Targets(ttft_p99_s=5.0)))
    assert any(each.pp > 1 for each in found.candidates)
    assert all(each.pp == 1 for each in plan(question()).candidates)


def test_int8_is_sized_and_uses_int8_units() -> None:
    """An A100 multiplies INT8 twice as fast as 16 bits, and half the bytes are read; FP8 only saves memory there."""
    a100 = {"gpu": gpu_named("a100"), "targets": Targets(), "tp": 4}
    narrow, fp8 = (plan(question(precision=precision, **a100)) for precision in ("int8", "fp8"))
    assert narrow.full_rate > 1.3 * fp8.full_rate
    assert narrow.memory.weight_bytes == fp8.memory.weight_bytes
    assert any("W8A8" in warning for warning in narrow.warnings)
    assert "--precision int8" in fp8.reasons["precision"] or fp8.reasons["precision"] == "as asked for"


def test_fp4_saves_only_memory_without_units_for_it() -> None:
    """B200 has them, H100 has not, and serves gpt-oss nevertheless."""
    narrow, fp8 = plan(question(precision="fp4", tp=2)), plan(question(precision="fp8", tp=2))
    assert any("no FP4 units" in warning for warning in narrow.warnings)
    assert narrow.memory.weight_bytes < 0.7 * fp8.memory.weight_bytes
    assert narrow.full_rate < fp8.full_rate
    found = plan(question(gpu=gpu_named("b200"), precision="fp4"))
    assert found.tp == 1
    assert not any("no FP4 units" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "qwen3-235b-a22b"])
def test_experts_are_kept_whole_and_computed_in_part(name: str) -> None:
    """All weights need memory, a token's operations are those of eight experts of 128."""
    found = plan(question(model=model_named(name), targets=Targets(ttft_p99_s=2.0)))
    assert found.memory.weight_bytes > 0.9 * model_named(name).parameters
    assert found.model.active_parameters < found.model.parameters / 8
    assert any("experts" in warning for warning in found.warnings)


def test_the_two_thousand_and_three_hundred_take_about_a_dozen() -> None:
    """20 requests/s of 2,000 + 300 tokens within a second took 48 H100 with one factor for prompts and answers."""
    asked = question(work=Work(input_tokens=2_000, output_tokens=300), targets=Targets(ttft_p99_s=1.0))
    assert plan(asked).gpus <= 16
    assert plan(msgspec.structs.replace(asked, efficiency=efficiency_named("ceiling"))).gpus <= 14


def test_a_cautious_plan_leaves_room_for_its_error() -> None:
    """At least 15 % and the fit's error, of this kind of model; 30 % without one, none of a hopeful plan, and what was asked for."""
    assert plan(question()).margin == 0.15
    experts = plan(question(model=model_named("qwen3-235b-a22b"), targets=Targets(ttft_p99_s=5.0)))
    assert experts.margin == pytest.approx(0.19, abs=0.02)
    assert any(
        "experts" in warning
        for warning in plan(
            question(gpu=gpu_named("l40s"), model=model_named("qwen3-30b-a3b"), targets=Targets())
        ).warnings
    )
    assert plan(question(gpu=gpu_named("l4"), model=model_named("llama-3-8b"))).margin == 0.3
    assert plan(question(efficiency=efficiency_named("ceiling"))).margin == 0.0
    assert plan(question(margin=0.5)).full_rate < plan(question(margin=0.0)).full_rate


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


def test_a_team_is_carried_by_replicas_of_the_plans_own_ranks() -> None:
    """A candidate of the same tensor parallelism with fewer ranks carries less, and is not what is bought."""
    found = plan(question(model=model_named("deepseek-r1"), gpu=gpu_named("h200"), dp=8, tp=1, targets=Targets()))
    fewer = next(each for each in found.candidates if each.obstacle is None)
    slower = msgspec.structs.replace(fewer, dp=4, rate=fewer.rate / 4)
    both = msgspec.structs.replace(found, candidates=(slower, *found.candidates))
    assert carried(both, fewer.rate * 2.5) == carried(found, fewer.rate * 2.5) == 3


def test_a_division_that_needs_millions_of_replicas_does_not_refuse_the_others() -> None:
    """One GPU meets the first token's target while it is idle alone; where no other division may be taken, that is told."""
    open_end = question(targets=Targets())
    alone = next(each for each in plan(open_end).candidates if each.tp == 1)
    assert alone.limits is not None
    times = times_of(open_end, 1, 1, "fp8", "fp8")
    idle = operate(times, open_end.work, alone.limits, alone.memory.kv_tokens, 1e-6)
    assert idle is not None
    asked = question(requests_per_s=2_000.0, targets=Targets(ttft_p99_s=idle.ttft_p99_s * (1 + 1e-9)))
    found = plan(asked)
    assert found.tp > 1
    assert "is --qps right" in (next(each for each in found.candidates if each.tp == 1).obstacle or "")
    with pytest.raises(PlanRefused, match="is --qps right"):
        plan(msgspec.structs.replace(asked, tp=1))


def test_adapters_lie_on_every_rank() -> None:
    """So with two ranks they take twice the memory."""
    one, two = (
        memory_of(model_named("deepseek-r1"), gpu_named("h200"), tp=4, dp=dp, adapters=2).adapter_bytes for dp in (1, 2)
    )
    assert two == 2 * one > 0


def test_weights_that_are_narrow_already_are_not_narrowed_again() -> None:
    """An engine refuses `--quantization fp8` on a checkpoint that is something else; so does a plan."""
    found = plan(question(model=model_named("gpt-oss-120b")))
    assert found.precision == "fp4"
    assert "--quantization" not in found.launch.arguments
    assert serving_of_plan(found, "pool").repository == "openai/gpt-oss-120b"
    with pytest.raises(PlanRefused, match=r"are FP4 already.*--weights"):
        plan(question(model=model_named("gpt-oss-120b"), precision="fp8"))
    other = plan(question(model=model_named("gpt-oss-120b"), precision="fp8", weights="mine/gpt-oss-fp8"))
    assert other.launch.repository == "mine/gpt-oss-fp8"


def test_the_layers_that_keep_a_text_are_those_that_are_multiplied() -> None:
    """The formula beside a token's bytes gives that number."""
    found = plan(question(model=model_named("gpt-oss-120b")))
    assert found.reasons["kv_bytes_per_token"] == "2 x 18 of 36 layers x 8 KV heads x 64 x 1 B"
    assert found.memory.kv_bytes_per_token == 2 * 18 * 8 * 64


def test_a_name_that_is_no_repository_is_said_to_be_none() -> None:
    """`vllm serve` would look for it on a hub."""
    nameless = msgspec.structs.replace(model_named("llama-3-70b"), repository="mine")
    assert any("--weights says where" in each for each in plan(question(model=nameless)).warnings)
    assert not any("--weights says" in each for each in plan(question(model=nameless, weights="me/mine")).warnings)
