"""The kinds of things that are looked for: those of the tables in `data/`, and those that customers write themselves."""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import re2

from guard.bounds import MOST_PATTERN_CHARS, MOST_WORD_CHARS, MOST_WORDS
from guard.checksums import CHECKSUMS

_DATA: Final = Path(__file__).parent / "data"
_MOST_PATTERN_BYTES: Final = 1 << 20
_MOST_LIST_BYTES: Final = 32 << 20
_PROBES: Final = (b"", b"a", b"1 ", b" .\n")
WITHIN_BYTES: Final = 48
MOST_WITHIN_BYTES: Final = 64

Group = Literal["personal", "secrets", "own"]


class BadPattern(ValueError):
    """A customer's pattern cannot be used; the message says why, in words for whoever wrote it."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a value of a kind is written, as the head of the table explains its fields."""

    pattern: str
    check: Callable[[str], bool] | None = None
    shorter: bool = False
    entropy: float = 0.0
    words: tuple[str, ...] = ()
    within: int = WITHIN_BYTES
    unless: str = ""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for under one name, and the label of what is put in its place."""

    name: str
    title: str
    label: str
    group: Group
    shapes: tuple[Shape, ...]


class Example(msgspec.Struct, frozen=True):
    """A text of the table, the kind that its row is of, and the values of that kind that are in it."""

    kind: str
    text: str
    values: tuple[str, ...]


def own_kind(name: str, pattern: str) -> Kind:
    """Return a kind that a customer's pattern describes. Raises BadPattern."""
    checked_pattern(pattern)
    return _own(name, Shape(pattern=pattern))


def block_list(name: str, words: Iterable[str]) -> Kind:
    """Return the kind of words and phrases of a list, found in any case and as whole words. Raises BadPattern."""
    listed = [" ".join(word.split()) for word in words]
    listed = list(dict.fromkeys(word for word in listed if word))
    if not listed:
        raise BadPattern("a list needs at least one word")
    if len(listed) > MOST_WORDS:
        raise BadPattern(f"a list has at most {MOST_WORDS:,} words, this one has {len(listed):,}")
    for word in listed:
        if len(word) > MOST_WORD_CHARS:
            raise BadPattern(f"a word of a list has at most {MOST_WORD_CHARS} characters")
    # The longest first: of two that begin alike RE2 takes the one that stands first.
    alternatives = "|".join(_as_word(word) for word in sorted(listed, key=len, reverse=True))
    pattern = f"(?i:{alternatives})"
    compiled(pattern, _MOST_LIST_BYTES)
    return _own(name, Shape(pattern=pattern))


def checked_pattern(pattern: str) -> None:
    """Raise BadPattern where RE2 cannot run the pattern, or it is too long, too large or matches the empty text."""
    if not pattern:
        raise BadPattern("the pattern is empty")
    if len(pattern) > MOST_PATTERN_CHARS:
        raise BadPattern(f"a pattern has at most {MOST_PATTERN_CHARS:,} characters, this one has {len(pattern):,}")
    regex = compiled(pattern, _MOST_PATTERN_BYTES)
    if any(match.start() == match.end() for text in _PROBES if (match := regex.search(text)) is not None):
        raise BadPattern("the pattern matches the empty text, so it would match everywhere")


def compiled(pattern: str, most_bytes: int = _MOST_LIST_BYTES) -> Any:
    """Return the pattern as RE2 runs it over UTF-8. Raises BadPattern."""
    options = re2.Options()
    options.max_mem = most_bytes
    options.log_errors = False
    try:
        return re2.compile(pattern.encode(), options)
    except UnicodeEncodeError:
        raise BadPattern("the pattern is no valid text") from None
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise BadPattern(_why(said, pattern)) from None


def _why(said: str, pattern: str) -> str:
    if any(look in pattern for look in ("(?=", "(?!", "(?<=", "(?<!")):
        return "look-ahead and look-behind are not supported: the time that they need has no bound"
    if any(f"\\{digit}" in pattern for digit in range(1, 10)):
        return "back-references are not supported: the time that they need has no bound"
    if "too large" in said or "repetition" in said:
        return f"the pattern is too large once compiled ({said})"
    return f"the pattern is not RE2 syntax: {said}"


def entropy(value: str) -> float:
    """Return Shannon's entropy in bits a character."""
    return -sum(count / len(value) * math.log2(count / len(value)) for count in Counter(value).values())


def _own(name: str, shape: Shape) -> Kind:
    return Kind(name=name, title=name, label=label_of(name), group="own", shapes=(shape,))


def label_of(name: str) -> str:
    """Return what stands in the masks of a rule of this name."""
    label = "".join(char for char in name.upper() if char.isascii() and char.isalnum())[:16].lstrip("0123456789")
    return label or "OWN"


def _as_word(word: str) -> str:
    escaped = r"\s+".join(re2.escape(part) for part in word.split(" "))
    return f"{_edge(word[0])}{escaped}{_edge(word[-1])}"


def _edge(char: str) -> str:
    # RE2's edge of a word knows ASCII only.
    return r"\b" if char.isascii() and (char.isalnum() or char == "_") else ""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str
    label: str
    pattern: str
    examples: tuple[str, ...]
    counter: tuple[str, ...]
    check: str = ""
    shorter: bool = False
    entropy: float = 0.0
    words: tuple[str, ...] = ()
    within: int = WITHIN_BYTES
    unless: str = ""
    source: str = ""

    def as_shape(self) -> Shape:
        return Shape(
            pattern=self.pattern,
            check=CHECKSUMS[self.check] if self.check else None,
            shorter=self.shorter,
            entropy=self.entropy,
            words=self.words,
            within=self.within,
            unless=self.unless,
        )


@cache
def _rows(group: Group) -> tuple[_Row, ...]:
    with (_DATA / f"{group}.toml").open("rb") as file:
        return msgspec.convert(tomllib.load(file)["kind"], tuple[_Row, ...])


def _kinds() -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    groups: tuple[Group, ...] = ("personal", "secrets")
    for group in groups:
        for row in _rows(group):
            before = kinds[row.name].shapes if row.name in kinds else ()
            kinds[row.name] = Kind(
                name=row.name, title=row.title, label=row.label, group=group, shapes=(*before, row.as_shape())
            )
    return kinds


KINDS: Final = _kinds()
"""The kinds that are known, by name, in the order of the tables."""


def examples() -> tuple[Example, ...]:
    """Return the tables' examples, and as those without a value what must not be found."""
    found: list[Example] = []
    groups: tuple[Group, ...] = ("personal", "secrets")
    for group in groups:
        for row in _rows(group):
            found.extend(_example(row.name, text.replace("·", "")) for text in row.examples)
            found.extend(Example(row.name, text, ()) for text in row.counter)
    return tuple(found)


def _example(kind: str, text: str) -> Example:
    if "«" not in text:
        return Example(kind, text, (text,))
    pieces = [piece.split("»")[0] for piece in text.split("«")[1:]]
    return Example(kind, text.replace("«", "").replace("»", ""), tuple(pieces))
