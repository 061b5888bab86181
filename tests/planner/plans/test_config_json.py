"""What is read from a model's config.json: its layers, its parameters, and what is not known of it."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plans.architectures import architecture_of
from planner.plans.caveats import doubts_about
from planner.plans.config_json import INDEX, model_from_config, model_from_file, parameters_of
from planner.plans.models import model_named
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


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *LLAMA,
                *("num_experts", "num_experts_per_tok", "kv_lora_rank", "head_dim", "text_config", "num_parameters"),
                *("layer_types", "layers_block_type", "hybrid_override_pattern", "mlp_layer_types", "moe_layers_enum"),
                *("decoder_sparse_step", "expert_layer_period", "per_layer_config", "attn_type_list", "mamba_dt_rank"),
                *("linear_num_value_heads", "num_kv_shared_layers", "hidden_size_per_layer_input", "moe_latent_size"),
            ]
        ),
        st.none()
        | st.integers()
        | st.integers(0, 100)
        | st.text(max_size=3)
        | st.booleans()
        | st.floats()
        | st.lists(st.integers() | st.sampled_from(["full_attention", "mamba", "moe", "mlp"]) | st.lists(st.none())),
    ),
    st.sampled_from([None, "gemma4_text", "nemotron_h", "jamba", "qwen3_next", "deepseek_v3", "llama4_text", "bamba"]),
)
def test_any_config_is_read_or_refused(change: dict[str, Any], kind: str | None) -> None:
    """Nothing else is ever raised."""
    try:
        model = model_from_config("mine", LLAMA | {"model_type": kind} | change, source="config.json")
    except PlanRefused:
        return
    assert model.parameters > 0
    assert model.active_parameters > 0
    assert model.kv_bytes_per_token("bf16") > 0


COUNTED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("counted.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", COUNTED, ids=[f"{at}-{case['model_type']}" for at, case in enumerate(COUNTED)])
def test_parameters_are_those_of_the_model_itself(case: dict[str, Any]) -> None:
    """As transformers makes it: each type at its defaults, and at the shapes of what is served today."""
    counted = parameters_of({"model_type": case["model_type"], **case["config"]})
    assert counted == pytest.approx(case["parameters"], rel=0.1)


def test_most_are_counted_much_closer() -> None:
    """A tenth is the bound; nine in ten are within a fiftieth."""
    off = sorted(
        abs(parameters_of({"model_type": case["model_type"], **case["config"]}) / case["parameters"] - 1)
        for case in COUNTED
    )
    assert off[len(off) * 9 // 10] < 0.02


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        pytest.param(
            {
                "model_type": "llama4_text",
                "hidden_size": 5_120,
                "num_hidden_layers": 48,
                "num_local_experts": 128,
                "interleave_moe_layer_step": 2,
            },
            400,
            17,
            id="Llama 4 Maverick",
        ),
        pytest.param(
            {
                "model_type": "qwen3_next",
                "hidden_size": 2_048,
                "num_hidden_layers": 48,
                "num_experts": 512,
                "num_experts_per_tok": 10,
                "full_attention_interval": 4,
            },
            80,
            3,
            id="Qwen3-Next-80B-A3B",
        ),
        pytest.param(
            {
                "model_type": "gemma3_text",
                "hidden_size": 5_376,
                "intermediate_size": 21_504,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "num_hidden_layers": 62,
                "sliding_window": 1_024,
            },
            27,
            27,
            id="Gemma 3 27B as its hub has it",
        ),
        pytest.param({"model_type": "jamba", "hidden_size": 4_096, "num_hidden_layers": 32}, 52, 12, id="Jamba"),
        pytest.param(
            {
                "model_type": "nemotron_h",
                "hidden_size": 2_688,
                "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
                "num_hidden_layers": 52,
                "num_attention_heads": 32,
                "num_key_value_heads": 2,
                "head_dim": 128,
                "mamba_num_heads": 64,
                "mamba_head_dim": 64,
                "n_groups": 8,
                "ssm_state_size": 128,
                "n_routed_experts": 128,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1_856,
                "moe_shared_expert_intermediate_size": 3_712,
                "n_shared_experts": 1,
                "vocab_size": 131_072,
            },
            31.6,
            3.6,
            id="Nemotron 3 Nano 30B-A3B",
        ),
    ],
)
def test_parameters_are_the_published_ones(config: dict[str, Any], total: float, active: float) -> None:
    """In thousands of millions, as their makers round them."""
    model = model_from_config("mine", config, source="config.json")
    assert model.parameters / 1e9 == pytest.approx(total, rel=0.04)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.25)
    assert not model.doubts


def test_what_a_file_leaves_out_is_its_types() -> None:
    """Gemma's files say neither that embeddings are tied nor which layers see the whole text."""
    gemma = {"model_type": "gemma3_text", "hidden_size": 5_376, "num_hidden_layers": 62, "vocab_size": 262_208}
    model = model_from_config("mine", {**gemma, "num_attention_heads": 32}, source="config.json")
    assert model.tied_embeddings
    assert model.full_layers == 10
    assert not model.doubts
    short = model_from_config("mine", {"model_type": "gemma3_text"}, source="config.json")
    assert short.doubts == (
        ("config.json does not have hidden_size, num_hidden_layers: what `gemma3_text` has without them was taken"),
    )


