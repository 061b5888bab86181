"""What an engine is asked that goes on with another one's answer, field by field."""

import json
from typing import Any

import pytest

from providers.target import Deployment, DeploymentKind
from providers.wire import upstream_body
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.wire import Wire
from selfhosted.engines.continuation import can_be_continued, continued, goes_on, stops_of

TURN = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": TURN},
    "messages": {"messages": TURN, "max_tokens": 100},
    "responses": {"input": "hi"},
    "completions": {"prompt": "Once"},
}


def read(wire: Wire = CHAT, **fields: Any) -> Any:
    body = {"model": "m", "stream": True, **BODIES[wire.name], **fields}
    return wire.read(json.dumps(body).encode(), RequestHeaders(), lambda _name: True).request


def _at(kind: DeploymentKind) -> Deployment:
    return Deployment(deployment_id="m/a", target_id="m", kind=kind, upstream_model="m")


def sent(request: Any, kind: DeploymentKind = "vllm") -> dict[str, Any]:
    body: dict[str, Any] = json.loads(upstream_body(request, _at(kind)))
    return body


@pytest.mark.parametrize("wire", [CHAT, MESSAGES, RESPONSES], ids=lambda wire: wire.name)
def test_what_was_said_is_the_last_message(wire: Wire) -> None:
    """Whatever the caller's dialect, the engine is told to complete the assistant's message; all else stays."""
    request = read(wire)
    before = sent(request)
    body = sent(continued(request, 'It "was"\n', None))
    assert body.pop("messages") == [*before.pop("messages"), {"role": "assistant", "content": 'It "was"\n'}]
    assert (body.pop("continue_final_message"), body.pop("add_generation_prompt")) == (True, False)
    assert body == before


def test_a_text_is_only_made_longer() -> None:
    """An engine that completes a text as it is needs no words for it, whichever it is."""
    request = read(COMPLETIONS, max_tokens=9)
    body = sent(continued(request, " upon a", 4))
    assert (body["prompt"], body["max_tokens"]) == ("Once upon a", 4)
    assert "continue_final_message" not in body
    assert goes_on(_at("tgi"), request)
    assert not goes_on(_at("tgi"), read())
    assert goes_on(_at("sglang"), read())
    assert not goes_on(_at("openai"), read())


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_only_what_is_left_of_the_tokens_is_asked_for(name: str) -> None:
    """By the name that the caller gave it."""
    request = continued(read(CHAT, **{name: 10}), "said", 3)
    assert (sent(request)[name], request.max_output_tokens) == (3, 3)


def test_with_nothing_said_the_whole_is_asked_for() -> None:
    """Blanks alone are no beginning."""
    assert sent(continued(read(), "", None)) == sent(read())


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"structured_outputs": {"json": {}}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        {"messages": [*TURN, {"role": "assistant", "content": "a beginning of the caller's"}]},
        {"continue_final_message": True},
        {"min_tokens": 5},
    ],
)
def test_what_is_no_plain_text_is_not_continued(fields: dict[str, Any]) -> None:
    """A grammar would begin anew, and so would what is counted."""
    assert not can_be_continued(read(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1, "logprobs": False, "min_tokens": 0, "guided_json": None},
        {"response_format": {"type": "text"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"},
    ],
)
def test_what_may_be_plain_text_is(fields: dict[str, Any]) -> None:
    """Also with tools, as long as none has to be called."""
    assert can_be_continued(read(**fields))


@pytest.mark.parametrize(
    "fields", [{"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"echo": True}, {"suffix": "end"}, {"logprobs": 2}]
)
def test_texts_that_cannot_be_made_longer(fields: dict[str, Any]) -> None:
    """Several of them, numbers, and what stands around one."""
    assert not can_be_continued(read(COMPLETIONS, **fields))


@pytest.mark.parametrize(("given", "found"), [("END", ("END",)), (["a", "", "b"], ("a", "b")), (None, ()), (5, ())])
def test_stop_sequences_are_read_as_they_may_be_written(given: Any, found: tuple[str, ...]) -> None:
    """One or several; what is neither stops nothing."""
    assert stops_of(read(stop=given)) == found
