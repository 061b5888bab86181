"""What is in a body is bounded before it is decoded: by counting, whatever its texts hold."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.parse import json_bounds as structure
from proxy.parse.json_bounds import (
    MOST_CONTAINERS,
    MOST_FIELDS,
    MOST_NAMES,
    MOST_VALUES,
    check_fields,
    check_structure,
    is_heavy,
)

_PART = {"type": "text", "text": "a"}
_PROSE = 'He said: "{a, [b]}", and then\\left. '


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}, ensure_ascii=False).encode()


def agent(turns: int) -> bytes:
    """A history of an agent: a call and its result in each turn, and what tools there are."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "edit", "input": {"path": "a.py", "old": "x = {}", "new": "y"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": '{"ok": true}'}]}
    turn = [{"role": "assistant", "content": [_PART, call]}, {"role": "user", "content": [result]}]
    schema = {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(20)}}
    tools = [{"name": f"tool{each}", "input_schema": schema} for each in range(200)]
    return body(messages=turn * turns, tools=tools)


LEGITIMATE = {
    "ten megabytes of prose": body(messages=[{"role": "user", "content": _PROSE * 250_000}]),
    "letters of two bytes": body(messages=[{"role": "user", "content": "Съешь же ещё, этих " * 300_000}]),
    "five megabytes of an image": body(
        messages=[{"role": "user", "content": "data:image/png;base64," + "QUJD" * 1_300_000}]
    ),
    "JSON in a text": body(messages=[{"role": "user", "content": json.dumps([_PART] * 100_000)}]),
    "a table in a text": body(messages=[{"role": "user", "content": "1,2,3,4,5\n" * 500_000}]),
    "backslashes": body(messages=[{"role": "user", "content": '\\"{,' * 500_000 + "\\"}]),
    "an agent's history": agent(2_000),
    "2,048 texts": body(input=["a text of some words, to be embedded"] * 2_048),
    "300,000 token ids": body(input=[[17_000] * 146] * 2_048),
}
TOO_MUCH = {
    "parts": body(messages=[{"role": "user", "content": [_PART] * 50_000}]),
    "parts beside a long text": body(messages=[{"role": "user", "content": [{"type": "text", "text": _PROSE * 9_000}, *[_PART] * 50_000]}]),
    "fields": body(**{f"f{each}": 1 for each in range(MOST_NAMES)}),
    "names": body(metadata={f"f{each}": 1 for each in range(MOST_NAMES)}),
    "lists": body(stop=[[]] * MOST_CONTAINERS),
    "lists in lists": b'{"model":' + b"[" * 200_000,
    "numbers": body(input=[1] * (MOST_VALUES + 2)),
    "empty texts": body(input=[""] * (MOST_VALUES + 2)),
    "texts that end in a backslash": body(input=["\\"] * (MOST_VALUES + 2)),
    "nothing but quotes": b'{"' * 1_500_000,
}  # fmt: skip


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_people_send_is_taken(name: str) -> None:
    """Long texts, images, token ids and long histories, whatever signs the texts hold."""
    check_structure(LEGITIMATE[name])
    msgspec.json.decode(LEGITIMATE[name])


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_many_values_are_refused(name: str) -> None:
    """The refusal says what is accepted, and it is heavy work that is done beside the loop."""
    assert is_heavy(TOO_MUCH[name])
    with pytest.raises(BadRequest, match="32768 objects and lists, 131072 names and 500000 values") as refused:
        check_structure(TOO_MUCH[name])
    assert refused.value.code == "too_many_values"


def test_a_body_of_many_requests_may_hold_more() -> None:
    """As many times as it is said."""
    requests = body(requests=[{"params": {"messages": [{"role": "user", "content": "hi"}]}}] * 20_000)
    check_structure(requests, 8)
    with pytest.raises(BadRequest):
        check_structure(requests)


def test_usual_bodies_are_not_looked_at() -> None:
    """Up to 128 KiB nothing is counted; beyond it only what is long or full is heavy."""
    assert not is_heavy(b"{" * 128 * 1024)
    assert not is_heavy(agent(100))
    assert is_heavy(LEGITIMATE["ten megabytes of prose"])


def test_a_body_has_a_bounded_number_of_fields() -> None:
    """However little they say."""
    check_fields(dict.fromkeys(range(MOST_FIELDS)))
    with pytest.raises(BadRequest, match="256"):
        check_fields(dict.fromkeys(range(MOST_FIELDS + 1)))


_json = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('a"\\{}[],:\n é'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('a"\\{}[],:é')), inner, max_size=4)
    ),
)


@given(_json, st.booleans())
def test_only_what_stands_between_texts_is_counted(value: Any, ascii_only: bool) -> None:
    """The signs outside of texts are exactly those of the value, whatever its texts hold and however they are escaped."""
    told = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    marks = structure._outside(structure._without_escapes(told).translate(None, structure._OTHERS))

    def signs(of: Any) -> str:
        if isinstance(of, list):
            return "[" + ",".join(map(signs, of)) + "]"
        if isinstance(of, dict):
            return "{" + ",".join(":" + signs(each) for each in of.values()) + "}"
        return ""

    assert marks.decode() == signs(value)
