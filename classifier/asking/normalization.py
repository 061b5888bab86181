"""Reads signs beyond ASCII as the ASCII ones that they stand for, and lookalike letters as Latin ones."""

import re
from typing import Final

from classifier.asking import vocabulary as words

_LOOKALIKES: Final = {mark.encode(): latin.encode() for mark, latin in words.LOOKALIKES.items()}

ALPHABETS: Final = range(0x370, 0x530)
"""Greek and Cyrillic, whose letters have two bytes each."""

_OTHER_LETTER: Final = re.compile(rb"[\xcd-\xd4][\x80-\xbf]")

_LATIN: Final = re.compile(rb"[a-zA-Z]")

_LETTERS: Final = re.compile(rb"[a-zA-Z\x80-\xff]+")


def _without_lookalikes(data: bytes) -> bytes:
    """Return the text with Latin letters for such of Greek and Cyrillic as only look Latin.

    They are folded in a word that has Latin letters and none that only the other alphabet has, and in every word where the whole text has
    none of these: Russian and Greek stay as they are.
    """
    letters = _others_in(data)
    if not letters & _LOOKALIKES.keys() or not _LATIN.search(data):
        return data
    deceiving = letters <= _LOOKALIKES.keys()
    return _LETTERS.sub(lambda word: _latin(word[0], deceiving=deceiving), data)


def _others_in(data: bytes) -> set[bytes]:
    return {each for each in _OTHER_LETTER.findall(data) if ord(each.decode()) in ALPHABETS}


def _latin(word: bytes, *, deceiving: bool) -> bytes:
    letters = _others_in(word)
    if not letters or not (deceiving or (_LATIN.search(word) and letters <= _LOOKALIKES.keys())):
        return word
    return _OTHER_LETTER.sub(lambda letter: _LOOKALIKES.get(letter[0], letter[0]), word)


PLAIN_MARKS: Final = {
    **dict(zip("\uff0c\u3002\uff1b\uff1a\uff1f\uff01\u3001\uff08\uff09", ",.;:?!,()", strict=True)),
    **dict.fromkeys("\u00ab\u00bb\u2018\u201a\u201c\u201d\u201e\u2039\u203a", '"'),
    **dict.fromkeys("\u00bf\u00a1\u00a0\u2013\u2014\u2026\u202f", " "),
    "\u2019": "'",
    # Full-width letters and digits, and what nobody sees.
    **{chr(code + 0xFEE0): chr(code) for code in range(0x30, 0x7B) if chr(code).isalnum()},
    **dict.fromkeys(words.INVISIBLE, ""),
}
"""Signs beyond ASCII and what they are read as; they would be read as parts of the words beside them."""

_MARKS_BY_LEAD: Final = tuple(
    (
        bytes([lead]),
        tuple((mark.encode(), sign.encode()) for mark, sign in PLAIN_MARKS.items() if mark.encode()[0] == lead),
    )
    for lead in sorted({mark.encode()[0] for mark in PLAIN_MARKS})
)
"""The same by their first byte. One byte is found much faster than two."""

MARKS: Final = [
    bytes([len(mark)]) + mark.ljust(3) + sign.ljust(1, b"\0") for _, marks in _MARKS_BY_LEAD for mark, sign in marks
]
"""The same for the compiled library, those of one first byte after the other."""


def with_plain_marks(data: bytes) -> bytes:
    """Return the text with ASCII signs in place of others, so that none is read as a part of a word, without invisible
    characters, and with Latin letters for their lookalikes.
    """
    if data.isascii():
        return data
    for lead, marks in _MARKS_BY_LEAD:
        if lead in data:
            for mark, sign in marks:
                data = data.replace(mark, sign)
    return _without_lookalikes(data)
