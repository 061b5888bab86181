"""Bodies as models and their hosts take them: an answer that is begun, efforts, thinking that is turned off, names."""

from typing import Any

import msgspec
import pytest

from providers.target import Deployment, DeploymentKind
from providers.wire import upstream_body
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.messages.wire import MESSAGES
from proxy.parse.wires.responses.wire import RESPONSES
from tests.providers.calls import deployment
from tests.proxy.parse.wires.reading import read

USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "It is"}
OPENAI = "https://api.openai.com/v1"
TOGETHER = "https://api.together.xyz/v1"
FIREWORKS = "https://api.fireworks.ai/inference/v1"
PERPLEXITY = "https://api.perplexity.ai"
NVIDIA = "https://integrate.api.nvidia.com/v1"
COHERE = "https://api.cohere.ai/compatibility/v1"


def sent(request: Any, to: Deployment) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(upstream_body(request, to))
    return body


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp"])
def test_an_answer_that_is_begun_is_gone_on_with(kind: DeploymentKind) -> None:
    """Anthropic's callers begin the answer themselves; an engine has to be told that it is no turn of its own."""
    request = read(MESSAGES, {"model": "auto", "max_tokens": 9, "messages": [USER, BEGUN]})
    body = sent(request, deployment(kind))
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["messages"] == [USER, BEGUN]


@pytest.mark.parametrize(
    "request_",
    [
        read(MESSAGES, {"model": "auto", "max_tokens": 9, "messages": [USER]}),
        read(CHAT, {"model": "auto", "messages": [USER, BEGUN]}),
        read(RESPONSES, {"model": "auto", "input": [USER, BEGUN]}),
    ],
    ids=["messages", "chat", "responses"],
)
def test_elsewhere_the_assistants_last_message_is_a_turn(request_: Any) -> None:
    assert "continue_final_message" not in sent(request_, deployment("vllm"))


def test_a_host_without_the_fields_is_not_sent_them() -> None:
    request = read(MESSAGES, {"model": "auto", "max_tokens": 9, "messages": [USER, BEGUN]})
    for kind in ("tgi", "tensorrt-llm", "openai"):
        assert "continue_final_message" not in sent(request, deployment(kind))


@pytest.mark.parametrize(
    ("model", "asked", "told"),
    [
        ("gpt-5", "none", "minimal"),
        ("gpt-5", "xhigh", "high"),
        ("gpt-5.1", "minimal", "none"),
        ("gpt-5.1", "xhigh", "high"),
        ("gpt-5.2", "xhigh", "xhigh"),
        ("gpt-6.1-sol", "none", "low"),
        ("o3", "minimal", "low"),
        ("gpt-5", "enormous", "enormous"),
        ("gpt-5.2-pro", "minimal", "minimal"),
        ("somebodys-model", "xhigh", "xhigh"),
    ],
)
def test_efforts_have_the_models_own_words(model: str, asked: str, told: str) -> None:
    """The closest that it knows; where its words are not known, and for words that nobody knows, the caller's."""
    request = read(CHAT, {"model": "auto", "messages": [USER], "reasoning_effort": asked})
    assert sent(request, deployment(base_url=OPENAI, upstream_model=model))["reasoning_effort"] == told


@pytest.mark.parametrize(
    ("to", "asked", "told"),
    [
        (deployment("tensorrt-llm", upstream_model="Qwen/Qwen3-8B"), "minimal", "none"),
        (deployment("tensorrt-llm", upstream_model="Qwen/Qwen3-8B"), "xhigh", "high"),
        (deployment("tensorrt-llm", upstream_model="openai/gpt-oss-20b"), "minimal", "low"),
        (deployment(base_url=COHERE, upstream_model="command-a-reasoning-08-2025"), "low", "none"),
        (deployment(base_url=COHERE, upstream_model="command-a-reasoning-08-2025"), "medium", "high"),
        (deployment(base_url=TOGETHER, upstream_model="openai/gpt-oss-120b"), "xhigh", "high"),
        (deployment(base_url=FIREWORKS, upstream_model="accounts/fireworks/models/glm-4p7"), "none", "none"),
        (deployment(base_url=FIREWORKS, upstream_model="accounts/fireworks/models/gpt-oss-120b"), "none", "low"),
        (deployment(base_url=PERPLEXITY, upstream_model="sonar-deep-research"), "none", "minimal"),
        (deployment(base_url=NVIDIA, upstream_model="nvidia/nemotron-3-super-120b-a12b"), "medium", "low"),
        (deployment(base_url=NVIDIA, upstream_model="nvidia/nemotron-3-ultra-550b-a55b"), "low", "medium"),
    ],
)
def test_hosts_have_words_of_their_own_for_an_effort(to: Deployment, asked: str, told: str) -> None:
    request = read(CHAT, {"model": "auto", "messages": [USER], "reasoning_effort": asked})
    assert sent(request, to)["reasoning_effort"] == told


