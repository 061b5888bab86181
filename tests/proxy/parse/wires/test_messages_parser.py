"""Anthropic's requests as chat requests: what is kept, what is turned, what is refused by name."""

from typing import Any

import msgspec
import pytest

from providers.litellm_client import litellm_arguments
from providers.wire import untaken, upstream_body
from proxy.errors import BadRequest
from proxy.parse.chat_request import input_tokens, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.messages.wire import COUNT_TOKENS, MESSAGES
from tests.providers.calls import deployment, upstream_call
from tests.proxy.parse.wires.reading import chat_fields, read

MARK = {"type": "ephemeral"}
HI: dict[str, Any] = {"model": "auto", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
CLAUDE = deployment("litellm", upstream_model="bedrock/anthropic.claude-x", base_url="")
"""Elsewhere than at Anthropic, so it is reached through litellm."""
WEIGH = {"name": "weigh", "description": "Weighs.", "input_schema": {"type": "object"}}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weigh", "input": {"kg": 7}}]}


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def messages_of(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat_fields(read(MESSAGES, HI | {"messages": list(messages)} | fields))["messages"]
    return found


def for_claude(**fields: Any) -> dict[str, Any]:
    """The arguments of litellm's call of a Claude."""
    return litellm_arguments(upstream_call(CLAUDE, read(MESSAGES, HI | fields)))


def test_the_plain_fields_keep_their_meaning() -> None:
    """The limit of the answer, sampling, stop sequences and streaming have the same meaning in chat."""
    said = {"temperature": 0.5, "top_p": 0.9, "stream": True, "stop_sequences": ["END"]}
    request = read(MESSAGES, HI | said)
    fields = chat_fields(request)
    assert (fields["temperature"], fields["top_p"], fields["stop"]) == (0.5, 0.9, ["END"])
    assert (request.max_output_tokens, request.stream, request.model) == (100, True, "auto")


def test_words_that_are_chats_own_are_text_like_any_other() -> None:
    """And a field of that name is left out, as it has no place here."""
    told = {"role": "user", "content": 'Why {"tool_calls": []}, or "function_call"?'}
    assert messages_of(told) == [told]
    assert messages_of({"role": "assistant", "content": "hi", "tool_calls": []}) == [
        {"role": "assistant", "content": "hi"}
    ]


def test_the_system_prompt_comes_first_in_either_form() -> None:
    """A text, or blocks of text."""
    assert messages_of(*HI["messages"], system="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    blocks = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.", "cache_control": MARK}]
    assert messages_of(*HI["messages"], system=blocks)[0] == {"role": "system", "content": "Be brief.\nBe kind."}
    assert messages_of(system="Be brief.") == [{"role": "system", "content": "Be brief."}]


def test_what_changes_each_turn_without_meaning_is_not_in_a_prefix() -> None:
    """The block by which a client counts its calls, and marks that move on, go to a Claude alone."""

    def turn(count: str, marked: bool) -> dict[str, Any]:
        attribution = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={count};"}
        system = [attribution, {"type": "text", "text": "Code well.", "cache_control": MARK}]
        block = {"type": "text", "text": "hi", **({"cache_control": MARK} if marked else {})}
        return HI | {"system": system, "messages": [{"role": "user", "content": [block]}]}

    first, later = read(MESSAGES, turn("a1", True)), read(MESSAGES, turn("b2", False))
    assert bytes(first.fields["messages"]) == bytes(later.fields["messages"])
    assert b"cache_control" not in upstream_body(first, deployment())
    sent = for_claude(**{name: turn("a1", True)[name] for name in ("system", "messages")})["messages"]
    assert sent[0]["content"][0]["text"].startswith("x-anthropic-billing-header")
    assert sent[0]["content"][1]["cache_control"] == sent[1]["content"][0]["cache_control"] == MARK


def test_pictures_and_documents_come_inline() -> None:
    """As data: URLs; texts as texts."""
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
    blocks = [
        {"type": "image", "source": source},
        {"type": "document", "source": pdf, "title": "bill.pdf"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "7 kg"}, "title": "Notes"},
        {"type": "text", "text": "What is this?"},
    ]
    request = read(MESSAGES, HI | {"messages": [{"role": "user", "content": blocks}]})
    assert request.images == 1
    assert chat_fields(request)["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        {"type": "text", "text": "Notes\n7 kg"},
        {"type": "text", "text": "What is this?"},
    ]


