"""A cautious and a hopeful plan, and what decides between them."""

import msgspec
import pytest

from planner.plans.efficiency import efficiency_named
from planner.plans.gpus import gpu_named
from planner.plans.outlook import outlook_of
from planner.plans.planning import plan
from planner.plans.sizing import Targets, Work
from tests.planner.plans.questions import question


def test_hope_needs_no_more_gpus_than_caution() -> None:
    """On any GPU whose figures both have, and the difference is told."""
    for name in ("h100", "h200", "b200"):
        asked = question(gpu=gpu_named(name), work=Work(input_tokens=2_000, output_tokens=300))
        cautious = plan(asked)
        found = outlook_of(asked, cautious)
        assert found is not None
        assert found.hopeful.gpus <= cautious.gpus
        assert any("longer" in each for each in found.differences)
        assert any("cache" in each for each in found.differences)


def test_one_replica_decides() -> None:
    """What it has to carry for the hopeful plan to be right, and what it carries by the cautious one."""
    asked = question()
    found = outlook_of(asked, plan(asked))
    assert found is not None
    assert found.cautious_rate is not None
    assert found.hopeful_rate > found.cautious_rate
    assert f"{found.hopeful_rate:.3g} requests/s" in found.deciding
    assert f"{found.cautious_rate:.3g}" in found.deciding


def test_a_replica_that_caution_rules_out_is_told_so() -> None:
    """A target between the two: the narrow division only does with hope."""
    asked = question(work=Work(input_tokens=2_000, output_tokens=300), targets=Targets(ttft_p99_s=0.46))
    found = outlook_of(asked, plan(asked))
    assert found is not None
    assert found.hopeful.tp <= plan(asked).tp


@pytest.mark.parametrize("changes", [{"efficiency": efficiency_named("ceiling")}, {"tokens_per_gpu": 1_000.0}])
def test_what_is_hopeful_or_measured_has_no_second_plan(changes: dict[str, object]) -> None:
    """There is nothing to decide."""
    asked = msgspec.structs.replace(question(), **changes)
    assert outlook_of(asked, plan(asked)) is None
