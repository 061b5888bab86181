"""The walk over bodies. Numbers in brackets are those of the regression cases in issue 40."""

import base64
import json
from typing import Any

import msgspec
import pytest

from guard.walker import MOST_DEPTH, MOST_TEXTS, WIRES, Text, TooMuch, Walk
from proxy.routes import WIRES as ROUTES

VALUE = "4111 1111 1111 1111"


def walked(wire: str, body: dict[str, Any]) -> Walk:
    return Walk(wire, msgspec.json.encode(body)).all()


def texts(wire: str, body: dict[str, Any]) -> dict[str, Text]:
    """By their place, as a name with dots."""
    return {".".join(map(str, each.path)): each for each in walked(wire, body).texts}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": list(messages), **fields}


def rewritten(wire: str, body: dict[str, Any] | bytes, old: str, new: str) -> dict[str, Any]:
    """The body with one text for another, as the writer makes it."""
    walk = Walk(wire, body if isinstance(body, bytes) else msgspec.json.encode(body)).all()
    for each in walk.texts:
        if old in each.text and not each.fixed:
            each.put(each.text.replace(old, new))
    written = walk.written()
    assert written is not None
    found: dict[str, Any] = json.loads(written)
    return found


def test_every_wire_has_a_row() -> None:
    """A wire that is added is looked at by whoever adds it: without a row all of it is prose, turns and tools too."""
    assert {wire.name for wire in ROUTES} == WIRES - {"image_forms"}


PLACES: list[tuple[str, dict[str, Any], str, str]] = [
    # what is sent, where the value is found, who says it
    ("chat", chat({"role": "user", "content": VALUE}), "messages.0.content", "user"),
    ("chat", chat({"role": "user", "content": [{"type": "text", "text": VALUE}]}), "messages.0.content.0.text", "user"),
    ("chat", chat({"role": "system", "content": VALUE}), "messages.0.content", "system"),
    ("chat", chat({"role": "developer", "content": VALUE}), "messages.0.content", "system"),
    ("chat", chat({"role": "assistant", "refusal": VALUE}), "messages.0.refusal", "assistant"),
    ("chat", chat({"role": "assistant", "reasoning_content": VALUE}), "messages.0.reasoning_content", "assistant"),
    ("chat", chat({"role": "tool", "tool_call_id": "c", "content": VALUE}), "messages.0.content", "tool"),
    ("chat", chat({"role": "tool", "content": [{"type": "text", "text": VALUE}]}), "messages.0.content.0.text", "tool"),
    ("chat", chat({"role": "user", "name": VALUE, "content": "x"}), "messages.0.name", "user"),
    ("chat", chat({"role": "user", "content": "x"}, user=VALUE), "user", "user"),
    ("chat", chat({"role": "user", "content": "x"}, metadata={"a": VALUE}), "metadata.a", "user"),
    ("chat", chat({"role": "user", "content": "x"}, stop=["a", VALUE]), "stop.1", "user"),
    (
        "chat",
        chat({"role": "user", "content": "x"}, prediction={"type": "content", "content": VALUE}),
        "prediction.content",
        "user",
    ),
    (
        "chat",
        chat(
            {"role": "user", "content": "x"},
            tools=[{"type": "function", "function": {"name": "f", "description": VALUE}}],
        ),
        "tools.0.function.description",
        "definition",
    ),
    (
        "chat",
        chat(
            {"role": "user", "content": "x"},
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"properties": {"a": {"enum": [VALUE]}}}},
            },
        ),
        "response_format.json_schema.schema.properties.a.enum.0",
        "definition",
    ),
    (
        "chat",
        chat({"role": "user", "content": [{"type": "text", "text": "x", "unheard_of": {"deep": [[VALUE]]}}]}),
        "messages.0.content.0.unheard_of.deep.0.0",
        "user",
    ),
    (
        "chat",
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"https://h/?q={VALUE}"}}]}),
        "messages.0.content.0.image_url.url",
        "user",
    ),
    ("chat", chat({"role": "user", "content": [{"type": VALUE}]}), "messages.0.content.0.type", "user"),
    ("completions", {"model": "m", "prompt": ["x", VALUE]}, "prompt.1", "user"),
    ("messages", {"system": [{"type": "text", "text": VALUE}], "messages": []}, "system.0.text", "system"),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": VALUE}]}]},
        "messages.0.content.0.content",
        "tool",
    ),
    (
        "messages",
        {
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": VALUE}]}]}
            ]
        },
        "messages.0.content.0.content.0.text",
        "tool",
    ),
    (
        "messages",
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"a": [VALUE]}}]}]},
        "messages.0.content.0.input.a.0",
        "assistant",
    ),
    (
        "messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "title": VALUE,
                            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                        }
                    ],
                }
            ]
        },
        "messages.0.content.0.title",
        "user",
    ),
    (
        "messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": VALUE}}
                    ],
                }
            ]
        },
        "messages.0.content.0.source.data",
        "user",
    ),
    ("responses", {"instructions": VALUE, "input": "x"}, "instructions", "system"),
    ("responses", {"input": VALUE}, "input", "user"),
    (
        "responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": VALUE}]}]},
        "input.0.content.0.text",
        "user",
    ),
    (
        "responses",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": VALUE}]},
        "input.0.output",
        "tool",
    ),
    (
        "responses",
        {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": VALUE}]}]},
        "input.0.summary.0.text",
        "assistant",
    ),
    (
        "responses",
        {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"description": VALUE}}}},
        "text.format.schema.description",
        "definition",
    ),
    ("embeddings", {"input": ["x", VALUE]}, "input.1", "user"),
    ("rerank", {"query": "x", "documents": ["x", {"title": VALUE}]}, "documents.1.title", "user"),
    ("moderations", {"input": [{"type": "text", "text": VALUE}]}, "input.0.text", "user"),
    ("speech", {"input": "x", "instructions": VALUE}, "instructions", "system"),
    ("transcriptions", {"file": {"name": "a.wav", "bytes": 1, "digest": "d"}, "prompt": VALUE}, "prompt", "user"),
    ("images", {"prompt": VALUE}, "prompt", "user"),
    ("unheard_of", {"a": {"b": VALUE}}, "a.b", "user"),
]


