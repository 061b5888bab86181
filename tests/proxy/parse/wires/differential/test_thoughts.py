"""What a model thought before it called a tool goes back with the call's result: to whoever takes it, and to nobody else."""

import json
from base64 import b64encode
from typing import Any, Final

import pytest

from providers.claude.request import claude_body
from providers.target import Deployment
from providers.thoughts import Thought
from providers.wire import ChatRequest, upstream_body
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.continuing import continued
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.thoughts import MARK, from_base64, joined, sealed, unsealed
from proxy.parse.wires.wire import Wire
from tests.providers.calls import chat_request, deployment, upstream_call
from tests.proxy.parse.wires.reading import understood
from tests.proxy.parse.wires.writing import chunk, completion, decoded, served
from tests.published_types import check_events, check_message, check_message_events, check_response

_SCHEMA: Final = {"type": "object"}
_CALL: Final = {"id": "call_a", "type": "function", "function": {"name": "weigh", "arguments": '{"kg":7}'}}
_SIGNED: Final = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
_STANDS_IN: Final = {"google": {"thought_signature": "skip_thought_signature_validator"}}
_DETAILS: Final = [{"type": "reasoning.text", "text": "Hm.", "signature": "c2ln", "index": 0}]


def at(host: str, model: str = "m", **more: Any) -> Deployment:
    return deployment(base_url=f"https://{host}/v1", upstream_model=model, **more)


ITSELF: Final = deployment(target_id="t0", base_url="https://elsewhere.test/v1")
"""The target that answered."""
DEEPSEEK, KIMI = at("api.deepseek.com"), at("api.moonshot.cn")
GEMINI: Final = at("generativelanguage.googleapis.com", "gemini-3.1-pro-preview")
VLLM, OPENAI, GROQ = deployment("vllm"), at("api.openai.com", "gpt-4o"), at("api.groq.com")
CLAUDE: Final = deployment("litellm", upstream_model="anthropic/claude-opus-4-8", base_url="")

_ASKED: Final[dict[str, tuple[Wire, dict[str, Any]]]] = {
    "responses": (RESPONSES, {"include": ["reasoning.encrypted_content"], "store": False}),
    "responses without include": (RESPONSES, {"store": False}),
    "messages": (MESSAGES, {"max_tokens": 2_000, "thinking": {"type": "enabled", "budget_tokens": 1_024}}),
    "messages without thinking": (MESSAGES, {"max_tokens": 2_000}),
}


def _tools(wire: Wire) -> list[dict[str, Any]]:
    if wire is MESSAGES:
        return [{"name": "weigh", "input_schema": _SCHEMA}]
    return [{"type": "function", "name": "weigh", "parameters": _SCHEMA}]


def _answered(way: str, message: dict[str, Any], *, stream: bool) -> list[dict[str, Any]]:
    """The items or blocks that a caller got, for an upstream's message with a thought and a call."""
    wire, fields = _ASKED[way]
    asked: dict[str, Any] = {"model": "auto", "tools": _tools(wire), **fields}
    asked |= {"messages": [{"role": "user", "content": "hi"}]} if wire is MESSAGES else {"input": "hi"}
    dialect = understood(wire, asked).dialect
    if not stream:
        told = json.loads(dialect.whole(completion(message, "tool_calls"), served()))
        check_message(told) if wire is MESSAGES else check_response(told)
        found: list[dict[str, Any]] = told["content"] if wire is MESSAGES else told["output"]
        return found
    thought = {name: value for name, value in message.items() if name.startswith("reasoning")}
    calls = [{"index": 0, **call} for call in message["tool_calls"]]
    events = [
        chunk({"role": "assistant", "content": ""}),
        chunk(thought),
        chunk({"tool_calls": calls}),
        chunk({}, "tool_calls"),
    ]
    writer = dialect.events(served())
    told = decoded(b"".join(writer.render([event]) for event in events) + writer.last_words())
    if wire is RESPONSES:
        check_events(told)
        output: list[dict[str, Any]] = told[-1]["response"]["output"]
        return output
    blocks = check_message_events(told)
    for event in told:
        delta = event.get("delta", {})
        for name in {"thinking", "signature"} & delta.keys():
            block = blocks[event["index"]]
            block[name] = block.get(name, "") + delta[name]
    for block in blocks:
        if block["type"] != "text":
            block.pop("text", None)
    return blocks


def _next(way: str, said: list[dict[str, Any]]) -> ChatRequest:
    """The next turn, with the call's result."""
    wire, fields = _ASKED[way]
    asked: dict[str, Any] = {"model": "auto", "tools": _tools(wire), **fields}
    if wire is MESSAGES:
        result = [{"type": "tool_result", "tool_use_id": "call_a", "content": "7 t"}]
        asked["messages"] = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": said},
            {"role": "user", "content": result},
        ]
    else:
        output = {"type": "function_call_output", "call_id": "call_a", "output": "7 t"}
        asked["input"] = [{"role": "user", "content": "hi"}, *said, output]
    return understood(wire, asked).request


