"""Which requests promise an answer that a program can compare, and what is compared."""

import json
from typing import Any

import pytest

from classifier.answer_forms import NOTHING
from proxy.judge.comparable import agree, said_by
from proxy.parse.chat_request import parse_chat, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.plan.answer_form import AskedForm, asked_form

WEIGH = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}
AS_OBJECT = {"response_format": {"type": "json_object"}}


def form_of(text: str, *, system: str = "", expected: int = 20, **fields: Any) -> str | None:
    messages = [{"role": "system", "content": system}] if system else []
    body = {"model": "auto", "messages": [*messages, {"role": "user", "content": text}], **fields}
    request = parse_chat(json.dumps(body).encode(), RequestHeaders())
    found = asked_form(request, prompt_of(request), expected)
    return None if found is None else found.kind + found.letters


@pytest.mark.parametrize(
    ("text", "more", "form"),
    [
        ("Which is a gas?\nA) iron\nB) neon\nC) salt", {}, "choiceABC"),
        ("Pick the correct option.\n(A): red\n(B): blue", {}, "choiceAB"),
        ("Extract the order", AS_OBJECT, "json"),
        ("Weigh it", {"tools": [WEIGH], "tool_choice": "required"}, "call"),
        ("Weigh it", {"tools": [WEIGH], "tool_choice": {"type": "function", "function": {"name": "weigh"}}}, "call"),
        ("How many? Answer with a single number.", {}, "number"),
        ("Solve x² = 4, x > 0, and put your final answer within \\boxed{}.", {}, "text"),
        ("Is this spam? Answer yes or no.", {}, "text"),
        ("Great shoes!", {"system": "Return the language code, nothing else."}, "text"),
        ("Great shoes!", {"max_tokens": 5}, "text"),
        ("assert f([1, 2]) == ??", {}, "literal"),
    ],
)
def test_a_request_that_promises_a_form(text: str, more: dict[str, Any], form: str) -> None:
    """By its fields where they say so, else by its words."""
    assert form_of(text, **more) == form


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("Write a poem about rain", {}),
        ("Weigh it", {"tools": [WEIGH]}),
        ("Weigh it", {"tools": [WEIGH], "tool_choice": "auto"}),
        ("Extract the order", {**AS_OBJECT, "n": 2}),
        ("Write the whole module and nothing else", {"expected": 900}),
        ("A. Preface\nC. End\nSummarise it. What follows?", {}),
        ("Say it", {**AS_OBJECT, "modalities": ["text", "audio"]}),
        ("What do you think of the plan?", {"max_tokens": 500}),
    ],
)
def test_a_request_that_may_be_answered_at_length(text: str, more: dict[str, Any]) -> None:
    """Prose, a tool that need not be called, several choices, a program, speech."""
    assert form_of(text, **more) is None


def said(kind: str, message: dict[str, Any], *, finish: str = "stop", letters: str = "", **fields: Any) -> Any:
    body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = parse_chat(json.dumps(body).encode(), RequestHeaders())
    payload = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return said_by(AskedForm(kind, letters), request, [json.dumps(payload).encode()])  # type: ignore[arg-type]


def calls(*each: tuple[str, str]) -> dict[str, Any]:
    made = [{"id": "c", "type": "function", "function": {"name": name, "arguments": text}} for name, text in each]
    return {"content": None, "tool_calls": made}


@pytest.mark.parametrize(
    ("kind", "one", "other", "more"),
    [
        ("choice", "The answer is (B).", "**B**", {"letters": "ABCD"}),
        ("choice", "B) 42", "I think it is clear.\n\nAnswer: B", {"letters": "AB"}),
        ("number", "\\boxed{42}", "The answer is 42.0", {}),
        ("number", "$1,234", "1234", {}),
        ("text", "Yes.", "yes", {}),
        ("text", "<think>Is it? Yes.</think>\n\nYes", "YES!", {}),
        ("json", '{"a":1,"b":2}', '```json\n{"b": 2.0, "a": "1"}\n```', AS_OBJECT),
        ("literal", "[ANSWER][1, 2][/ANSWER]", "[1,2]", {}),
    ],
)
def test_two_texts_that_say_the_same(kind: str, one: str, other: str, more: dict[str, Any]) -> None:
    """As models really write them."""
    first, second = said(kind, {"content": one}, **more), said(kind, {"content": other}, **more)
    assert agree(AskedForm(kind), first, second)  # type: ignore[arg-type]


def test_calls_are_compared_by_their_meaning() -> None:
    """The order and the white space of arguments, and a number as a text, make no difference; another value does."""
    tools: dict[str, Any] = {"tools": [WEIGH]}
    one = said("call", calls(("weigh", '{"kg": 7, "of": "Ada"}')), **tools)
    other = said("call", calls(("weigh", '{ "of":"ada","kg":"7" }')), **tools)
    third = said("call", calls(("weigh", '{"kg": 8, "of": "Ada"}')), **tools)
    assert agree(AskedForm("call"), one, other)
    assert not agree(AskedForm("call"), one, third)
    assert said("call", {"content": "It weighs 7 kg."}, **tools) is NOTHING


@pytest.mark.parametrize(
    ("kind", "text", "more"),
    [
        ("text", "", {}),
        ("text", "I'm sorry, but I can't help with that.", {}),
        ("choice", "I cannot answer that", {"letters": "ABCD"}),
        ("choice", "The answer is E", {"letters": "ABCD"}),
        ("number", "It depends on how you count them, and on whom you ask about it.", {}),
        ("text", "<think>It could be that", {}),
        ("text", "half a sen", {"finish": "length"}),
        ("json", "no JSON at all", AS_OBJECT),
        ("text", "blocked", {"finish": "content_filter"}),
    ],
)
def test_what_says_nothing_agrees_with_nothing(kind: str, text: str, more: dict[str, Any]) -> None:
    """Two refusals, two empty answers and two broken ones are no agreement."""
    found = said(kind, {"content": text}, **more)
    assert found is NOTHING
    assert not agree(AskedForm(kind), found, found)  # type: ignore[arg-type]
