"""Chats as Anthropic's messages: what is kept, what is said in other words, what is left out and told, what is refused."""

import json
from typing import Any, Final

import anthropic.types
import msgspec
import pydantic
import pytest

from providers.claude.request import claude_body
from providers.errors import CannotCarry
from providers.provider_tools import AsWritten
from providers.quirks import quirks_of
from providers.tool_names import fitting_name
from tests.providers.calls import chat_request, deployment, upstream_call

MARK: Final = {"type": "ephemeral"}
THOUGHT: Final = {"type": "thinking", "thinking": "hm", "signature": "sig"}
USER: Final = {"role": "user", "content": "Weigh it."}
CALL: Final = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": '{"kg":7}'}}
TOOL: Final = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}
NEW, BUDGETED, OLD = "claude-opus-4-8", "claude-sonnet-4-5", "claude-3-5-haiku-20241022"
_Params: Final = pydantic.TypeAdapter(list[anthropic.types.MessageParam])


def test_a_shortened_answer_shortens_the_thinking() -> None:
    """A caller's thinking budget above the longest answer that the gateway sets is cut, or left out: Anthropic refuses it."""
    fields = {"max_tokens": 9_000, "thinking": {"type": "enabled", "budget_tokens": 4_096}}
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    request = msgspec.structs.replace(
        chat_request(), in_messages=lambda: AsWritten(dialect="messages", fields=raw, tools={}, headers=())
    )
    for longest, kept, dropped in ((2_000, 1_999, []), (8_000, 4_096, []), (500, None, ["thinking"])):
        told: list[str] = []
        at = deployment("litellm", upstream_model=f"anthropic/{BUDGETED}", base_url="")
        body = json.loads(
            claude_body(upstream_call(at, request, drops=told.append, engine_fields={"max_tokens": longest})).body
        )
        assert (body.get("thinking", {}).get("budget_tokens"), told) == (kept, dropped)


def sent(model: str = BUDGETED, dropped: list[str] | None = None, marks: bool = False, **fields: Any) -> dict[str, Any]:
    """The decoded body, whose messages are of Anthropic's own types."""
    at = deployment("litellm", upstream_model=f"anthropic/{model}", base_url="")
    told: list[str] = []
    call = upstream_call(at, chat_request(**{"messages": [USER]} | fields), marks_cache=marks, drops=told.append)
    body: dict[str, Any] = json.loads(claude_body(call).body)
    assert told == (dropped or [])
    assert body["model"] == model
    _Params.validate_python([each for each in body["messages"] if each["role"] != "system"])
    return body


def talk(*messages: dict[str, Any], model: str = BUDGETED, **fields: Any) -> dict[str, Any]:
    return sent(model, messages=list(messages), **fields)


def test_turns_alternate_and_results_come_first() -> None:
    """Whatever order chat has them in; the system prompt stands apart."""
    body = talk(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind.", "cache_control": MARK}]},
        USER,
        {"role": "user", "content": "Now."},
        {"role": "assistant", "content": "Yes.", "tool_calls": [CALL], "thinking_blocks": [THOUGHT]},
        {"role": "user", "content": "Quick!"},
        {"role": "tool", "tool_call_id": "call_1", "content": "7 kg", "cache_control": MARK},
    )
    assert body["system"] == [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "Be kind.", "cache_control": MARK},
    ]
    first, said, last = body["messages"]
    assert [block["text"] for block in first["content"]] == ["Weigh it.", "Now."]
    assert said["content"] == [
        THOUGHT,
        {"type": "text", "text": "Yes."},
        {"type": "tool_use", "id": "call_1", "name": "weigh", "input": {"kg": 7}},
    ]
    assert last["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "7 kg", "cache_control": MARK},
        {"type": "text", "text": "Quick!"},
    ]


def test_system_messages_between_turns() -> None:
    """Where the model takes them, behind the user's turn; elsewhere as a reminder in it."""
    turns = [USER, {"role": "system", "content": "Mind it."}, {"role": "assistant", "content": "Yes."}, USER]
    assert talk(*turns, model=NEW)["messages"][1] == {"role": "system", "content": "Mind it."}
    older = talk(*turns)["messages"]
    assert [message["role"] for message in older] == ["user", "assistant", "user"]
    assert older[0]["content"][1]["text"] == "<system-reminder>\nMind it.\n</system-reminder>"


