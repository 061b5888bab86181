"""The pattern of everything that a match of another pattern may begin with, so that a stream knows what it has to hold.

It is derived from the parsed pattern: of `ab{2}c`, the texts that may go on to a match are ``, `a`, `ab`, `abb` and `abbc`.
It may match more (a repeat that counts higher than twenty counts as any), never less.
"""

# The standard library's own parser has no public name. RE2's syntax is nearly a part of it; what is not is refused here.
import warnings
from collections.abc import Callable
from re import _constants as of  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

Items = list[tuple[Any, Any]]

_FLAGS: Final = {of.SRE_FLAG_IGNORECASE: "i", of.SRE_FLAG_MULTILINE: "m", of.SRE_FLAG_DOTALL: "s"}
_PLACES: Final = {
    of.AT_BEGINNING: "^",
    of.AT_BEGINNING_STRING: r"\A",
    of.AT_BOUNDARY: r"\b",
    of.AT_NON_BOUNDARY: r"\B",
    of.AT_END: "$",
}
_CATEGORIES: Final = {
    of.CATEGORY_DIGIT: r"\d",
    of.CATEGORY_NOT_DIGIT: r"\D",
    of.CATEGORY_SPACE: r"\s",
    of.CATEGORY_NOT_SPACE: r"\S",
    of.CATEGORY_WORD: r"\w",
    of.CATEGORY_NOT_WORD: r"\W",
}
_MOST_COUNTED: Final = 20
"""Counting on costs a state for each number and each place where the text may have begun, which multiplies."""


def beginnings(pattern: str) -> str | None:
    """Return the pattern of all beginnings of matches of `pattern`, or None where that cannot be told."""
    return _derived(pattern, _begun)


def loosened(pattern: str) -> str:
    """Return a pattern that matches whatever `pattern` does, and more: it counts no higher than twenty."""
    return _derived(pattern, _all) or pattern


def _derived(pattern: str, derive: Callable[[Items], str]) -> str | None:
    if any(only_re2 in pattern for only_re2 in ("[[:", r"\p", r"\P", r"\C", r"\Q", r"\z", r"\x{")):
        return None
    try:
        with warnings.catch_warnings(action="error"):
            parsed = parser.parse(pattern)
        derived = derive(list(parsed))
    except (parser.error, KeyError, RecursionError, OverflowError, Warning):
        return None
    flags = "".join(letter for flag, letter in _FLAGS.items() if parsed.state.flags & flag)
    return f"(?{flags}:{derived})" if flags else derived


def _begun(items: Items) -> str:
    rest = ""
    for kind, value in reversed(items):
        whole = _whole(kind, value)
        if kind in {of.MAX_REPEAT, of.MIN_REPEAT, of.BRANCH, of.SUBPATTERN}:
            rest = f"(?:{whole}{rest}|{_part(kind, value)})"
        else:
            rest = f"(?:{whole}{rest})?"
    return rest


def _part(kind: Any, value: Any) -> str:
    """Return the pattern of the beginnings of one repeat, branch or group."""
    if kind is of.BRANCH:
        return "(?:" + "|".join(_begun(list(branch)) for branch in value[1]) + ")"
    if kind is of.SUBPATTERN:
        return f"(?{_flags(value)}:{_begun(list(value[3]))})"
    _, most, repeated = value
    return f"(?:{_all(list(repeated))}){_times(0, most)}{_begun(list(repeated))}"


def _all(items: Items) -> str:
    return "".join(_whole(kind, value) for kind, value in items)


def _whole(kind: Any, value: Any) -> str:
    if kind is of.BRANCH:
        return "(?:" + "|".join(_all(list(branch)) for branch in value[1]) + ")"
    if kind is of.SUBPATTERN:
        return f"(?{_flags(value)}:{_all(list(value[3]))})"
    if kind in {of.MAX_REPEAT, of.MIN_REPEAT}:
        return f"(?:{_all(list(value[2]))}){_times(value[0], value[1])}"
    return _place(kind, value)


def _place(kind: Any, value: Any) -> str:
    """Return the pattern of one character or of a place between two."""
    if kind is of.IN:
        return f"[{''.join(_member(*member) for member in value)}]"
    if kind is of.NOT_LITERAL:
        return f"[^{_char(value)}]"
    if kind is of.ANY:
        return "."
    return _PLACES[value] if kind is of.AT else _literal(kind, value)


def _literal(kind: Any, value: Any) -> str:
    if kind is not of.LITERAL:
        raise KeyError(kind)
    return _char(value)


def _member(kind: Any, value: Any) -> str:
    if kind is of.NEGATE:
        return "^"
    if kind is of.RANGE:
        return f"{_char(value[0])}-{_char(value[1])}"
    return _CATEGORIES[value] if kind is of.CATEGORY else _literal(kind, value)


def _char(point: int) -> str:
    return f"\\x{{{point:x}}}"


def _times(least: int, most: int) -> str:
    if most is of.MAXREPEAT or most > _MOST_COUNTED:
        return "+" if least else "*"
    return f"{{{least},{most}}}"


def _flags(group: Any) -> str:
    _, added, removed, _ = group
    on = "".join(letter for flag, letter in _FLAGS.items() if added & flag)
    off = "".join(letter for flag, letter in _FLAGS.items() if removed & flag)
    return f"{on}-{off}" if off else on
