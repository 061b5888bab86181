r"""What an answer says, read out of its text, and whether two of them say the same: letters, numbers, Python literals, JSON, tool
calls and short texts.

Models write one answer in many ways: "The answer is (B).", "**B**", "\boxed{42}", "$1,234", JSON between fences, after a page of
thoughts. What is read here is compared without that dress. Whatever has none of the asked form reads as nothing, and nothing is
the same as nothing.
"""

import ast
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Literal

import msgspec

from settings.decoding import DECODE_ERRORS

TextForm = Literal["choice", "number", "literal"]

MAX_ANSWER_CHARS: Final = 64_000
MAX_JSON_CHARS: Final = 256 * 1024
MAX_SHORT_WORDS: Final = 12
"""The most words of a text that is compared as one."""
_MAX_SHORT_CHARS: Final = 200
_MAX_LITERAL_CHARS: Final = 4_000
_MAX_NUMBER_CHARS: Final = 100
_MAX_STARTS: Final = 16
"""The most places at which an object is looked for in prose."""

_THOUGHTS = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL)
# The asked form first; the others are habits that many models have whatever they are asked.
_ANSWER_LINE = re.compile(r"answer(?:\s+is)?\s*(?:[:=]|\bis\b)?[ \t]*(?P<value>[^\n]+)", re.IGNORECASE)
_SHORT_ANSWER_LINE = re.compile(
    r"\b(?:answer|label|category|class|sentiment|result|output)\**\s*(?:\bis\b|[:=])[ \t]*(?P<value>[^\n]+)",
    re.IGNORECASE,
)
_MARKS = "*_`$ \t"
_LETTER = re.compile(r"\(?\s*(?P<letter>[A-P])\s*(?:\)|\.|:|,|\]|\s|\Z)")
_LONE_LETTER = re.compile(r"\(?(?P<letter>[A-P])\)?[.:]?\Z")
_OPTION = re.compile(r"(?:option|choice)\s+", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,2})?(?:\s*/\s*\d+)?")
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_GSM = re.compile(r"####\s*(?P<value>[^\n]+)")
_ASSERTION = re.compile(r"assert\s+f\(.*\)\s*==\s*(?P<value>[^\n]+)")
_TAGGED = re.compile(r"\[ANSWER\](?P<value>.*?)\[/ANSWER\]", re.DOTALL)
_FENCE = re.compile(r"```[ \t]*(?P<tag>[\w+-]*)[ \t]*\n?(?P<inside>.*?)```", re.DOTALL)
_JSON_TAGS: Final = frozenset({"", "json", "json5", "jsonc"})
_ARTICLE = re.compile(r"(?:the|an?)\s+(?=\S)")
_AROUND: Final = "*_`#>\"'“”„‘’«»()[]{} \t"  # noqa: RUF001 - the quotation marks of typesetters
_ENDS: Final = ".,;:!?。！？"  # noqa: RUF001 - sentences end so in Chinese and Japanese
_FEW_WORDS: Final = 4
NOTHING: Final = object()
"""The value for "nothing could be read": None is a value, of Python as of JSON."""


def without_thoughts(text: str) -> str:
    """Return the text without what a model thought aloud between tags; of a thought that never ends nothing is left."""
    return _THOUGHTS.sub("", text[-MAX_ANSWER_CHARS:]).strip()


def read(form: TextForm, text: str) -> str | None:
    """Return the answer as it is written in a text, or None where the text has none of this form."""
    reads, _ = _FORMS[form]
    for place in _candidates(without_thoughts(text)):
        found = reads(place)
        if found is not None:
            return found
    return None


def same(form: TextForm, one: str, other: str) -> bool:
    """Return True if two answers of this form, as they were read, are the same."""
    _, is_same = _FORMS[form]
    return is_same(one, other)


def short_text(text: str) -> str | None:
    """Return a short answer without its dress: case, quotation marks, emphasis, a full stop, an article before it. None for a
    longer one.
    """
    text = without_thoughts(text)
    said = _SHORT_ANSWER_LINE.findall(text)
    for place in (_last_boxed(text), said[-1] if said else None, text):
        if place is None:
            continue
        plain = unicodedata.normalize("NFKC", place).strip()
        if len(plain) > _MAX_SHORT_CHARS or "\n" in plain or len(plain.split()) > MAX_SHORT_WORDS:
            continue
        words = " ".join(plain.casefold().split())
        before = ""
        while words != before:
            before, words = words, words.strip(_AROUND).rstrip(_ENDS)
        return _ARTICLE.sub("", words, count=1) if _ARTICLE.match(words) else words or None
    return None