def test_what_anthropic_refuses_is_not_sent() -> None:
    """Empty texts, blanks at the end of an answer to go on with, letters in ids and names that it does not know."""
    odd = {"id": "functions.weigh:0", "type": "function", "function": {"name": "yard.weigh", "arguments": "{"}}
    body = talk(
        {"role": "user", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "", "tool_calls": [odd]},
        {"role": "tool", "tool_call_id": "functions.weigh:0", "content": ""},
        {"role": "assistant", "content": "So: "},
        tools=[{"type": "function", "function": {"name": "yard.weigh"}}],
    )
    first, used, result, begun = body["messages"]
    call_id, name = fitting_name("functions.weigh:0"), fitting_name("yard.weigh")
    assert first["content"] == [{"type": "text", "text": "hi"}]
    assert used["content"] == [{"type": "tool_use", "id": call_id, "name": name, "input": {"unparsed_arguments": "{"}}]
    assert result["content"] == [{"type": "tool_result", "tool_use_id": call_id}]
    assert begun["content"] == [{"type": "text", "text": "So:"}]
    assert body["tools"] == [{"name": name, "input_schema": {"type": "object", "properties": {}}}]


def test_calls_of_several_turns_have_ids_of_their_own() -> None:
    """Engines that number them anew in every turn leave histories with one id twice, which Anthropic refuses."""
    call = {"id": "call_0", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}
    turn: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": "7 kg"},
    ]
    body = talk(USER, *turn, *turn, *turn)
    used = [block["id"] for message in body["messages"] for block in message["content"] if block["type"] == "tool_use"]
    told = [
        block["tool_use_id"] for message in body["messages"] for block in message["content"] if "tool_use_id" in block
    ]
    assert used[0] == "call_0"
    assert len(set(used)) == 3
    assert told == used
    # The same in the next turn, so that its beginning stays the same.
    assert talk(USER, *turn, *turn, *turn, USER)["messages"][:-1] == body["messages"][:-1]


def test_pictures_and_files() -> None:
    """Inline, or by a public link that Anthropic fetches itself; no other address, and no file by its id."""
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}, "cache_control": MARK},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        {"type": "file", "file": {"file_data": "JVBERi0x"}},
    ]
    (message,) = talk({"role": "user", "content": parts})["messages"]
    png = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    pdf = {"type": "base64", "media_type": "application/pdf"}
    assert message["content"] == [
        {"type": "image", "source": png, "cache_control": MARK},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "source": {**pdf, "data": "aGk="}, "title": "bill.pdf"},
        {"type": "document", "source": {**pdf, "data": "JVBERi0x"}},
    ]
    for part in (
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    ):
        with pytest.raises(CannotCarry) as refused:
            talk({"role": "user", "content": [part]})
        assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"stop": "END"}, {"stop_sequences": ["END"]}),
        ({"stop": ["END", "\n"]}, {"stop_sequences": ["END"]}),
        ({"user": "u1"}, {"metadata": {"user_id": "u1"}}),
        ({"user": "a@example.com"}, {}),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 5}, {"temperature": 0.5, "top_p": 0.9, "top_k": 5}),
        ({"n": 1, "logprobs": False, "metadata": {"a": "b"}, "store": True}, {}),
        (
            {"web_search_options": {"search_context_size": "low"}},
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 1}]},
        ),
    ],
)
def test_plain_fields(fields: dict[str, Any], said: dict[str, Any]) -> None:
    """Each in Anthropic's word; notes for OpenAI's own records go nowhere."""
    body = sent(**fields)
    assert {name: body[name] for name in body if name not in {"model", "messages", "stream"}} == {
        "max_tokens": 4_096,
        **said,
    }


