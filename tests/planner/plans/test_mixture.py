"""100,000 requests a second, on paper."""

from decimal import Decimal

import pytest

from planner.plans.mixture import Mixture, mixture_of, shares_of
from planner.plans.models import model_named
from planner.plans.plan_errors import PlanRefused
from planner.plans.sizing import Targets, Work
from tests.planner.plans.questions import question

NAMES = {"llama-3-8b": Decimal("0.7"), "llama-3-70b": Decimal("0.3")}


def mixed(tokens_per_gpu: dict[str, float]) -> Mixture:
    parts = {
        name: (
            share,
            question(
                model=model_named(name),
                requests_per_s=float(100_000 * share),
                work=Work(input_tokens=800, output_tokens=200),
                targets=Targets(ttft_p99_s=1.0),
                usd_per_gpu_hour=Decimal(4),
            ),
        )
        for name, share in NAMES.items()
    }
    return mixture_of(parts, requests_per_s=100_000, tokens_per_gpu=tokens_per_gpu)


def test_the_requirements_arithmetic_holds() -> None:
    """100M tokens/s; at 3,000 and 600 a GPU ~23k and ~50k H100s, ~$2.5B a year at $4."""
    found = mixed({"llama-3-8b": 3_000, "llama-3-70b": 600})
    assert found.tokens_per_s == 100_000_000
    assert [part.gpus for part in found.parts] == [23_334, 50_000]
    assert found.usd_per_year == 73_334 * 4 * 8_760
    assert float(found.usd_per_year) == pytest.approx(2.5e9, rel=0.03)


def test_the_roofline_needs_fewer() -> None:
    """FP8 and a full batch do more than the document's 3,000 and 600 tokens/s a GPU, even at half of the ceiling."""
    found = mixed({})
    assert found.gpus < 73_334
    assert all(part.tokens_per_gpu > least for part, least in zip(found.parts, (3_000, 600), strict=True))
    assert found.gpus == sum(part.gpus for part in found.parts)


@pytest.mark.parametrize("text", ["", "a", "a:1,a:0", "a:0.5", "a:x", "a:0.5,a:0.5", "a:NaN", "a:-1,b:2", ":1"])
def test_shares_must_add_up(text: str) -> None:
    """To exactly 1, each name once."""
    with pytest.raises(PlanRefused):
        shares_of(text)


def test_shares_are_exact() -> None:
    """0.7 and 0.3 are 1, not nearly."""
    assert shares_of("llama-3-8b:0.7, llama-3-70b:0.3") == NAMES


def test_a_figure_for_a_stranger_is_refused() -> None:
    """Rather than silently ignored."""
    with pytest.raises(PlanRefused, match="mistral"):
        mixed({"mistral-7b": 1_000})
