"""Whether an answer is right, decided by a program: letters, numbers, Python literals and tool calls.

An answer without the asked form counts as wrong, and is told apart from one that is merely wrong: a model that does not
follow the form would fail its callers too, and the operator should see what it said instead.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from classifier.measuring.questions import ExpectedCall, Question

Outcome = Literal["right", "wrong", "unparsed"]

MAX_ANSWER_CHARS: Final = 64_000
_MAX_LITERAL_CHARS: Final = 4_000
_MAX_NUMBER_CHARS: Final = 100

_THOUGHTS = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
# The asked form first; the others are habits that many models have whatever they are asked.
_ANSWER_LINE = re.compile(r"answer(?:\s+is)?\s*(?:[:=]|\bis\b)?[ \t]*(?P<value>[^\n]+)", re.IGNORECASE)
_MARKS = "*_`$ \t"
_LETTER = re.compile(r"\(?\s*(?P<letter>[A-P])\s*(?:\)|\.|:|,|\]|\s|\Z)")
_LONE_LETTER = re.compile(r"\(?(?P<letter>[A-P])\)?[.:]?\Z")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,2})?(?:\s*/\s*\d+)?")
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_GSM = re.compile(r"####\s*(?P<value>[^\n]+)")
_ASSERTION = re.compile(r"assert\s+f\(.*\)\s*==\s*(?P<value>[^\n]+)")
_TAGGED = re.compile(r"\[ANSWER\](?P<value>.*?)\[/ANSWER\]", re.DOTALL)


class Call(msgspec.Struct, frozen=True):
    """A tool call of an answer; `arguments` is the text as it came."""

    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True):
    """What a target answered."""

    text: str
    calls: tuple[Call, ...] = ()


class Checked(msgspec.Struct, frozen=True):
    """An outcome, and what was read out of the answer; None where nothing of the asked form was there."""

    outcome: Outcome
    read: str | None


def check(question: Question, answer: Answer) -> Checked:
    """Compares an answer with the question's."""
    if question.kind == "tool":
        return _check_calls(question.calls, answer)
    text = _THOUGHTS.sub("", answer.text[-MAX_ANSWER_CHARS:]).strip()
    read, right = _CHECKS[question.kind]
    for place in _candidates(text):
        found = read(place)
        if found is not None:
            return Checked("right" if right(found, question.gold) else "wrong", found)
    return Checked("unparsed", None)


def _candidates(text: str) -> Iterable[str]:
    """The places where the answer may stand, the likeliest first: the last of each form, then the last line."""
    boxed = _last_boxed(text)
    lines = [found["value"] for found in _ANSWER_LINE.finditer(text)]
    if lines:
        yield _last_boxed(lines[-1]) or lines[-1].strip(_MARKS)
    if boxed:
        yield boxed
    for form in (_TAGGED, _GSM, _ASSERTION):
        found = [each["value"] for each in form.finditer(text)]
        if found:
            yield found[-1].strip(_MARKS)
    last = text.strip("`\n ").rsplit("\n", 1)[-1].strip(_MARKS)
    # A whole sentence is no answer of the asked form, however many numbers it has.
    if last and len(last.split()) <= _FEW_WORDS:
        yield last


_FEW_WORDS: Final = 4


def _last_boxed(text: str) -> str | None:
    """The content of the last boxed expression, whose braces may be nested."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            inside = text[begin:at].strip(_MARKS)
            return re.sub(r"\\text\{([^{}]*)\}", r"\1", inside)
    return None


def _letter(place: str) -> str | None:
    cleaned = place.strip(_MARKS + ".")
    found = _LONE_LETTER.match(cleaned) or _LETTER.match(cleaned)
    return None if found is None else found["letter"]


def _number(place: str) -> str | None:
    # Of a sum only what it comes to counts.
    result = place[:1_000].rsplit("=", 1)[-1]
    cleaned = _FRACTION.sub(r"\1/\2", result.replace("\\!", "").replace("\\,", "").replace("\\$", "$"))
    found = _NUMBER.search(cleaned.replace("−", "-"))  # noqa: RUF001 - the minus sign of typesetters
    if found is None or len(found[0]) > _MAX_NUMBER_CHARS or value_of(found[0]) is None:
        return None
    return found[0]


def value_of(text: str) -> Fraction | None:
    """A number without its dress: thousands' commas, currency and number signs."""
    try:
        return Fraction(re.sub(r"[\s,$#%]", "", text)[:_MAX_NUMBER_CHARS])
    except (ValueError, ZeroDivisionError):
        return None


def _same_number(found: str, gold: str) -> bool:
    value = value_of(found)
    return value is not None and value == value_of(gold)


def _literal(place: str) -> str | None:
    text = place.strip().removeprefix("L =").strip()
    for attempt in (text, text.strip("`"), text.rstrip(".")):
        if _literal_value(attempt) is not _NOTHING:
            return attempt
    return None


_NOTHING: Final = object()


def _literal_value(text: str) -> Any:
    if len(text) > _MAX_LITERAL_CHARS:
        return _NOTHING
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _NOTHING


def _same_literal(found: str, gold: str) -> bool:
    # With their types, so that True is not 1 and 1.0 is not 1; the order of a dict counts for nothing.
    return bool(_plain(_literal_value(found)) == _plain(_literal_value(gold)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return ("dict", frozenset((repr(_plain(key)), repr(_plain(item))) for key, item in value.items()))
    if isinstance(value, set):
        return ("set", frozenset(repr(_plain(item)) for item in value))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(_plain(item) for item in value))
    return (type(value).__name__, value)


def _same_letter(found: str, gold: str) -> bool:
    return found == gold


_CHECKS: Final[Mapping[str, tuple[Callable[[str], str | None], Callable[[str, str], bool]]]] = {
    "choice": (_letter, _same_letter),
    "number": (_number, _same_number),
    "literal": (_literal, _same_literal),
}


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
    if isinstance(given, bool) or isinstance(accepted, bool):
        return given is accepted
    if isinstance(given, int | float) and isinstance(accepted, int | float):
        return abs(given - accepted) < 1e-9  # noqa: PLR2004 - what floats of JSON lose
    if isinstance(given, str) and isinstance(accepted, str):
        return _folded(given) == _folded(accepted)
    if isinstance(given, list) and isinstance(accepted, list):
        return len(given) == len(accepted) and all(map(_same_argument, given, accepted))
    return bool(given == accepted)


def _folded(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?")
