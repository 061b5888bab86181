"""One conversation is the same prompt, and equally complex, whichever wire it comes by."""

from typing import Any, Final

from classifier.config import ClassifierSection
from classifier.onnx_classifier import load_classifier
from proxy.parse.chat_request import conversation_key, input_tokens, prompt_of, turn_key
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from tests.proxy.parse.wires.reading import read

_SCHEMA: Final = {"type": "object", "properties": {"kg": {"type": "integer"}}}
_SYSTEM: Final = "You weigh trucks."
_ASKED: Final = "Prove that the sum of two weights is at least as large as either, and weigh truck 7."
_ANSWER: Final = "It weighs 7 tons."
_LAST: Final = "And truck 8?"


def _chat() -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg":7}'}}
    return {
        "model": "auto",
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _ASKED},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "7 t"},
            {"role": "assistant", "content": _ANSWER},
            {"role": "user", "content": _LAST},
        ],
        "tools": [{"type": "function", "function": {"name": "weigh", "parameters": _SCHEMA}}],
    }


def _messages() -> dict[str, Any]:
    mark = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": "claude-auto",
        "max_tokens": 100,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": _SYSTEM, **mark},
        ],
        "messages": [
            {"role": "user", "content": _ASKED},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weigh", "input": {"kg": 7}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "7 t"}]},
            {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]},
            {"role": "user", "content": [{"type": "text", "text": _LAST, **mark}]},
        ],
        "tools": [{"name": "weigh", "input_schema": _SCHEMA}],
    }


def _responses() -> dict[str, Any]:
    return {
        "model": "auto",
        "instructions": _SYSTEM,
        "input": [
            {"role": "user", "content": _ASKED},
            {"type": "function_call", "call_id": "c1", "name": "weigh", "arguments": '{"kg":7}'},
            {"type": "function_call_output", "call_id": "c1", "output": "7 t"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _ANSWER}]},
            {"role": "user", "content": [{"type": "input_text", "text": _LAST}]},
        ],
        "tools": [{"type": "function", "name": "weigh", "parameters": _SCHEMA}],
    }


def test_a_conversation_with_tools_on_three_wires() -> None:
    """Prompt, score, conversation and turn are the same; the estimated tokens differ by the order of keys in JSON alone."""
    requests = [read(CHAT, _chat()), read(MESSAGES, _messages()), read(RESPONSES, _responses())]
    prompts = [prompt_of(request) for request in requests]
    assert prompts[0] == prompts[1] == prompts[2]
    assert len({conversation_key(request, prompt) for request, prompt in zip(requests, prompts, strict=True)}) == 1
    assert len({turn_key(prompt) for prompt in prompts}) == 1
    tokens = [input_tokens(request, prompt) for request, prompt in zip(requests, prompts, strict=True)]
    assert max(tokens) - min(tokens) <= 10
    weigher = load_classifier(ClassifierSection(), {})
    assert len({weigher.classify(prompt, "team_a").complexity for prompt in prompts}) == 1


def test_a_question_on_four_wires() -> None:
    """The older completions have no roles, so one question is all that they can ask."""
    requests = [
        read(CHAT, {"model": "auto", "messages": [{"role": "user", "content": _ASKED}]}),
        read(MESSAGES, {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": _ASKED}]}),
        read(RESPONSES, {"model": "auto", "input": _ASKED}),
        read(COMPLETIONS, {"model": "auto", "prompt": _ASKED}),
    ]
    prompts = [prompt_of(request) for request in requests]
    assert all(prompt == prompts[0] for prompt in prompts)
    assert len({input_tokens(request, prompts[0]) for request in requests}) == 1
    weigher = load_classifier(ClassifierSection(), {})
    assert len({weigher.classify(prompt, "team_a").complexity for prompt in prompts}) == 1
