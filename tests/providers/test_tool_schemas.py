"""Schemas that agents and MCP servers really send, and what hosts take of them."""

import json
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.quirks import quirks_of, read_table, tool_schemas
from providers.tool_schemas import fitting_answer, fitting_schema, fitting_tools

_OPENAI, _GEMINI, _MOONSHOT = map(tool_schemas, ("openai", "gemini", "moonshot"))
_ANTHROPIC, _FIREWORKS = map(tool_schemas, ("anthropic", "fireworks"))
_A_TEXT: Final = {"type": "string"}

# makenotion/notion-mcp-server: one of three ways to attach a file. (MoonshotAI/kimi-code#2661)
_NOTION: Final = {
    "type": "object",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "description": "Exactly one of the variants.",
    "anyOf": [
        {
            "type": "object",
            "properties": {"filename": _A_TEXT, "content": _A_TEXT},
            "required": ["filename", "content"],
        },
        {"type": "object", "properties": {"filename": _A_TEXT, "url": _A_TEXT}, "required": ["filename", "url"]},
    ],
}
# FTShare-Lab/FTShare-MCP#7: unions that only require.
_EITHER: Final = {
    "type": "object",
    "anyOf": [{"required": ["code"]}, {"required": ["year", "kind"]}],
    "properties": {"code": _A_TEXT, "year": {"type": "integer"}, "kind": _A_TEXT},
    "required": [],
}
# A pydantic model with a union of two kinds, as nspady/google-calendar-mcp#39 has it: no type at the root.
_KINDS: Final = {
    "oneOf": [{"$ref": "#/$defs/Once"}, {"$ref": "#/$defs/Weekly"}],
    "$defs": {
        "Once": {
            "type": "object",
            "properties": {"kind": {"const": "once"}, "at": _A_TEXT},
            "required": ["kind", "at"],
        },
        "Weekly": {"type": "object", "properties": {"kind": {"const": "weekly"}}, "required": ["kind"]},
    },
}


@pytest.mark.parametrize("rules", [_OPENAI, _ANTHROPIC, _MOONSHOT, _FIREWORKS, _GEMINI])
@pytest.mark.parametrize("schema", [_NOTION, _EITHER, _KINDS])
def test_a_union_at_the_root_becomes_the_fields_of_all_members(schema: dict[str, Any], rules: Any) -> None:
    """Whoever refuses the union takes an object, whose model knows every field, and what is always required."""
    found = fitting_schema(schema, rules)
    assert found["type"] == "object"
    assert not found.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const"}
    assert "Takes together: " in found["description"]
    members = schema.get("anyOf") or list(schema["$defs"].values())
    fields = {name for each in [schema, *members] for name in each.get("properties", ())}
    assert set(found["properties"]) == fields
    assert found.get("required", []) == {id(_NOTION): ["filename"], id(_EITHER): [], id(_KINDS): ["kind"]}[id(schema)]


def test_a_field_that_two_members_have_may_be_either() -> None:
    """A kind is one of the kinds, not the first."""
    found = fitting_schema(_KINDS, _OPENAI)
    assert found["properties"]["kind"] == {"anyOf": [{"const": "once"}, {"const": "weekly"}]}
    assert fitting_schema(_KINDS, _GEMINI)["properties"]["kind"] == {
        "anyOf": [{"enum": ["once"], "type": "string"}, {"enum": ["weekly"], "type": "string"}]
    }


