"""Whether KV blocks in main memory pay."""

import msgspec
import pytest

from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.offload import Offload, offload_of
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import plan
from planner.plans.sizing import Targets, Work
from tests.planner.plans.questions import question

LONG = question(work=Work(input_tokens=6_000, output_tokens=100))


def offload(hits: float = 0.5, copy_bytes_per_s: float = 25e9, gib: int = 0) -> Offload:
    asked = msgspec.structs.replace(LONG, kv_offload_gib=gib)
    return offload_of(asked, plan(asked), hits=hits, copy_bytes_per_s=copy_bytes_per_s)


def test_a_token_that_comes_back_sooner_than_it_is_computed_saves_gpus() -> None:
    """Long prompts that return are read back by each GPU at once, and the plan needs fewer of them."""
    found = offload()
    per_gpu = LONG.model.kv_bytes_per_token_per_gpu("fp8", plan(LONG).tp)
    assert found.copy_s == pytest.approx(per_gpu / 25e9)
    assert found.copy_s < found.compute_s
    assert found.pays
    assert f"{found.gpus} GPUs instead of {found.gpus_without}" in found.verdict


def test_a_slow_link_and_few_hits_save_nothing() -> None:
    """Where computing is as fast as copying, nothing is planned with; and nothing gets worse."""
    slow = offload(copy_bytes_per_s=1e8)
    assert slow.copy_s > slow.compute_s
    assert (slow.pays, slow.gpus) == (False, slow.gpus_without)
    assert "does not pay" in slow.verdict
    few = offload(hits=0.001)
    assert few.gpus == few.gpus_without
    assert "either way" in few.verdict


def test_more_hits_never_need_more_gpus() -> None:
    """And what the memory holds is told where it was asked for."""
    assert [offload(hits).gpus for hits in (0.2, 0.5, 0.8)] == sorted(
        (offload(hits).gpus for hits in (0.2, 0.5, 0.8)), reverse=True
    )
    assert offload(gib=100).holds_tokens == 100 * 2**30 // LONG.model.kv_bytes_per_token("fp8")
    assert offload().holds_tokens is None


def test_stages_copy_their_own_layers() -> None:
    """At the same time, so a token comes back in a half of the time with two of them."""
    asked = question(work=Work(input_tokens=6_000, output_tokens=100), targets=Targets())
    one, two = (
        offload_of(each, plan(each), hits=0.5, copy_bytes_per_s=25e9)
        for pp in (1, 2)
        for each in (msgspec.structs.replace(asked, tp=2, pp=pp),)
    )
    assert two.copy_s == pytest.approx(one.copy_s / 2)


def test_a_latent_vector_is_kept_by_every_gpu() -> None:
    """In main memory, too: the same memory holds an eighth of the tokens with eight of them."""
    asked = question(
        model=model_named("deepseek-r1"),
        gpu=gpu_named("h200"),
        tp=8,
        dp=1,
        targets=Targets(),
        kv_offload_gib=100,
        requests_per_s=1.0,
    )
    answer = plan(asked)
    found = offload_of(asked, answer, hits=0.5, copy_bytes_per_s=25e9)
    assert found.holds_tokens == 100 * 2**30 // (8 * asked.model.kv_bytes_per_token(answer.kv_precision))


def test_more_than_there_is_cannot_be_found() -> None:
    """What the GPUs' caches have is not found in main memory as well."""
    cached = question(work=Work(input_tokens=6_000, output_tokens=100, prefix_hit_rate=0.7))
    with pytest.raises(PlanRefused, match="here 30 %"):
        offload_of(cached, plan(cached), hits=0.5, copy_bytes_per_s=25e9)
