"""Requests for responses as chat requests: what is kept, what is turned, what is refused by name."""

from typing import Any

import msgspec
import pytest

from providers.litellm_client import litellm_arguments
from providers.wire import untaken, upstream_body
from proxy.errors import BadRequest
from proxy.parse.chat_request import conversation_key, input_tokens, prompt_of
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.responses.items import sealed_thinking
from proxy.parse.wires.responses.wire import INPUT_TOKENS, RESPONSES
from tests.providers.calls import deployment, upstream_call
from tests.proxy.parse.wires.reading import chat_fields, read

HI: dict[str, Any] = {"model": "auto", "input": "hi"}
CLAUDE = deployment("litellm", upstream_model="bedrock/anthropic.claude-x", base_url="")
"""Elsewhere than at Anthropic, so it is reached through litellm."""
WEIGH = {"type": "function", "name": "weigh", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weigh", "arguments": '{"kg":7}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "7 kg"}
USER = {"role": "user", "content": "Weigh it."}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "sig"}


def messages_of(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat_fields(read(RESPONSES, HI | {"input": list(items)} | fields))["messages"]
    return found


def test_a_text_and_instructions() -> None:
    """The shortest request, with what comes before it."""
    request = read(RESPONSES, HI | {"instructions": "Be brief.", "max_output_tokens": 9, "stream": True})
    fields = chat_fields(request)
    assert fields["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert (request.max_output_tokens, request.stream, fields["max_tokens"]) == (9, True, 9)
    assert messages_of(instructions="Be brief.") == [{"role": "system", "content": "Be brief."}]


def test_items_become_messages() -> None:
    """What the assistant says and calls in one turn is one message; parts of text alone are a text."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]}
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}
    call = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg":7}'}}
    assert messages_of(developer, USER, said, CALL, OUTPUT) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weigh it."},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7 kg"},
    ]


def test_media_come_inline() -> None:
    """Images with their detail, and files."""
    parts = [
        {"type": "input_text", "text": "See."},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
        {"type": "input_file", "filename": "bill.pdf", "file_data": "data:application/pdf;base64,aGk="},
    ]
    request = read(RESPONSES, HI | {"input": [{"role": "user", "content": parts}]})
    assert request.images == 1
    assert chat_fields(request)["messages"][0]["content"] == [
        {"type": "text", "text": "See."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": "data:application/pdf;base64,aGk="}},
    ]


def test_pictures_in_outputs_stand_beside_them() -> None:
    """A chat's tool message has texts only."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    output = {**OUTPUT, "output": [{"type": "input_text", "text": "see"}, picture]}
    _, told, beside = messages_of(CALL, output)
    assert (told["content"], beside["role"], beside["content"][0]["type"]) == ("see", "user", "image_url")


def test_function_custom_and_namespaced_tools() -> None:
    """All are functions in chat, under names that lead back."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
    custom = {"type": "custom", "name": "patch", "description": "Patches.", "format": grammar}
    space = {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "find"}]}
    found = chat_fields(read(RESPONSES, HI | {"tools": [WEIGH, custom, space], "parallel_tool_calls": False}))
    functions = [tool["function"] for tool in found["tools"]]
    assert [function["name"] for function in functions] == ["weigh", "patch", "crm__find"]
    assert (functions[0]["strict"], functions[1]["parameters"]["required"]) == (True, ["input"])
    assert "lark" in functions[1]["description"]
    assert found["parallel_tool_calls"] is False


def test_a_long_name_is_cut_the_same_each_time() -> None:
    """Hosts refuse names above 64 characters."""
    long = {"type": "namespace", "name": "n" * 60, "tools": [{"type": "function", "name": f"f{i}"} for i in (1, 2)]}
    names = [tool["function"]["name"] for tool in chat_fields(read(RESPONSES, HI | {"tools": [long]}))["tools"]]
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        ("auto", None, ["weigh", "look"]),
        ("required", "required", ["weigh", "look"]),
        ("none", "none", ["weigh", "look"]),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}, ["weigh", "look"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [WEIGH]}, "required", ["weigh"]),
    ],
)
def test_tool_choices(choice: Any, sent: Any, offered: list[str]) -> None:
    """A choice among some offers only those."""
    tools = [WEIGH, {"type": "function", "name": "look"}]
    found = chat_fields(read(RESPONSES, HI | {"tools": tools, "tool_choice": choice}))
    assert found.get("tool_choice") == sent
    assert [tool["function"]["name"] for tool in found["tools"]] == offered


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "mass", "schema": {"type": "object"}, "strict": True},
            {"type": "json_schema", "json_schema": {"name": "mass", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_text_formats(form: dict[str, Any], sent: Any) -> None:
    """A schema needs a target that keeps to one."""
    request = read(RESPONSES, HI | {"text": {"format": form}})
    assert chat_fields(request).get("response_format") == sent
    assert request.json_mode == (sent is not None)


def test_each_kind_of_target_gets_the_fields_that_it_takes() -> None:
    """What one host refuses is not sent there."""
    asked = {
        "reasoning": {"effort": "xhigh"},
        "text": {"verbosity": "low"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "metadata": {"a": "b"},
        "max_output_tokens": 9,
    }
    request = read(RESPONSES, HI | asked)

    def sent(**fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(upstream_body(request, deployment(**fields)))
        return {name: found[name] for name in found if name not in {"model", "messages"}}

    openai = {"base_url": "https://api.openai.com/v1"}
    kept = {"prompt_cache_key": "k", "safety_identifier": "s", "max_completion_tokens": 9}
    assert sent() == {"max_tokens": 9}
    assert sent(kind="vllm") == {"max_tokens": 9, "reasoning_effort": "high"}
    assert sent(**openai, upstream_model="gpt-4o") == kept
    assert sent(**openai, upstream_model="gpt-5.2") == kept | {"reasoning_effort": "xhigh", "verbosity": "low"}
    assert litellm_arguments(upstream_call(CLAUDE, request))["reasoning_effort"] == "high"


def test_reasoning_goes_back_to_the_claude_that_signed_it() -> None:
    """Others' encrypted content can be read by nobody here, and none of it is in another's prompt."""
    ours = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed_thinking([SIGNED])}
    foreign: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [], "encrypted_content": odd} for odd in ("gAAAA", "wb1.%%", "wb1.MQ==")
    ]
    request = read(RESPONSES, HI | {"input": [USER, *foreign, ours, CALL, OUTPUT]})
    assert b"thinking" not in bytes(request.fields["messages"])
    sent = litellm_arguments(upstream_call(CLAUDE, request))["messages"]
    assert sent[1]["thinking_blocks"] == [SIGNED]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": []}, "messages"),
        ({"input": [{"role": "judge", "content": "hi"}]}, "input.0.role"),
        ({"input": [{"type": "sonnet"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input.0.content.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "regex"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"conversation": "thread_1"}, "conversation"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    """Each with the path of what is wrong."""
    with pytest.raises(BadRequest) as refused:
        read(RESPONSES, HI | body)
    assert refused.value.param == param


def test_tools_that_a_provider_runs_pass_as_they_were_written() -> None:
    """With what chat can say of them for weighing; what is the gateway's own is taken out, and its state goes along."""
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    ours = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed_thinking([SIGNED])}
    theirs = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAA"}
    said = {"type": "message", "id": "msg_0_0", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    tools = [{"type": "web_search_preview_2025_03_11", "search_context_size": "low"}, WEIGH]
    body = {"input": [USER, ours, theirs, search, said], "tools": tools, "x-tier": "batch", "conversation": "conv_1"}
    request = read(RESPONSES, HI | body | {"tool_choice": {"type": "web_search_preview"}, "max_output_tokens": 9})
    assert request.as_written is not None
    assert request.as_written.tools == {"web_search": "tools.0.type"}
    assert (request.tools, request.tier) == (1, "batch")
    assert [message.role for message in request.messages] == ["user", "assistant"]
    sent = msgspec.json.decode(upstream_body(request, deployment(upstream_model="gpt-5")))
    assert sent == {
        "model": "gpt-5",
        "stream": False,
        "store": False,
        "input": [USER, theirs, search, {name: value for name, value in said.items() if name != "id"}],
        "tools": tools,
        "tool_choice": {"type": "web_search_preview"},
        "max_output_tokens": 9,
        "include": ["reasoning.encrypted_content"],
    }
    with pytest.raises(BadRequest, match="configuration"):
        read(RESPONSES, HI | body | {"api_base": "http://a"})


def test_logprobs_are_asked_for() -> None:
    """By `include` or by their number."""
    included = chat_fields(read(RESPONSES, HI | {"include": ["message.output_text.logprobs"]}))
    assert (included["logprobs"], included["top_logprobs"]) == (True, 0)
    assert chat_fields(read(RESPONSES, HI | {"top_logprobs": 3}))["top_logprobs"] == 3


def test_sessions_and_cache_keys_are_recognised() -> None:
    """An agent's header is a session; a cache key tells conversations apart that begin alike."""
    assert read(RESPONSES, HI, codex_session="abc").session_id == "abc"
    keys = [
        conversation_key(request, prompt_of(request))
        for request in (read(RESPONSES, HI | {"prompt_cache_key": key}) for key in ("a", "b", "a"))
    ]
    assert keys[0] == keys[2] != keys[1]


def test_counting_needs_no_model() -> None:
    """As OpenAI has it."""
    assert read(INPUT_TOKENS, {"input": "hi"}).model == "auto"


def test_tokens_and_prompt_are_those_of_the_same_chat() -> None:
    """Complexity and money see one conversation, whatever wire it came by."""
    talk = [USER, {"role": "assistant", "content": "7 kg."}, {"role": "user", "content": "hi"}]
    here = read(RESPONSES, HI | {"instructions": "Be brief.", "input": talk})
    there = read(CHAT, {"model": "auto", "messages": [{"role": "system", "content": "Be brief."}, *talk]})
    assert prompt_of(here) == prompt_of(there)
    assert input_tokens(here, prompt_of(here)) == input_tokens(there, prompt_of(there))


def test_what_a_target_is_not_sent_is_told() -> None:
    """Effort and verbosity where they are not taken, and fields that nobody is sent; notes are not told."""
    asked = {
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "truncation": "auto",
        "safety_identifier": "s",
    }
    request = read(RESPONSES, HI | asked)
    assert untaken(request, deployment()) == ("truncation", "reasoning_effort", "verbosity")
    assert untaken(request, deployment("vllm")) == ("truncation", "verbosity")
    assert untaken(request, CLAUDE) == ("truncation", "verbosity")
    reasons = deployment(base_url="https://api.openai.com/v1", upstream_model="gpt-5")
    assert untaken(request, reasons) == ("truncation",)
