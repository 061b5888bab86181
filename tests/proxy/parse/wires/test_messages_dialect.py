"""Chat completions as Anthropic's replies and events."""

import json
from typing import Any

import pytest

from cost.usage import Usage
from providers.thoughts import Thought
from proxy.errors import Draining, error_reply
from proxy.parse.wires.messages.dialect import MessagesDialect
from proxy.parse.wires.messages.errors import error_event, error_reply_of
from proxy.parse.wires.thoughts import unsealed
from tests.proxy.parse.wires.writing import chunk, completion, decoded, served, streamed

PLAIN = MessagesDialect(thinks=False)
THINKING = MessagesDialect(thinks=True)


def call(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **fields.pop("named", {})}, **fields}]}


def whole(dialect: MessagesDialect, *said: Any, **choice: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dialect.whole(completion(*said, **choice), served()))
    return found


def test_a_whole_answer() -> None:
    """Its blocks, its usage without what was cached, and what it cost."""
    calls = [{"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg": 7}'}}]
    answer = whole(PLAIN, {"content": "See.", "reasoning_content": "hm", "tool_calls": calls}, "tool_calls")
    thought, *content = answer["content"]
    assert content == [
        {"type": "text", "text": "See."},
        {"type": "tool_use", "id": "call_1", "name": "weigh", "input": {"kg": 7}},
    ]
    assert unsealed(thought["data"], "") == Thought("t0", {"reasoning_content": "hm"})
    assert (answer["type"], answer["role"], answer["id"], answer["model"]) == ("message", "assistant", "msg_1", "m")
    assert (answer["stop_reason"], answer["model_used"]) == ("tool_use", "t0")
    assert answer["weighbridge"]["cost_usd"] == "0.000006000"
    usage = answer["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (
        30,
        60,
        10,
    )
    assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4}
    assert usage["output_tokens"] == 7