@pytest.mark.parametrize(
    ("field", "found"),
    [
        # Zod's `.int().positive()`: fazer-ai/agents#64, pizza-bot-app/pizza-bot#62.
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}, {"type": "integer", "minimum": 1, "maximum": 9007199254740991}),
        ({"type": "number", "exclusiveMaximum": 1.5}, {"type": "number", "maximum": 1.5}),
        # router-for-me/CLIProxyAPI#3512.
        ({"type": "string", "enum": ["a"], "enumDescriptions": ["A"], "$comment": "x"}, {"type": "string", "enum": ["a"]}),
        # router-for-me/CLIProxyAPI#129: Todoist's priorities.
        ({"type": "string", "enum": [1, 2]}, {"type": "string", "enum": ["1", "2"]}),
        ({"type": "integer", "enum": [1, 2]}, {"type": "integer", "description": "(one of: [1,2])"}),
        ({"type": "string", "enum": [""]}, {"type": "string"}),
        # cline/cline#7339: lists of nothing said.
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"type": ["string", "null"], "format": "uri"}, {"type": "string", "nullable": True, "description": '(format: "uri")'}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, {"type": "integer", "nullable": True, "default": None}),
        ({"type": ["string", "number"]}, {"anyOf": [{"type": "string"}, {"type": "number"}]}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "uniqueItems": True},
         {"type": "array", "items": {"type": "number"}, "description": "(uniqueItems: true)"}),
        ({"type": "object", "additionalProperties": {}, "propertyNames": {"pattern": "^x"}},
         {"type": "object", "description": '(propertyNames: {"pattern":"^x"})'}),
        ({"allOf": [{"type": "object", "properties": {"a": _A_TEXT}}, {"required": ["a"]}]},
         {"type": "object", "properties": {"a": _A_TEXT}, "required": ["a"]}),
        ({"type": "object", "properties": {"a": _A_TEXT}, "required": ["a", "gone"]},
         {"type": "object", "properties": {"a": _A_TEXT}, "required": ["a"]}),
        ({"description": None, "type": "string"}, {"type": "string"}),
        (True, {}),
    ],
)  # fmt: skip
def test_gemini_takes_a_part_of_the_language(field: Any, found: Any) -> None:
    """What it does not know is said in its own words, or in the description's."""
    schema = {"type": "object", "properties": {"field": field}, "$schema": "http://json-schema.org/draft-07/schema#"}
    assert fitting_schema(schema, _GEMINI) == {"type": "object", "properties": {"field": found}}


def test_references_are_followed_and_one_to_itself_ends() -> None:
    """A tree has its first level, and is told to have any objects below."""
    tree = {
        "type": "object",
        "properties": {"name": _A_TEXT, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    }
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/Tree", "description": "All."}},
        "$defs": {"Tree": tree},
    }
    found = fitting_schema(schema, _GEMINI)
    assert "$defs" not in found
    assert found["properties"]["tree"] == {
        "type": "object",
        "properties": {"name": _A_TEXT, "children": {"type": "array", "items": {"type": "object"}}},
        "description": "All.",
    }


def test_doubling_references_are_bounded() -> None:
    """Thirty definitions, each of which has the next one twice, would be a thousand million schemas."""
    names = [f"D{number}" for number in range(30)]
    inner = {
        name: {"type": "object", "properties": {side: {"$ref": f"#/$defs/{after}"} for side in ("left", "right")}}
        for name, after in pairwise(names)
    }
    schema = {"type": "object", "properties": {"all": {"$ref": "#/$defs/D0"}}, "$defs": {**inner, "D29": _A_TEXT}}
    assert len(json.dumps(fitting_schema(schema, _GEMINI))) < 3_000_000


