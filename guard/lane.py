"""One text that comes in pieces: what may go on is held back, so that pieces give what the whole text would have given."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

_PAST_CHARS: Final = 256
"""What is kept of the text that is out: words beside a value are looked for in it."""
_MOST_HELD_CHARS: Final = 65_536
"""A token or a private key is shorter. What goes on for longer is taken as it stands."""
_LOOKED_AT_ONCE_CHARS: Final = 1_024
"""A longer held text is looked at again only when a quarter more has come, so the work stays linear."""

Act = Callable[[str, str], str | None]
"""What is done with a value of a kind: returns what stands in its place, or None to leave it. It may raise to end all."""


class _Found(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Scanning(Protocol):
    """Finds what is in a text that may go on (`guard.scan.Scanner.partial`)."""

    def partial(self, text: str, begin: int, *, final: bool) -> tuple[Sequence[_Found], int]: ...


class Lane:
    """The hold-back of one text. Ordinary prose waits for the end of a word, and never for more than its pattern is long."""

    __slots__ = ("_act", "_held", "_look_at", "_past", "_scanner", "before")

    def __init__(self, scanner: Scanning, act: Act) -> None:
        """Begin an empty text."""
        self._scanner = scanner
        self._act = act
        self._past = ""
        self._held = ""
        self._look_at = 0
        self.before = ""
        """Where `act` raised: what may still go out, the text before that value."""

    @property
    def held_chars(self) -> int:
        """Return how much is held back."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Take the next piece and return what may go out."""
        self._held += text
        if len(self._held) < self._look_at:
            return ""
        return self._released(final=len(self._held) > _MOST_HELD_CHARS)

    def finish(self) -> str:
        """Return the rest: nothing more comes."""
        return self._released(final=True)

    def ended(self, text: str) -> str:
        """Take the last piece and return all that is left."""
        self._held += text
        return self._released(final=True)

    def _released(self, *, final: bool) -> str:
        begin = len(self._past)
        text = self._past + self._held
        found, settled = self._scanner.partial(text, begin, final=final)
        pieces: list[str] = []
        for value in found:
            try:
                instead = self._act(value.kind, text[value.start : value.end])
            except Exception:
                self.before = "".join([*pieces, text[begin : value.start]])
                raise
            if instead is not None:
                pieces += (text[begin : value.start], instead)
                begin = value.end
        pieces.append(text[begin:settled])
        self._past = text[max(0, settled - _PAST_CHARS) : settled]
        self._held = text[settled:]
        held = len(self._held)
        self._look_at = min(held + held // 4, _MOST_HELD_CHARS + 1) if held > _LOOKED_AT_ONCE_CHARS else 0
        return "".join(pieces)


def acted(scanner: Scanning, text: str, act: Act) -> str:
    """Return a whole text with what `act` says in place of its values."""
    return Lane(scanner, act).ended(text)
