"""Several models on the same GPUs: what fits, and where weights are meanwhile."""

from typing import Any

import pytest

from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.sharing import SharedFit, shared_fit
from planner.plans.sizing import RESERVE_BYTES, memory_of


def fit(*models: str, gpu: str = "l40s", **changes: Any) -> SharedFit:
    given = {"copy_bytes_per_s": 25e9, "disk_bytes_per_s": 2e9, **changes}
    return shared_fit([model_named(each) for each in models], gpu_named(gpu), **given)


def test_who_is_awake_has_what_those_that_sleep_leave() -> None:
    """Each engine that sleeps keeps its context and graphs, so the share of the memory is smaller by that, and so is the cache."""
    two, three = fit("llama-3-8b", "qwen2.5-7b"), fit("llama-3-8b", "qwen2.5-7b", "mistral-7b")
    assert (two.utilisation, three.utilisation) == (0.89, 0.87)
    assert two.utilisation <= 0.92 - RESERVE_BYTES / gpu_named("l40s").memory_bytes
    alone = memory_of(model_named("llama-3-8b"), gpu_named("l40s"), tp=1, precision="fp8", kv_precision="fp8")
    assert alone.kv_tokens > two.lodgers[0].kv_tokens > three.lodgers[0].kv_tokens > 0
    assert two.lodgers[0].flags[:3] == ("--enable-sleep-mode", "--gpu-memory-utilization", "0.89")


@pytest.mark.parametrize(
    ("models", "tp", "told"),
    [
        (("qwen2.5-7b", "llama-3-8b"), 8, "28 heads"),
        (("qwen3-30b-a3b", "llama-3-8b"), 8, "4 KV heads"),
        (("llama-3-8b", "mistral-7b"), 16, "a node has"),
    ],
)
def test_a_model_that_cannot_be_divided_so_is_refused(models: tuple[str, ...], tp: int, told: str) -> None:
    """Its engine would not start, however much memory there is."""
    with pytest.raises(PlanRefused, match=told):
        fit(*models, gpu="h100", tp=tp)


def test_level_one_takes_main_memory_and_level_two_the_disk() -> None:
    """At a switch the weights of all are in main memory, or none's; waking takes the copy, or the reading."""
    one, two = fit("llama-3-8b", "qwen2.5-7b"), fit("llama-3-8b", "qwen2.5-7b", level=2)
    assert one.main_memory_bytes == sum(each.weight_bytes for each in one.lodgers)
    assert two.main_memory_bytes == 0
    llama = one.lodgers[0]
    assert llama.wake_s == llama.sleep_s == pytest.approx(llama.weight_bytes / 25e9)
    assert two.lodgers[0].wake_s == pytest.approx(llama.weight_bytes / 2e9)
    assert fit("llama-3-8b", "qwen2.5-7b", tp=2).lodgers[0].wake_s == pytest.approx(llama.wake_s / 2)


@pytest.mark.parametrize(
    ("models", "changes", "told"),
    [
        (["llama-3-8b"], {}, "at least two models"),
        (["llama-3-8b", "llama-3-8b"], {}, "each once"),
        (["llama-3-70b", "qwen2.5-7b"], {}, "llama-3-70b does not fit beside the engines that sleep"),
        (["llama-3-8b", "qwen2.5-7b"], {"main_memory_bytes": 10_000_000_000}, "with --level 2"),
        (["llama-3-8b", "qwen2.5-7b"], {"reserve_bytes": 45_000_000_000}, "leave no memory"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(models: list[str], changes: dict[str, Any], told: str) -> None:
    """In bytes, and with what to do."""
    with pytest.raises(PlanRefused, match=told):
        fit(*models, **changes)
