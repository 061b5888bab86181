"""Questions that several tests ask."""

from typing import Any

from planner.plans.efficiency import efficiency_named
from planner.plans.gpus import gpu_named
from planner.plans.models import model_named
from planner.plans.planning import Question
from planner.plans.sizing import Targets, Work


def question(**changes: Any) -> Question:
    """Llama 3 70B on H100: 20 requests a second of 1,000 + 300 tokens, within a second and 50 ms a token."""
    given: dict[str, Any] = {
        "model": model_named("llama-3-70b"),
        "gpu": gpu_named("h100"),
        "requests_per_s": 20.0,
        "work": Work(input_tokens=1_000, output_tokens=300),
        "targets": Targets(ttft_p99_s=1.0, tpot_p99_s=0.05),
        "efficiency": efficiency_named("vllm"),
    }
    return Question(**(given | changes))
