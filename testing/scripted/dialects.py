"""The scripted upstream in the dialects of OpenAI's responses and Anthropic's messages: a script's text, and before it one
search of the web where the request has the tool for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from testing.scripted.upstream import Script, completion_tokens, pieces

SEARCH_ID: Final = "ws_scripted"
"""The id of the search, as a provider would number it."""
_QUERY: Final[Mapping[str, str]] = {"type": "search", "query": "trucks"}
_PAGE: Final = {
    "type": "web_search_result",
    "url": "https://example.com/",
    "title": "Trucks",
    "encrypted_content": "c2VhbGVk",
}

Fields = dict[str, Any]


class Asked(msgspec.Struct, frozen=True):
    """A request's body as far as a script reads it."""

    model: str
    stream: bool | None = None
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def searches(self) -> bool:
        return any(str(tool.get("type")).startswith("web_search") for tool in self.tools)


def response(script: Script, asked: Asked) -> Fields:
    """Return a whole response."""
    output: list[Fields] = [_search("completed")] if asked.searches else []
    said = "".join(pieces(script))
    part = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
    output.append(
        {"id": "msg_scripted", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    )
    generated = completion_tokens(script, script.tokens + 1)
    usage = {
        "input_tokens": script.prompt_tokens,
        "input_tokens_details": {"cached_tokens": script.cached_tokens},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": script.prompt_tokens + generated,
    }
    return {**_response(asked, "completed"), "output": output, "usage": usage}


def response_events(script: Script, asked: Asked) -> Iterator[Fields]:
    """Yield the events of one, numbered."""
    for number, event in enumerate(_response_events(script, asked)):
        yield {**event, "sequence_number": number}


def _response_events(script: Script, asked: Asked) -> Iterator[Fields]:
    begun = _response(asked, "in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    whole = response(script, asked)
    for index, item in enumerate(whole["output"]):
        if item["type"] == "web_search_call":
            yield {"type": "response.output_item.added", "output_index": index, "item": _search("in_progress")}
            for step in ("in_progress", "searching", "completed"):
                yield {"type": f"response.web_search_call.{step}", "output_index": index, "item_id": SEARCH_ID}
        else:
            yield from _message_events(script, index, item)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": whole}


def _message_events(script: Script, index: int, item: Fields) -> Iterator[Fields]:
    begun = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    (part,) = item["content"]
    yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
    for piece in pieces(script):
        yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **where, "part": part}


def _response(asked: Asked, status: str) -> Fields:
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": True,
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": list(asked.tools),
        "top_p": 1.0,
        "usage": None,
    }


def _search(status: str) -> Fields:
    return {"id": SEARCH_ID, "type": "web_search_call", "status": status, "action": _QUERY}


def message(script: Script, asked: Asked) -> Fields:
    """Return a whole message."""
    content: list[Fields] = []
    usage: Fields = {
        "input_tokens": script.prompt_tokens - script.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": script.cached_tokens,
        "output_tokens": completion_tokens(script, script.tokens + 1),
    }
    if asked.searches:
        call = {
            "type": "server_tool_use",
            "id": "srvtoolu_scripted",
            "name": "web_search",
            "input": {"query": "trucks"},
        }
        content += [call, {"type": "web_search_tool_result", "tool_use_id": call["id"], "content": [_PAGE]}]
        usage["server_tool_use"] = {"web_search_requests": 1, "web_fetch_requests": 0}
    content.append({"type": "text", "text": "".join(pieces(script))})
    return {**_message(asked), "content": content, "stop_reason": "end_turn", "usage": usage}


def message_events(script: Script, asked: Asked) -> Iterator[Fields]:
    """Yield the events of one."""
    whole = message(script, asked)
    usage = {name: count for name, count in whole["usage"].items() if name != "server_tool_use"}
    yield {"type": "message_start", "message": {**_message(asked), "usage": {**usage, "output_tokens": 1}}}
    for index, block in enumerate(whole["content"]):
        begun = {**block, **({"text": ""} if block["type"] == "text" else {})}
        begun |= {"input": {}} if block["type"] == "server_tool_use" else {}
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in _deltas(script, block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": whole["usage"]}
    yield {"type": "message_stop"}


def _deltas(script: Script, block: Fields) -> Iterator[Fields]:
    match block["type"]:
        case "text":
            for piece in pieces(script):
                yield {"type": "text_delta", "text": piece}
        case "server_tool_use":
            yield {"type": "input_json_delta", "partial_json": '{"query": "trucks"}'}


def _message(asked: Asked) -> Fields:
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def count_of(body: bytes) -> int:
    """Return the tokens of a prompt as this upstream counts them: the texts' words."""
    found = msgspec.json.decode(body, type=dict[str, Any])
    return sum(len(str(found.get(name, "")).split()) for name in ("input", "messages", "prompt", "system", "tools"))
