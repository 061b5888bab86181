"""Bytes and parameters that follow from a model's shape; the worked numbers of the requirements among them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.models import MODELS, model_from_config, model_named
from planner.plans.plan_errors import PlanRefused

LLAMA: dict[str, Any] = {
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


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


def test_a_config_json_gives_the_same_as_the_table() -> None:
    """Llama 3 70B's own file."""
    model = model_from_config("mine", LLAMA, source="config.json")
    assert model.parameters == model_named("llama-3-70b").parameters
    assert model.head_dim == 128
    assert model.gqa


def test_a_config_without_kv_heads_has_one_for_each_head() -> None:
    """That is what the key's absence means, so the cache is eight times as large."""
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    model = model_from_config("mine", config, source="config.json")
    assert model.kv_heads == 64
    assert model.kv_bytes_per_token("bf16") == 2_621_440


def test_latent_attention_and_experts_are_read() -> None:
    """DeepSeek's keys: one latent vector a token, kept by every GPU; experts of their own width."""
    config = LLAMA | {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
    }
    model = model_from_config("mine", config, source="config.json")
    assert model.kv_bytes_per_token("bf16") == 80 * 576 * 2
    assert model.kv_bytes_per_token_per_gpu("bf16", 8) == 80 * 576 * 2
    assert (model.experts, model.active_experts, model.intermediate) == (256, 8, 2048)
    assert model.active_parameters < model.parameters / 10
    assert model.architecture == "mla"
    plain = model_from_config("mine", {**config, "first_k_dense_replace": 3, "intermediate_size": 18_432}, source="it")
    assert plain.expert_layers == 77
    assert plain.parameters < model.parameters


def test_the_parameters_of_latent_attention_are_the_published_ones() -> None:
    """DeepSeek R1's own file: 671 billion, and heads as wide as its row has them, neither of which its hidden size tells."""
    config = {
        "hidden_size": 7_168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 61,
        "first_k_dense_replace": 3,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2_048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "kv_lora_rank": 512,
        "q_lora_rank": 1_536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129_280,
        "max_position_embeddings": 163_840,
    }
    read, known = model_from_config("mine", config, source="config.json"), model_named("deepseek-r1")
    assert read.parameters == pytest.approx(known.parameters, rel=0.001)
    assert (read.head_dim, read.latent_values) == (known.head_dim, known.latent_values) == (160, 576)
    whole = model_from_config("mine", {**config, "q_lora_rank": None}, source="config.json")
    assert whole.parameters > read.parameters


@pytest.mark.parametrize("name", ["num_experts_per_tok", "experts_per_token", "moe_k"])
def test_experts_are_read_by_any_of_their_names(name: str) -> None:
    """A model whose experts were not seen would be planned as a dense one."""
    model = model_from_config("mine", LLAMA | {"moe_num_experts": 64, name: 6}, source="config.json")
    assert (model.experts, model.active_experts) == (64, 6)


def test_layers_that_do_not_keep_the_whole_text_are_read() -> None:
    """Linear ones, and ones that look back over a window: both keep a state of one size."""
    base = {
        "hidden_size": 2_048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_hidden_layers": 8,
        "intermediate_size": 4_096,
        "vocab_size": 50_000,
        "max_position_embeddings": 32_768,
    }
    linear = {"linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    mixed = model_from_config("mine", {**base, **linear, "full_attention_interval": 4}, source="it")
    kinds = ["sliding_attention", "full_attention"] * 4
    window = model_from_config("mine", {**base, "layer_types": kinds, "sliding_window": 1_024}, source="it")
    whole = model_from_config("mine", base, source="it")
    assert (mixed.full_layers, mixed.state_values, mixed.architecture) == (2, 6 * 32 * 128 * 128, "hybrid")
    assert (window.full_layers, window.state_values) == (4, 4 * 2 * 1_024 * 2 * 256)
    assert (
        mixed.kv_bytes_per_token("bf16") * 4
        == window.kv_bytes_per_token("bf16") * 2
        == whole.kv_bytes_per_token("bf16")
    )


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"hidden_size": "8192"},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": 10**9},
        {"num_key_value_heads": 0},
        {"vocab_size": True},
        {"num_local_experts": 2, "num_experts_per_tok": 8},
        {"num_local_experts": 8},
        {"max_position_embeddings": None},
        {"text_config": []},
    ],
)
def test_a_bad_config_is_refused_by_key(change: dict[str, Any]) -> None:
    """With a message that names the file, never with a crash."""
    with pytest.raises(PlanRefused, match=r"config\.json"):
        model_from_config("mine", LLAMA | change, source="config.json")


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    """And with the way out."""
    with pytest.raises(PlanRefused, match="--config-json"):
        model_named("llama-9")


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "num_experts", "kv_lora_rank", "head_dim", "text_config", "num_parameters"]),
        st.none() | st.integers() | st.text(max_size=3) | st.booleans() | st.floats() | st.lists(st.integers()),
    )
)
def test_any_config_is_read_or_refused(change: dict[str, Any]) -> None:
    """Nothing else is ever raised."""
    try:
        model = model_from_config("mine", LLAMA | change, source="config.json")
    except PlanRefused:
        return
    assert model.parameters > 0
    assert model.kv_bytes_per_token("bf16") > 0


def test_every_model_says_where_it_is_from() -> None:
    """Facts have a source and a date."""
    assert all(model.source and model.as_of for model in MODELS.values())
