"""Schemas are followed or not, and no schema takes long, leaves the house or breaks anything."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.judge.schema_check import NotJudged, follows, prepare

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
DEFINED = {"$ref": "#/$defs/kg", "$defs": {"kg": {"type": "number", "exclusiveMinimum": 0}}}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (1, {"type": "integer"}, True),
        ("1", {"type": "integer"}, False),
        ({"value": 1, "next": {"value": 2, "next": None}}, NODE, True),
        ({"value": 1, "next": {"value": "2", "next": None}}, NODE, False),
        (7.5, DEFINED, True),
        (0, DEFINED, False),
        ("b", {"enum": ["a", "b"]}, True),
        ("c", {"enum": ["a", "b"]}, False),
        ([1, 1], {"uniqueItems": True}, False),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], {"uniqueItems": True}, False),
        ([1, 2], {"uniqueItems": True}, True),
        ("never looked at", {"pattern": "^[0-9]+$"}, True),
        (1, {"anyOf": [False, {"type": "integer"}]}, True),
        (1, {"not": False}, True),
        ({"a": 1}, {"properties": {"a": False}}, False),
        ({}, {"type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema"}, True),
    ],
)
def test_values_are_checked(value: Any, schema: Any, expected: bool) -> None:
    """The usual keywords, references within the schema, and patterns taken as met."""
    assert follows(value, schema) is expected


def _doubling(depth: int) -> dict[str, Any]:
    """Asks 2 ** depth times whether 1 is a text."""
    definitions: dict[str, Any] = {
        f"d{index}": {"anyOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 2} for index in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, None),
        (1, True),
        (1, {"type": "nonsense"}),
        (1, {"type": "string", "minimum": "low"}),
        ({}, {"required": "abc"}),
        (1, {"$ref": "#"}),
        (1, {"allOf": [{"$ref": "#"}]}),
        (1, {"$ref": "#/$defs/nowhere"}),
        (1, {"$ref": "http://127.0.0.1:9/schema"}),
        (1, {"$ref": "file:///etc/hostname"}),
        (1, _doubling(40)),
        ("a" * 40 + "!", {"patternProperties": {"(a+)+$": {}}}),
        ({"a" * 40 + "!": 1}, {"additionalProperties": False, "patternProperties": {"(a+)+$": {}}}),
        (list(range(100_000)), {"items": {"type": "integer"}}),
        ({"k": ["x" * 50] * 5_000}, {"anyOf": [{"type": "string"}] * 1_000}),
        (10**400, {"multipleOf": 0.1}),
        ({"a": 1}, {"unevaluatedProperties": False}),
    ],
)
def test_what_is_broken_or_asks_too_much_is_not_judged(value: Any, schema: Any) -> None:
    """Neither a mismatch nor an error, whatever the schema makes the library do."""
    with pytest.raises(NotJudged):
        follows(value, schema)


_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_MANY = {f"k{number}": {"properties": {"a": {"type": "string"}}} for number in range(3_000)}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (["a"] * 50, {"items": {"type": ["integer"] * 20_000 + ["string"]}}),
        ([{}] * 50, {"items": {"properties": {str(number): True for number in range(15_000)}}}),
        ([99_999] * 2, {"items": {"enum": list(range(100_000))}}),
        ([1] * 5_000, {"allOf": [{"items": {}}] * 100}),
        (list(range(3_000)), {"allOf": [{"uniqueItems": True}] * 100}),
        (dict.fromkeys(map(str, range(3_000)), 1), {"allOf": [{"additionalProperties": True}] * 100}),
        ([0] * 5_000, {"allOf": [{"$ref": "#/$defs/x"}] * 60, "$defs": {"x": {"const": [0] * 5_000}}}),
        (1, {"allOf": [{"$ref": "#named"}] * 60, "$defs": {**_MANY, "z": {"$anchor": "named"}}}),
        (1, {"$id": "http://x/", "allOf": [{"$ref": "z"}] * 60, "$defs": {**_MANY, "z": {"$id": "z"}}}),
        (1, {"type": "string", "properties": _MANY}),
        (list(range(30_000)), {"anyOf": [False] * 400 + [True]}),
        (list(range(30_000)), {"allOf": [{"if": False}] * 200}),
    ],
)
def test_width_costs_steps_too(value: Any, schema: Any) -> None:
    """Few keywords that each walk something long: what takes tenths of a second on the event loop is not judged."""
    with pytest.raises(NotJudged):
        follows(value, schema, max_steps=500)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("a" * 40 + "!", {"allOf": [{"$schema": _DRAFT, "pattern": "^(a+)+$"}]}),
        (
            ["a" * 40 + "!"],
            {
                "$schema": _DRAFT,
                "anyOf": [{"items": {"$ref": "#/$defs/x"}}],
                "$defs": {"x": {"$schema": _DRAFT, "pattern": "^(a+)+$"}},
            },
        ),
    ],
)
def test_naming_a_draft_leads_nowhere_else(value: Any, schema: Any) -> None:
    """A part of a schema that says `$schema` is still read by these rules, not by the library's plain ones."""
    assert follows(value, schema)


def test_a_part_that_names_a_draft_still_counts() -> None:
    """Its steps are counted like any other's."""
    with pytest.raises(NotJudged):
        follows(list(range(10_000)), {"allOf": [{"$schema": _DRAFT, "items": {"type": "integer"}}]})


def test_a_deep_value_is_not_judged() -> None:
    """Recursion ends where Python's does, and is told as such."""
    value: Any = None
    for _ in range(5_000):
        value = {"value": 1, "next": value}
    with pytest.raises(NotJudged):
        follows(value, NODE)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_SCHEMA = st.recursive(
    st.booleans() | st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "object", "odd"])}),
    lambda inner: st.dictionaries(
        st.sampled_from(["properties", "items", "anyOf", "not", "required", "$ref", "enum", "minimum", "if", "const"]),
        inner | st.lists(inner, max_size=2) | st.integers(0, 3) | st.just("#"),
        max_size=3,
    ),
    max_leaves=6,
)


@given(_JSON, _SCHEMA)
def test_a_judgement_or_none_and_never_an_error(value: Any, schema: Any) -> None:
    """Any value against any schema, sound or not."""
    with contextlib.suppress(NotJudged):
        assert follows(value, schema) in {True, False}


def test_a_start_does_not_depend_on_a_verdict() -> None:
    """A pause of the process may leave the first check without a verdict; the library is loaded all the same."""
    with pytest.raises(NotJudged):
        follows(None, {"type": "null"}, max_steps=0)
    prepare(max_steps=0)
