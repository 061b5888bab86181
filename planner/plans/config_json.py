"""Read a model's shape from the files that lie beside its weights.

A `config.json` says how wide and how many a model's layers are, and leaves unsaid what they are made of: that is known by
`model_type`. So parameters are counted layer by layer here, and what was never compared with the model itself is said to be
so, or refused where it is known to be counted wrongly.
"""

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import msgspec

from planner.plans.architectures import UNGATED, WRITES_NO_TEXT, architecture_of
from planner.plans.models import ModelShape, Precision
from planner.plans.plan_errors import PlanRefused
from settings.decoding import DECODE_ERRORS

Mixer = Literal["full", "window", "linear", "mamba", "convolution"]
Feed = Literal["dense", "experts"]

INDEX: Final = "model.safetensors.index.json"
"""The list of a model's files of weights, as hubs have it beside config.json."""

_MOST: Final = 10_000_000
_MOST_LAYERS: Final = 10_000
_DIGITS: Final = 6
_MOST_TYPE_CHARS: Final = 100
_MOST_CONFIG_BYTES: Final = 1_000_000
_MOST_INDEX_BYTES: Final = 100_000_000
_MOST_PARAMETERS: Final = 100_000_000_000_000
_MOST_DIGITS: Final = 18

_MOST_OFF: Final = 4
"""How many times too few or too many our count may be; beyond it what is stated belongs to another model."""

_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
_SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_LONGEST: Final = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_positions",
    "model_max_length",
)
_NESTED: Final = ("thinker_config", "text_config", "llm_config", "language_config")
"""Where files of models with encoders have their language model: Qwen's omni models, most others, InternVL, DeepSeek's."""
_MOST_NESTED: Final = 2
_ESSENTIAL: Final = ("hidden_size", "num_hidden_layers")
"""Keys that published files do not leave out, though they may: one without them is probably not whole."""
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_ffn_hidden_size")
_SHARED_WIDTH: Final = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
    "shared_intermediate_size",
)
_DENSE_WIDTH: Final = ("intermediate_size_mlp", "dense_intermediate_size", "ffn_hidden_size", "intermediate_size")

_MIXERS: Final[Mapping[str, Mixer]] = {
    "full_attention": "full",
    "attention": "full",
    "*": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "M": "mamba",
    "conv": "convolution",
}
"""What a layer's name in `layer_types`, `layers_block_type` or a pattern of letters (Nemotron-H) says of it."""

_FEEDS: Final[Mapping[str, Feed]] = {"mlp": "dense", "-": "dense", "moe": "experts", "E": "experts"}
"""The same for lists in which a feed-forward block is a layer of its own."""


_QUANTISED: Final[Mapping[str, Precision]] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "mxfp4": "fp4",
    "modelopt_fp4": "fp4",
    "nvfp4": "fp4",
}
"""How wide weights are by `quant_method`, or by ModelOpt's `quant_algo`, where the name alone tells it."""

_NARROW: Final[Mapping[tuple[object, bool], Precision]] = {
    (4, False): "int4",
    (8, False): "int8",
    (4, True): "fp4",
    (8, True): "fp8",
}
"""The same by their bits, and whether they are floating numbers."""

_Shape = TypeVar("_Shape")


class _Layer(msgspec.Struct, frozen=True):
    mixer: Mixer | None
    feed: Feed | None


def model_from_file(name: str, path: Path) -> ModelShape:
    """Read a shape from a file config.json; the parameters' number from the list of weights beside it, where there is one. Raises
    PlanRefused.
    """
    config, index = _read(path, _MOST_CONFIG_BYTES, "config.json", dict[str, Any]), path.with_name(INDEX)
    stated = None
    if path.name == "config.json" and index.is_file():
        stated = _stated_by(_read(index, _MOST_INDEX_BYTES, INDEX, _Index), config)
    return model_from_config(name, config, source=path.name, stated_parameters=stated)


