"""Bytes and parameters that follow from a model's shape; the worked numbers of the requirements among them."""

import pytest

from planner.plans.models import MODELS, model_named
from planner.plans.plan_errors import PlanRefused


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("mistral-7b", 7_248_023_552),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_counted_from_the_shape_are_the_published_ones(name: str, parameters: int) -> None:
    """To the last parameter."""
    assert model_named(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "stated"), [("llama-3-70b", 327_680), ("llama-3-8b", 128 * 1024), ("llama-3.1-405b", 500 * 1024)]
)
def test_a_tokens_kv_is_what_the_requirements_state(name: str, stated: int) -> None:
    """70B 327,680 B exactly; 7B-class with GQA 128 KiB; 405B about 500 KB."""
    assert model_named(name).kv_bytes_per_token("bf16") == pytest.approx(stated, rel=0.02)
    assert model_named(name).kv_bytes_per_token("fp8") * 2 == model_named(name).kv_bytes_per_token("bf16")


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("llama-3-70b", 140), ("llama-2-70b", 140), ("llama-3.1-405b", 810), ("llama-2-7b", 14)]
)
def test_weights_are_what_the_requirements_state(name: str, gigabytes: float) -> None:
    """16-bit: 14, 140 and 810 GB, as rounded there."""
    assert model_named(name).weight_bytes("bf16") / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_a_narrower_precision_leaves_embeddings_alone() -> None:
    """FP8 is more than half of bf16 by the embedding and the head, INT4 a little above a quarter."""
    model = model_named("llama-3-70b")
    assert model.weight_bytes("fp8") == (model.weight_bytes("bf16") + 2 * model.embedding_parameters) // 2
    assert 0.25 < model.weight_bytes("int4") / model.weight_bytes("bf16") < 0.29


def test_experts_that_a_token_does_not_pass_are_not_computed() -> None:
    """Mixtral has 46.7 billion parameters, of which 12.9 billion work on a token."""
    assert model_named("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.02)


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    """And with the way out."""
    with pytest.raises(PlanRefused, match="--config-json"):
        model_named("llama-9")


def test_every_model_says_where_it_is_from() -> None:
    """Facts have a source and a date."""
    assert all(model.source and model.as_of for model in MODELS.values())
