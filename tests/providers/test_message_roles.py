"""System messages where templates of open models take them."""

from typing import Any

import msgspec
import pytest

from providers.message_roles import with_system_first
from providers.target import DeploymentKind
from providers.wire import upstream_body
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from tests.providers.calls import deployment
from tests.proxy.parse.wires.reading import read

SYSTEM = {"role": "system", "content": "Be brief."}
LATER = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "hi"}
REMINDER = "<system-reminder>\nBe kind.\n</system-reminder>"


@pytest.mark.parametrize("messages", [[USER], [SYSTEM], [SYSTEM, USER], []])
def test_what_is_in_its_place_stays(messages: list[dict[str, Any]]) -> None:
    """Nothing is made anew."""
    assert with_system_first(messages) is None


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([SYSTEM, LATER, USER], [{"role": "system", "content": "Be brief.\n\nBe kind."}, USER]),
        ([SYSTEM, USER, LATER], [SYSTEM, {"role": "user", "content": f"hi\n{REMINDER}"}]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, LATER],
            [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": REMINDER}]}],
        ),
        (
            [{"role": "tool", "tool_call_id": "c", "content": "7"}, LATER],
            [{"role": "tool", "tool_call_id": "c", "content": f"7\n{REMINDER}"}],
        ),
        (
            [USER, {"role": "assistant", "content": "yes"}, LATER],
            [USER, {"role": "assistant", "content": "yes"}, {"role": "user", "content": REMINDER}],
        ),
    ],
)
def test_later_ones_are_reminders(messages: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """In the turn before, or in one of their own behind an answer; what came before stays a prefix."""
    assert with_system_first(messages) == found


def test_only_own_engines_get_them_so() -> None:
    """Hosted models take them where they stand."""
    turns = [USER, {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}]
    anthropic = read(MESSAGES, {"model": "auto", "max_tokens": 9, "messages": turns})
    openai = read(RESPONSES, {"model": "auto", "input": [USER, {"role": "developer", "content": "Be kind."}]})
    for request in (anthropic, openai):
        hosted = msgspec.json.decode(upstream_body(request, deployment()))["messages"]
        own = msgspec.json.decode(upstream_body(request, deployment("vllm")))["messages"]
        assert (hosted, own) == ([USER, LATER], [{"role": "user", "content": f"hi\n{REMINDER}"}])


DEVELOPER = {"role": "developer", "content": "Be brief."}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp", "ollama", "lmstudio"])
def test_chats_are_told_in_the_same_way(kind: DeploymentKind) -> None:
    """Templates refuse the developer and a later system message, whichever wire they came by; all else stays as it was written."""
    chat = read(CHAT, {"model": "auto", "messages": [DEVELOPER, USER, {**LATER, "name": "x"}], "seed": 1})
    body = msgspec.json.decode(upstream_body(chat, deployment(kind)))
    assert body["messages"] == [SYSTEM, {"role": "user", "content": f"hi\n{REMINDER}"}]
    assert body["seed"] == 1
    hosted = msgspec.json.decode(upstream_body(chat, deployment()))["messages"]
    assert hosted == [DEVELOPER, USER, {**LATER, "name": "x"}]


def test_a_role_alone_may_have_another_name() -> None:
    """DeepSeek knows system messages anywhere, but no developer."""
    to = deployment(base_url="https://api.deepseek.com", upstream_model="deepseek-v4-flash")
    chat = read(CHAT, {"model": "auto", "messages": [DEVELOPER, USER, LATER]})
    assert msgspec.json.decode(upstream_body(chat, to))["messages"] == [SYSTEM, USER, LATER]


def test_instructions_alone_are_told_as_the_users() -> None:
    """Qwen's template wants somebody to ask."""
    chat = read(CHAT, {"model": "auto", "messages": [SYSTEM, DEVELOPER]})
    body = msgspec.json.decode(upstream_body(chat, deployment("vllm", upstream_model="Qwen/Qwen3-32B")))
    assert body["messages"] == [{"role": "user", "content": "Be brief.\n\nBe brief."}]


def test_messages_in_their_place_are_not_read() -> None:
    """What a template takes goes as the bytes it came in."""
    raw = b'{"model":"auto","messages":[{"role":"system","content":"a"},  {"role":"user","content":"b", "x":1}]}'
    chat = CHAT.read(raw, RequestHeaders(), lambda _name: True).request
    assert b'[{"role":"system","content":"a"},  {"role":"user","content":"b", "x":1}]' in upstream_body(
        chat, deployment("vllm")
    )


def call(name: str) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{name}", "content": name}


def turn(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


LLAMA = "meta-llama/Llama-3.3-70B-Instruct"
TOOLS = [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        (
            [USER, turn(call("a"), call("b"), content="Both."), result("b"), result("a"), USER],
            [USER, turn(call("a"), content="Both."), result("a"), turn(call("b")), result("b"), USER],
        ),
        (
            [USER, turn(call("a"), call("b")), result("a"), turn(call("c")), result("c")],
            [USER, turn(call("a")), result("a"), turn(call("b")), turn(call("c")), result("c")],
        ),
        (
            [USER, turn(call("a"), call("b")), {**result("a"), "tool_call_id": "odd"}, result("b"), result("b")],
            [
                *[USER, turn(call("a")), turn(call("b"))],
                *[{**result("a"), "tool_call_id": "odd"}, result("b"), result("b")],
            ],
        ),
        ([USER, turn(call("a")), result("a")], [USER, turn(call("a")), result("a")]),
    ],
    ids=["out of order", "one without a result", "a result of none", "one call"],
)
def test_a_template_of_one_call_is_told_each_in_a_turn(
    messages: list[dict[str, Any]], found: list[dict[str, Any]]
) -> None:
    """What another model called at once, Llama 3's template refuses. Nothing is lost, whatever the results are."""
    chat = read(CHAT, {"model": "auto", "messages": messages, "tools": TOOLS})
    body = msgspec.json.decode(upstream_body(chat, deployment("vllm", upstream_model=LLAMA)))
    assert body["messages"] == found
    assert body["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("vllm", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        ("vllm", "NousResearch/Hermes-3-Llama-3.1-8B"),
        ("ollama", "llama3.2"),
        ("openai", LLAMA),
    ],
)
def test_others_are_told_all_calls_of_a_turn(kind: DeploymentKind, model: str) -> None:
    """Newer Llamas, models with other templates, and hosts."""
    messages = [USER, turn(call("a"), call("b")), result("a"), result("b")]
    chat = read(CHAT, {"model": "auto", "messages": messages, "tools": TOOLS})
    body = msgspec.json.decode(upstream_body(chat, deployment(kind, upstream_model=model)))
    assert body["messages"] == messages
    assert "parallel_tool_calls" not in body