@pytest.mark.parametrize(
    ("to", "field", "value"),
    [
        (deployment("vllm", upstream_model="Qwen/Qwen3-32B"), "chat_template_kwargs", {"enable_thinking": False}),
        (deployment("sglang", upstream_model="zai-org/GLM-4.6"), "chat_template_kwargs", {"enable_thinking": False}),
        (deployment("vllm", upstream_model="deepseek-ai/DeepSeek-V3.1"), "chat_template_kwargs", {"thinking": False}),
        (
            deployment(base_url="https://api.moonshot.ai/v1", upstream_model="kimi-k2.6"),
            "thinking",
            {"type": "disabled"},
        ),
        (
            deployment(base_url="https://dashscope.aliyuncs.com/compatible-mode/v1", upstream_model="qwen3.7-plus"),
            "enable_thinking",
            False,
        ),
        (deployment(base_url=TOGETHER, upstream_model="zai-org/GLM-5.1"), "reasoning", {"enabled": False}),
        (deployment(base_url=TOGETHER, upstream_model="Qwen/Qwen3.5-9B"), "reasoning", {"enabled": False}),
        (deployment(base_url=TOGETHER, upstream_model="moonshotai/Kimi-K2.6"), "reasoning", {"enabled": False}),
        (deployment(base_url=TOGETHER, upstream_model="deepseek-ai/DeepSeek-V4-Pro"), "reasoning", {"enabled": False}),
    ],
)
def test_thinking_is_turned_off_as_each_knows_it(to: Deployment, field: str, value: Any) -> None:
    for request in (
        read(CHAT, {"model": "auto", "messages": [USER], "reasoning_effort": "none"}),
        read(RESPONSES, {"model": "auto", "input": "hi", "reasoning": {"effort": "none"}}),
        read(MESSAGES, {"model": "auto", "max_tokens": 9, "messages": [USER], "thinking": {"type": "disabled"}}),
    ):
        body = sent(request, to)
        assert body[field] == value
        assert "reasoning_effort" not in body
    usual = sent(read(CHAT, {"model": "auto", "messages": [USER]}), to)
    assert field not in usual


def test_a_callers_own_way_of_turning_it_off_stays() -> None:
    asked = {"enable_thinking": False, "custom": 1}
    request = read(CHAT, {"model": "auto", "messages": [USER], "chat_template_kwargs": asked})
    assert sent(request, deployment("vllm", upstream_model="Qwen/Qwen3-8B"))["chat_template_kwargs"] == asked


def test_a_hosts_own_name_stands_for_a_parameter() -> None:
    request = read(CHAT, {"model": "auto", "messages": [USER], "seed": 7})
    body = sent(request, deployment(base_url="https://api.mistral.ai/v1", upstream_model="mistral-large-latest"))
    assert body["random_seed"] == 7
    assert "seed" not in body


_ROOT_UNION: Any = {
    "type": "object",
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    "properties": {"a": {}, "b": {}},
}


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [
        (
            CHAT,
            {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f", "parameters": _ROOT_UNION}}]},
        ),
        (MESSAGES, {"max_tokens": 9, "messages": [USER], "tools": [{"name": "f", "input_schema": _ROOT_UNION}]}),
        (
            RESPONSES,
            {"input": [USER], "tools": [{"type": "function", "name": "f", "parameters": _ROOT_UNION, "strict": False}]},
        ),
    ],
    ids=["chat", "messages", "responses"],
)
def test_a_tools_schema_is_sent_as_its_host_takes_it(dialect: Any, request_: dict[str, Any]) -> None:
    """From every wire, at the hosts that refuse it; an own engine has it as it was."""
    request = read(dialect, {"model": "auto", **request_})
    for address in (
        OPENAI,
        FIREWORKS,
        "https://api.moonshot.ai/v1",
        "https://generativelanguage.googleapis.com/v1beta/openai",
    ):
        model = "gemini-2.5-flash" if "google" in address else "m"
        found = sent(request, deployment("openai", base_url=address, upstream_model=model))["tools"][0]["function"][
            "parameters"
        ]
        assert "anyOf" not in found
        assert found["properties"].keys() == {"a", "b"}
    assert sent(request, deployment("vllm"))["tools"][0]["function"]["parameters"] == _ROOT_UNION