class _Told(msgspec.Struct):
    """As it is written: whole numbers are read, and nothing else is made an object of."""

    total_parameters: msgspec.Raw = msgspec.Raw(b"")
    total_size: msgspec.Raw = msgspec.Raw(b"")


class _Index(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


def _read(path: Path, most: int, kind: str, shape: type[_Shape]) -> _Shape:
    if path.stat().st_size > most:
        raise PlanRefused(f"{path} is larger than any {kind}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except msgspec.ValidationError:
        raise PlanRefused(f"{path} is not a JSON object") from None
    except DECODE_ERRORS:
        raise PlanRefused(f"{path} is not JSON") from None


def _whole(told: msgspec.Raw) -> int:
    """Return a whole number, 0 for anything else."""
    digits = bytes(told)
    return int(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else 0


def _stated_by(index: _Index, config: Mapping[str, Any]) -> int | None:
    """Return the parameters that a list of weights states; None where it states bytes of narrowed weights only, from which no
    number follows.
    """
    try:
        told = msgspec.json.decode(index.metadata, type=_Told)
    except DECODE_ERRORS:
        return None
    if 0 < (stated := _whole(told.total_parameters)) <= _MOST_PARAMETERS:
        return stated
    parts = (config, _language_model(config, "config.json"))
    dtype = next((str(each[key]) for each in parts for key in ("dtype", "torch_dtype") if each.get(key)), None)
    size = _whole(told.total_size)
    plain = dtype in {"bfloat16", "float16"} and not any(each.get("quantization_config") for each in parts)
    if plain and 0 < size // 2 <= _MOST_PARAMETERS:
        return size // 2
    return None


def model_from_config(
    name: str, config: Mapping[str, Any], *, source: str, stated_parameters: int | None = None
) -> ModelShape:
    """Read a shape from the config.json beside the weights. Raises PlanRefused.

    A model without `num_key_value_heads` has as many as it has heads: that is what the key's absence means.
    """
    text = _language_model(config, source)
    where = next((each for each in (text, config) if each.get("num_parameters") is not None), None)
    if where is not None:
        stated_parameters = _count(where, source, "num_parameters", most=_MOST_PARAMETERS)
    return _Reader(text, config, source).shape(name, stated_parameters)


def parameters_of(config: Mapping[str, Any]) -> int:
    """Count the parameters of a config.json's language model, whether or not its type was ever compared. Raises PlanRefused."""
    reader = _Reader(_language_model(config, "config.json"), config, "config.json")
    return reader.parameters + reader.lookup_parameters


def _language_model(config: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the part of a file that tells of the language model: the outer one may be of a model with encoders, or a speaker."""
    inner = config
    for _ in range(_MOST_NESTED):
        key = next((key for key in _NESTED if inner.get(key) is not None), None)
        if key is None:
            break
        inner = inner[key]
        if not isinstance(inner, Mapping):
            raise PlanRefused(f"{source}: {key} is not an object")
    return inner


class _Reader:
    """What one file says, asked for piece by piece."""

    def __init__(self, text: Mapping[str, Any], config: Mapping[str, Any], source: str) -> None:
        told = text.get("model_type")
        # It is printed.
        self._type = told if isinstance(told, str) and len(told) <= _MOST_TYPE_CHARS and told.isprintable() else ""
        self._known = architecture_of(self._type)
        self._config = config
        self._told = text
        self._text = _over(text, self._known.defaults)
        self._source = source
        self.hidden = self._get("hidden_size")
        self.heads = self._get("num_attention_heads")
        one = self._text.get("multi_query") is True and self._text.get("new_decoder_architecture") is not True
        self.kv_heads = 1 if one else self._get("num_key_value_heads", "num_kv_heads", otherwise=self.heads)
        # Types with latent attention have 0 here.
        self.head_dim = self._get("head_dim", otherwise=0) or max(1, self.hidden // self.heads)
        self.experts = self._get(*_EXPERTS, otherwise=1)
        # How many of them a token passes decides what it costs, so it is never guessed.
        self.active = self._get(*_ACTIVE, otherwise=1 if self.experts == 1 else None)
        if self.active > self.experts:
            raise PlanRefused(f"{source}: num_experts_per_tok is {self.active}, and there are {self.experts} experts")
        self.matrices = 2 if self._type in UNGATED else 3
        self.layers = self._layers()

    def _get(self, *names: str, otherwise: int | None = None, most: int = _MOST) -> int:
        return _count(self._text, self._source, *names, otherwise=otherwise, most=most)

    def shape(self, name: str, stated: int | None) -> ModelShape:
        self._refuse_unknown(stated)
        latent = None
        if self._text.get("kv_lora_rank") is not None:
            latent = self._get("kv_lora_rank") + self._get("qk_rope_head_dim", otherwise=0)
        kept = [layer for layer in self.layers[: self._own_kv] if layer.mixer == "full"]
        if not kept:
            raise PlanRefused(
                f"{self._source}: no layer keeps keys and values of the whole text; such models are not planned"
            )
        others = sum(layer.mixer not in {"full", None} for layer in self.layers)
        full = len(kept) if len(kept) < len(self.layers) else None
        kv_heads, head_dim = self._attention("full")
        with_experts = sum(layer.feed == "experts" for layer in self.layers)
        widest = max(self._dense_widths(), default=0)
        return ModelShape(
            name=name,
            repository=str(self._config.get("_name_or_path") or name),
            layers=len(self.layers),
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=kv_heads,
            head_dim=self._latent_dim if latent is not None else head_dim,
            # Where experts work on a narrower vector, theirs are as many as those of blocks that much narrower.
            intermediate=max(1, self._expert_width * self._expert_hidden // self.hidden)
            if self.experts > 1
            else max(1, widest),
            vocabulary=self._get("vocab_size"),
            max_context=self._get(*_LONGEST, most=1_000_000_000),
            tied_embeddings=self._tied,
            experts=self.experts,
            active_experts=self.active,
            shared_experts=self._get(*_SHARED, otherwise=0),
            expert_layers=with_experts if self.experts > 1 and with_experts < len(self.layers) else None,
            dense_intermediate=widest if self.experts > 1 else 0,
            matrices=self.matrices,
            lookup_parameters=self.lookup_parameters,
            latent_values=latent,
            # FP8, and a scale of 4 bytes for all of a token's values (vLLM's DeepseekV32IndexerCache).
            index_bytes=self._get("index_head_dim") + 4 if latent is not None and self._has("index_head_dim") else 0,
            full_layers=full,
            state_values=others * self._state_values() if full is not None else 0,
            quantised=self._quantised(),
            wide_rest=self._wide_rest(),
            stated_parameters=self._check_stated(stated),
            doubts=() if stated is not None else tuple(self._doubts()),
            source=self._source,
            as_of="as given",
        )

    def _refuse_unknown(self, stated: int | None) -> None:
        if self._type in WRITES_NO_TEXT:
            raise PlanRefused(f"{self._source}: a model of type `{self._type}` reads texts and writes none")
        if self._known.counted is False and stated is None:
            raise PlanRefused(
                f"{self._source}: the parameters of `{self._type}` do not follow from this file; add num_parameters to it, "
                f"or put the model's {INDEX} beside it"
            )

    @property
    def _quantisation(self) -> Mapping[str, Any]:
        given = self._config.get("quantization_config") or self._told.get("quantization_config")
        return given if isinstance(given, Mapping) else {}

    def _quantised(self) -> Precision | None:
        """Return what the weights are narrowed to: an engine refuses to narrow them again to anything else."""
        told = self._quantisation
        if not told:
            return None
        method = str(told.get("quant_method") or told.get("quant_algo") or "").lower()
        by_name = _QUANTISED.get(method) or _QUANTISED.get(str(told.get("quant_algo") or "").lower())
        if by_name is not None:
            return by_name
        groups = told.get("config_groups")
        one = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = one.get("weights") if isinstance(one, Mapping) else None
        weights = weights if isinstance(weights, Mapping) else told
        bits = weights.get("num_bits") or weights.get("bits")
        if method == "bitsandbytes":
            bits = 4 if told.get("load_in_4bit") is True else 8
        found = _NARROW.get((bits, weights.get("type") == "float")) if isinstance(bits, int) else None
        if found is None:
            raise PlanRefused(
                f"{self._source}: how wide weights quantised by {method[:64]!r} are is not known; plan with the config.json of the model "
                "that they were made of, and name them with --weights and --precision"
            )
        return found

    def _wide_rest(self) -> bool:
        """Return whether the experts alone are narrowed, and attention is left as it was."""
        lists = [self._quantisation.get(key) for key in ("modules_to_not_convert", "ignore", "exclude_modules")]
        spared = [each for some in lists if isinstance(some, list) for each in some if isinstance(each, str)]
        plain = all(layer.mixer in {"full", "window"} for layer in self.layers)
        return self.experts > 1 and plain and any(each.rstrip(".*$").endswith("self_attn") for each in spared)

    def _check_stated(self, stated: int | None) -> int:
        counted = self.parameters + self.lookup_parameters
        if stated is None:
            return counted
        if not counted / _MOST_OFF < stated < counted * _MOST_OFF:
            raise PlanRefused(
                f"{self._source}: {stated:,} parameters are stated, and its layers have about {counted:,}: are both of one model?"
            )
        return stated

    def _doubts(self) -> Iterable[str]:
        mend = f"num_parameters in it, or the model's {INDEX} beside it, settles that"
        if self._known.counted is None:
            kind = f"a model of type `{self._type}`" if self._type else "this model (the file has no model_type)"
            yield f"{self._source}: how many parameters {kind} has was counted by the keys of this file and never compared; {mend}"
        towers = [key.removesuffix("_config") for key in ("vision_config", "audio_config") if self._config.get(key)]
        if towers:
            yield f"{self._source}: parameters of the {' and '.join(towers)} encoder are not counted; {mend}"
        assumed = [key for key in _ESSENTIAL if key in self._text and key not in self._told]
        if assumed:
            yield f"{self._source} does not have {', '.join(assumed)}: what `{self._type}` has without them was taken"

    @property
    def _tied(self) -> bool:
        """True where one matrix serves as embedding and head. The outer object of a model with encoders decides for all."""
        outer = _over(self._config, architecture_of(str(self._config.get("model_type") or "")).defaults)
        said = (each.get("tie_word_embeddings") for each in (outer, self._text))
        return next((each for each in said if isinstance(each, bool)), False)

    # Layers

    def _layers(self) -> list[_Layer]:
        pattern, blocks = self._text.get("hybrid_override_pattern"), self._text.get("layers_block_type")
        if isinstance(pattern, str) and pattern:
            blocks = list(pattern)
        if not isinstance(blocks, list):
            blocks = []
        if len(blocks) > _MOST_LAYERS:
            raise PlanRefused(f"{self._source}: more than {_MOST_LAYERS:,} layers")
        feeds = [_FEEDS.get(block) if isinstance(block, str) else None for block in blocks]
        if any(feeds):
            pairs = zip(blocks, feeds, strict=True)
            return [_Layer(None if feed else self._mixer(block), feed) for block, feed in pairs]
        number = self._get("num_hidden_layers", most=_MOST_LAYERS)
        mixers = self._mixers(number, blocks or self._kinds("layer_types", number))
        experts = self._with_experts(number) if self.experts > 1 else [False] * number
        return [_Layer(mixer, "experts" if some else "dense") for mixer, some in zip(mixers, experts, strict=True)]

    def _kinds(self, key: str, number: int) -> list[Any] | None:
        """Return what a list says of each layer; a type's own says how its layers alternate, however many they are."""
        kinds = self._text.get(key)
        if not isinstance(kinds, list) or not kinds:
            return None
        if key in self._told:
            return kinds if len(kinds) == number else None
        return [kinds[layer % len(kinds)] for layer in range(number)]

    def _mixer(self, kind: object) -> Mixer:
        found = _MIXERS.get(kind, "full") if isinstance(kind, str) else "full"
        return "mamba" if found == "linear" and self._has("mamba_d_state", "mamba_num_heads") else found

    def _has(self, *names: str) -> bool:
        return any(self._text.get(name) is not None for name in names)

    def _mixers(self, number: int, kinds: object) -> list[Mixer]:
        if isinstance(kinds, list) and len(kinds) == number:
            return [self._mixer(kind) for kind in kinds]
        if isinstance(ones := self._text.get("attn_type_list"), list) and len(ones) == number:
            return ["full" if one == 1 else "linear" for one in ones]
        if self._has("full_attention_interval"):
            each = self._get("full_attention_interval")
            return ["full" if (layer + 1) % each == 0 else self._mixer("linear_attention") for layer in range(number)]
        if self._has("attn_layer_period"):
            each, first = self._get("attn_layer_period"), self._get("attn_layer_offset", otherwise=0)
            return ["full" if layer % each == first else "mamba" for layer in range(number)]
        if self._type == "bamba":
            some = _numbers(self._text.get("attn_layer_indices"))
            return ["full" if layer in some else "mamba" for layer in range(number)]
        return ["full"] * number

    def _with_experts(self, number: int) -> list[bool]:
        """Return of each layer whether it has experts: every family of models has keys of its own for it."""
        if (kinds := self._kinds("mlp_layer_types", number)) is not None:
            return [kind != "dense" for kind in kinds]
        if isinstance(chosen := self._text.get("moe_layer_freq"), list) and len(chosen) == number:
            return [bool(each) for each in chosen]
        for key in ("moe_layers", "moe_layers_enum"):
            if chosen := _numbers(self._text.get(key)):
                return [layer in chosen for layer in range(number)]
        first = self._get("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", otherwise=0)
        last = self._get("moe_layer_end_index", otherwise=number)
        each = self._get(
            "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", "expert_layer_period", otherwise=1
        )
        # Jamba counts from its offset; the others have experts in the last layer of each group.
        turn = self._get("expert_layer_offset", otherwise=0) if self._has("expert_layer_period") else each - 1
        plain = _numbers(self._text.get("mlp_only_layers"))
        return [first <= layer <= last and layer % each == turn and layer not in plain for layer in range(number)]

    # Widths

    @property
    def _own_kv(self) -> int:
        """Layers that keep keys and values of their own: Gemma's last ones read those of earlier layers."""
        return len(self.layers) - min(len(self.layers), self._get("num_kv_shared_layers", otherwise=0))

    @property
    def _per_layer(self) -> int:
        return self._get("hidden_size_per_layer_input", otherwise=0)

    @property
    def _expert_width(self) -> int:
        return self._get(*_EXPERT_WIDTH, "intermediate_size")

    @property
    def _expert_hidden(self) -> int:
        """Width of what goes into an expert."""
        return self._get("moe_latent_size", otherwise=self.hidden)

    @property
    def _latent_dim(self) -> int:
        """The mean of a head's widths as keys and as values, with latent attention."""
        key = self._get("qk_nope_head_dim", otherwise=0) + self._get("qk_rope_head_dim", otherwise=0)
        value = self._get("v_head_dim", otherwise=0)
        # `head_dim` in such a file, or by its type's default, is the turned part alone.
        return (key + value) // 2 if key and value else self.head_dim

    def _dense_widths(self) -> list[int]:
        """Return the inner width of each dense block."""
        dense = [number for number, layer in enumerate(self.layers) if layer.feed == "dense"]
        if not dense:
            return []
        wide = self._get(*_DENSE_WIDTH)
        if self._text.get("block_auto_adjust_ff_dim") is True:
            # Liquid's: two thirds, rounded up.
            step = self._get("block_multiple_of", otherwise=256)
            wide = math.ceil(2 * wide // 3 / step) * step
        doubled = self._own_kv if self._text.get("use_double_wide_mlp") is True else len(self.layers)
        return [wide * (2 if number >= doubled else 1) for number in dense]

    def _attention(self, mixer: Mixer) -> tuple[int, int]:
        """Return the KV heads and the head's width of such a layer: Gemma's that see the whole text have their own."""
        if mixer != "full":
            return self.kv_heads, self.head_dim
        wide = self._get("global_head_dim", otherwise=self.head_dim)
        few = self._text.get("attention_k_eq_v") is True
        heads = self._get("num_global_key_value_heads", otherwise=self.kv_heads) if few else self.kv_heads
        told = self._text.get("per_layer_config")
        if isinstance(told, Mapping):
            own = next((each for each in told.values() if isinstance(each, Mapping)), {})
            wide = _count(own, self._source, "head_dim", otherwise=wide)
            heads = _count(own, self._source, "num_key_value_heads", otherwise=heads)
        return heads, wide

    def _state_values(self) -> int:
        """Return the values that a running sequence keeps in a layer that does not keep its whole text."""
        linear = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        each = math.prod(self._get(name, otherwise=0) for name in linear)
        state = self._mamba_inner * self._get("mamba_d_state", "ssm_state_size", otherwise=0)
        return each or state or 2 * self._get("sliding_window", otherwise=0) * self.kv_heads * self.head_dim

    @property
    def _mamba_inner(self) -> int:
        given = self._get("mamba_d_ssm", otherwise=0)
        heads = self._get("mamba_n_heads", "mamba_num_heads", otherwise=0)
        wide = self._get("mamba_d_head", "mamba_head_dim", otherwise=0)
        return given or heads * wide or self._get("mamba_expand", otherwise=0) * self.hidden

    # Parameters

    @property
    def lookup_parameters(self) -> int:
        """Parameters of the tables that are looked up layer by layer (Gemma)."""
        return self._get("vocab_size_per_layer_input", otherwise=0) * len(self.layers) * self._per_layer

    @property
    def parameters(self) -> int:
        """All others."""
        total = self._get("vocab_size") * self.hidden * (1 if self._tied else 2) + self.hidden
        for number, layer in enumerate(self.layers):
            total += 2 * self.hidden + self._mixer_parameters(layer.mixer, number)
            total += self._expert_block if layer.feed == "experts" else 0
            # In and out of what each layer takes from its table, and the part of the one projection for all.
            total += 3 * self.hidden * self._per_layer
        total += sum(self.matrices * self.hidden * wide for wide in self._dense_widths())
        if self._text.get("enable_moe_block") is True:
            # Gemma's experts stand beside a dense block in the same layer.
            total += len(self.layers) * self.matrices * self.hidden * self._get("intermediate_size")
        return total

    @property
    def _expert_block(self) -> int:
        inner = self._expert_hidden
        each = self.matrices * inner * self._expert_width
        bridges = 2 * self.hidden * inner if inner != self.hidden else 0
        return self.experts * each + self._shared_block + self.hidden * self.experts + bridges

    @property
    def _shared_block(self) -> int:
        number = self._get(*_SHARED, otherwise=0)
        wide = self._get(*_SHARED_WIDTH, otherwise=0)
        if self._has("intermediate_size_mlp"):
            # Llama 4 has one beside the experts, as wide as they are.
            number = 1
        whole = wide * max(1, number) if wide else number * self._expert_width
        return self.matrices * self.hidden * whole

    def _mixer_parameters(self, mixer: Mixer | None, number: int) -> int:
        match mixer:
            case None:
                return 0
            case "mamba":
                return self._mamba_parameters()
            case "convolution":
                return 4 * self.hidden * self.hidden
            case "linear" if self._has("linear_num_value_heads"):
                return self._linear_parameters()
            case _ if self._has("kv_lora_rank", "v_head_dim") and self._has("qk_nope_head_dim"):
                return self._latent_parameters()
            case _:
                beside = self._mamba_parameters() if self._type == "falcon_h1" else 0
                return beside + self._attention_parameters(mixer, number)

    def _attention_parameters(self, mixer: Mixer, number: int) -> int:
        kv_heads, wide = self._attention(mixer)
        keys = 0 if number >= self._own_kv else 2
        if keys and mixer == "full" and self._text.get("attention_k_eq_v") is True:
            keys = 1
        # With a gate on what attention gives, queries are twice as wide.
        asked = 3 if self._text.get("attn_output_gate") is True or self._type.startswith("qwen3_next") else 2
        return self.hidden * wide * (asked * self.heads + keys * kv_heads)

    def _latent_parameters(self) -> int:
        """Count a layer's attention with latent vectors, which are far fewer than such heads would have."""
        plain, value = self._get("qk_nope_head_dim"), self._get("v_head_dim")
        turned = self._get("qk_rope_head_dim", otherwise=0)
        kept, asked = self._get("kv_lora_rank"), self._get("q_lora_rank", otherwise=0)
        key = plain + turned
        query = self.hidden * asked + asked * self.heads * key if asked else self.hidden * self.heads * key
        return (
            query
            + self.hidden * (kept + turned)
            + kept * self.heads * (plain + value)
            + self.heads * value * self.hidden
        )

    def _linear_parameters(self) -> int:
        """Count a gated delta net (Qwen3-Next): queries, keys, values, their gate, two rates a head, and the way out."""
        heads = self._get("linear_num_value_heads")
        keys = self._get("linear_num_key_heads", otherwise=heads) * self._get("linear_key_head_dim")
        values = heads * self._get("linear_value_head_dim")
        taps = self._get("linear_conv_kernel_dim", otherwise=0) * (2 * keys + values)
        return self.hidden * (2 * keys + 3 * values + 2 * heads) + taps

    def _mamba_parameters(self) -> int:
        """Count a layer of Mamba 2, or of Mamba 1 where the file has its rank (Jamba)."""
        inner, state = self._mamba_inner, self._get("mamba_d_state", "ssm_state_size", otherwise=0)
        if self._has("mamba_dt_rank"):
            rank = self._get("mamba_dt_rank")
            return inner * (3 * self.hidden + 2 * rank + 3 * state)
        groups = self._get("mamba_n_groups", "n_groups", otherwise=1)
        heads = self._get("mamba_n_heads", "mamba_num_heads", otherwise=1)
        return self.hidden * (3 * inner + 2 * groups * state + heads)


def _over(told: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a file says, and what its type has where it says nothing. Null is said: there is none."""
    return ChainMap(cast("dict[str, Any]", told), cast("dict[str, Any]", defaults))


def _numbers(given: object) -> frozenset[int]:
    """Return the numbers of layers in a list, or in a string with commas between them (Step)."""
    if isinstance(given, str):
        given = [int(each) for each in given.split(",") if each.strip().isdecimal() and len(each) <= _DIGITS]
    return frozenset(each for each in given if isinstance(each, int)) if isinstance(given, list) else frozenset()


def _count(config: Mapping[str, Any], source: str, *names: str, otherwise: int | None = None, most: int = _MOST) -> int:
    """Return the value of the first of these keys that is present. Null counts as absent, as transformers writes it. Raises
    PlanRefused.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise PlanRefused(f"{source}: {name} must be a whole number from 0 to {most:,}")
        if value == 0 and otherwise != 0:
            raise PlanRefused(f"{source}: {name} must be at least 1")
        return value
    if otherwise is None:
        raise PlanRefused(f"{source}: {' or '.join(names)} is missing; is this the config.json of a language model?")
    return otherwise
