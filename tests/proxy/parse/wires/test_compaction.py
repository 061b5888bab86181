"""Compaction: what stays, what the model is shown, and a summary that only we can have written."""

import json
from typing import Any

import msgspec
import pytest

from proxy.errors import BadRequest
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.responses.compaction import compacted, read_compaction
from proxy.parse.wires.responses.items import chat_messages
from proxy.parse.wires.responses.tools import NO_TOOLS
from tests.proxy.parse.wires.writing import completion, served

TALK: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": "Weigh in kg."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weigh it."}]},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "weigh", "arguments": '{"n": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "7 kg"},
    {"type": "message", "role": "assistant", "content": "It weighs 7 kg."},
]


def read(**fields: Any) -> Any:
    return read_compaction(msgspec.json.encode(fields), RequestHeaders(), lambda _: True)


def test_the_model_is_shown_everything_as_one_text() -> None:
    """Who said what, calls and their results, in their order; no tool and no tool message is sent."""
    request = read(input=TALK, instructions="Be brief.").request
    (message,) = msgspec.json.decode(request.fields["messages"])
    said = message["content"]
    places = [said.index(each) for each in ("Be brief.", "Weigh in kg.", "Weigh it.", '{"n": 1}', "7 kg", "It weighs")]
    assert places == sorted(places)
    assert (message["role"], request.model, "tools" in request.fields) == ("user", "auto", False)


def test_a_summary_stands_for_what_others_than_callers_wrote() -> None:
    """Messages of callers stay as they are, with ids; the next turn is given the summary behind them."""
    told = json.loads(read(input=TALK).dialect.whole(completion({"content": " It is 7 kg. "}), served()))
    kinds = [(item["type"], item.get("role")) for item in told["output"]]
    assert kinds == [("message", "developer"), ("message", "user"), ("compaction", None)]
    *_, last = chat_messages(None, told["output"], NO_TOOLS, signed=False)
    assert last["role"] == "user"
    assert last["content"].endswith("It is 7 kg.")


def test_a_model_that_writes_nothing_loses_nothing() -> None:
    """Everything is there as it was."""
    told = json.loads(read(input=TALK).dialect.whole(completion({"content": " "}), served()))
    assert [item["type"] for item in told["output"]] == [item["type"] for item in TALK]


def test_a_compaction_is_compacted_again() -> None:
    """With what it says."""
    item = {"type": "compaction", "encrypted_content": compacted("It was 7 kg.")}
    (message,) = msgspec.json.decode(read(input=[item]).request.fields["messages"])
    assert "It was 7 kg." in message["content"]


@pytest.mark.parametrize("content", ["gAAAA", "wbc1.", "wbc1.%%%", "wbc1.gIGC", None])
def test_what_others_have_written_is_refused(content: str | None) -> None:
    """By its place, so that nobody takes it for read."""
    with pytest.raises(BadRequest) as refused:
        chat_messages(None, [{"type": "compaction", "encrypted_content": content}], NO_TOOLS, signed=False)
    assert refused.value.param == "input.0.encrypted_content"


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": 7}, {"input": "hi", "model": 7}])
def test_what_cannot_be_compacted_is_refused(fields: dict[str, Any]) -> None:
    """Nothing at all, and what is no input."""
    with pytest.raises(BadRequest):
        read(**fields)


def test_the_summary_may_be_bounded_and_leaves_out_what_nobody_can_read() -> None:
    """A caller may say how long it gets; a search is no reason not to compact what came of it."""
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    fields = {"input": [{"role": "user", "content": "Search."}, search], "max_output_tokens": 64}
    request = read(**fields).request
    assert (request.max_output_tokens, len(request.messages), request.as_written) == (64, 1, None)


def test_an_output_behind_a_compaction_needs_no_call() -> None:
    """The call may be among what was summed up."""
    output = {"type": "function_call_output", "call_id": "call_1", "output": "7 kg"}
    talk = chat_messages(
        None, [{"type": "compaction", "encrypted_content": compacted("Weighed.")}, output], NO_TOOLS, signed=False
    )
    assert [each["role"] for each in talk] == ["user", "tool"]
    with pytest.raises(BadRequest, match="No tool call found for function call output with call_id call_1"):
        chat_messages(None, [output], NO_TOOLS, signed=False)