def test_null_is_none_and_not_the_types_default() -> None:
    """DeepSeek V2 Lite has no vectors for queries."""
    base = {"model_type": "deepseek_v2", "num_experts_per_tok": 6}
    plain = parameters_of({**base, "q_lora_rank": None})
    assert plain != parameters_of(base)


def test_layers_that_read_the_keys_of_others_keep_none() -> None:
    """Gemma 4's small ones: of 42 layers 24 have keys of their own, four of which see the whole text."""
    small = {"model_type": "gemma4_text", "num_hidden_layers": 42, "num_key_value_heads": 2, "num_kv_shared_layers": 18}
    model = model_from_config("mine", small, source="config.json")
    assert (model.full_layers, model.kv_heads, model.head_dim) == (4, 2, 512)
    assert model.lookup_parameters == 262_144 * 42 * 256
    assert model.active_parameters == model.parameters - model.lookup_parameters


def test_a_type_that_was_never_compared_is_said_to_be_so() -> None:
    """In the plan's warnings, with what settles it."""
    model = model_from_config("mine", LLAMA | {"model_type": "brand_new"}, source="config.json")
    (doubt, *_) = doubts_about(model)
    assert "`brand_new`" in doubt
    assert "num_parameters" in doubt
    assert INDEX in doubt
    assert not model_from_config("mine", LLAMA | {"model_type": "llama"}, source="config.json").doubts


@pytest.mark.parametrize(
    "keys", [["text_config"], ["llm_config"], ["language_config"], ["thinker_config", "text_config"]]
)
def test_a_language_model_is_found_within_one_with_encoders(keys: list[str]) -> None:
    """Wherever its makers put it; the outer object's sizes are the encoder's."""
    config: dict[str, Any] = {**LLAMA, "model_type": "llama"}
    for key in reversed(keys):
        config = {"model_type": "outer", "hidden_size": 1_024, "num_hidden_layers": 24, key: config}
    model = model_from_config("mine", config, source="it")
    assert model.parameters == model_named("llama-3-70b").parameters
    assert not model.doubts


