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


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp"])
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
