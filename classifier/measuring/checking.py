"""Checks of answers by a program: letters, numbers, Python literals and tool calls.

An answer without the asked form counts as wrong, and is told apart from one that is merely wrong: a model that does not
follow the form would fail its callers too, and the operator should see what it said instead.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from classifier import answer_forms
from classifier.measuring.questions import ExpectedCall, Question

Outcome = Literal["right", "wrong", "unparsed"]


class Call(msgspec.Struct, frozen=True):
    """A tool call of an answer; `arguments` is the text as it came."""

    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True):
    """The answer of a target."""

    text: str
    calls: tuple[Call, ...] = ()


class Checked(msgspec.Struct, frozen=True):
    """An outcome, and what was read out of the answer; None where nothing of the asked form was there."""

    outcome: Outcome
    read: str | None


def check(question: Question, answer: Answer) -> Checked:
    """Compare an answer with the question's."""
    if question.kind == "tool":
        return _check_calls(question.calls, answer)
    found = answer_forms.read(question.kind, answer.text)
    if found is None:
        return Checked("unparsed", None)
    return Checked("right" if answer_forms.same(question.kind, found, question.gold) else "wrong", found)


def _check_calls(expected: Sequence[ExpectedCall], answer: Answer) -> Checked:
    read = "; ".join(f"{call.name}({call.arguments})" for call in answer.calls) or None
    if not expected:
        # Saying that nothing serves is right; saying nothing at all is not.
        outcome: Outcome = "wrong" if answer.calls else "right" if answer.text.strip() else "unparsed"
        return Checked(outcome, read if answer.calls else answer.text.strip()[:200] or None)
    if not answer.calls:
        return Checked("unparsed", None)
    parsed = [(call.name, _arguments(call.arguments)) for call in answer.calls]
    if any(arguments is None for _, arguments in parsed):
        return Checked("unparsed", read)
    return Checked("right" if _all_matched(expected, parsed) else "wrong", read)


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _all_matched(expected: Sequence[ExpectedCall], calls: Sequence[tuple[str, dict[str, Any] | None]]) -> bool:
    left = list(calls)
    for wanted in expected:
        at = next((at for at, (name, given) in enumerate(left) if _matches(wanted, name, given or {})), None)
        if at is None:
            return False
        del left[at]
    return not left


def _matches(wanted: ExpectedCall, name: str, given: Mapping[str, Any]) -> bool:
    if name != wanted.name or not given.keys() <= wanted.arguments.keys():
        return False
    missing = wanted.arguments.keys() - given.keys() - set(wanted.optional)
    return not missing and all(
        any(_same_argument(value, accepted) for accepted in wanted.arguments[key]) for key, value in given.items()
    )


def _same_argument(given: Any, accepted: Any) -> bool:
    # A tool that was promised a number fails on its text.
    return isinstance(given, str) is isinstance(accepted, str) and answer_forms.same_value(given, accepted)
