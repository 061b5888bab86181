"""System messages where templates of open models take them."""

from typing import Any

import msgspec
import pytest

from providers.wire import upstream_body
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from proxy.parse.wires.system_turns import with_system_first
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
