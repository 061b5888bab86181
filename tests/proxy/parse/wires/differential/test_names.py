"""Names of tools, however they are written: each has a name of its own at the target, and the caller is told its own."""

import json
import re
from typing import Any, Final

import pytest

from providers.claude.request import claude_body
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from tests.providers.calls import chat_request, deployment, upstream_call
from tests.proxy.parse.wires.reading import chat_fields, understood
from tests.proxy.parse.wires.writing import completion, served

NAMES: Final = ("a.b", "a:b", "a_b", "a/b", "wäge", "x" * 70, "x" * 71, "mcp__yard__weigh")
_TAKEN: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SCHEMA: Final = {"type": "object"}


def _calls_of(names: list[str]) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for at, name in enumerate(names)
    ]


def test_on_messages() -> None:
    """In tools, the choice, earlier calls and the answer."""
    uses = [{"type": "tool_use", "id": f"t{at}", "name": name, "input": {}} for at, name in enumerate(NAMES)]
    body = {
        "model": "auto",
        "max_tokens": 9,
        "tools": [{"name": name, "input_schema": _SCHEMA} for name in NAMES],
        "tool_choice": {"type": "tool", "name": "a:b"},
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": uses}],
    }
    read = understood(MESSAGES, body)
    sent = chat_fields(read.request)
    names = _sent_names(sent)
    assert sent["tool_choice"]["function"]["name"] == names[1]
    told = json.loads(
        read.dialect.whole(completion({"content": None, "tool_calls": _calls_of(names)}, "tool_calls"), served())
    )
    assert [block["name"] for block in told["content"]] == [*NAMES]


def test_on_responses() -> None:
    """The same, with tools of a namespace that come to the same name as another."""
    inner = [{"type": "function", "name": "weigh", "parameters": _SCHEMA}]
    tools = [
        *({"type": "function", "name": name, "parameters": _SCHEMA} for name in NAMES),
        {"type": "namespace", "name": "mcp__yard", "description": "", "tools": inner},
        {"type": "namespace", "name": "mcp", "description": "", "tools": [{**inner[0], "name": "yard__weigh"}]},
    ]
    named = [*((name, None) for name in NAMES), ("weigh", "mcp__yard"), ("yard__weigh", "mcp")]
    items = [
        {"type": "function_call", "call_id": f"c{at}", "name": name, "namespace": space, "arguments": "{}"}
        for at, (name, space) in enumerate(named)
    ]
    choice = {"type": "function", "name": "weigh", "namespace": "mcp__yard"}
    body = {"model": "auto", "store": False, "tools": tools, "tool_choice": choice, "input": items}
    read = understood(RESPONSES, body)
    sent = chat_fields(read.request)
    names = _sent_names(sent)
    assert sent["tool_choice"]["function"]["name"] == names[-2]
    told = json.loads(
        read.dialect.whole(completion({"content": None, "tool_calls": _calls_of(names)}, "tool_calls"), served())
    )
    assert [(item["name"], item.get("namespace")) for item in told["output"]] == named


@pytest.mark.parametrize("listed", [True, False])
def test_of_chat_at_a_claude(listed: bool) -> None:
    """Also those of calls whose tools are not sent again."""
    names = [name for name in NAMES if name]
    request = chat_request(
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": _calls_of(names)}],
        **({"tools": [{"type": "function", "function": {"name": name}} for name in names]} if listed else {}),
    )
    claude = deployment("litellm", upstream_model="anthropic/claude-opus-4-8", base_url="")
    asked = claude_body(upstream_call(claude, request))
    body = json.loads(asked.body)
    used = [block["name"] for block in body["messages"][1]["content"]]
    assert len(set(used)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", name) for name in used)
    if listed:
        assert [tool["name"] for tool in body["tools"]] == used
        assert [asked.names.get(name, name) for name in used] == names


def _sent_names(sent: dict[str, Any]) -> list[str]:
    """The names of the tools that are sent, which earlier calls have, too."""
    names: list[str] = [tool["function"]["name"] for tool in sent["tools"]]
    assert len(set(names)) == len(names)
    assert all(map(_TAKEN.fullmatch, names))
    called = [call["function"]["name"] for message in sent["messages"] for call in message.get("tool_calls", ())]
    assert called == names
    return names
