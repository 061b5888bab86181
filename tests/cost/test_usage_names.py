"""Usage objects as providers publish them, read by the one table of their names."""

from typing import Any

import pytest

from cost.usage import UNKNOWN_DETAIL, Usage, estimated, from_openai, plain_usage

GUESS = estimated(input_tokens=90, output_tokens=40)
LIMITS: dict[str, Any] = {"max_input_tokens": 100_000, "max_output_tokens": 10_000}
TOLD: dict[str, Any] = {"prompt_tokens": 1_000, "completion_tokens": 200, "total_tokens": 1_200}


def read(usage: dict[str, Any]) -> Usage:
    """Return the usage by the quick look where it finds any, and by the closer one, which must be the same."""
    told = from_openai(usage, estimate=GUESS, **LIMITS)
    assert plain_usage(usage, **LIMITS) in (None, told)
    return told


@pytest.mark.parametrize(
    ("provider", "usage", "expected"),
    [
        ("openai", {"prompt_tokens_details": {"cached_tokens": 600, "audio_tokens": 0}}, {"cached_input_tokens": 600}),
        ("moonshot", {"cached_tokens": 600}, {"cached_input_tokens": 600}),
        (
            "moonshot, both",
            {"cached_tokens": 600, "prompt_tokens_details": {"cached_tokens": 600}},
            {"cached_input_tokens": 600},
        ),
        ("deepseek", {"prompt_cache_hit_tokens": 600, "prompt_cache_miss_tokens": 400}, {"cached_input_tokens": 600}),
        (
            "deepseek, reasoning",
            {"prompt_cache_hit_tokens": 0, "completion_tokens_details": {"reasoning_tokens": 150}},
            {"reasoning_tokens": 150},
        ),
        ("mistral", {"num_cached_tokens": 600}, {"cached_input_tokens": 600}),
        (
            "vllm",
            {"prompt_tokens_details": {"cached_tokens": 600, "created_cache_tokens": 384, "multimodal_tokens": None}},
            {"cached_input_tokens": 600, "cache_write_tokens": 384},
        ),
        ("sglang", {"reasoning_tokens": 150}, {"reasoning_tokens": 150}),
        (
            "openrouter",
            {
                "cost": 0.0042,
                "is_byok": False,
                "prompt_tokens_details": {
                    "cached_tokens": 600,
                    "cache_write_tokens": 100,
                    "audio_tokens": 0,
                    "video_tokens": 0,
                },
                "cost_details": {"upstream_inference_cost": None, "upstream_inference_prompt_cost": 0.003},
                "completion_tokens_details": {"reasoning_tokens": 150, "image_tokens": 0},
            },
            {"cached_input_tokens": 600, "cache_write_tokens": 100, "reasoning_tokens": 150},
        ),
        (
            "alibaba",
            {
                "prompt_tokens_details": {
                    "cached_tokens": 600,
                    "cache_creation_input_tokens": 100,
                    "cache_creation": {"ephemeral_5m_input_tokens": 100},
                    "cache_type": "ephemeral",
                }
            },
            {"cached_input_tokens": 600, "cache_write_tokens": 100},
        ),
        (
            "xai",
            {
                "prompt_tokens_details": {
                    "text_tokens": 900,
                    "audio_tokens": 0,
                    "image_tokens": 100,
                    "cached_tokens": 0,
                },
                "num_sources_used": 3,
                "cost_in_usd_ticks": 37_756_000,
            },
            {"image_input_tokens": 100, "tool_calls": (("live_search", 3),)},
        ),
        (
            "perplexity",
            {
                "num_search_queries": 2,
                "search_context_size": "low",
                "cost": {"total_cost": 0.006, "request_cost": 0.005},
            },
            {"tool_calls": (("web_search", 2),)},
        ),
        ("groq", {"queue_time": 0.03, "prompt_time": 0.01, "completion_time": 0.2, "total_time": 0.21}, {}),
        ("sambanova", {"acceptance_rate": 3.1, "is_last_response": True, "time_to_first_token": 0.1}, {}),
        (
            "predicted outputs",
            {"completion_tokens_details": {"accepted_prediction_tokens": 90, "rejected_prediction_tokens": 20}},
            {},
        ),
    ],
)
def test_published_usages(provider: str, usage: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each is booked under the meters that its parts have, and nothing in it is unknown."""
    told = read({**TOLD, **usage})
    assert {name: getattr(told, name) for name in expected} == expected, provider
    assert (told.input_tokens, told.output_tokens, told.source, told.unknown) == (1_000, 200, "upstream", ()), provider
    assert UNKNOWN_DETAIL not in told.flags


@pytest.mark.parametrize(
    ("usage", "unknown"),
    [
        ({"citation_tokens": 20_000}, ("citation_tokens",)),
        ({"prompt_tokens_details": {"cached_tokens": 3, "smell_tokens": 5}}, ("prompt_tokens_details.smell_tokens",)),
        ({"completion_tokens_details": {"agent_tokens": 7}}, ("completion_tokens_details.agent_tokens",)),
        ({"completion_tokens_details": {"agent_tokens": 0, "seconds": 1.5, "kind": "x"}}, ()),
    ],
)
def test_an_unknown_count_is_flagged(usage: dict[str, Any], unknown: tuple[str, ...]) -> None:
    """What has no meter is named, and the rest is booked as ever."""
    told = read({**TOLD, **usage})
    assert told.unknown == unknown
    assert (UNKNOWN_DETAIL in told.flags) == bool(unknown)
    assert (told.input_tokens, told.output_tokens, told.source) == (1_000, 200, "upstream")


def test_unknown_names_are_bounded() -> None:
    """An upstream that makes up names fills no log."""
    told = read({**TOLD, **{f"{number}{'x' * 500}": 1 for number in range(1_000)}})
    assert len(told.unknown) == 8
    assert max(map(len, told.unknown)) == 64