@pytest.mark.parametrize(
    ("wire", "body", "place", "role"), PLACES, ids=[f"{wire}:{place}" for wire, _, place, _ in PLACES]
)
def test_every_text_is_found_with_who_says_it(wire: str, body: dict[str, Any], place: str, role: str) -> None:
    """(19, 22, 25) Wherever a text stands, in fields that nobody has heard of too."""
    found = texts(wire, body)
    assert found[place].text.count(VALUE) == 1
    assert found[place].role == role
    assert sum(VALUE in each.text for each in found.values()) == 1


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (
            "chat",
            chat(
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "ARGS"}}],
                }
            ),
        ),
        ("chat", chat({"role": "assistant", "function_call": {"name": "f", "arguments": "ARGS"}})),
        ("responses", {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "ARGS"}]}),
        ("responses", {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "ARGS"}]}),
        ("responses", {"input": [{"type": "mcp_call", "id": "c", "name": "f", "arguments": "ARGS"}]}),
    ],
)
def test_arguments_are_read_as_they_are_meant_and_written_as_they_are_escaped(wire: str, body: dict[str, Any]) -> None:
    """(20, 21) A value that JSON escapes is one, and what is put in its place is escaped again."""
    arguments = '{"say": "he\\u006clo \\"you\\"", "deep": [{"n": 4111111111111111}], "plain": 7}'
    sent = msgspec.json.encode(body).replace(b'"ARGS"', msgspec.json.encode(arguments))
    walk = Walk(wire, sent).all()
    said = [each.text for each in walk.texts if each.what in {"arguments", "number"}]
    assert said == ['hello "you"', "4111111111111111"]
    for each in walk.texts:
        if each.what == "arguments":
            each.put('"x" \\ y')
        elif each.what == "number":
            each.put("[CARD]")
    written = walk.written()
    assert written is not None
    raw = json.loads(written)
    inner = msgspec.json.encode(raw).decode()
    found = next(json.loads(each) for each in _strings(raw) if each.startswith('{"say"'))
    assert found == {"say": '"x" \\ y', "deep": [{"n": "[CARD]"}], "plain": 7}, inner


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for each in value for text in _strings(each)] if isinstance(value, list) else []