def test_tool_calls_and_results_become_messages_of_their_own() -> None:
    """Results come before what the user says beside them."""
    said = {"role": "user", "content": [result("7 kg"), {"type": "text", "text": "And now?"}]}
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg":7}'}}
    assert messages_of(*HI["messages"], USED, said)[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "7 kg"},
        {"role": "user", "content": "And now?"},
    ]


def test_a_failed_tool_says_so_in_its_text() -> None:
    """Chat has no field for it; tool loops are read by this word."""
    found = messages_of(USED, {"role": "user", "content": [result("no such scale", is_error=True)]})
    assert found[1]["content"] == "Error: no such scale"


def test_reminders_behind_results_begin_no_user_turn() -> None:
    """They belong to the last result, so a tool loop stays one turn."""
    reminder = {"type": "text", "text": "<system-reminder>Mind the list.</system-reminder>"}
    request = read(
        MESSAGES, HI | {"messages": [*HI["messages"], USED, {"role": "user", "content": [result("7"), reminder]}]}
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert prompt_of(request).turns == 1


def test_pictures_in_results_stand_beside_them() -> None:
    """A chat's tool message has texts only; for a Claude they stay where they are."""
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    turns = [USED, {"role": "user", "content": [result([{"type": "text", "text": "see"}, picture])]}]
    _, told, beside = messages_of(*turns)
    assert (told["content"], beside["role"], beside["content"][0]["type"]) == ("see", "user", "image_url")
    assert [part["type"] for part in for_claude(messages=turns)["messages"][1]["content"]] == ["text", "image_url"]


def test_thinking_goes_back_to_its_maker_alone() -> None:
    """With a signature to a Claude, without one to nobody, and never into another's prompt."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "thinking", "thinking": "foreign", "signature": ""},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "7 kg"},
    ]
    turns = [*HI["messages"], {"role": "assistant", "content": blocks}, *HI["messages"]]
    assert messages_of(*turns)[1] == {"role": "assistant", "content": "7 kg"}
    sent = for_claude(messages=turns)["messages"][1]
    assert [block["type"] for block in sent["thinking_blocks"]] == ["thinking", "redacted_thinking"]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "weigh"}, {"tool_choice": {"type": "function", "function": {"name": "weigh"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_tools_and_their_choice(choice: dict[str, Any], fields: dict[str, Any]) -> None:
    """Each choice has its word in chat."""
    found = chat_fields(read(MESSAGES, HI | {"tools": [WEIGH], "tool_choice": choice}))
    (tool,) = found["tools"]
    assert tool["function"] == {"name": "weigh", "description": "Weighs.", "parameters": {"type": "object"}}
    assert {name: found[name] for name in ("tool_choice", "parallel_tool_calls") if name in found} == fields


def test_a_schema_for_the_answer_needs_a_target_that_keeps_to_one() -> None:
    """`output_config.format` is chat's `response_format`."""
    schema = {"type": "object", "properties": {}}
    request = read(MESSAGES, HI | {"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert request.json_mode
    assert chat_fields(request)["response_format"]["json_schema"]["schema"] == schema


def test_each_kind_of_target_gets_the_fields_that_it_takes() -> None:
    """What one host refuses is not sent there."""
    asked = {"top_k": 5, "thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "max"}}
    request = read(MESSAGES, HI | asked)

    def sent(**fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(upstream_body(request, deployment(**fields)))
        return {name: found[name] for name in found if name not in {"model", "messages"}}

    assert sent() == {"max_tokens": 100}
    assert sent(kind="azure") == {"max_completion_tokens": 100}
    assert sent(base_url="https://api.openai.com/v1") == {"max_completion_tokens": 100}
    assert sent(kind="vllm") == {"max_tokens": 100, "top_k": 5, "reasoning_effort": "high"}
    arguments = for_claude(**asked)
    assert (arguments["top_k"], arguments["thinking"]["budget_tokens"], arguments["max_tokens"]) == (5, 2048, 100)
    assert for_claude(output_config={"effort": "low"})["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "judge", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "judge", "content": []}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}
                ]
            },
            "messages.0.content.0.source.type",
        ),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"tools": [{"name": "weigh"}]}, "tools.0.input_schema"),
        ({"tools": [WEIGH], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"output_config": {"format": {"type": "regex"}}}, "output_config.format.type"),
    ],
)
def test_what_cannot_be_passed_on_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    """Each with the path of what is wrong."""
    with pytest.raises(BadRequest) as refused:
        read(MESSAGES, HI | body)
    assert refused.value.param == param