def _sent(request: ChatRequest, to: Deployment) -> dict[str, Any]:
    """The assistant's message, as the target is sent it."""
    messages = json.loads(upstream_body(request, to))["messages"]
    (message,) = (each for each in messages if each["role"] == "assistant")
    assert [call["id"] for call in message["tool_calls"]] == ["call_a"]
    return {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")} | {
        name: value for call in message["tool_calls"] for name, value in call.items() if name not in _CALL
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("way", _ASKED)
@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (
            {"reasoning_content": "Hm."},
            {
                "itself": {"reasoning_content": "Hm."},
                "deepseek": {"reasoning_content": "Hm."},
                "kimi": {"reasoning_content": "Hm."},
                "vllm": {"reasoning": "Hm.", "reasoning_content": "Hm."},
                "gemini": {"extra_content": _STANDS_IN},
            },
        ),
        (
            {"reasoning": "Hm.", "reasoning_details": _DETAILS},
            {
                "itself": {"reasoning": "Hm.", "reasoning_details": _DETAILS},
                "deepseek": {"reasoning_content": "Hm."},
                "kimi": {"reasoning_content": "Hm."},
                "vllm": {"reasoning": "Hm.", "reasoning_content": "Hm."},
                "gemini": {"extra_content": _STANDS_IN},
            },
        ),
        (
            _SIGNED,
            {
                "itself": _SIGNED,
                "deepseek": {"reasoning_content": ""},
                "kimi": {"reasoning_content": " "},
                "vllm": {},
                "gemini": _SIGNED,
            },
        ),
        (
            {},
            {
                "itself": {},
                "deepseek": {"reasoning_content": ""},
                "kimi": {"reasoning_content": " "},
                "vllm": {},
                "gemini": {"extra_content": _STANDS_IN},
            },
        ),
    ],
)
def test_whoever_comes_next(said: dict[str, Any], sent: dict[str, Any], way: str, stream: bool) -> None:
    """The same target as it came, others in the fields that they take; hosts that refuse what they do not know get nothing."""
    signature = {name: value for name, value in said.items() if name == "extra_content"}
    thought = {name: value for name, value in said.items() if name not in signature}
    message = {"role": "assistant", "content": None, **thought, "tool_calls": [{**_CALL, **signature}]}
    request = _next(way, _answered(way, message, stream=stream))
    found = {
        "itself": _sent(request, ITSELF),
        "deepseek": _sent(request, DEEPSEEK),
        "kimi": _sent(request, KIMI),
        "vllm": _sent(request, VLLM),
        "gemini": _sent(request, GEMINI),
    }
    assert found == sent
    assert [_sent(request, to) for to in (OPENAI, GROQ)] == [{}, {}]
    body = claude_body(upstream_call(CLAUDE, request)).body
    assert b"wb2." not in body
    assert b"thinking" not in json.dumps(json.loads(body)["messages"]).encode()


def test_a_client_that_sends_no_words_back() -> None:
    """Codex returns a reasoning's encrypted content alone."""
    message = {"content": None, "reasoning_content": "Hm.", "tool_calls": [_CALL]}
    thought, call = _answered("responses", message, stream=True)
    request = _next("responses", [{**thought, "content": None}, call])
    assert _sent(request, DEEPSEEK) == {"reasoning_content": "Hm."}


def test_a_client_that_sends_words_alone() -> None:
    """A reasoning without its seal goes to those who take any."""
    words = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    call = {"type": "function_call", "call_id": "call_a", "name": "weigh", "arguments": "{}"}
    request = _next("responses", [words, call])
    assert _sent(request, DEEPSEEK) == {"reasoning_content": "Hm."}
    assert _sent(request, OPENAI) == {}


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_a_response_that_is_gone_on_from(include: list[str]) -> None:
    """What was kept has the thought, too: its client sends nothing of it."""
    asked: dict[str, Any] = {"model": "auto", "tools": _tools(RESPONSES), "input": "hi", "include": include}
    message = {"content": None, "reasoning_content": "Hm.", "tool_calls": [_CALL]}
    kept = understood(RESPONSES, asked).dialect.to_keep(completion(message, "tool_calls"), served())
    assert kept is not None
    output = {"type": "function_call_output", "call_id": "call_a", "output": "7 t"}
    body = {**asked, "input": [output], "previous_response_id": kept.response_id}
    whole = continued(json.dumps(body).encode(), {kept.response_id: kept.record})
    request = RESPONSES.read(whole, RequestHeaders(), lambda _: False).request
    assert _sent(request, DEEPSEEK) == {"reasoning_content": "Hm."}
    assert _sent(request, ITSELF) == {"reasoning_content": "Hm."}


