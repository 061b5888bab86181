"""What an answer says, gathered for those who are asked about it before it goes out. Pure: proxy/relay/held_answer.py asks."""

import contextlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

MOST_CHARS: Final = 400_000
"""What is gathered at most before it is asked about; of a longer answer the rest is asked about behind it."""
_BEFORE_CHARS: Final = 500
"""What is shown once more of the text before a window, as a sentence goes over its edge."""
_MOST_TEXTS: Final = 4_096
"""Texts that are remembered as asked about: some wires say each several times."""


class Heard:
    """What one text says."""

    __slots__ = ("_gathered", "before", "ended", "pieces")

    def __init__(self, gathered: "Gathered") -> None:
        """Begin an empty text."""
        self._gathered = gathered
        self.before = ""
        self.pieces: list[str] = []
        self.ended = False
        """True once it says no more."""

    def add(self, text: str) -> None:
        """Take what it says next."""
        if text and not self._gathered.is_paused:
            self.pieces.append(text)
            self._gathered.unasked_chars += len(text)


class Gathered:
    """What one answer says in all its texts."""

    def __init__(self, window_chars: int | None) -> None:
        """`window_chars` are asked about at once; None for the whole answer."""
        self._due_chars = min(window_chars or MOST_CHARS, MOST_CHARS)
        self._texts: list[Heard] = []
        self._asked: set[bytes] = set()
        self.unasked_chars = 0
        """What was said since somebody was asked."""
        self.is_paused = False

    @property
    def is_due(self) -> bool:
        """True once so much is gathered that it has to be asked about."""
        return self.unasked_chars >= self._due_chars

    def heard(self) -> Heard:
        """Return what takes another text."""
        found = Heard(self)
        self._texts.append(found)
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Take nothing meanwhile: what is said is no model's."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def taken(self) -> list[str]:
        """Return what nobody was asked about yet, each text once, with a little of what came before it."""
        found: list[str] = []
        for each in self._texts:
            if each.pieces:
                said = each.before + "".join(each.pieces)
                each.before, each.pieces = said[-_BEFORE_CHARS:], []
                if said.strip() and self._is_new(said):
                    found.append(said)
        self._texts = [each for each in self._texts if not each.ended]
        self.unasked_chars = 0
        return found

    def _is_new(self, said: str) -> bool:
        name = blake2b(said.encode(errors="surrogatepass"), digest_size=16).digest()
        if name in self._asked:
            return False
        if len(self._asked) < _MOST_TEXTS:
            self._asked.add(name)
        return True
