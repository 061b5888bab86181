"""Prefill and decode on replicas of their own, beside replicas that do both."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import plan
from planner.plans.sizing import Targets, Work
from planner.plans.split import Split, split_of
from tests.planner.plans.questions import question
from tests.planner.plans.test_launch import FLAGS

LONG = Work(input_tokens=2_000, output_tokens=300)


def split(**changes: Any) -> Split:
    asked = question(**changes)
    return split_of(asked, plan(asked))


@pytest.mark.parametrize(
    ("tpot_s", "apart", "together"), [(None, 16, 12), (0.05, 16, 16), (0.03, 20, 24), (0.02, 24, 40)]
)
def test_it_pays_where_tokens_must_come_fast(tpot_s: float | None, apart: int, together: int) -> None:
    """Otherwise prompts may hold streams up, and every replica's idle time is used by the other work. docs/planning.md has
    these figures.
    """
    found = split(work=LONG, targets=Targets(ttft_p99_s=2.0, tpot_p99_s=tpot_s))
    assert (found.gpus, found.together_gpus, found.pays) == (apart, together, apart < together)
    assert found.gpus == found.prefill.gpus + found.decode.gpus
    assert str(found.gpus) in found.verdict


def test_the_targets_are_met_by_both_sides_together() -> None:
    """Reading, handing over and waiting for a place come before the first token."""
    found = split(requests_per_s=100.0, work=LONG, targets=Targets(ttft_p99_s=2.0, tpot_p99_s=0.03))
    assert found.ttft_p99_s <= 2.0
    assert found.ttft_p99_s > found.prefill.operation.ttft_p99_s + found.handed_s
    assert found.tpot_p99_s <= 0.03
    assert found.prefill.replicas * found.prefill.rate >= 100.0
    assert found.decode.replicas * found.decode.rate >= 100.0


def test_what_is_handed_over_is_the_prompts_cache() -> None:
    """Llama 3 70B keeps 163,840 B a token in FP8; four GPUs send a quarter each, at 50 GB/s."""
    found = split(work=LONG, targets=Targets(ttft_p99_s=2.0, tpot_p99_s=0.02))
    assert found.handed_bytes == 2_000 * 163_840
    assert found.handed_s == pytest.approx(found.handed_bytes / found.tp / 50e9)
    assert found.warnings == ()
    assert msgspec.structs.replace(found, link_use=0.8).warnings


def test_both_are_launched_with_the_connector() -> None:
    """Under the flags of that version; one hands over, the other takes."""
    found = split(work=LONG, targets=Targets(ttft_p99_s=2.0, tpot_p99_s=0.02))
    for side, role, port in ((found.prefill, "kv_producer", "5600"), (found.decode, "kv_consumer", "5601")):
        given = dict(pairwise(side.launch.arguments))
        assert json.loads(given["--kv-transfer-config"]) == {"kv_connector": "NixlConnector", "kv_role": role}
        assert {word for word in side.launch.arguments if word.startswith("--")} <= FLAGS
        assert "--speculative-config" not in given
        assert side.launch.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == port


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tokens_per_gpu": 600.0}, "measured"),
        ({"kv_offload_gib": 100}, "connectors"),
        ({"tp": 2, "pp": 2}, "stages"),
        ({"targets": Targets(ttft_p99_s=0.14)}, "alone, a request waits"),
    ],
)
def test_what_cannot_be_divided_says_why(changes: dict[str, Any], why: str) -> None:
    """Rather than a plan that meets nothing."""
    with pytest.raises(PlanRefused, match=why):
        split(**changes)