def test_without_tools_nothing_is_said_of_their_calls() -> None:
    chat = read(CHAT, {"model": "auto", "messages": [USER], "tools": []})
    assert "parallel_tool_calls" not in msgspec.json.decode(
        upstream_body(chat, deployment("vllm", upstream_model=LLAMA))
    )


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([USER, LATER, USER], [{"role": "user", "content": f"hi\n{REMINDER}\n\nhi"}]),
        ([SYSTEM, USER, USER], [SYSTEM, {"role": "user", "content": "hi\n\nhi"}]),
        (
            [USER, {"role": "user", "content": [PICTURE]}],
            [{"role": "user", "content": [{"type": "text", "text": "hi"}, PICTURE]}],
        ),
        (
            [USER, {"role": "assistant", "content": "Let me see."}, turn(call("a")), result("a"), result("a")],
            [USER, turn(call("a"), content="Let me see."), result("a"), result("a")],
        ),
        ([DEVELOPER, USER], [SYSTEM, USER]),
    ],
    ids=["reminder", "text", "parts", "assistant", "developer"],
)
def test_a_host_that_wants_turns_by_turns_gets_neighbours_joined(
    messages: list[dict[str, Any]], found: list[dict[str, Any]]
) -> None:
    """Perplexity refuses a conversation in which somebody speaks twice in a row."""
    to = deployment(base_url="https://api.perplexity.ai", upstream_model="sonar-pro")
    chat = read(CHAT, {"model": "auto", "messages": messages})
    assert msgspec.json.decode(upstream_body(chat, to))["messages"] == found
    elsewhere = msgspec.json.decode(upstream_body(chat, deployment(upstream_model="sonar-pro")))["messages"]
    assert elsewhere == messages
