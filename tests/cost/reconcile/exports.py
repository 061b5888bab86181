"""Hand-written exports of both providers, with the oddities of the real ones."""

import json
from collections.abc import Sequence
from typing import Any

DAY = "2026-11-20"
DAY_S = 1_795_132_800
DAY_US = DAY_S * 1_000_000
DAY_LENGTH_S = 86_400


def openai_bucket(*results: dict[str, Any], day: int = 0) -> dict[str, Any]:
    """A day of OpenAI's; `day` counts from the usual one."""
    start = DAY_S + day * DAY_LENGTH_S
    return {"object": "bucket", "start_time": start, "end_time": start + DAY_LENGTH_S, "results": list(results)}


def openai_usage(model: str | None, input_tokens: int, output_tokens: int, **fields: Any) -> dict[str, Any]:
    """A result of usage/completions; everything that was not asked for is null."""
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "num_model_requests": 1,
        "input_cached_tokens": None,
        "project_id": None,
        "api_key_id": None,
        "model": model,
        "batch": None,
        **fields,
    }


def openai_cost(line_item: str | None, value: Any, **fields: Any) -> dict[str, Any]:
    """A result of costs."""
    amount = {"value": value, "currency": "usd"}
    return {
        "object": "organization.costs.result",
        "amount": amount,
        "line_item": line_item,
        "project_id": None,
        **fields,
    }


def anthropic_bucket(*results: dict[str, Any], day: int = 20) -> dict[str, Any]:
    """A day of Anthropic's, in November 2026."""
    times = {"starting_at": f"2026-11-{day:02}T00:00:00Z", "ending_at": f"2026-11-{day + 1:02}T00:00:00Z"}
    return {**times, "results": list(results)}


def anthropic_usage(model: str | None, uncached: int, output: int, **fields: Any) -> dict[str, Any]:
    """A result of usage_report/messages."""
    return {
        "uncached_input_tokens": uncached,
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "cache_read_input_tokens": 0,
        "output_tokens": output,
        "server_tool_use": {"web_search_requests": 0},
        "api_key_id": None,
        "workspace_id": None,
        "model": model,
        "service_tier": "standard",
        "context_window": None,
        **fields,
    }


def anthropic_cost(model: str | None, token_type: str | None, cents: str, **fields: Any) -> dict[str, Any]:
    """A result of cost_report."""
    return {
        "amount": cents,
        "currency": "USD",
        "cost_type": "tokens" if token_type else None,
        "description": None,
        "model": model,
        "service_tier": None,
        "token_type": token_type,
        "workspace_id": None,
        **fields,
    }


def page(*buckets: dict[str, Any], has_more: bool = False) -> dict[str, Any]:
    """A page of either provider."""
    return {"object": "page", "data": list(buckets), "has_more": has_more, "next_page": "p2" if has_more else None}


def file_of(value: Any, name: str = "export.json") -> tuple[str, bytes]:
    """A file with one JSON value."""
    return name, json.dumps(value).encode()


def lines_of(values: Sequence[Any], name: str = "export.jsonl") -> tuple[str, bytes]:
    """A file with a JSON value on each line."""
    return name, "\n".join(json.dumps(value) for value in values).encode()