def test_arguments_that_are_no_json_are_read_as_they_stand() -> None:
    found = texts(
        "chat", chat({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "cut of'}}]})
    )
    assert found["messages.0.tool_calls.0.function.arguments"].text == '{"a": "cut of'


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"SECRET","content":"harmless"}]}',
        b'{"messages":[{"role":"user","content":"SECRET"}],"messages":[{"role":"user","content":"harmless"}]}',
        b'{"messages":[{"role":"user","content":"harmless","a\\u003a":1,"b":"SECRET","b":"x"}]}',
        b'{"a\\u003a":1,"messages":"SECRET","messages":[{"role":"user","content":"harmless"}]}',
        b'{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\\"a\\":\\"SECRET\\",\\"a\\":\\"harmless\\"}"}}]}]}',
    ],
)
def test_a_name_that_stands_twice_hides_nothing(body: bytes) -> None:
    """(23) One reader takes the first and another the last: what goes on has the one that was read."""
    walk = Walk("chat", body).all()
    assert not any("SECRET" in each.text for each in walk.texts)
    written = walk.written()
    assert written is not None
    assert b"SECRET" not in written
    assert b"harmless" in written


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"a: b, \\u003a c: \\\\u003a"}], "b:" : 1}',
        b'{"messages":[{"role":"user","content":"x","deep":{"a":{"a":{"a":1}}}}]}',
        b'{ "model" : "m" , "messages" : [ { "role" : "user" , "content" : "12:30:59 \\n \\t" } ] }',
    ],
)
def test_what_stands_once_means_the_same_afterwards(body: bytes) -> None:
    written = Walk("chat", body).all().written()
    assert written is None or json.loads(written) == json.loads(body)


def test_usual_bodies_are_not_written_again() -> None:
    """Reading a request twice is for those alone in which something changes."""
    body = chat(
        {"role": "user", "content": 'At 12:30: "yes"\n- a: b'},
        temperature=0.5,
        seed=7,
        tools=[
            {
                "type": "function",
                "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
            }
        ],
    )
    assert walked("chat", body).written() is None


def test_what_was_not_changed_stays_byte_for_byte() -> None:
    """(40) Cache marks, numbers and spaces of other parts are as they came."""
    other = b'{"role":"user", "content":[{"type":"text","text":"stays","cache_control":{"type":"ephemeral","ttl":"1h"}}], "n": 1.10}'
    body = (
        b'{"model":"m","temperature":1e0,"messages":['
        + other
        + b',{"role":"user","content":[{"type":"text","text":"old","cache_control":{"type":"ephemeral"}}]}]}'
    )
    walk = Walk("messages", body).all()
    next(each for each in walk.texts if each.text == "old").put("new")
    written = walk.written()
    assert written is not None
    assert other in written
    assert b'"temperature":1e0' in written
    assert json.loads(written)["messages"][1]["content"] == [
        {"type": "text", "text": "new", "cache_control": {"type": "ephemeral"}}
    ]


def turns(wire: str, body: dict[str, Any]) -> list[str]:
    """Texts that are new."""
    return [each.text for each in walked(wire, body).texts if each.new and each.what == "prose"]


def test_new_is_the_last_turn_with_what_tools_said() -> None:
    """(30) Not what was answered, and not an earlier turn that got no answer."""
    user, assistant = {"role": "user", "content": "asked"}, {"role": "assistant", "content": "answered"}
    call = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "result"}
    assert turns("chat", chat(user, assistant, {"role": "user", "content": "now"})) == ["now"]
    assert turns("chat", chat({"role": "user", "content": "refused"}, {"role": "user", "content": "now"})) == ["now"]
    assert turns("chat", chat(user, call, result)) == ["result"]
    assert turns("chat", chat(user, call, result, {"role": "user", "content": "now"})) == ["result", "now"]
    assert turns("chat", chat(user, {"role": "assistant", "content": "begun"})) == ["asked", "begun"]
    assert turns("chat", chat({"role": "system", "content": "rules"}, user, assistant, user)) == ["rules", "asked"]
    anthropic = [
        user,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "result"}]},
        {"role": "user", "content": "now"},
    ]
    assert turns("messages", {"messages": anthropic}) == ["result", "now"]
    items = [
        user,
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "result"},
    ]
    assert turns("responses", {"input": items}) == ["result"]


def test_what_is_signed_or_named_may_not_be_changed() -> None:
    body = {
        "messages": [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "signed", "signature": "c2ln"},
                    {"type": "thinking", "thinking": "unsigned", "signature": ""},
                    {"type": "redacted_thinking", "data": "b3BhcXVl"},
                    {"type": "tool_use", "id": "toolu_1", "name": "find_it", "input": {}},
                ],
            }
        ]
    }
    found = {each.text: each.fixed for each in walked("messages", body).texts}
    assert (found["signed"], found["unsigned"], found["toolu_1"], found["find_it"]) == (True, False, True, True)
    reasoning = {
        "input": [
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "signed"}],
                "encrypted_content": "x" * 30,
            }
        ]
    }
    assert all(each.fixed for each in walked("responses", reasoning).texts if each.text == "signed")


