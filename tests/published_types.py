"""Replies and events, held against what is published: OpenAI's and Anthropic's own types, and Open Responses' rules."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, get_args

import pydantic
from anthropic.types import Message, RawMessageStreamEvent
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
_OF_FUNCTION: Final = frozenset({"type", "name", "description", "parameters", "strict"})
_OF_SCHEMA: Final = frozenset({"type", "name", "description", "schema", "strict"})
"""What it requires of the tools and forms that a response repeats, null or not."""
_TEXTS: Final = ("id", "object", "status", "model", "truncation", "service_tier")
_NUMBERS: Final = ("created_at", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature")


def _by_type(union: Any) -> Mapping[str, type[pydantic.BaseModel]]:
    """The models of a published union, by the `type` that each has."""
    models = get_args(get_args(union)[0])
    return {name: model for model in models for name in get_args(model.model_fields["type"].annotation)}


_EVENTS: Final = _by_type(ResponseStreamEvent)
_MESSAGE_EVENTS: Final = _by_type(RawMessageStreamEvent)
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
    for tool in response["tools"]:
        assert tool["type"] != "function" or tool.keys() >= _OF_FUNCTION, tool
    form = response["text"]["format"]
    assert form["type"] != "json_schema" or form.keys() >= _OF_SCHEMA, form
    if response["reasoning"] is not None:
        assert response["reasoning"].keys() >= {"effort", "summary"}
    choice = response["tool_choice"]
    assert isinstance(choice, str) or choice["type"] != "allowed_tools" or choice.keys() >= {"tools", "mode"}, choice


def check_events(events: Iterable[Mapping[str, Any]], first: int = 0) -> None:
    """Fails for a stream whose events are not as they are published, each and in their order.

    Every item and part is opened before it grows and closed before the end, and its deltas are its whole.
    """
    open_items: dict[int, str] = {}
    grown: dict[tuple[Any, ...], str] = {}
    kinds: list[str] = []
    for number, event in enumerate(events, first):
        kind = event["type"]
        _EVENTS[kind].model_validate(event)
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


def check_message(message: Mapping[str, Any]) -> None:
    """Fails for a message that is not as Anthropic publishes it."""
    Message.model_validate(message)
    assert {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"} <= message.keys()


def check_message_events(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The content blocks that a stream comes to. Fails for one whose events are not as Anthropic publishes them."""
    blocks: list[dict[str, Any]] = []
    pieces: list[str] = []
    is_open = False
    kinds: list[str] = []
    for event in events:
        kind = event["type"]
        if kind == "ping":
            continue
        _MESSAGE_EVENTS[kind].model_validate(event)
        kinds.append(kind)
        match kind:
            case "message_start":
                check_message(event["message"])
                assert event["message"]["content"] == []
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                is_open, pieces = True, []
                blocks.append(dict(event["content_block"]))
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                pieces += [event["delta"].get("text", "") + event["delta"].get("partial_json", "")]
            case "content_block_stop":
                is_open = False
                said = "".join(pieces)
                blocks[-1] |= (
                    {"input": json.loads(said or "{}")} if blocks[-1]["type"] == "tool_use" else {"text": said}
                )
    assert not is_open
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    return blocks
