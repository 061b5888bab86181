"""Judging a whole answer: what is weak, what is not, and that nothing can make it fail."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.wire import ChatRequest
from proxy.dispatch.outcome import Weakness
from proxy.judge.weak_answer import MAX_JUDGED_BYTES, graver, judge
from proxy.parse.chat_request import parse_chat
from proxy.parse.headers import RequestHeaders
from testing.scripted.upstream import chunks, completion, script_named

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
AS_OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}
AS_PERSON: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
}
AS_STRICT_PERSON: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
}
KILOS = {"type": "object", "properties": {"kg": {"type": "number"}}, "required": ["kg"]}
WEIGH: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "weigh", "parameters": KILOS}}]}


def asked(**fields: Any) -> ChatRequest:
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), RequestHeaders())


def whole(content: Any = None, *, finish: str = "stop", logprobs: Any = None, **message: Any) -> dict[str, Any]:
    return {"message": {"content": content, **message}, "finish_reason": finish, "logprobs": logprobs}


def verdict(*choices: dict[str, Any], bound: float | None = None, **fields: Any) -> Weakness | None:
    numbered = [{"index": index, **choice} for index, choice in enumerate(choices)]
    return judge(asked(**fields), [json.dumps({"choices": numbered}).encode()], min_mean_logprob=bound)


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        ("as far as I got", {}, "truncated"),
        ("as far as I got", {"max_tokens": 5}, None),
        ("as far as I got", {"max_completion_tokens": 5}, None),
        ("", {"max_tokens": 5}, "truncated"),
        ('{"name": "A', {"max_tokens": 5, **AS_OBJECT}, "truncated"),
        ('{"name": "A"}', {"max_tokens": 5, **AS_OBJECT}, None),
    ],
)
def test_a_cut_answer_is_weak_unless_the_caller_set_the_bound_and_can_use_it(
    content: str, fields: dict[str, Any], expected: Weakness | None
) -> None:
    """The caller's own bound is what it asked for, as long as something usable is left."""
    assert verdict(whole(content, finish="length"), **fields) == expected


def test_tool_arguments_that_the_callers_bound_cut_are_cut() -> None:
    """The cause is named, not its effect."""
    broken = whole(finish="length", **call("weigh", '{"kg": '))
    assert verdict(broken, max_tokens=5, **WEIGH) == "truncated"


@pytest.mark.parametrize(
    "choice",
    [
        whole(None, refusal="I can't."),
        whole("Here is", finish="content_filter"),
        whole("I'm sorry, but I can't help with that."),
    ],
)
def test_refusals_of_every_kind_are_weak(choice: dict[str, Any]) -> None:
    """The wire's own field, the filter's, and words."""
    assert verdict(choice) == "refused"


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        ('{"a": 1}', AS_OBJECT, None),
        ("[1]", AS_OBJECT, "invalid-json"),
        ("Sure!", AS_OBJECT, "invalid-json"),
        ("Sure! {}", AS_OBJECT, None),
        ('```json\n{"a": 1}\n```', AS_OBJECT, None),
        ('Here you are:\n```\n{"a": 1}\n```\nAnything else?', AS_OBJECT, None),
        ("```json\n[1]\n```", AS_OBJECT, "invalid-json"),
        ("See [1] and {braces}.", AS_OBJECT, "invalid-json"),
        ('```json\n{"name": "Ada", "age": 36}\n```', AS_PERSON, None),
        ('```json\n{"name": "Ada"}\n```', AS_PERSON, "schema-mismatch"),
        ('```json\n{"name": "Ada", "age": 36}\n```', AS_STRICT_PERSON, "invalid-json"),
        ('{"name": "Ada", "age": 36}', AS_STRICT_PERSON, None),
        ("", AS_OBJECT, "invalid-json"),
        ('{"half": "\\ud83d"}', AS_OBJECT, None),
        ('{"name": "Ada", "age": 36}', AS_PERSON, None),
        ('{"name": "Ada"}', AS_PERSON, "schema-mismatch"),
        ('{"name": "Ada", "age": -1}', AS_PERSON, "schema-mismatch"),
        ('{"name": "Ada", "age": 36, "x": 1}', AS_PERSON, "schema-mismatch"),
        ("Ada", AS_PERSON, "invalid-json"),
        ("I'm sorry, but I can't help with that.", AS_PERSON, "invalid-json"),
        ("no schema", {"response_format": {"type": "text"}}, None),
        ("{}", {"response_format": {"type": "json_schema", "json_schema": {"name": "any"}}}, None),
        ("{}", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, None),
        ('{"n": ' + "9" * 5_000 + "}", AS_OBJECT, None),
        ("[" * 100_000, AS_OBJECT, None),
        ('{"a": "' + "x" * 300_000, AS_OBJECT, None),
    ],
)
def test_json_that_was_asked_for_is_checked(content: str, fields: dict[str, Any], expected: Weakness | None) -> None:
    """Against its grammar, then its schema; what is too large, too deep or wrongly asked is not judged."""
    assert verdict(whole(content), **fields) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("weigh", '{"kg": 7}', None),
        ("weigh", {"kg": 7}, None),
        ("weigh", '{"kg": ', "malformed-tool-arguments"),
        ("weigh", "[7]", "malformed-tool-arguments"),
        ("weigh", '{"kg": "seven"}', "malformed-tool-arguments"),
        ("weigh", "", "malformed-tool-arguments"),
        ("measure", "{}", "malformed-tool-arguments"),
        ("", "{", None),
    ],
)
def test_tool_calls_are_checked_against_what_was_offered(name: str, arguments: Any, expected: Weakness | None) -> None:
    """An object, by the tool's own schema, of a tool that exists."""
    assert verdict(whole(finish="tool_calls", **call(name, arguments)), **WEIGH) == expected


