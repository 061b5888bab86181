"""Names that providers give to what they count, in one table; `cost.usage` reads by it.

As of 2026-11-29, from the published API references of OpenAI, Anthropic, OpenRouter, DeepSeek, Moonshot (Kimi), xAI, Groq,
Mistral, Perplexity, Alibaba, Zhipu, SambaNova, DeepInfra and Google (its OpenAI-compatible endpoint), and from litellm's replies.

A name in none of these lists is not dropped: the answer is flagged, counted, and told in the log once for each target.
"""

from collections.abc import Mapping
from typing import Any, Final

PROMPT_DETAILS: Final = "prompt_tokens_details"
COMPLETION_DETAILS: Final = "completion_tokens_details"

CACHED: Final = (
    (PROMPT_DETAILS, "cached_tokens"),
    ("", "cache_read_input_tokens"),  # Anthropic, litellm
    ("", "cached_tokens"),  # Moonshot, Together
    ("", "prompt_cache_hit_tokens"),  # DeepSeek
    ("", "num_cached_tokens"),  # Mistral
    (PROMPT_DETAILS, "cache_read_tokens"),
)
"""Tokens of the prompt that came from a cache; the first that is told holds."""
WRITTEN: Final = (
    (PROMPT_DETAILS, "cache_write_tokens"),  # OpenRouter
    (PROMPT_DETAILS, "cache_creation_tokens"),  # litellm
    (PROMPT_DETAILS, "cache_creation_input_tokens"),  # Alibaba
    (PROMPT_DETAILS, "created_cache_tokens"),  # vLLM since 0.32
    ("", "cache_creation_input_tokens"),  # Anthropic
)
"""Tokens of the prompt that were written to a cache; the first that is told holds."""
REASONING: Final = (
    (COMPLETION_DETAILS, "reasoning_tokens"),
    ("", "reasoning_tokens"),  # Perplexity, SGLang
)
TOOL_CALLS: Final[Mapping[str, str]] = {
    "num_search_queries": "web_search",  # Perplexity
    "num_sources_used": "live_search",  # xAI
}
"""Counts beside tokens of what a provider's tools did, with the tool whose calls they are."""

BESIDE: Final = ("x_groq",)
"""Objects that have a `usage`, or an `error`, in a chunk that has none itself: Groq's, in the last one."""

_PARTS: Final[Mapping[str, frozenset[str]]] = {
    place: frozenset(name for where, name in (*CACHED, *WRITTEN, *REASONING) if where == place)
    for place in ("", PROMPT_DETAILS, COMPLETION_DETAILS)
}
_PRICED_AS_TEXT: Final = frozenset({"text_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"})
"""Details that are billed as any other token of their whole."""
KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "": _PARTS[""]
    | TOOL_CALLS.keys()
    | {
        *("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens"),
        # What is left of the prompt: DeepSeek.
        "prompt_cache_miss_tokens",
        # Characters of the same text; OpenRouter's and xAI's own bill, which is read by the deployment's `told_cost`.
        *("character_count", "total_characters", "cost_in_usd_ticks", "cost", "estimated_cost"),
        # The number of requests to the model that the answer took: SambaNova, Mistral's agents.
        *("num_requests", "iterations"),
    },
    PROMPT_DETAILS: _PARTS[PROMPT_DETAILS] | _PRICED_AS_TEXT | {"audio_tokens", "image_tokens", "video_tokens"},
    COMPLETION_DETAILS: _PARTS[COMPLETION_DETAILS] | _PRICED_AS_TEXT | {"audio_tokens", "image_tokens", "video_tokens"},
}
"""Names of counts by place, that is at the top (empty) or in the details of the prompt or the answer."""
_MOST_UNKNOWN: Final = 8
_MOST_CHARACTERS: Final = 64


def unknown_details(usage: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of counts above zero that no meter is known for, those in details as `details.name`.

    Only whole numbers count: times and rates are fractions.
    """
    found: list[str] = []
    for place, known in KNOWN.items():
        told = usage.get(place) if place else usage
        if isinstance(told, dict):
            found.extend(
                f"{place}.{name}" if place else name
                for name, count in told.items()
                if name not in known and type(count) is int and count > 0
            )
    return tuple(name[:_MOST_CHARACTERS] for name in found[:_MOST_UNKNOWN])
