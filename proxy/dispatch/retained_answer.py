"""What is retained of an answer to be judged after its reply: its payloads, pieces of text put together."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from providers.wire import Event

_TEXT: Final = b'{"choices":[{"index":0,"delta":{"content":%b}}]}'


class RetainedAnswer:
    """The payloads of one answer, within a bound. A stream says a token in some 250 bytes; of those that say nothing else only
    the text is held.
    """

    __slots__ = ("_left", "_payloads", "_text")

    def __init__(self, most_bytes: int, before: Sequence[bytes] = ()) -> None:
        """`before` are the payloads of the answer's first part, where this is the rest of it."""
        self._payloads = [*before]
        self._text = bytearray()
        """The pieces of text since the last payload, in UTF-8."""
        self._left = most_bytes - sum(map(len, before))

    @property
    def is_whole(self) -> bool:
        """False once there was more than the bound: nothing is retained then, nor ever again."""
        return self._left >= 0

    def add(self, events: Iterable[Event]) -> None:
        """Retains these, too."""
        if self._left < 0:
            return
        for event in events:
            if event.words:
                piece = event.words.encode()
                self._left -= len(piece)
                self._text += piece
            else:
                self._left -= len(event.payload)
                self._end_text()
                self._payloads.append(event.payload)
        if self._left < 0:
            self._payloads, self._text = [], bytearray()

    def payloads(self) -> list[bytes]:
        """The payloads so far, which say what those of the answer said; empty where they were too many."""
        self._end_text()
        return self._payloads

    def _end_text(self) -> None:
        if self._text:
            self._payloads.append(_TEXT % msgspec.json.encode(self._text.decode()))
            self._text.clear()
