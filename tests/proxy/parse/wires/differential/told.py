"""What a caller of each wire was told: its texts, thoughts, calls and end. Whatever a reader does not know fails."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, assert_never

import msgspec

from tests.proxy.parse.wires.writing import decoded
from tests.published_types import check_events, check_message, check_message_events, check_response

End = Literal["ended", "calls", "length", "filtered", "failed"]
Way = Literal["chat", "responses", "messages", "completions"]
WAYS: Final[tuple[Way, ...]] = ("chat", "responses", "messages", "completions")
_ENDS: Final[Mapping[str | None, End]] = {"stop": "ended", "length": "length", "content_filter": "filtered"}
_CALLED: Final = frozenset({"stop", "tool_calls", "function_call"})


class Call(msgspec.Struct, frozen=True):
    """A call, its arguments as an object, or as the text that is none."""

    name: str
    arguments: Any
    call_id: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What was told in all."""

    end: End
    text: str = ""
    thought: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    usage: tuple[int, int] | None = None


FAILED: Final = Told(end="failed")


def read(way: Way, status: int, body: bytes, *, stream: bool) -> Told:
    """What a reply says."""
    if status != 200:
        assert "error" in json.loads(body), body
        return FAILED
    match way:
        case "chat":
            return _chat_stream(body) if stream else _chat(json.loads(body))
        case "responses":
            return _responses_stream(body) if stream else _response(json.loads(body))
        case "messages":
            return _messages_stream(body) if stream else _message(json.loads(body))
        case "completions":
            return _completions_stream(body) if stream else _completion([json.loads(body)])
        case _:
            assert_never(way)


def _arguments(given: Any) -> Any:
    assert isinstance(given, str), given
    try:
        found = json.loads(given)
    except ValueError:
        return given
    return found if isinstance(found, dict) else given


def _distinct(calls: Iterable[Call]) -> tuple[Call, ...]:
    """The calls, each of which must have a name, and an id of its own."""
    found = tuple(calls)
    assert all(call.name and call.call_id for call in found), found
    assert len({call.call_id for call in found}) == len(found), found
    return found