@pytest.mark.parametrize(
    ("choice", "parallel", "said"),
    [
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", False, {"type": "none"}),
        ({"type": "function", "function": {"name": "weigh"}}, None, {"type": "tool", "name": "weigh"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", True, {"type": "any", "disable_parallel_tool_use": False}),
        (None, None, None),
    ],
)
def test_tools_and_their_choice(choice: Any, parallel: bool | None, said: dict[str, Any] | None) -> None:
    body = sent(tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel)
    assert body["tools"] == [{"name": "weigh", "input_schema": {"type": "object", "properties": {}}}]
    assert body.get("tool_choice") == said


def test_a_tool_is_not_forced_where_none_can_be() -> None:
    """An answer without the call that was asked for is none; another target may give it."""
    with pytest.raises(CannotCarry) as refused:
        sent("claude-opus-5-5", tools=[TOOL], tool_choice="required")
    assert (refused.value.param, refused.value.fall_back) == ("tool_choice", True)


_BUDGET: Final = {"type": "enabled", "budget_tokens": 2_048}
_LOOP: Final = [
    USER,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "7"},
]
_ADAPTIVE: Final = {"type": "adaptive", "display": "summarized"}


@pytest.mark.parametrize(
    ("model", "fields", "thinking", "effort", "dropped"),
    [
        (NEW, {"reasoning_effort": "xhigh"}, _ADAPTIVE, "xhigh", []),
        ("claude-sonnet-4-6", {"reasoning_effort": "xhigh"}, _ADAPTIVE, "high", []),
        (BUDGETED, {"reasoning_effort": "medium"}, _BUDGET, None, []),
        (BUDGETED, {"reasoning_effort": "medium", "max_tokens": 1_500}, {**_BUDGET, "budget_tokens": 1_499}, None, []),
        (BUDGETED, {"reasoning_effort": "medium", "max_tokens": 900}, None, None, ["reasoning_effort"]),
        (BUDGETED, {"reasoning_effort": "none"}, None, None, []),
        (OLD, {"reasoning_effort": "low"}, None, None, ["reasoning_effort"]),
        # Thoughts that were not sent back cannot be gone on from, and a forced call is not thought about.
        (BUDGETED, {"reasoning_effort": "low", "messages": _LOOP}, None, None, ["reasoning_effort"]),
        (BUDGETED, {"reasoning_effort": "low", "tools": [TOOL], "tool_choice": "required"}, None, None, ["reasoning_effort"]),
        (BUDGETED, {"thinking": {"type": "adaptive"}}, _BUDGET, None, []),
        (OLD, {"thinking": {"type": "adaptive"}}, None, None, ["thinking"]),
        ("claude-opus-4-6", {"thinking": _BUDGET, "reasoning_effort": "low"}, _BUDGET, None, []),
        # What knows thinking by an effort alone gets the one that the budget stands for.
        (NEW, {"thinking": _BUDGET}, {"type": "adaptive"}, "medium", []),
        (NEW, {"thinking": {"type": "disabled"}}, {"type": "disabled"}, None, []),
        ("claude-fable-5", {"thinking": {"type": "disabled"}}, None, None, ["thinking"]),
        (OLD, {"thinking": _BUDGET}, None, None, ["thinking"]),
        (BUDGETED, {"reasoning_effort": "low", "temperature": 0.2}, {**_BUDGET, "budget_tokens": 1_024}, None, ["temperature"]),
    ],
)  # fmt: skip
def test_efforts_and_thinking(
    model: str, fields: dict[str, Any], thinking: Any, effort: str | None, dropped: list[str]
) -> None:
    """As each generation of models thinks; what it cannot is told."""
    body = sent(model, dropped, **fields)
    assert body.get("thinking") == thinking
    assert body.get("output_config") == (None if effort is None else {"effort": effort})


@pytest.mark.parametrize(
    ("model", "fields", "dropped"),
    [
        (NEW, {"temperature": 0.5, "top_p": 0.9, "top_k": 5}, ["temperature", "top_p", "top_k"]),
        (NEW, {"temperature": 1}, []),
        (BUDGETED, {"temperature": 1.5}, ["temperature"]),
        (BUDGETED, {"seed": 7, "frequency_penalty": 0.5}, ["seed", "frequency_penalty"]),
        (BUDGETED, {"response_format": {"type": "json_object"}}, ["response_format"]),
    ],
)
def test_what_only_nudges_an_answer_is_left_out_and_told(
    model: str, fields: dict[str, Any], dropped: list[str]
) -> None:
    assert not set(dropped) & sent(model, dropped, **fields).keys()


@pytest.mark.parametrize("fields", [{"n": 2}, {"logprobs": True}, {"top_a": 0.5}, {"tools": [{"type": "custom"}]}])
def test_what_decides_what_an_answer_has_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(CannotCarry) as refused:
        sent(**fields)
    assert refused.value.param == next(iter(fields))


def test_a_schema_is_told_as_far_as_it_can_be_kept_to() -> None:
    """Bounds that Anthropic's grammar does not know become words; every object is closed."""
    number = {"type": "integer", "minimum": 1, "description": "Its weight."}
    schema = {"type": "object", "properties": {"kg": number, "any": {"oneOf": [{"type": "null"}, number]}}}
    form = {"type": "json_schema", "json_schema": {"name": "weight", "schema": schema}}
    told = {"type": "integer", "description": "Its weight. (minimum: 1)"}
    assert sent(response_format=form)["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"kg": told, "any": {"anyOf": [{"type": "null"}, told]}},
            "additionalProperties": False,
        },
    }


