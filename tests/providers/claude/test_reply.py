"""Anthropic's replies as chat completions: whole and streamed, each block, each reason, and what was used."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from providers.claude.reply import ClaudeReader, chat_of_message
from providers.errors import MalformedReply, RequestRejected
from providers.wire import EMPTY_OBJECT, Event
from tests.providers.calls import deployment

AT: Final = deployment("litellm", upstream_model="anthropic/claude-x", base_url="")
THOUGHT: Final = {"type": "thinking", "thinking": "It is heavy.", "signature": "c2ln"}
HIDDEN: Final = {"type": "redacted_thinking", "data": "zzz"}
USE: Final = {"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {"kg": 7}}
EMPTY_USE: Final = {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}}
SEARCH: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
USAGE: Final = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 20,
    "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 15},
    "output_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 2},
}


def message(*blocks: dict[str, Any], reason: str = "end_turn", sequence: str | None = None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": list(blocks),
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": USAGE,
    }


def stream_of(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same as Anthropic streams it, each text in two pieces."""
    begun = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**begun, "usage": USAGE | {"output_tokens": 1}}}
    yield {"type": "ping"}
    for index, block in enumerate(whole["content"]):
        start = {**block}
        pieces: list[dict[str, Any]] = []
        match block["type"]:
            case "text":
                start["text"] = ""
                pieces = [{"type": "text_delta", "text": each} for each in (block["text"][:1], block["text"][1:])]
            case "thinking":
                start |= {"thinking": "", "signature": ""}
                said = block["thinking"]
                pieces = [{"type": "thinking_delta", "thinking": each} for each in (said[:1], said[1:])]
                pieces.append({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use" | "server_tool_use":
                start["input"] = {}
                told = json.dumps(block["input"]) if block["input"] else ""
                pieces = [
                    {"type": "input_json_delta", "partial_json": each} for each in ("", told[:3], told[3:]) if told
                ]
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in pieces:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    yield {
        "type": "message_delta",
        "delta": end,
        "usage": {"output_tokens": 5, "output_tokens_details": {"thinking_tokens": 2}},
    }
    yield {"type": "message_stop"}


def read(whole: dict[str, Any], **names: str) -> tuple[dict[str, Any], list[Event]]:
    """The whole message as chat, which is the same when it comes as a stream; and the stream's events."""
    reader = ClaudeReader(AT, names)
    chat: dict[str, Any] = json.loads(reader.whole(json.dumps(whole).encode()).payload)
    reader = ClaudeReader(AT, names)
    events = [reader.event(json.dumps(event).encode()) for event in stream_of(whole)]
    assert reader.ended
    ChatCompletion.model_validate(chat)
    said, choice, usage = joined([json.loads(event.payload) for event in events if event.payload != EMPTY_OBJECT])
    assert said == chat["choices"][0]["message"]
    assert choice == {name: chat["choices"][0].get(name) for name in choice}
    assert usage == chat["usage"]
    return chat, events


def joined(chunks: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What a chat client makes of the chunks."""
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    said: dict[str, Any] = {"role": "assistant", "content": ""}
    choice: dict[str, Any] = {}
    for chunk in chunks[:-1]:
        (one,) = chunk["choices"]
        choice = {name: one[name] for name in ("finish_reason", "stop_reason") if name in one}
        for name, value in one["delta"].items():
            if name in ("content", "reasoning_content"):
                said[name] = said.get(name, "") + value
            elif name == "thinking_blocks":
                said[name] = said.get(name, []) + value
            elif name == "tool_calls":
                (call,) = value
                calls = said.setdefault(name, [])
                if call["index"] == len(calls):
                    calls.append({each: call[each] for each in ("id", "type", "function")})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    for call in said.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
    assert chunks[-1]["choices"] == []
    return {**said, "content": said["content"] or None}, choice, chunks[-1]["usage"]


def test_text_and_usage() -> None:
    """What was read from caches and written to them is within the prompt's tokens."""
    chat, events = read(message({"type": "text", "text": "hello"}, {"type": "text", "text": " there"}))
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "hello there"}
    usage = chat["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (130, 5, 135)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 100}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert (usage["cache_creation_input_tokens"], usage["cache_creation"]["ephemeral_1h_input_tokens"]) == (20, 15)
    assert [event.words for event in events if event.words] == ["h", "ello", " ", "there"]
    assert sum(event.text_chars for event in events) == len("hello there")
    # An interrupted stream is booked by what its first event said of the prompt.
    first = events[0]
    assert first.usage is not None
    assert (first.usage["prompt_tokens"], first.token) == (130, False)


def test_thinking_and_calls() -> None:
    """Signed thinking whole, as it has to go back; a call without arguments has an empty object, and names are the caller's."""
    text = {"type": "text", "text": "Well."}
    chat, _ = read(message(THOUGHT, HIDDEN, text, USE, EMPTY_USE, reason="tool_use"), weigh="yard.weigh")
    said = chat["choices"][0]["message"]
    assert said["thinking_blocks"] == [THOUGHT, HIDDEN]
    assert said["reasoning_content"] == "It is heavy."
    assert [call["function"] for call in said["tool_calls"]] == [
        {"name": "yard.weigh", "arguments": '{"kg":7}'},
        {"name": "look", "arguments": "{}"},
    ]


def test_what_tools_of_anthropics_write_is_not_the_answers_text() -> None:
    """Nor a call of the caller's tools."""
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    chat, _ = read(message(USE, SEARCH, found, {"type": "text", "text": "Seven."}))
    said = chat["choices"][0]["message"]
    assert (said["content"], len(said["tool_calls"])) == ("Seven.", 1)


@pytest.mark.parametrize(
    ("reason", "sequence", "finish"),
    [
        ("end_turn", None, {"finish_reason": "stop"}),
        ("max_tokens", None, {"finish_reason": "length"}),
        ("tool_use", None, {"finish_reason": "tool_calls"}),
        ("stop_sequence", "END", {"finish_reason": "stop", "stop_reason": "END"}),
        ("refusal", None, {"finish_reason": "content_filter"}),
        ("pause_turn", None, {"finish_reason": "stop"}),
        ("model_context_window_exceeded", None, {"finish_reason": "length"}),
        ("tomorrow", None, {"finish_reason": "stop"}),
    ],
)
def test_reasons(reason: str, sequence: str | None, finish: dict[str, Any]) -> None:
    chat, events = read(message({"type": "text", "text": "a"}, reason=reason, sequence=sequence))
    (choice,) = chat["choices"]
    assert {name: choice[name] for name in finish} == finish
    assert [event.finished for event in events].count(True) == 1


def test_events_pass_beside_where_the_caller_speaks_the_dialect() -> None:
    """Each as it came, also those that chat has no word for."""
    whole = message(THOUGHT, SEARCH, {"type": "text", "text": "a"})
    events = [json.dumps(event, separators=(",", ":")).encode() for event in stream_of(whole)]
    reader = ClaudeReader(AT, passes=True)
    assert [reader.event(event).native for event in events] == events
    raw = json.dumps(whole).encode()
    assert ClaudeReader(AT, passes=True).whole(raw).native == raw
    assert not ClaudeReader(AT).whole(raw).native


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"content":7}', b'{"content":[7]}', b"{", b"\xff"])
def test_what_is_no_message_is_told_as_such(body: bytes) -> None:
    with pytest.raises(MalformedReply):
        chat_of_message(body, AT)


def test_an_error_in_a_stream_is_told_with_its_words() -> None:
    event = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}}
    with pytest.raises(RequestRejected) as failed:
        ClaudeReader(AT).event(json.dumps(event).encode())
    assert failed.value.original is not None
    assert failed.value.original.message == "prompt is too long"