def test_moonshot_has_types_within_unions() -> None:
    """openclaw/openclaw#113130, oOo0oOo/lean-lsp-mcp#213: beside a union stands no type."""
    items = {"type": "object", "properties": {"a": _A_TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    severity = {"anyOf": [{"enum": ["error"]}, {"type": "null"}], "type": "string"}
    schema = {"type": "object", "properties": {"tasks": {"type": "array", "items": items}, "severity": severity}}
    found = fitting_schema(schema, _MOONSHOT)["properties"]
    assert found["tasks"]["items"] == {
        "properties": {"a": _A_TEXT},
        "anyOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}],
    }
    assert found["severity"] == {"anyOf": [{"type": "string", "enum": ["error"]}, {"type": "null"}]}


def test_fireworks_has_a_type_for_each_field() -> None:
    """huggingface/chat-ui#2299: a field that only has a default."""
    fields = {
        "private": {"default": False},
        "revision": {"description": "Which.", "default": None},
        "mode": {"enum": [1]},
    }
    found = fitting_schema({"type": "object", "properties": fields}, _FIREWORKS)["properties"]
    assert [each["type"] for each in found.values()] == ["boolean", "string", "integer"]


def _tools(schema: Any, **more: Any) -> bytes:
    return json.dumps([{"type": "function", "function": {"name": "f", "parameters": schema, **more}}]).encode()


@pytest.mark.parametrize(
    "raw",
    [
        _tools({"type": "object", "properties": {"a": {"type": "array", "items": _A_TEXT, "minItems": 1}}}),
        _tools(_NOTION, strict=True),
        b'[{"type": "custom", "name": "apply_patch"}]',
        b'[{"type": "function", "function": {"name": "f"}}]',
        b'[{"type": "function", "function": {"name": "f", "parameters": null}}]',
        b'{"not": "a list"}',
        b"[" * 5_000,
        b'[{"function": 7}]',
    ],
)
def test_what_fits_or_cannot_be_read_is_not_touched(raw: bytes) -> None:
    """A strict schema is its caller's own promise, and odd tools are the target's to refuse."""
    assert fitting_tools(raw, _OPENAI) is None


def test_an_answers_schema_is_held_to_the_same() -> None:
    """langchain-ai/langchainjs#10956: Zod's bounds in `response_format`."""
    schema = {
        "type": "object",
        "properties": {"minutes": {"type": "integer", "exclusiveMinimum": 0}},
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    found = fitting_answer(json.dumps(asked).encode(), _GEMINI)
    assert found is not None
    told = json.loads(found)
    assert told["json_schema"]["schema"] == {
        "type": "object",
        "properties": {"minutes": {"type": "integer", "minimum": 1}},
    }
    assert told["json_schema"]["strict"] is True
    assert fitting_answer(b'{"type": "json_object"}', _GEMINI) is None


@pytest.mark.parametrize(
    ("kind", "address", "model", "name"),
    [
        ("openai", "https://api.openai.com/v1", "gpt-5.1", "openai"),
        ("azure", "https://us.openai.azure.com", "anything", "openai"),
        ("openai", "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash", "gemini"),
        ("litellm", "", "vertex_ai/gemini-3-pro", "gemini"),
        ("litellm", "", "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic"),
        ("openai", "https://api.moonshot.ai/v1", "kimi-k2.6", "moonshot"),
        ("openai", "https://api.fireworks.ai/inference/v1", "accounts/fireworks/models/kimi-k2p5", "fireworks"),
        ("openai", "http://10.0.0.7:8000/v1", "llama-3.3-70b", ""),
        ("vllm", "http://10.0.0.7:8000/v1", "llama-3.3-70b", ""),
    ],
)
def test_each_host_has_its_row(kind: str, address: str, model: str, name: str) -> None:
    """And an engine of one's own takes all."""
    assert quirks_of(kind, address, model).tool_schemas == name


def test_rows_name_tables() -> None:
    """A name without a table would fail each request."""
    table = read_table()
    assert {row.tool_schemas for row in table.quirk if row.tool_schemas} <= table.tool_schemas.keys()


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "properties", "items", "anyOf", "oneOf", "allOf", "enum", "const", "required", "$ref", "$defs", "format", "not",
             "prefixItems", "exclusiveMinimum", "default", "description", "x"]
        ),
        inner | st.sampled_from(["object", "array", "string", "#/$defs/x", "#", ["string", "null"]]),
        max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip


_ALL: Final = (_OPENAI, _ANTHROPIC, _MOONSHOT, _FIREWORKS, _GEMINI)


@given(_values.filter(lambda value: isinstance(value, dict)))
def test_nothing_that_is_sent_raises(schema: dict[str, Any]) -> None:
    """Not even what is no schema at all; and what Gemini is sent has its keywords alone."""
    for rules in _ALL:
        assert json.dumps(found := fitting_schema(schema, rules))
    assert found.keys() <= _GEMINI.keywords


_leaves = st.sampled_from(
    [{"type": "string"}, {"type": "integer", "exclusiveMinimum": 0}, {"enum": ["a", "b"]}, {"const": 1}, {"$ref": "#/$defs/A"},
     {"type": ["string", "null"], "format": "uri"}, {"type": "array"}, {"default": None}, {}]
)  # fmt: skip
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda members: {"type": "object", "anyOf": members}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda members: {"oneOf": members}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda members: {"allOf": members}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda fields, required: {"type": "object", "properties": fields, "required": required},
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("abcd"), unique=True, max_size=3),
        ),
    ),
    max_leaves=15,
)


@given(_schemas)
def test_what_fits_is_not_changed_again(schema: dict[str, Any]) -> None:
    """So the same tools are the same bytes on each turn, and a provider's cache of them holds."""
    whole = {**schema, "$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}}}
    for rules in _ALL:
        found = fitting_schema(whole, rules)
        assert fitting_schema(found, rules) == found