def test_a_large_gemma_keeps_what_an_engine_was_seen_to_keep() -> None:
    """An H200 with vLLM held 626,949 tokens in 64.68 GiB, 108 KiB each, windows among them (redhat-performance/configiq, issue 112)."""
    large = {"hidden_size": 5_376, "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16}
    shared = {
        "num_global_key_value_heads": 4,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "sliding_window": 1_024,
    }
    model = model_from_config("mine", {"model_type": "gemma4_text", **large, **shared}, source="it")
    assert 80 * 1_024 <= model.kv_bytes_per_token("bf16") < 108 * 1_024


def test_encoders_that_are_not_counted_are_named() -> None:
    """A model that sees and hears is larger than its language model."""
    config = {
        "model_type": "gemma3",
        "text_config": {**LLAMA, "model_type": "llama"},
        "vision_config": {"hidden_size": 1_152},
    }
    assert ["vision encoder" in doubt for doubt in model_from_config("mine", config, source="it").doubts] == [True]


@pytest.mark.parametrize(
    ("kind", "told"),
    [("zamba2", "do not follow from this file"), ("bert", "writes? none"), ("bamba", "no layer keeps keys and values")],
)
def test_what_would_be_counted_wrongly_is_refused(kind: str, told: str) -> None:
    """Never planned with a figure that is known to be another's."""
    config = {name: value for name, value in LLAMA.items() if kind != "bamba" or name == "vocab_size"}
    with pytest.raises(PlanRefused, match=told):
        model_from_config("mine", config | {"model_type": kind}, source="config.json")


def test_stated_parameters_settle_what_is_not_known() -> None:
    """Also for a type that is counted wrongly."""
    assert architecture_of("zamba2").counted is False
    stated = {"model_type": "zamba2", "num_hidden_layers": 54, "num_parameters": 2_690_000_000}
    model = model_from_config("mine", stated, source="config.json")
    assert (model.parameters, model.doubts) == (2_690_000_000, ())


@pytest.mark.parametrize(
    ("metadata", "config", "parameters"),
    [
        ({"total_parameters": 72_000_000_000, "total_size": 40_000_000_000}, {}, 72_000_000_000),
        ({"total_size": 141_107_412_992}, {"torch_dtype": "bfloat16"}, 70_553_706_496),
        (
            {"total_size": 39_000_000_000},
            {"torch_dtype": "float16", "quantization_config": {"bits": 4}},
            70_553_706_496,
        ),
        ({"total_size": 39_000_000_000}, {}, 70_553_706_496),
        ({"total_parameters": "many"}, {}, 70_553_706_496),
        ([], {}, 70_553_706_496),
        (None, {}, 70_553_706_496),
        ({"total_parameters": True, "total_size": [1]}, {"dtype": "bfloat16"}, 70_553_706_496),
        ({"total_parameters": 1e300, "total_size": -1}, {"dtype": "bfloat16"}, 70_553_706_496),
        ({"total_size": 141_107_412_992}, {"dtype": ["bfloat16"]}, 70_553_706_496),
        ({"total_size": 141_107_412_992}, {"torch_dtype": {"text": "bfloat16"}}, 70_553_706_496),
    ],
)
def test_the_list_of_weights_beside_states_the_parameters(
    tmp_path: Path, metadata: object, config: dict[str, Any], parameters: int
) -> None:
    """Where it does: bytes of narrowed weights say nothing."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | config))
    (tmp_path / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": {}}))
    assert model_from_file("mine", tmp_path / "config.json").parameters == parameters


def test_of_a_list_of_weights_nothing_else_is_made(tmp_path: Path) -> None:
    """One of 100 MB that is no list of a model's took 18 s and 2.4 GB; of the same kind this one took 60 MB."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    index = tmp_path / INDEX
    index.write_bytes(b'{"weight_map":[' + b"[]," * 1_000_000 + b'1],"metadata":{"total_parameters":70553706496}}')
    tracemalloc.start()
    try:
        assert model_from_file("mine", tmp_path / "config.json").stated_parameters == 70_553_706_496
        assert tracemalloc.get_traced_memory()[1] < 5 * index.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("told", ["x\x1b[2J", "x\ny", "x" * 101, ["llama"], 7])
def test_a_type_that_no_model_has_is_not_printed(told: object) -> None:
    """What a stranger's file says goes to a terminal."""
    (doubt,) = model_from_config("mine", LLAMA | {"model_type": told}, source="config.json").doubts
    assert "this model (the file has no model_type)" in doubt


def test_the_list_of_another_models_weights_is_refused(tmp_path: Path) -> None:
    """A folder of several models is an easy slip."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / INDEX).write_text('{"metadata": {"total_parameters": 8030261248}}')
    with pytest.raises(PlanRefused, match="both of one model"):
        model_from_file("mine", tmp_path / "config.json")


@pytest.mark.parametrize("written", [b"\xff\xfe{}", b"[" * 100_000, b"[]", b"{"])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, written: bytes) -> None:
    """In a sentence, however it is broken."""
    (tmp_path / "config.json").write_bytes(written)
    with pytest.raises(PlanRefused, match=r"is not (a )?JSON"):
        model_from_file("mine", tmp_path / "config.json")


QUANTISED = [
    pytest.param({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", id="DeepSeek, MiniMax and Qwen"),
    pytest.param({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "fp4", id="gpt-oss"),
    pytest.param({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4", id="AWQ"),
    pytest.param({"quant_method": "gptq", "bits": 8}, "int8", id="GPTQ"),
    pytest.param({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "fp4", id="ModelOpt"),
    pytest.param({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", id="bitsandbytes"),
    pytest.param(
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
        "int4",
        id="Kimi K2 Thinking",
    ),
    pytest.param(
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
        },
        "fp8",
        id="Red Hat's FP8",
    ),
]


@pytest.mark.parametrize(("told", "precision"), QUANTISED)
def test_what_weights_are_narrowed_to_is_read(told: dict[str, Any], precision: str) -> None:
    """Wherever it stands: in the outer object or the language model's."""
    llama = {**LLAMA, "model_type": "llama"}
    assert model_from_config("mine", {**llama, "quantization_config": told}, source="it").quantised == precision
    inner = {"model_type": "outer", "text_config": {**llama, "quantization_config": told}}
    assert model_from_config("mine", inner, source="it").quantised == precision
    assert model_from_config("mine", llama, source="it").quantised is None


def test_weights_of_a_width_that_is_not_known_are_refused() -> None:
    """With what to do instead."""
    with pytest.raises(PlanRefused, match=r"quantised by 'hqq' are is not known.*--weights and --precision"):
        model_from_config("mine", LLAMA | {"quantization_config": {"quant_method": "hqq"}}, source="it")


def test_experts_alone_may_be_narrow() -> None:
    """gpt-oss's attention stays in 16 bits."""
    experts = LLAMA | {"num_local_experts": 128, "num_experts_per_tok": 4}
    told = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    assert model_from_config("mine", experts | {"quantization_config": told}, source="it").wide_rest
    assert not model_from_config("mine", experts, source="it").wide_rest


def test_kimi_is_a_deepseek_by_another_name() -> None:
    """Its type is DeepSeek V3's, so its count is no doubtful one."""
    shape = {"num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "vocab_size": 163_840}
    model = model_from_config("mine", shape | {"model_type": "kimi_k2", "first_k_dense_replace": 1}, source="it")
    assert model.parameters == pytest.approx(1_026e9, rel=0.01)
    assert model.head_dim == model_named("kimi-k2.5").head_dim
    assert not any("never compared" in each for each in model.doubts)


def test_the_index_of_sparse_attention_is_kept_too() -> None:
    """DeepSeek V3.2's, beside the latent vectors: 128 values in FP8 and their scale, whatever the cache's precision."""
    base = {"model_type": "deepseek_v32", "num_experts_per_tok": 8}
    model = model_from_config("mine", base | {"index_head_dim": 128}, source="it")
    plain = model_from_config("mine", base, source="it")
    for precision in ("bf16", "fp8"):
        assert model.kv_bytes_per_token(precision) - plain.kv_bytes_per_token(precision) == 61 * 132
