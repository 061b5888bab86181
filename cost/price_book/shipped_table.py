"""The part of litellm's price table that comes with the gateway, for installations without litellm.

It has the models that are called without litellm, with the figures that are read here, and is made from the installed
litellm: `python -m cost.price_book.litellm_table`. A test holds the two together. NOTICE.md has its licence.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from cost.errors import PriceTableMissing

PATH: Final = Path(__file__).with_name("litellm_table.json.gz")
PROVIDERS: Final = frozenset(
    {
        "anthropic",
        "azure",
        "cerebras",
        "cohere",
        "dashscope",
        "deepinfra",
        "deepseek",
        "fireworks_ai",
        "gemini",
        "groq",
        "jina_ai",
        "minimax",
        "mistral",
        "moonshot",
        "nvidia_nim",
        "openai",
        "openrouter",
        "perplexity",
        "sambanova",
        "together_ai",
        "voyage",
        "xai",
        "zai",
    }
)
"""The table's names of the providers that speak OpenAI's wire, or Cohere's of rankings."""
_MODES: Final = frozenset(
    {"audio_speech", "audio_transcription", "chat", "embedding", "image_generation", "moderation", "rerank"}
)
_READ: Final = re.compile(
    r"mode|litellm_provider|max_(input_|output_)?tokens|supports_(vision|function_calling|response_schema)|"
    r"input_cost_per_(request|second|character|image|query)|output_cost_per_image|tiered_pricing|(input|output)_cost_per_token(_(above|batches|flex|priority|cache_hit).*)?|"
    r"search_context_cost_per_query|output_cost_per_reasoning_token.*|cache_(read|creation)_input_token_cost.*|"
    r"(input_cost_per_(audio|image)|output_cost_per_(audio|image|video))_token.*|cache_read_input_(audio|image)_token_cost.*"
)


class Shipped(msgspec.Struct, frozen=True):
    """Rows of one litellm release, undecoded, by model name."""

    release: str
    rows: dict[str, msgspec.Raw]


def read_shipped() -> Shipped:
    """Read the file that comes with the gateway. Raises PriceTableMissing."""
    try:
        return msgspec.json.decode(gzip.decompress(PATH.read_bytes()), type=Shipped)
    except (OSError, EOFError, ValueError) as failure:
        raise PriceTableMissing(
            f"the table of prices that comes with the gateway cannot be read: {failure}"
        ) from failure


def reduced(release: str, rows: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return the file's content for the whole table of a release; equal for equal tables."""
    kept = dict(sorted(_kept(rows)))
    text = json.dumps({"release": release, "rows": kept}, separators=(",", ":"), default=_figure)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def _kept(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, row in rows.items():
        provider = str(row.get("litellm_provider"))
        if row.get("mode") in _MODES and any(provider == each or provider.startswith(f"{each}-") for each in PROVIDERS):
            # Elsewhere a 0 means that nobody knows.
            is_free = row["mode"] == "moderation"
            yield name, {key: value for key, value in row.items() if _READ.fullmatch(key) and (value or is_free)}


def _figure(value: object) -> float:
    """Return a decimal as a JSON number; the shortest form of the float reads back as the same decimal."""
    if not isinstance(value, Decimal):
        raise TypeError(type(value).__name__)
    return float(value)