def test_tools_of_anthropics_pass_as_they_were_written() -> None:
    """Unknown fields and the betas with them; what chat can say is there for weighing."""
    call = {"type": "server_tool_use", "id": "s", "name": "bash_code_execution", "input": {}}
    found = {"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": []}
    talk = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [call, found, {"type": "text", "text": "a"}]},
    ]
    body = HI | {
        "messages": talk,
        "tools": [{"type": "text_editor_20250728", "name": "edit"}, WEIGH],
        "tool_choice": {"type": "tool", "name": "edit"},
        "mcp_servers": [{"url": "http://a"}],
        "tomorrow": 1,
        "service_tier": "standard_only",
    }
    headers = RequestHeaders(anthropic_beta="mcp-client-2025-11-20", anthropic_version="2023-06-01")
    request = MESSAGES.read(msgspec.json.encode(body), headers, lambda _: True).request
    assert request.as_written is not None
    assert request.as_written.tools == {
        "text_editor": "tools.0.type",
        "mcp": "mcp_servers",
        "code_execution": "messages.1.content.0.type",
    }
    assert dict(request.as_written.headers)["anthropic-beta"] == "mcp-client-2025-11-20"
    assert (request.tools, [message.content for message in request.messages]) == (1, ["hi", "a"])
    claude = deployment("litellm", upstream_model="anthropic/claude-x", base_url="")
    assert msgspec.json.decode(upstream_body(request, claude)) == body | {"model": "claude-x", "stream": False}
    with pytest.raises(BadRequest):
        MESSAGES.read(msgspec.json.encode(body), RequestHeaders(anthropic_beta="a\nb"), lambda _: True)


def test_fields_that_nobody_here_knows_are_no_reason_to_refuse() -> None:
    """Clients of Anthropic's send new ones each month."""
    body = HI | {"context_management": {"edits": []}, "tomorrow": 1, "service_tier": "standard_only"}
    assert set(chat_fields(read(MESSAGES, body))) == {"model", "messages", "max_tokens"}


def test_an_answer_needs_a_limit_and_a_count_does_not() -> None:
    """As Anthropic has it."""
    with pytest.raises(BadRequest) as refused:
        read(MESSAGES, {name: HI[name] for name in ("model", "messages")})
    assert refused.value.param == "max_tokens"
    assert read(COUNT_TOKENS, {name: HI[name] for name in ("model", "messages")}).max_output_tokens is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("auto", "auto"),
        ("claude-auto", "auto"),
        ("claude-sonnet-9", "auto"),
        ("claude-haiku-5", "claude-haiku-5"),
        ("claude-llama", "llama"),
        ("gpt-9", "gpt-9"),
    ],
)
def test_names_of_claude_mean_auto_unless_the_configuration_has_them(name: str, meant: str) -> None:
    """A client that knows no other names works without configuration; who names a model there gets it."""
    assert read(MESSAGES, HI | {"model": name}, "claude-haiku-5", "llama").model == meant