def test_a_tool_without_parameters_may_be_called_with_nothing() -> None:
    """Some engines send an empty text for an empty object."""
    bare: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "now"}}]}
    assert verdict(whole(finish="tool_calls", **call("now", "")), **bare) is None


def test_names_are_not_checked_where_other_kinds_of_tools_were_offered() -> None:
    """What a custom tool is called with is not known here."""
    mixed: dict[str, Any] = {"tools": [*WEIGH["tools"], {"type": "custom", "custom": {"name": "sql"}}]}
    assert verdict(whole(finish="tool_calls", **call("sql", "{}")), **mixed) is None


def test_the_older_function_call_is_checked_too() -> None:
    """`functions` and `function_call` are the same in older clients."""
    old: dict[str, Any] = {"functions": [{"name": "weigh", "parameters": KILOS}]}
    assert verdict(whole(function_call={"name": "weigh", "arguments": '{"kg": 7}'}), **old) is None
    broken = whole(function_call={"name": "weigh", "arguments": "{}"})
    assert verdict(broken, **old) == "malformed-tool-arguments"


@pytest.mark.parametrize(
    ("logprobs", "bound", "expected"),
    [
        ([-2.0, -4.0], -2.5, "low-logprob"),
        ([-2.0, -4.0], -3.5, None),
        ([-2.0, -4.0], None, None),
        ([], -0.1, None),
        (["odd", None], -0.1, None),
    ],
)
def test_little_confidence_is_weak_below_the_operators_bound(
    logprobs: list[Any], bound: float | None, expected: Weakness | None
) -> None:
    """The mean over the tokens; without log-probabilities or a bound nobody looks."""
    said = {"content": [{"token": "a", "logprob": each} for each in logprobs]}
    assert verdict(whole("a b", logprobs=said), bound=bound) == expected


def test_one_good_choice_is_an_answer() -> None:
    """Weak only when each is; then the first one's weakness is told."""
    cut, filtered = whole("a", finish="length"), whole("b", finish="content_filter")
    assert verdict(cut, whole("b"), n=2) is None
    assert verdict(cut, filtered, n=2) == "truncated"


@pytest.mark.parametrize(
    ("script", "fields", "expected"),
    [
        ("ok", {}, None),
        ("truncated", {}, "truncated"),
        ("filtered", {}, "refused"),
        ("refusal", {}, "refused"),
        ("apology", {}, "refused"),
        ("json", AS_OBJECT, None),
        ("broken-json", AS_OBJECT, "invalid-json"),
        ("json", AS_PERSON, "schema-mismatch"),
        ("tools", WEIGH, None),
        ("broken-tools", WEIGH, "malformed-tool-arguments"),
        ("logprob-150", {}, None),
        ("logprob-250", {}, "low-logprob"),
    ],
)
def test_a_stream_and_a_whole_reply_are_judged_alike(
    script: str, fields: dict[str, Any], expected: Weakness | None
) -> None:
    """The pieces of a stream are put together first."""
    played = script_named(script)
    stream = list(chunks(played, "m", "r", with_usage=True))
    assert judge(asked(**fields), stream, min_mean_logprob=-2.0) == expected
    assert judge(asked(**fields), [completion(played, "m", "r")], min_mean_logprob=-2.0) == expected


def test_what_is_too_large_is_not_judged() -> None:
    """The bound is on all payloads together."""
    cut = json.dumps({"choices": [{"delta": {"content": "a" * 1_000}, "finish_reason": "length"}]}).encode()
    assert judge(asked(), [cut] * 10) == "truncated"
    assert judge(asked(), [cut] * (MAX_JUDGED_BYTES // len(cut) + 1)) is None


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "index",
                    "delta",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "arguments",
                    "name",
                    "logprobs",
                    "text",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(_ODD, max_size=3), _ODD, _ODD, st.binary(max_size=20))
def test_nothing_makes_it_raise(choices: list[Any], schema: Any, parameters: Any, noise: bytes) -> None:
    """Whatever an upstream answers and whatever a caller asks for."""
    odd: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        "tools": [{"function": {"name": "weigh", "parameters": parameters}}, parameters],
    }
    request = asked(**json.loads(json.dumps(odd).replace("NaN", "0").replace("Infinity", "0").replace("-0", "0")))
    for payloads in ([json.dumps({"choices": choices}).encode()], [noise], [b"{}"], []):
        judge(request, payloads, min_mean_logprob=-1.0)


def test_of_two_weak_answers_the_less_usable_is_the_graver() -> None:
    """A doubtful text is better than a cut one, and anything is better than a refusal."""
    order: list[Weakness] = ["low-logprob", "schema-mismatch", "truncated", "invalid-json", "refused"]
    assert all(graver(later, earlier) for earlier, later in pairwise(order))
    assert not any(graver(each, each) for each in order)
