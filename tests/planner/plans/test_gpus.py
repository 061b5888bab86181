"""Facts of GPUs."""

import pytest

from planner.plans.gpus import GPUS, gpu_named
from planner.plans.plan_errors import PlanRefused


def test_every_gpu_says_where_its_facts_are_from() -> None:
    """Source, date, and a price's source too."""
    assert all(gpu.source and gpu.as_of and gpu.price_source for gpu in GPUS.values())


def test_a_gpu_without_fp8_units_computes_in_bf16() -> None:
    """An A100 gains memory from FP8, no operations; INT4 is widened everywhere."""
    a100, h100 = gpu_named("a100"), gpu_named("h100")
    assert a100.flops("fp8") == a100.flops("bf16") == 312e12
    assert h100.flops("fp8") == pytest.approx(2 * h100.flops("bf16"), rel=1e-3)
    assert h100.flops("int4") == h100.flops("bf16")


def test_cards_hold_gib() -> None:
    """As drivers report it: an H100 of 80 GB has 79 of 2**30 bytes, and no card has more than its name says of them."""
    assert gpu_named("h100").memory_bytes / 2**30 == pytest.approx(79.2, abs=0.1)
    assert gpu_named("mi300x").memory_bytes / 2**30 == pytest.approx(191.7, abs=0.1)
    assert {"gb200", "l40s", "rtx-pro-6000", "mi355x"} <= set(GPUS)


def test_an_unknown_price_is_none() -> None:
    """Never 0."""
    assert all(gpu.usd_per_hour is None or gpu.usd_per_hour > 0 for gpu in GPUS.values())


def test_an_unknown_gpu_is_refused() -> None:
    """With the known ones."""
    with pytest.raises(PlanRefused, match="h100"):
        gpu_named("h9000")
