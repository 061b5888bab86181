"""The reasoning effort that a request asks for is found in whichever words a client has for it."""

import json
from typing import Any

import pytest

from classifier.known_models import EFFORTS
from proxy.parse.chat_request import parse_chat, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.reasoning_effort import effort_of
from proxy.parse.wires.messages.parser import read_messages
from proxy.parse.wires.responses.parser import read_response

CHAT = {"model": "auto", "messages": [{"role": "user", "content": "Why?"}]}
NO_HEADERS = RequestHeaders(tier="interactive")


@pytest.mark.parametrize(
    ("said", "effort"),
    [
        ({}, ""),
        # OpenAI.
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "minimal"}, "minimal"),
        ({"reasoning_effort": None}, ""),
        ({"reasoning_effort": "a lot"}, ""),
        # OpenRouter.
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"reasoning": {"max_tokens": 4_096}}, "high"),
        ({"reasoning": {"enabled": False}}, "none"),
        ({"reasoning": {"enabled": True}}, "medium"),
        # Anthropic, also through LiteLLM's chat.
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32_000}}, "max"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "max"}}, "max"),
        # Templates of open weights.
        ({"chat_template_kwargs": {"enable_thinking": False}}, "none"),
        ({"chat_template_kwargs": {"thinking": True}}, "medium"),
        ({"enable_thinking": False}, "none"),
        # What no provider takes either.
        ({"thinking": "yes", "reasoning": 3, "output_config": []}, ""),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, ""),
    ],
)
def test_each_clients_words_are_understood_on_the_chat_wire(said: dict[str, Any], effort: str) -> None:
    """What a client sends is what the prompt is predicted by."""
    body = json.dumps({**CHAT, **said}).encode()
    assert prompt_of(parse_chat(body, NO_HEADERS)).effort == effort == effort_of(said)
    assert effort in {"", *EFFORTS}


def test_the_other_wires_tell_the_effort_too() -> None:
    """Responses by `reasoning.effort`, messages by the budget or `output_config`."""
    response = {"model": "auto", "input": "Why?", "reasoning": {"effort": "xhigh"}}
    found = read_response(json.dumps(response).encode(), NO_HEADERS, lambda _name: True)
    assert prompt_of(found.request).effort == "xhigh"
    message = {"model": "auto", "max_tokens": 9_000, "messages": CHAT["messages"]}
    for said, effort in (
        ({"thinking": {"type": "enabled", "budget_tokens": 8_192}}, "xhigh"),
        ({"output_config": {"effort": "medium"}}, "medium"),
        ({}, ""),
    ):
        body = json.dumps({**message, **said}).encode()
        found = read_messages(body, NO_HEADERS, lambda _name: True)
        assert prompt_of(found.request).effort == effort
