"""BERT's uncased WordPiece in plain Python: the pieces that the sentence encoder was taught on.

It gives the ids that the `tokenizers` library gives, without that library, which brings a client of a
model hub into whatever installs it. The two may differ only at the few characters whose class has
changed since that library's tables were made; no such character is in the vocabulary.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

LONGEST_WORD: Final = 100
"""A longer word is unknown: so the vocabulary's makers had it."""
CHARS_PER_TOKEN: Final = 16
"""Of a text that is longer than this for every token, only the head and the tail are read."""

_CONTINUED: Final = "##"
_UNKNOWN, _FIRST, _LAST = "[UNK]", "[CLS]", "[SEP]"
_ASCII_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ASCII_WORD: Final = re.compile(r"[0-9a-z]+|[!-/:-@\[-`{-~]")
_KEPT_SPACE: Final = frozenset("\t\n\r ")
_REPLACEMENT: Final = "\ufffd"
_IDEOGRAPHS: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    # The block begins at 2B820; the gap is in every implementation and so in what the encoder saw.
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class VocabularyMalformed(Exception):
    """The vocabulary lacks a piece that every text needs, or has one twice."""


class WordPiece:
    """Text to token ids, at most `limit` of them: the first three quarters of a longer text, and its end."""

    def __init__(self, vocabulary: Sequence[str], limit: int) -> None:
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        if len(ids) != len(vocabulary) or not {_UNKNOWN, _FIRST, _LAST} <= ids.keys():
            raise VocabularyMalformed("a piece is missing or stands twice")
        self._unknown, self._first, self._last = ids[_UNKNOWN], ids[_FIRST], ids[_LAST]
        self._starts = {piece: number for piece, number in ids.items() if not piece.startswith(_CONTINUED)}
        self._rests = {
            piece.removeprefix(_CONTINUED): number for piece, number in ids.items() if piece.startswith(_CONTINUED)
        }
        self._alphabet = frozenset("".join(self._starts)).union(*self._rests)
        self._longest = max(map(len, (*self._starts, *self._rests)))
        self._room = limit - 2
        self._tail = self._room // 4
        self._read_chars = self._room * CHARS_PER_TOKEN

    def ids(self, text: str) -> list[int]:
        return [self._first, *self._cut(text), self._last]

    def _cut(self, text: str) -> list[int]:
        if len(text) > self._read_chars:
            quarter = self._read_chars // 4
            head = self._some(_words(text[: self._read_chars - quarter]), self._room - self._tail)
            return head + self._ending(_words(text[-quarter:]))
        words = _words(text)
        found = self._some(words, self._room + 1)
        if len(found) <= self._room:
            return found
        return found[: self._room - self._tail] + self._ending(words)

    def _some(self, words: Iterable[str], most: int) -> list[int]:
        """The first `most` ids, and no work for more."""
        found: list[int] = []
        for word in words:
            number = self._starts.get(word)
            if number is not None:
                found.append(number)
            else:
                found += self._pieces(word)
            if len(found) >= most:
                break
        return found[:most]

    def _ending(self, words: Sequence[str]) -> list[int]:
        found: list[list[int]] = []
        count = 0
        for word in reversed(words):
            found.append(self._pieces(word))
            count += len(found[-1])
            if count >= self._tail:
                break
        return [number for pieces in reversed(found) for number in pieces][-self._tail :]

    def _pieces(self, word: str) -> list[int]:
        """The longest piece that begins the word, then the longest that goes on, or unknown."""
        size = len(word)
        if size > LONGEST_WORD or not self._alphabet.issuperset(word):
            return [self._unknown]
        pieces, at, table = [], 0, self._starts
        while at < size:
            for end in range(min(size, at + self._longest), at, -1):
                number = table.get(word[at:end])
                if number is not None:
                    break
            else:
                return [self._unknown]
            pieces.append(number)
            at, table = end, self._rests
        return pieces


def _words(text: str) -> list[str]:
    """Lower case, without accents and control characters; signs and ideographs are words of their own."""
    if text.isascii():
        lowered = text.lower()
        if _ASCII_CONTROL.search(lowered):
            lowered = _ASCII_CONTROL.sub("", lowered)
        return _ASCII_WORD.findall(lowered)
    # Each of a text's different characters is looked at once, and nothing is kept between texts.
    cleaned = text.translate({ord(char): _cleaned(char) for char in set(text)})
    apart = unicodedata.normalize("NFD", cleaned)
    bare = apart.translate({ord(char): _bare(char) for char in set(apart)})
    # Greek's last sigma is one letter with the other, whatever follows it.
    return bare.replace("\u03a3", "\u03c3").lower().split()


def _cleaned(char: str) -> str | None:
    if char in _KEPT_SPACE:
        return " "
    category = unicodedata.category(char)
    if char == _REPLACEMENT or (category[0] == "C" and category != "Cn"):
        return None
    if char.isspace():
        return " "
    code = ord(char)
    return f" {char} " if any(first <= code <= last for first, last in _IDEOGRAPHS) else char


def _bare(char: str) -> str | None:
    if char.isascii():
        return char if char.isalnum() or char == " " else f" {char} "
    category = unicodedata.category(char)
    if category == "Mn":
        return None
    return f" {char} " if category[0] == "P" else char
