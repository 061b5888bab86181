"""Replies and events of the responses wire, held against what is published: OpenAI's own types, and Open Responses' rules."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pydantic
from openai.types.responses import Response, ResponseStreamEvent

_REQUIRED: Final = frozenset(
    {
        *(
            "id",
            "object",
            "created_at",
            "completed_at",
            "status",
            "incomplete_details",
            "model",
            "previous_response_id",
        ),
        *(
            "instructions",
            "output",
            "error",
            "tools",
            "tool_choice",
            "truncation",
            "parallel_tool_calls",
            "text",
            "top_p",
        ),
        *(
            "presence_penalty",
            "frequency_penalty",
            "top_logprobs",
            "temperature",
            "reasoning",
            "user",
            "usage",
            "background",
        ),
        *(
            "max_output_tokens",
            "max_tool_calls",
            "store",
            "service_tier",
            "metadata",
            "safety_identifier",
            "prompt_cache_key",
        ),
    }
)
"""What Open Responses requires of a response, even where it is null."""
_TEXTS: Final = ("id", "object", "status", "model", "truncation", "service_tier")
_NUMBERS: Final = ("created_at", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature")
_event: Final[pydantic.TypeAdapter[Any]] = pydantic.TypeAdapter(ResponseStreamEvent)
_PLACE: Final = ("item_id", "output_index", "content_index")


def check_response(response: Mapping[str, Any]) -> None:
    """Fails for a response that is not as it is published."""
    Response.model_validate(response)
    assert response.keys() >= _REQUIRED, sorted(_REQUIRED - response.keys())
    assert all(isinstance(response[name], str) for name in _TEXTS), {name: response[name] for name in _TEXTS}
    assert all(isinstance(response[name], int | float) for name in _NUMBERS)
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    if response["usage"] is not None:
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def check_events(events: Iterable[Mapping[str, Any]], first: int = 0) -> None:
    """Fails for a stream whose events are not as they are published, each and in their order.

    Every item and part is opened before it grows and closed before the end, and its deltas are its whole.
    """
    open_items: dict[int, str] = {}
    grown: dict[tuple[Any, ...], str] = {}
    kinds: list[str] = []
    for number, event in enumerate(events, first):
        _event.validate_python(event)
        kind = event["type"]
        kinds.append(kind)
        assert event["sequence_number"] == number, kind
        if "response" in event:
            check_response(event["response"])
        if kind == "response.output_item.added":
            assert not open_items
            open_items[event["output_index"]] = event["item"]["id"]
        elif kind == "response.output_item.done":
            assert open_items.pop(event["output_index"]) == event["item"]["id"]
        elif "item_id" in event:
            assert open_items[event["output_index"]] == event["item_id"]
        place = tuple(event.get(name) for name in _PLACE)
        if kind.endswith(".delta"):
            grown[place] = grown.get(place, "") + event["delta"]
        elif kind.endswith((".text.done", "_text.done", ".refusal.done", "_arguments.done", "_input.done")):
            whole = next(event[name] for name in ("text", "refusal", "arguments", "input") if name in event)
            assert grown.pop(place, "") == whole
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in {"response.completed", "response.incomplete", "response.failed"}
    if kinds[-1] != "response.failed":
        assert not open_items
        assert not grown