@pytest.mark.parametrize(
    ("finish", "choice", "reason", "sequence"),
    [
        ("stop", {}, "end_turn", None),
        ("stop", {"stop_reason": "END"}, "stop_sequence", "END"),
        ("stop", {"stop_reason": 128009}, "end_turn", None),
        ("length", {}, "max_tokens", None),
        ("tool_calls", {}, "tool_use", None),
        ("content_filter", {}, "refusal", None),
        ("anything", {}, "end_turn", None),
    ],
)
def test_stop_reasons(finish: str, choice: dict[str, Any], reason: str, sequence: str | None) -> None:
    """The same whole and streamed."""
    answer = whole(PLAIN, {"content": "a"}, finish, **choice)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    (told,) = (
        event
        for event in streamed(PLAIN, chunk({"content": "a"}, finish, **choice))
        if "delta" in event and "stop_reason" in event["delta"]
    )
    details = told["delta"].pop("stop_details", None)
    assert told["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert details == answer.get("stop_details")
    assert (details is not None) == (reason == "refusal")


def test_a_refusal_is_text_with_its_own_reason() -> None:
    """Anthropic has no block for it."""
    answer = whole(PLAIN, {"content": None, "refusal": "No."})
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": "No."}], "refusal")
    events = streamed(PLAIN, chunk({"refusal": "No."}), chunk({}, "stop"))
    assert events[-2]["delta"]["stop_reason"] == "refusal"


def test_arguments_that_are_no_object_are_told_as_they_are() -> None:
    """A call that broke off still has its text."""
    calls = [{"id": "c", "function": {"name": "weigh", "arguments": '{"kg": '}}]
    assert whole(PLAIN, {"tool_calls": calls})["content"][0]["input"] == {"unparsed_arguments": '{"kg": '}


def test_thinking_is_shown_to_who_asked() -> None:
    """With its maker's signature where there is one, and else with ours."""
    signed = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    message = {"content": "7", "reasoning_content": "hm", "thinking_blocks": [signed]}
    assert whole(THINKING, message)["content"][0] == signed
    signature = whole(THINKING, {"content": "7", "reasoning": "hm"})["content"][0]["signature"]
    assert unsealed(signature, "hm") == Thought("t0", {"reasoning": "hm"})
    assert [block["type"] for block in whole(PLAIN, message)["content"]] == ["text"]


def test_a_stream_of_text() -> None:
    """In the published order, one block open at a time."""
    events = streamed(
        PLAIN, chunk({"role": "assistant"}), chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop")
    )
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["model_used"] == "t0"
    assert events[-2]["usage"]["output_tokens"] == 7
    assert events[-2]["weighbridge"]["cost_usd"] == "0.000006000"


def test_the_first_event_has_the_input() -> None:
    """The upstream's figures where it counts from the start, else our estimate; the last event has the truth."""
    counted = streamed(PLAIN, chunk({"content": "a"}), chunk({}, "stop"))
    assert counted[0]["message"]["usage"]["input_tokens"] == 30
    guessed = streamed(PLAIN, chunk({"content": "a"}), usage=Usage(input_tokens=1, output_tokens=1, source="estimated"))
    assert guessed[0]["message"]["usage"]["input_tokens"] == 90


def test_blocks_follow_what_comes() -> None:
    """Thinking, text, two calls, text again: five blocks, counted up, none within another."""
    events = streamed(
        THINKING,
        chunk({"reasoning_content": "hm"}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "sig"}]}),
        chunk({"content": "See."}),
        chunk(call(0, "", id="c0", named={"name": "weigh"})),
        chunk(call(0, '{"kg":')),
        chunk(call(0, " 7}")),
        chunk(call(1, "{}", id="c1", named={"name": "look"})),
        chunk({"content": "Done."}),
        chunk({}, "tool_calls"),
    )
    open_block: int | None = None
    kinds: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
                assert open_block == len(kinds)
                kinds.append(event["content_block"]["type"])
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas[:2]] == ["thinking_delta", "signature_delta"]
    assert "".join(delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta") == '{"kg": 7}{}'


def test_a_long_thought_that_nobody_sees_keeps_the_stream_alive() -> None:
    """Pings come in between."""
    thought = [chunk({"reasoning_content": "hm"}) for _ in range(40)]
    events = streamed(PLAIN, *thought, chunk({"content": "7"}), chunk({}, "stop"))
    assert [event["type"] for event in events].count("ping") == 3


def test_half_letters_meet_at_the_client() -> None:
    """An emoji that an engine cut in two comes as two escapes."""
    writer = PLAIN.events(served())
    from providers.wire import decode_event

    halves = [
        b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ude00"}}]}',
    ]
    data = b"".join(writer.render([decode_event(half, "t0/a")]) for half in halves) + writer.last_words()
    texts = [event["delta"]["text"] for event in decoded(data) if event["type"] == "content_block_delta"]
    assert "".join(texts).encode("utf-16", "surrogatepass").decode("utf-16") == "😀"


def test_errors_have_anthropics_shape() -> None:
    """As a reply and as an event, with our code beside the type."""
    told = error_reply(Draining("Stopping."))
    reply = error_reply_of(told, "req_1")
    body = json.loads(reply.body)
    assert (body["type"], body["error"]["type"], body["request_id"]) == ("error", "overloaded_error", "req_1")
    assert (body["error"]["message"], body["error"]["code"]) == ("Stopping.", "draining")
    assert (reply.status, reply.headers) == (told.status, told.headers)
    assert decoded(error_event(told, "req_1")) == [body]


def test_calls_without_numbers_are_told_apart_by_their_ids() -> None:
    """Some hosts number none of their calls."""
    said = [{"tool_calls": [{"id": name, "function": {"name": "weigh", "arguments": "{}"}}]} for name in ("c0", "c1")]
    events = streamed(PLAIN, *map(chunk, said), chunk({}, "tool_calls"))
    began = [event["content_block"]["id"] for event in events if event["type"] == "content_block_start"]
    assert began == ["c0", "c1"]


def test_a_name_that_was_cut_comes_back_whole() -> None:
    """Whole and streamed; others stay as they are."""
    dialect = MessagesDialect(thinks=False, names={"cut_1234": "the whole name"})
    calls = [
        {"index": i, "id": f"c{i}", "function": {"name": name, "arguments": "{}"}}
        for i, name in enumerate(("cut_1234", "b"))
    ]
    assert [block["name"] for block in whole(dialect, {"tool_calls": calls})["content"]] == ["the whole name", "b"]
    events = streamed(dialect, chunk({"tool_calls": calls}), chunk({}, "tool_calls"))
    began = [event["content_block"]["name"] for event in events if event["type"] == "content_block_start"]
    assert began == ["the whole name", "b"]