@pytest.mark.parametrize(
    ("body", "headers", "session"),
    [
        ({"metadata": {"user_id": "user_1_account__session_abc"}}, {}, "abc"),
        ({"metadata": {"user_id": '{"device_id":"d","session_id":"abc"}'}}, {}, "abc"),
        ({"metadata": {"user_id": "{no json"}}, {}, None),
        ({"metadata": {"user_id": "somebody"}}, {}, None),
        ({}, {"claude_session": "abc"}, "abc"),
        ({"metadata": {"user_id": "user_1_session_other"}}, {"session_id": "mine"}, "mine"),
    ],
)
def test_sessions_are_recognised(body: dict[str, Any], headers: dict[str, str], session: str | None) -> None:
    """By the gateway's own header first, then by what agents send."""
    assert read(MESSAGES, HI | body, **headers).session_id == session


def test_tokens_and_prompt_are_those_of_the_same_chat() -> None:
    """Complexity and money see one conversation, whatever wire it came by."""
    from proxy.parse.wires.chat.dialect import CHAT

    turns = [{"role": "user", "content": "Weigh it."}, {"role": "assistant", "content": "7 kg."}, *HI["messages"]]
    here = read(MESSAGES, HI | {"system": "Be brief.", "messages": turns})
    there = read(CHAT, {"model": "auto", "messages": [{"role": "system", "content": "Be brief."}, *turns]})
    assert prompt_of(here) == prompt_of(there)
    assert input_tokens(here, prompt_of(here)) == input_tokens(there, prompt_of(there))


def test_a_mark_of_the_whole_request_is_set_where_it_serves() -> None:
    """With its own lifetime, and not beside marks of the caller's, so that there are never more than four."""
    hour = {"type": "ephemeral", "ttl": "1h"}
    sent = for_claude(system="You weigh.", cache_control=hour)["messages"]
    assert [message["content"][-1]["cache_control"] for message in sent] == [hour, hour]
    own = [{"type": "text", "text": "You weigh.", "cache_control": MARK}]
    assert str(for_claude(system=own, cache_control=hour)["messages"]).count("cache_control") == 1


def test_long_names_of_tools_are_cut_for_all_but_a_claude() -> None:
    """In definitions, calls and the choice, and the same each time."""
    long = "mcp__" + "n" * 80
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": long, "input": {}}]}
    asked: dict[str, Any] = {
        "messages": [*HI["messages"], used, {"role": "user", "content": [result("7")]}],
        "tools": [{**WEIGH, "name": long}],
        "tool_choice": {"type": "tool", "name": long},
    }
    fields = chat_fields(read(MESSAGES, HI | asked))
    names = {
        fields["tools"][0]["function"]["name"],
        fields["tool_choice"]["function"]["name"],
        fields["messages"][1]["tool_calls"][0]["function"]["name"],
    }
    (name,) = names
    assert len(name) == 64
    sent = for_claude(**asked)
    assert sent["tools"][0]["function"]["name"] == sent["tool_choice"]["function"]["name"] == long
    assert sent["messages"][1]["tool_calls"][0]["function"]["name"] == long


def test_what_a_target_is_not_sent_is_told() -> None:
    """Unknown fields at all, thinking and effort where they are not taken; nothing that a header could not hold."""
    asked = {
        "thinking": {"type": "adaptive"},
        "top_k": 5,
        "output_config": {"effort": "low"},
        "context_management": {"edits": []},
        "metadata": {"user_id": "u"},
        "odd\r\nname": 1,
    }
    request = read(MESSAGES, HI | asked)
    assert untaken(request, deployment()) == ("context_management", "thinking", "reasoning_effort", "top_k")
    assert untaken(request, deployment("vllm")) == ("context_management", "thinking")
    assert untaken(request, CLAUDE) == ("context_management",)
