"""Comparison of two answers that a request promised in a short or formal form."""

from collections.abc import Sequence
from typing import Any

import msgspec

from classifier.answer_forms import NOTHING, json_in, read, same, same_calls, same_text, same_value, short_text
from providers.wire import ChatRequest
from proxy.judge.weak_answer import WholeChoice, choices_of, judge
from proxy.plan.answer_form import AskedForm


def said_by(asked: AskedForm, request: ChatRequest, payloads: Sequence[bytes]) -> Any:
    """Return the content of a whole answer in the asked form; NOTHING for a weak one, and for one that has none in
    it.
    """
    if judge(request, payloads) is not None:
        return NOTHING
    try:
        (answer,) = choices_of(payloads)
        if answer.finish == "length":
            return NOTHING
        return _called(answer) if asked.kind == "call" else NOTHING if answer.calls else _said(asked, answer.text)
    except Exception:  # noqa: BLE001 - too large, too deep, no chat completion: whatever it was, it cannot be compared
        return NOTHING


def agree(asked: AskedForm, one: Any, other: Any) -> bool:
    """Return True for two answers with the same content. One without content agrees with none."""
    if one is NOTHING or other is NOTHING:
        return False
    match asked.kind:
        case "json":
            return same_value(one, other)
        case "call":
            return same_calls(one, other)
        case "text":
            return same_text(one, other)
        case form:
            return same(form, one, other)


def _said(asked: AskedForm, text: str) -> Any:
    match asked.kind:
        case "json":
            value, _ = json_in(text)
            return value
        case "text":
            return short_text(text) or NOTHING
        case "choice":
            letter = read("choice", text)
            return letter if letter is not None and letter in asked.letters else NOTHING
        case "number" | "literal" as form:
            found = read(form, text)
            return NOTHING if found is None else found
    return NOTHING


def _called(answer: WholeChoice) -> Any:
    """Return the calls of an answer, whose arguments were found to be objects; NOTHING without one."""
    calls = [
        (call.name, msgspec.json.decode("".join(call.arguments).strip() or "{}")) for call in answer.calls.values()
    ]
    return calls or NOTHING
