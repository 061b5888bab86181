"""What a reader would not see or would read alike is folded, so that a value is found however it is written.

Invisible characters (zero-width, marks of direction, control characters) go, blanks of all kinds become a blank, dashes a dash,
digits of all scripts and letters of all widths and styles ASCII. A list says where each character that is left stood.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from functools import cache
from typing import Final

_KEPT_CONTROLS: Final = frozenset("\t\n\r")
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u2800\u3164\uffa0")
_DASHES: Final = frozenset("\u2212\u2043\u02d7\u30fc\uff70")
_VARIATION_SELECTORS: Final = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
_NOTHING_THERE: Final = frozenset({"Cn", "Co", "Cs"})
_BLANKS: Final = {"Zs": " ", "Zl": "\n", "Zp": "\n"}
_ASCII_END: Final = "\x80"
_UNUSUAL: Final = re.compile(r"[^\t\n\r -~]")
"""Quick where few characters are: the class of those that are folded has many ranges."""
_MOSTLY_ASCII: Final = 4
_PLANE: Final = 0x10000
_RANGES: Final = (
    range(0x3400),
    range(0xA000, 0xAC00),
    range(0xF900, 0x20000),
    range(0xE0000, 0xE01F0),
)
"""Where such characters stand. Between are ideographs and syllables."""


@cache
def folds() -> dict[int, str]:
    """Return what each character that is folded becomes, by its code point."""
    table: dict[int, str] = {}
    for points in _RANGES:
        for point in points:
            char = chr(point)
            folded = _folded(char)
            if folded != char:
                table[point] = folded
    return table


def _folded(char: str) -> str:
    category = unicodedata.category(char)
    if category in _NOTHING_THERE:
        return char
    if _is_invisible(char, category):
        return ""
    if char < _ASCII_END:
        return char
    if category == "Nd":
        return str(unicodedata.digit(char))
    if category == "Pd" or char in _DASHES:
        return "-"
    instead = _BLANKS.get(category) or unicodedata.normalize("NFKC", char)
    return instead if instead.isascii() else char


def _is_invisible(char: str, category: str) -> bool:
    if category in {"Cc", "Cf"}:
        return char not in _KEPT_CONTROLS
    return char in _INVISIBLE or (category == "Mn" and any(ord(char) in chars for chars in _VARIATION_SELECTORS))


@cache
def odd_class() -> str:
    """Return the RE2 class of all characters that are folded."""
    return "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in _ranges()) + "]"


def _ranges() -> list[tuple[int, int]]:
    points = sorted(folds())
    ranges: list[tuple[int, int]] = []
    first = last = points[0]
    for point in [*points[1:], -1]:
        if point != last + 1:
            ranges.append((first, last))
            first = point
        last = point
    return ranges


class Folded:
    """A folded text that knows where its characters stood."""

    __slots__ = ("_began", "_length", "_places", "_verbatim", "text")

    def __init__(self, text: str) -> None:
        """Fold `text`."""
        table = folds()
        pieces: list[str] = []
        # Of each piece: where it begins in the folded text and in the given one, and whether that one has it verbatim.
        self._began, self._places, self._verbatim = [0], [0], [True]
        self._length = len(text)
        length = last = 0
        for match in _odd_in(text).finditer(text):
            start, end = match.span()
            for piece, place, verbatim in (
                (text[last:start], last, True),
                (table.get(ord(match[0]), match[0]), start, False),
            ):
                if piece:
                    pieces.append(piece)
                    self._began.append(length)
                    self._places.append(place)
                    self._verbatim.append(verbatim)
                    length += len(piece)
            last = end
        pieces.append(text[last:])
        self._began.append(length)
        self._places.append(last)
        self._verbatim.append(True)
        self.text = "".join(pieces)

    def place(self, index: int) -> int:
        """Return where the character stood that is at `index` of the folded text."""
        if index >= len(self.text):
            return self._length
        piece = bisect_right(self._began, index) - 1
        return self._places[piece] + (index - self._began[piece] if self._verbatim[piece] else 0)

    def index(self, place: int) -> int:
        """Return the first character of the folded text that stood at `place` or behind it."""
        piece = bisect_left(self._places, place)
        after = self._began[piece] if piece < len(self._began) else len(self.text)
        if piece and self._verbatim[piece - 1]:
            return min(self._began[piece - 1] + place - self._places[piece - 1], after)
        return after


def _odd_in(text: str) -> re.Pattern[str]:
    """Return what finds the characters that are folded; it may find others, too."""
    return _UNUSUAL if len(text.encode(errors="surrogatepass")) - len(text) < len(text) >> _MOSTLY_ASCII else _odd()


@cache
def _odd() -> re.Pattern[str]:
    # All behind the first plane in one range: many make the search slow. The table has the last word.
    pairs = [(first, last) for first, last in _ranges() if last < _PLANE]
    return re.compile(
        "[" + "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in pairs) + "\U00010000-\U0010ffff]"
    )
