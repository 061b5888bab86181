"""What a `model_type` says that a config.json leaves out.

A config.json holds only what differs from its type's defaults, so these belong to reading one. They, and whether our count of
parameters was compared with the model itself, are measured by `benchmarks/architectures.py`; the rest was read from sources.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

UNGATED: Final = frozenset(
    {
        "apertus",
        "arcee",
        "biogpt",
        "codegen",
        "falcon",
        "fuyu",
        "gpt_neox",
        "gptj",
        "jais2",
        "nanochat",
        "nemotron",
        "nemotron_h",
        "persimmon",
        "phi",
        "starcoder2",
    }
)
"""Types whose feed-forward blocks have two matrices: one in, one out. Source: each type's module in transformers 5.19."""

WRITES_NO_TEXT: Final = frozenset(
    {
        "bert",
        "big_bird",
        "camembert",
        "convbert",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "megatron-bert",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)
"""Encoders. Their classes with a language model's head are for training."""


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one `model_type`."""

    counted: bool | None = None
    """True where our count came within a tenth of the model's own; False where it did not; None: not compared."""
    defaults: Mapping[str, Any] = {}


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    as_of: str
    types: Mapping[str, Architecture]


_UNKNOWN: Final = Architecture()

_SAME_AS: Final[Mapping[str, str]] = {"kimi_k2": "deepseek_v3"}
"""Types that are another's under a name of their own. Source: Kimi K2's deployment guide."""


def architecture_of(model_type: str) -> Architecture:
    """Return what is known of that type; of a new one nothing, which is said by `counted`."""
    return _table().types.get(_SAME_AS.get(model_type, model_type), _UNKNOWN)


@functools.cache
def _table() -> _Table:
    text = Path(__file__).with_name("data").joinpath("architectures.json").read_bytes()
    return msgspec.json.decode(text, type=_Table)