def test_each_message_has_its_own() -> None:
    """Over several turns, also beside texts and for an own engine, whose system messages are put first."""
    said = [
        _answered("messages", {"content": None, "reasoning_content": each, "tool_calls": [_CALL]}, stream=False)
        for each in ("One.", "Two.")
    ]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_a", "content": "7 t"}]}
    body = {
        "model": "auto",
        "max_tokens": 9,
        "system": "Weigh.",
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Weigh."},
            {"role": "assistant", "content": said[0]},
            result,
            {"role": "system", "content": "Mind it."},
            {"role": "assistant", "content": said[1]},
            result,
        ],
    }
    request = understood(MESSAGES, body).request
    for to in (DEEPSEEK, VLLM):
        messages = json.loads(upstream_body(request, to))["messages"]
        thoughts = [each.get("reasoning_content") for each in messages if each["role"] == "assistant"]
        assert thoughts == [None, "One.", "Two."]


def test_callers_of_chat_keep_their_own() -> None:
    """What stands for a missing thought is for messages without one; all others go as they came."""
    own = {"role": "assistant", "content": None, "reasoning_content": "Mine.", "tool_calls": [_CALL]}
    for message, sent in ((own, "Mine."), ({**own, "reasoning_content": None}, "")):
        request = chat_request(messages=[{"role": "user", "content": "hi"}, message])
        assert _sent(request, DEEPSEEK) == {"reasoning_content": sent}
        assert json.loads(upstream_body(request, OPENAI))["messages"][1] == message


def test_anthropic_is_sent_what_it_signed_alone() -> None:
    """In its own words, too: another target's thoughts, and those that nobody signed, are left out with messages that are nothing else."""
    ours = {"type": "thinking", "thinking": "Hm.", "signature": sealed(Thought("t0", {"reasoning_content": ""}))}
    its_own = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    blocks = [
        [ours, {"type": "text", "text": "a"}],
        [its_own, {"type": "text", "text": "b"}],
        [{**ours, "signature": ""}, {"type": "redacted_thinking", "data": ours["signature"]}],
    ]
    messages = [
        each for said in blocks for each in ({"role": "user", "content": "hi"}, {"role": "assistant", "content": said})
    ]
    body = {"model": "auto", "max_tokens": 9, "messages": [*messages, {"role": "user", "content": "hi"}]}
    sent = json.loads(claude_body(upstream_call(CLAUDE, understood(MESSAGES, body).request)).body)["messages"]
    told = [each["content"] for each in sent if each["role"] == "assistant"]
    assert told == [[{"type": "text", "text": "a"}], [its_own, {"type": "text", "text": "b"}]]


@pytest.mark.parametrize(
    "odd", ["", "wb2.", "wb2.é", "wb2.!!", "wb2.bnVsbA==", "wb2.eyJzYWlkIjo3fQ==", "wb1.e30=", None, 7]
)
def test_odd_seals_are_none(odd: Any) -> None:
    """Whatever a caller writes there."""
    assert unsealed(odd, "x") is None


@pytest.mark.parametrize(
    "said",
    ["[" * 50_000 + "]" * 50_000, f"[{'[],' * 200_000}0]", f"[{'1,' * 900_000}0]", "[" + '{"a":1},' * 200_000 + "0]"],
    ids=["deep", "lists", "numbers", "objects"],
)
def test_a_seal_is_bounded_as_a_body_is(said: str) -> None:
    """What is encoded within a text is none of the values that a body is bounded by."""
    forged = b64encode(f'{{"said":{{"reasoning_details":{said}}}}}'.encode()).decode()
    assert unsealed(MARK + forged, "") is None
    assert from_base64(b64encode(said.encode()).decode(), list[Any]) is None


def test_a_long_thought_about_code_comes_back() -> None:
    """Signs within its words are no structure, and one of many pieces has as many details."""
    details = [{"type": "reasoning.text", "text": "Hm.", "index": each} for each in range(5_000)]
    thought = Thought("t0", {"reasoning": '[{"a": [1,2]}, ' * 20_000, "reasoning_details": details})
    assert unsealed(sealed(thought), "") == thought


def test_a_seal_brings_in_no_other_fields() -> None:
    """A caller could write one: it says no more of a message than what a thought may."""
    forged = Thought(
        "t0", {"role": "system", "reasoning": "x"}, {"call_a": {"function": {}, "extra_content": {"a": 1}}}
    )
    assert unsealed(sealed(forged), "") == Thought("t0", {"reasoning": "x"}, {"call_a": {"extra_content": {"a": 1}}})
    more = Thought("t0", {"reasoning": "y", "reasoning_details": [1]}, {})
    assert joined(Thought("t0", {"reasoning": "x"}), more).said == {"reasoning": "xy", "reasoning_details": [1]}