@pytest.mark.parametrize("wire", ["embeddings", "speech", "images", "image_edits"])
def test_what_cannot_be_changed_back_is_not_changed(wire: str) -> None:
    """(28) A vector, a sound or a picture of a mask is of no use to anybody."""
    body = {"model": "m", "input": ["one", "two"], "prompt": "three", "instructions": "four"}
    found = walked(wire, body).texts
    assert len(found) >= 4
    assert all(each.fixed for each in found)


def b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


PDF = b64(b"%PDF-1.7 \0\1")
FILES: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{b64('held')}"}}),
    ("chat", {"type": "file", "file": {"filename": "a.csv", "file_data": b64("held")}}),
    ("chat", {"type": "file", "file": {"file_data": "data:text/csv,held"}}),
    (
        "responses",
        {"type": "input_file", "filename": "a.md", "file_data": f"data:application/octet-stream;base64,{b64('held')}"},
    ),
    ("messages", {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": b64("held")}}),
]


@pytest.mark.parametrize(("wire", "part"), FILES)
def test_files_that_are_texts_are_read_and_written_as_they_were_encoded(wire: str, part: dict[str, Any]) -> None:
    field = "input" if wire == "responses" else "messages"
    body = {field: [{"role": "user", "content": [part]}]}
    assert [each.text for each in walked(wire, body).texts if each.what == "file"] == ["held"]
    changed = json.dumps(rewritten(wire, body, "held", "let go"))
    assert b64("let go") in changed or "let%20go" in changed
    assert b64("held") not in changed


@pytest.mark.parametrize(
    ("wire", "part", "media"),
    [
        ("chat", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "image"),
        ("chat", {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "image"),
        ("chat", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio"),
        ("chat", {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}}, "file"),
        ("chat", {"type": "file", "file": {"file_id": "file-1"}}, "file"),
        ("responses", {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, "image"),
        (
            "messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            "image",
        ),
        (
            "messages",
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
            "file",
        ),
        ("messages", {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}, "file"),
    ],
)
def test_what_nobody_looked_at_is_told(wire: str, part: dict[str, Any], media: str) -> None:
    """(26) A picture, a sound, or a file that is no text."""
    field = "input" if wire == "responses" else "messages"
    assert walked(wire, {field: [{"role": "user", "content": [part]}]}).unseen == {media: 1}


def test_tokens_and_uploads_are_told_too() -> None:
    assert walked("embeddings", {"input": [1, 2, 3]}).unseen == {"tokens": 1}
    assert walked("completions", {"prompt": [[1, 2], [3]]}).unseen == {"tokens": 2}
    assert walked("transcriptions", {"file": {"name": "a"}}).unseen == {"audio": 1}


def test_a_value_in_the_name_of_a_field_is_found() -> None:
    found = walked("chat", chat({"role": "user", "content": "x", VALUE: 1}, **{f"my {VALUE}": {}})).texts
    assert [each.what for each in found if VALUE in each.text] == ["key", "key"]
    assert all(each.fixed for each in found if each.what == "key")


def test_built_in_tools_and_odd_shapes_do_not_break_it() -> None:
    """(29) Tools without a schema, items of other types, values where texts are expected."""
    body: dict[str, Any] = {
        "input": [
            None,
            1,
            "text",
            ["x"],
            {"type": 7, "role": [], "content": None},
            {"type": "web_search_call", "action": {"query": "q"}},
        ],
        "tools": [{"type": "web_search"}, {"type": "mcp", "server_url": "https://h"}, None],
        "tool_choice": "auto",
        "text": None,
        "metadata": [],
    }
    assert {each.text for each in walked("responses", body).texts} >= {"text", "q", "https://h"}


def test_what_is_too_deep_or_too_much_is_refused_and_not_passed_over() -> None:
    deep = (
        b'{"messages":[{"role":"user","content":' + b"[" * (MOST_DEPTH + 2) + b'"x"' + b"]" * (MOST_DEPTH + 2) + b"}]}"
    )
    with pytest.raises(TooMuch):
        Walk("chat", deep).all()
    many = msgspec.json.encode({"input": ["x"] * (MOST_TEXTS + 1)})
    with pytest.raises(TooMuch):
        Walk("moderations", many).all()


def test_no_text_is_in_what_a_traceback_shows() -> None:
    """(33) Nor its place, which a caller chose."""
    found = walked("chat", chat({"role": "user", "content": VALUE, VALUE: 1})).texts
    assert VALUE not in repr(found)