def test_marks_are_set_where_the_caller_set_none() -> None:
    """Two of the four: behind the system prompt, and behind the last message."""
    system = {"role": "system", "content": "You weigh."}
    body = talk(system, USER, marks=True)
    assert body["system"][-1]["cache_control"] == body["messages"][-1]["content"][-1]["cache_control"] == MARK
    own = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]}
    assert json.dumps(talk(system, own, marks=True)).count("cache_control") == 1


def test_what_came_in_anthropics_dialect_goes_as_it_was_written() -> None:
    """With fields that nobody here knows; only the model's name is ours, and what this model would refuse is said otherwise."""
    fields = {
        "messages": [{"role": "user", "content": [{"type": "tomorrow"}]}],
        "max_tokens": 3_000,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {}}},
        "tomorrow": [1, {"a": None}],
        "temperature": 1,
    }
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    written = AsWritten(dialect="messages", fields=raw, tools={}, headers=(("anthropic-beta", "b"),))
    request = msgspec.structs.replace(chat_request(), in_messages=lambda: written)

    def body(model: str, **changes: Any) -> tuple[dict[str, Any], list[str]]:
        told: list[str] = []
        at = deployment("litellm", upstream_model=f"anthropic/{model}", base_url="")
        made = claude_body(upstream_call(at, request, drops=told.append, **changes))
        assert made.headers == (("anthropic-beta", "b"),)
        return json.loads(made.body), told

    assert body(NEW) == (fields | {"model": NEW, "stream": False}, [])
    older, told = body(BUDGETED, engine_fields={"max_tokens": 2_000})
    assert (older["thinking"], older["max_tokens"]) == ({"type": "enabled", "budget_tokens": 1_999}, 2_000)
    assert (older["output_config"], told) == ({"format": {"type": "json_schema", "schema": {}}}, ["reasoning_effort"])


@pytest.mark.parametrize(
    ("name", "thinking", "samples", "between"),
    [
        ("claude-3-5-haiku-20241022", "none", True, False),
        ("claude-3-7-sonnet-latest", "budget", True, False),
        ("claude-sonnet-4-20250514", "budget", True, False),
        ("claude-haiku-4-5", "budget", True, False),
        ("claude-opus-4-6", "both", True, False),
        ("claude-opus-4-7-20260416", "adaptive", False, False),
        ("claude-sonnet-5", "adaptive", False, True),
        ("claude-tomorrow", "adaptive", False, False),
        ("kimi-k3", "budget", True, False),
    ],
)
def test_what_models_take_follows_from_their_names(name: str, thinking: str, samples: bool, between: bool) -> None:
    found = quirks_of("litellm", "", f"anthropic/{name}")
    assert (found.thinking, "temperature" not in found.refuses, found.later_system == "kept") == (
        thinking,
        samples,
        between,
    )


def test_a_conversation_of_instructions_alone_is_told_as_the_users() -> None:
    """Anthropic refuses a request without a message."""
    body = sent(NEW, messages=[{"role": "system", "content": "Say hello."}])
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
    assert "system" not in body


def test_files_and_pictures_have_the_types_that_anthropic_takes() -> None:
    """A file of text goes as a text, and JPEG by its own name."""
    text = {"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,YSxi"}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AAAA"}}
    body = sent(NEW, messages=[{"role": "user", "content": [text, picture]}])
    document, image = body["messages"][0]["content"]
    assert document["source"] == {"type": "text", "media_type": "text/plain", "data": "a,b"}
    assert image["source"]["media_type"] == "image/jpeg"
    binary = {"type": "file", "file": {"file_data": "data:application/zip;base64,//79"}}
    with pytest.raises(CannotCarry, match="UTF-8"):
        sent(NEW, messages=[{"role": "user", "content": [binary]}])