def same_text(one: str, other: str) -> bool:
    """Return True if two short texts are the same; numbers by their value."""
    if one == other:
        return True
    value = value_of(one)
    return value is not None and value == value_of(other)


def json_in(text: str) -> tuple[Any, bool]:
    """Return the JSON value in a text, and True where the text is nothing else. It may stand between fences, or be the one object
    in prose.

    NOTHING where there is none. Raises OverflowError where there is too much, or too large a number, to tell.
    """
    if len(text) > MAX_JSON_CHARS:
        raise OverflowError
    found = _json(text)
    if found is not NOTHING:
        return found, True
    for inside in _fenced(text):
        found = _json(inside)
        if found is not NOTHING:
            return found, False
    return _object_in_prose(text), False


def same_value(one: Any, other: Any) -> bool:
    """Return True if two values of JSON are the same to who uses them: the order of names, and how a number or a text is written,
    aside.
    """
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case (list(), list()):
            return len(one) == len(other) and all(map(same_value, one, other))
        case (dict(), dict()):
            return one.keys() == other.keys() and all(same_value(value, other[name]) for name, value in one.items())
        case (str(), str()) if folded(one) == folded(other):
            return True
        case (str() | int() | float(), str() | int() | float()):
            return _close(one, other) or _same_number(str(one), str(other))
    return one is other


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return False
    return bool(one == other or abs(one - other) < 1e-9)  # noqa: PLR2004 - what floats of JSON lose


def same_calls(one: Sequence[tuple[str, Any]], other: Sequence[tuple[str, Any]]) -> bool:
    """Return True if the same tools are called with the same arguments, in whatever order."""
    left = list(other)
    for name, arguments in one:
        at = next((at for at, each in enumerate(left) if each[0] == name and same_value(each[1], arguments)), None)
        if at is None:
            return False
        del left[at]
    return not left


def folded(text: str) -> str:
    """Return a text without differences of case and white space, and without the mark that ends a sentence."""
    return " ".join(text.casefold().split()).rstrip(".!?")


def _candidates(text: str) -> Iterable[str]:
    """Return the places where the answer may stand, the likeliest first: the last of each form, then the last line."""
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


def _last_boxed(text: str) -> str | None:
    """Return the content of the last boxed expression, whose braces may be nested."""
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
    cleaned = _OPTION.sub("", place.replace("*", "").strip(_MARKS + "."), count=1).strip(_MARKS)
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
    """Return a number without its dress: thousands' commas, currency and number signs."""
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
        if _literal_value(attempt) is not NOTHING:
            return attempt
    return None


def _literal_value(text: str) -> Any:
    if len(text) > _MAX_LITERAL_CHARS:
        return NOTHING
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return NOTHING


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


_FORMS: Final[Mapping[TextForm, tuple[Callable[[str], str | None], Callable[[str, str], bool]]]] = {
    "choice": (_letter, _same_letter),
    "number": (_number, _same_number),
    "literal": (_literal, _same_literal),
}


def _json(text: str) -> Any:
    """Return the value of a text that is JSON, else NOTHING. Raises OverflowError."""
    try:
        return msgspec.json.decode(text)
    except DECODE_ERRORS:
        pass
    try:
        # Python's own decoder takes half a letter of an emoji, as callers' clients do.
        return json.loads(text)
    except json.JSONDecodeError:
        return NOTHING
    except ValueError as error:
        # A number of thousands of digits: JSON all the same.
        raise OverflowError from error


def _fenced(text: str) -> Iterator[str]:
    """Yield the content of fences that may hold JSON: first of those that say so."""
    found = [(each["tag"].lower(), each["inside"]) for each in _FENCE.finditer(text)]
    yield from (inside for tag, inside in found if tag in _JSON_TAGS and tag)
    yield from (inside for tag, inside in found if not tag)


_OBJECTS: Final = json.JSONDecoder()


def _object_in_prose(text: str) -> Any:
    """Return the first whole object in a text; a list in prose is more likely to be a reference."""
    at = text.find("{")
    for _ in range(_MAX_STARTS):
        if at < 0:
            break
        try:
            return _OBJECTS.raw_decode(text, at)[0]
        except ValueError:
            at = text.find("{", at + 1)
    return NOTHING
