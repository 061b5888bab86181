"""Chat completions as responses and their events."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.errors import Draining, error_reply
from proxy.parse.wires.responses.dialect import ResponsesDialect
from proxy.parse.wires.responses.items import sealed_thinking
from proxy.parse.wires.responses.tools import toolbox_of
from tests.proxy.parse.wires.writing import chunk, completion, decoded, served, streamed

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weigh", "parameters": {"type": "object"}, "strict": True},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "find"}]},
]


def dialect(**fields: Any) -> ResponsesDialect:
    return ResponsesDialect({"tools": TOOLS, **fields}, lambda: [{"role": "user", "content": "hi"}], toolbox_of(TOOLS))


def call(index: int | None, arguments: str, name: str | None = None, call_id: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    return {"tool_calls": [{"index": index, "function": function, **({} if call_id is None else {"id": call_id})}]}


def whole(message: dict[str, Any], finish: str = "stop", **choice: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dialect().whole(completion(message, finish, **choice), served()))
    Response.model_validate(found, strict=False)
    return found


def events_of(*chunks: Any) -> list[dict[str, Any]]:
    """The stream's events: each is valid by the published types, and they are numbered."""
    events = streamed(dialect(), *chunks)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    return events


def test_a_whole_response() -> None:
    """Its items, its usage, and what it repeats of the request."""
    answer = whole({"content": "See.", "reasoning_content": "hm"})
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert answer["output"][1]["content"] == [
        {"type": "output_text", "text": "See.", "annotations": [], "logprobs": []}
    ]
    assert (answer["id"], answer["status"], answer["model"], answer["model_used"]) == ("resp_1", "completed", "m", "t0")
    assert (answer["created_at"], answer["completed_at"]) == (1_700_000_000, 1_700_000_005)
    assert answer["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 107,
    }
    assert [each["name"] for each in answer["tools"]] == [each["name"] for each in TOOLS]
    blank = {"description": None, "parameters": None, "strict": None}
    assert answer["tools"][2]["tools"] == [{"type": "function", "name": "find", **blank}]
    assert (answer["store"], answer["tool_choice"]) == (True, "auto")
    for name in ("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"):
        assert name in answer


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_how_it_ended(finish: str, status: str, reason: str | None) -> None:
    """The same whole and streamed."""
    answer = whole({"content": "a"}, finish)
    details = None if reason is None else {"reason": reason}
    assert (answer["status"], answer["incomplete_details"]) == (status, details)
    last = events_of(chunk({"content": "a"}), chunk({}, finish))[-1]
    assert (last["type"], last["response"]["incomplete_details"]) == (f"response.{status}", details)


def test_a_stream_of_text() -> None:
    """In the published order."""
    events = events_of(
        chunk({"role": "assistant"}), chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop")
    )
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[6]["text"] == "ab"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "ab"
    assert events[-1]["response"]["usage"]["output_tokens"] == 7


def test_a_stream_of_everything() -> None:
    """Reasoning, text, a refusal, three kinds of calls: items one after the other, and the last event has them all."""
    events = events_of(
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "See."}),
        chunk({"refusal": "No."}),
        chunk(call(0, "", "weigh", "c0")),
        chunk(call(0, '{"kg":')),
        chunk(call(0, " 7}")),
        chunk(call(1, '{"input": "*** a', "patch", "c1")),
        chunk(call(1, ' patch"}')),
        chunk(call(2, "{}", "crm__find", "c2")),
        chunk({}, "tool_calls"),
    )
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call",
    ]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert [part["type"] for part in output[1]["content"]] == ["output_text", "refusal"]
    assert (output[2]["name"], output[2]["arguments"], output[2]["call_id"]) == ("weigh", '{"kg": 7}', "c0")
    assert (output[3]["name"], output[3]["input"]) == ("patch", "*** a patch")
    assert (output[4]["name"], output[4]["namespace"]) == ("find", "crm")
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert deltas == ['{"kg":', " 7}", "{}"]


def test_calls_without_numbers_are_told_apart_by_their_ids() -> None:
    """A whole answer numbers none of its calls, and some hosts' streams neither."""
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "weigh", "arguments": "{}"}} for i in (0, 1)]
    assert [item["call_id"] for item in whole({"tool_calls": calls}, "tool_calls")["output"]] == ["c0", "c1"]
    events = events_of(
        chunk(call(None, "{}", "weigh", "c0")), chunk(call(None, "{}", "weigh", "c1")), chunk({}, "stop")
    )
    assert [item["call_id"] for item in events[-1]["response"]["output"]] == ["c0", "c1"]


def test_a_custom_call_that_is_no_json_is_told_as_it_is() -> None:
    """A call that broke off still has its text."""
    calls = [{"id": "c", "function": {"name": "patch", "arguments": '{"input": "*'}}]
    assert whole({"tool_calls": calls})["output"][0]["input"] == '{"input": "*'


def test_what_a_claude_signed_can_go_back_to_it() -> None:
    """Its thinking, with the signature, is the encrypted content; streamed or not."""
    signed = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    answer = whole({"content": "7", "reasoning_content": "hm", "thinking_blocks": [signed]})
    assert answer["output"][0]["encrypted_content"] == sealed_thinking([signed])
    events = events_of(
        chunk({"reasoning_content": "hm"}),
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "sig"}]}),
        chunk({"content": "7"}),
        chunk({}, "stop"),
    )
    assert events[-1]["response"]["output"][0]["encrypted_content"] == sealed_thinking([signed])


def test_logprobs_come_with_the_text() -> None:
    """On each delta, and all of them at the end."""
    told = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]}
    events = events_of(chunk({"content": "a"}, logprobs=told), chunk({"content": "a"}, "stop", logprobs=told))
    assert events[4]["logprobs"] == told["content"]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told["content"] * 2


def test_a_failure_is_told_and_ends_the_response() -> None:
    """An error event, then the response as it failed."""
    writer = dialect().events(served())
    begun = writer.render([chunk({"content": "a"})])
    events = decoded(begun + writer.failed(error_reply(Draining("Stopping."))))
    for event in events:
        EVENT.validate_python(event)
    error, failed = events[-2:]
    assert (error["type"], error["code"], error["message"]) == ("error", "draining", "Stopping.")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "Stopping."}


def test_what_is_kept_is_what_was_given() -> None:
    """The response with its input, whose items have ids by which they can be referred to."""
    one = dialect()
    writer = one.events(served())
    writer.render([chunk({"content": "a"}), chunk({}, "stop")])
    kept = one.to_keep(None, served())
    last = decoded(writer.last_words())[-1]
    record = json.loads(kept.record)
    assert (kept.response_id, record["response"]) == ("resp_1", last["response"])
    assert record["items"] == [{"id": "msg_1_i0", "role": "user", "content": "hi"}]
    answer = completion({"content": "a"})
    again = dialect().to_keep(answer, served())
    assert json.loads(again.record)["response"] == json.loads(dialect().whole(answer, served()))
    # A socket remembers it all the same.
    unkept = dialect(store=False)
    assert not unkept.keeps
    assert not unkept.to_keep(answer, served()).is_stored
