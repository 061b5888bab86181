"""A Llama of a few megabytes with random weights, a LoRA adapter for it, and a smaller model that sees pictures:
`tiny_model.py FOLDER [LAYERS HIDDEN]`.

It runs in vLLM's own environment, which has torch and transformers. What the model says means nothing; what is real is
the engine that says it: tokens, caches, queues and counters. Weights and vocabulary are the same each time.
"""

import json
import sys
import sysconfig
from pathlib import Path

VOCABULARY = 2_048
HEAD = 64
CONTEXT_TOKENS = 4_096
RANK = 4
PICTURE_EDGE, PICTURE_TOKENS = 56, 4
_SPECIAL = ("<|end|>", "<|start|>", "<|system|>", "<|user|>", "<|assistant|>")
_TEMPLATE = (
    "<|start|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Logits of random weights are nearly equal; larger ones make a text that differs from prompt to prompt.
_HEAD_SCALE = 8.0


def make(folder: Path, layers: int = 2, hidden: int = 128) -> None:
    """Writes `folder/model`, `folder/adapter` and `folder/seer/model`, whole or not at all."""
    import torch  # type: ignore[import-not-found]

    torch.manual_seed(6)
    _tokenizer(folder / "model")
    _weights(folder / "model", layers, hidden)
    _adapter(folder / "adapter", layers, hidden)
    _seer(folder / "seer" / "model")
    (folder / "made").touch()


def _tokenizer(folder: Path) -> None:
    """Byte-level BPE, learned from the standard library: text that every machine has."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))
    learned = ByteLevelBPETokenizer()
    learned.train(sources, vocab_size=VOCABULARY, special_tokens=list(_SPECIAL), show_progress=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=learned._tokenizer,
        eos_token=_SPECIAL[0],
        bos_token=_SPECIAL[1],
        pad_token=_SPECIAL[0],
        additional_special_tokens=list(_SPECIAL[2:]),
        model_max_length=CONTEXT_TOKENS,
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)


def _weights(folder: Path, layers: int, hidden: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=hidden // HEAD,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=1,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.mul_(_HEAD_SCALE)
        # An answer ends where the caller says, not where chance does.
        model.lm_head.weight[: len(_SPECIAL)] = 0
    model.save_pretrained(folder)


def _seer(folder: Path) -> None:
    """An Idefics of the third generation, which vLLM runs without torchvision."""
    import torch
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
        LlamaConfig,
        PreTrainedTokenizerFast,
    )
    from transformers.models.idefics3.configuration_idefics3 import (  # type: ignore[import-not-found]
        Idefics3VisionConfig,
    )
    from transformers.models.idefics3.image_processing_pil_idefics3 import (  # type: ignore[import-not-found]
        Idefics3ImageProcessorPil,
    )

    _tokenizer(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    marks = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    edge = {"longest_edge": PICTURE_EDGE}
    processor = Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(size=edge, max_image_size=edge, do_image_splitting=False),
        tokenizer=tokenizer,
        image_seq_len=PICTURE_TOKENS,
        chat_template=_TEMPLATE,
    )
    text = LlamaConfig(
        vocab_size=len(processor.tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=1,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    vision = Idefics3VisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=PICTURE_EDGE,
        patch_size=14,
    )
    config = Idefics3Config(
        vision_config=vision,
        text_config=text,
        image_token_id=processor.tokenizer.convert_tokens_to_ids("<image>"),
        # Four patches become one token.
        scale_factor=2,
        pad_token_id=0,
        dtype="bfloat16",
        tie_word_embeddings=False,
    )
    Idefics3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)


def _adapter(folder: Path, layers: int, hidden: int) -> None:
    """In the format of `peft`, by hand: two small matrices for every query and value projection."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for layer in range(layers):
        for projection in ("q_proj", "v_proj"):
            at = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden, dtype=torch.bfloat16)
            tensors[f"{at}.lora_B.weight"] = torch.randn(hidden, RANK, dtype=torch.bfloat16)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 4 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:]))
