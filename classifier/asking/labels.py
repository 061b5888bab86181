"""Labels and tags of a template, such as "Question:" or <context>, and the rank of each."""

import re
from typing import Final

from classifier.asking import vocabulary as words

ANSWER_LABEL, RULES_LABEL, MATERIAL_LABEL, HARNESS_LABEL = -2, -1, 0, -3

LABELS: Final = {
    **{name.encode(): MATERIAL_LABEL for name in words.MATERIAL.split("|")},
    **{name.encode(): RULES_LABEL for name in words.RULES.split("|")},
    **{name.encode(): ANSWER_LABEL for name in words.ANSWERS.split("|")},
    **{name.encode(): rank for rank, names in words.LABELS.items() for name in names.split("|")},
}
"""Ranks of labels: 1 and more for one behind which the ask stands, the strongest 3; 0 for material, and below
for rules, answers and a program's own words.
"""

TAGS: Final = {
    **{name: rank for name, rank in LABELS.items() if rank > 1},
    **{name.replace("_", " ").lower().encode(): MATERIAL_LABEL for name in words.MATERIAL_TAGS.split("|")},
    **{name.replace("_", " ").lower().encode(): HARNESS_LABEL for name in words.HARNESS_TAGS.split("|")},
    b"message": 1,
}

LAST_WORDS: Final = {name.encode(): LABELS[name.encode()] for name in words.LAST_WORDS.split("|")}
"""Ranks of labels by their last word, for those that are not known as a whole."""

LONGEST_LABEL: Final = 40

_DECORATED: Final = 10

EMPTY_CHARS: Final = b" \t\n\r\v\f*_#=-`\"'>[]"

_IN_LABEL: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_' -") | frozenset(
    range(0x80, 0x100)
)


def label_at(text: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """Return the rank of a label that this line begins with, and the place where its value begins; None without a label."""
    at = begin
    marked = False
    while at < end and at - begin < _DECORATED and text[at] in b' \t>*#_[("{,':
        marked = marked or text[at] in b"*#["
        at += 1
    name_at = at
    while at < end and at - name_at < LONGEST_LABEL and text[at] in _IN_LABEL:
        at += 1
    rank = _rank_of(_normalized_name(text[name_at:at]))
    if rank is None:
        return None
    if at < end and text[at] == ord("("):
        close = text.find(b")", at, min(end, at + 64))
        at = close + 1 if close > 0 else at
    while at < end and text[at] in b' \t*_#])"':
        at += 1
    if at < end and text[at] == ord(":"):
        return rank, at + 1
    return (rank, at) if marked and at == end else None


def _rank_of(name: bytes) -> int | None:
    """Return the rank of a label, by its last word where it is not known as a whole: "agent request" is a request."""
    rank = LABELS.get(name)
    if rank is None and b" " in name:
        rank = LAST_WORDS.get(name.rpartition(b" ")[2])
    return rank


WEAKEST_LABEL: Final = 1

TASK_LABEL: Final = 2


def _normalized_name(name: bytes) -> bytes:
    return name.strip(b" _*-").replace(b"_", b" ").lower()


_CAMEL: Final = re.compile(rb"(?<=[a-z])(?=[A-Z])")


def tag_at(text: bytes, begin: int, end: int) -> tuple[int, int, int, int] | None:
    """Return, for a line that begins with a known tag, the tag's rank, start and end of its value, and the start of the
    rest.
    """
    at = begin + 1
    closing = at < end and text[at] == ord("/")
    at += closing
    name_at = at
    while at < end and at - name_at < LONGEST_LABEL and text[at] in _IN_LABEL and text[at] != ord(" "):
        at += 1
    raw = text[name_at:at]
    rank = _tag_rank(_normalized_name(_CAMEL.sub(b" ", raw.replace(b"-", b" "))))
    if not raw or at >= end or text[at] not in b"> \t":
        return None
    mark = text.find(b">", at, end)
    if mark < 0:
        return None
    if closing:
        return 0, mark + 1, 0, mark + 1
    close = text.find(b"</" + raw + b">", mark)
    if close < 0:
        return None
    return rank, mark + 1, close, close + len(raw) + 3


def _tag_rank(name: bytes) -> int:
    rank = TAGS.get(name)
    if rank is None and b" " in name:
        rank = LAST_WORDS.get(name.rpartition(b" ")[2])
    # What stands between tags that nobody knows is material.
    return MATERIAL_LABEL if rank is None or rank == ANSWER_LABEL else rank