def _told_in_events(body: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The objects of a stream without named events, and whether it ended with the end marker."""
    payloads = [block.removeprefix("data: ") for block in body.decode().split("\n\n") if block]
    is_whole = payloads[-1] == "[DONE]"
    return [json.loads(each) for each in payloads if each != "[DONE]"], is_whole


def _chat(message: dict[str, Any]) -> Told:
    choice = message["choices"][0]
    said = choice["message"]
    assert said.get("content") is None or isinstance(said["content"], str), said
    calls = [_chat_call(call) for call in said.get("tool_calls") or ()]
    return _of_chat(choice["finish_reason"], said, calls, message.get("usage"))


def _chat_call(call: Mapping[str, Any]) -> Call:
    assert call["type"] == "function", call
    return Call(call["function"]["name"], _arguments(call["function"]["arguments"]), call["id"])


def _of_chat(finish: Any, said: Mapping[str, Any], calls: list[Call], usage: Any) -> Told:
    assert finish in {*_ENDS, *_CALLED}, finish
    return Told(
        end="calls" if calls and finish in _CALLED else _ENDS[finish],
        text=said.get("content") or "",
        thought=_thought(said),
        refusal=said.get("refusal") or "",
        calls=_distinct(calls),
        usage=None if not usage else (usage["prompt_tokens"], usage["completion_tokens"]),
    )


def _thought(said: Mapping[str, Any]) -> str:
    """The thought under any of its names, as chat's clients know them."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(said.get(name), str) and said[name]:
            return str(said[name])
    details = [each for each in said.get("reasoning_details") or () if isinstance(each, dict)]
    return "".join(each.get("text") or each.get("summary") or "" for each in details)


def _chat_stream(body: bytes) -> Told:
    """As OpenAI's client puts a stream together: by each call's number, the first id and name, all arguments."""
    events, is_whole = _told_in_events(body)
    if not is_whole:
        assert "error" in events[-1], events[-1]
        return FAILED
    said: dict[str, str] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish = usage = None
    for event in events:
        assert "error" not in event
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {}
            assert delta.get("content") is None or isinstance(delta["content"], str), delta
            for name, value in (
                ("content", delta.get("content")), ("refusal", delta.get("refusal")), ("reasoning", _thought(delta)),
            ):  # fmt: skip
                said[name] = said.get(name, "") + (value or "")
            for each in delta.get("tool_calls") or ():
                call = calls.setdefault(each["index"], {"id": each.get("id"), "type": each.get("type"), "function": {}})
                function = each["function"]
                call["function"].setdefault("name", function.get("name"))
                call["function"]["arguments"] = call["function"].get("arguments", "") + (
                    function.get("arguments") or ""
                )
    return _of_chat(finish, said, [_chat_call(calls[index]) for index in sorted(calls)], usage)


def _response(response: dict[str, Any]) -> Told:
    check_response(response)
    texts: dict[str, str] = {"output_text": "", "refusal": "", "reasoning_text": ""}
    calls: list[Call] = []
    for item in response["output"]:
        match item["type"]:
            case "message" | "reasoning":
                for part in item["content"]:
                    texts[part["type"]] += part.get("text", "") + part.get("refusal", "")
            case "function_call":
                calls.append(Call(item["name"], _arguments(item["arguments"]), item["call_id"]))
            case kind:
                raise AssertionError(kind)
    end: End
    match response["status"], (response["incomplete_details"] or {}).get("reason"):
        case "completed", None:
            end = "calls" if calls else "ended"
        case "incomplete", "max_output_tokens":
            end = "length"
        case "incomplete", "content_filter":
            end = "filtered"
        case "failed", None:
            return FAILED
        case other:
            raise AssertionError(other)
    usage = response["usage"]
    return Told(
        end=end,
        text=texts["output_text"],
        thought=texts["reasoning_text"],
        refusal=texts["refusal"],
        calls=_distinct(calls),
        usage=(usage["input_tokens"], usage["output_tokens"]),
    )


def _responses_stream(body: bytes) -> Told:
    events = decoded(body)
    if b"\\ud83d" not in body:
        # JSON joins the halves of a letter that came in two pieces.
        check_events(events)
    return _response(events[-1]["response"])


def _message(message: dict[str, Any]) -> Told:
    check_message(message)
    return _of_blocks(message["content"], message["stop_reason"], message["usage"])


def _of_blocks(blocks: list[dict[str, Any]], reason: str, usage: Mapping[str, int]) -> Told:
    texts = {"text": "", "thinking": ""}
    calls: list[Call] = []
    for block in blocks:
        match block["type"]:
            case "text" | "thinking" as kind:
                texts[kind] += block[kind]
            case "redacted_thinking":
                pass
            case "tool_use":
                given = block["input"]
                arguments = given["unparsed_arguments"] if given.keys() == {"unparsed_arguments"} else given
                calls.append(Call(block["name"], arguments, block["id"]))
            case kind:
                raise AssertionError(kind)
    ends: Mapping[str, End] = {
        "end_turn": "ended", "stop_sequence": "ended", "tool_use": "calls", "max_tokens": "length", "refusal": "filtered",
        "model_context_window_exceeded": "length",
    }  # fmt: skip
    inputs = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return Told(
        end=ends[reason],
        text=texts["text"],
        thought=texts["thinking"],
        calls=_distinct(calls),
        usage=(sum(usage.get(name) or 0 for name in inputs), usage["output_tokens"]),
    )


def _messages_stream(body: bytes) -> Told:
    events = decoded(body)
    if events[-1]["type"] == "error":
        return FAILED
    is_broken = _is_broken(events)
    blocks = check_message_events(events) if not is_broken else _loose_blocks(events)
    for event in events:
        if event["type"] == "content_block_delta" and "thinking" in event["delta"]:
            block = blocks[event["index"]]
            block["thinking"] = block.get("thinking", "") + event["delta"]["thinking"]
    last = events[-2]
    return _of_blocks(blocks, last["delta"]["stop_reason"], {**events[0]["message"]["usage"], **last["usage"]})


def _is_broken(events: list[dict[str, Any]]) -> bool:
    """True where a call's arguments are no JSON because the model wrote none, or its length ended them."""
    return any(not isinstance(_arguments(text or "{}"), dict) for text in _inputs(events).values())


def _inputs(events: list[dict[str, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            found[event["index"]] = ""
        if event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
            found[event["index"]] += event["delta"]["partial_json"]
    return found


def _loose_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream with arguments that are no JSON, which no client can read."""
    texts = _inputs(events)
    whole = []
    for event in events:
        if event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
            continue
        whole.append(event)
    blocks = check_message_events(whole)
    for index, text in texts.items():
        found = _arguments(text or "{}")
        blocks[index]["input"] = found if isinstance(found, dict) else {"unparsed_arguments": text}
    return blocks


def _completions_stream(body: bytes) -> Told:
    events, is_whole = _told_in_events(body)
    if not is_whole:
        assert "error" in events[-1], events[-1]
        return FAILED
    return _completion(events)


def _completion(events: list[dict[str, Any]]) -> Told:
    text, finish, usage = "", None, None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text += choice["text"]
            finish = choice["finish_reason"] or finish
    assert finish in {*_ENDS, *_CALLED}, finish
    return Told(
        end=_ENDS.get(finish, "calls"),
        text=text,
        usage=None if usage is None else (usage["prompt_tokens"], usage["completion_tokens"]),
    )
