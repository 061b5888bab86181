"""What is put in a value's place, and how what a model says of it becomes the value again.

A mask is a label and a part of the value's HMAC under a secret of the gateway: the same value of the same team has the same
mask in each turn, so a provider's cache holds, and nobody can compute it from a guessed value. Only the request itself knows
which value a mask stands for.
"""

import base64
import hmac
import re
from collections.abc import Mapping
from typing import Final, Protocol

from guard.folding import Folded

_FIRST_CHARS: Final = 6
_MOST_CHARS: Final = 16
_WRITTEN: Final = re.compile(r"\\?\[([A-Za-z][A-Za-z0-9]{1,15})\\?_([A-Za-z2-7]{6,16})\\?\]")
"""A mask as models write it: some change its case, or escape it as Markdown does."""
_BEGUN: Final = re.compile(r"\\?(?:\[(?:[A-Za-z][A-Za-z0-9]{0,15}(?:\\?(?:_[A-Za-z2-7]{0,16}\\?)?)?)?)?\Z")


class Masks:
    """The masks of one request: what it masked, and nothing of others."""

    __slots__ = ("_key", "_labels", "_masks", "_team_id", "_values")

    def __init__(self, key: bytes, team_id: str, labels: Mapping[str, str]) -> None:
        """Begin with none. `labels` are the kinds' (`Scanner.labels`)."""
        self._key = key
        self._team_id = team_id
        self._labels = labels
        self._masks: dict[tuple[str, str], str] = {}
        self._values: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._values)

    def mask(self, kind: str, value: str) -> str:
        """Return what stands for the value. Values that a reader would read alike have one mask."""
        mask = self._masks.get((kind, value))
        if mask is None:
            mask = self._masks[kind, value] = self._new_mask(kind, value)
        return mask

    def unmasked(self, text: str) -> str:
        """Return the text with the values back in place of this request's masks."""
        return _WRITTEN.sub(self._value, text) if self._values and "[" in text else text

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return where masks of this request stand in a text."""
        if not self._values or "[" not in text:
            return []
        return [match.span() for match in _WRITTEN.finditer(text) if self._value(match) != match[0]]

    def _value(self, match: re.Match[str]) -> str:
        return self._values.get(f"[{match[1].upper()}_{match[2].lower()}]", match[0])

    def _new_mask(self, kind: str, value: str) -> str:
        folded = value if value.isascii() and value.isprintable() else Folded(value).text
        said = f"{self._team_id}\0{kind}\0{folded}".encode(errors="surrogatepass")
        digest = base64.b32encode(hmac.digest(self._key, said, "sha256")).decode().lower()
        for chars in range(_FIRST_CHARS, _MOST_CHARS + 1):
            mask = f"[{self._labels[kind]}_{digest[:chars]}]"
            known = self._values.get(mask)
            if known is None or known == value or Folded(known).text == folded:
                break
        self._values.setdefault(mask, value)
        return mask


class Unmasks(Protocol):
    """The masks of one request (`Masks`)."""

    def unmasked(self, text: str) -> str: ...


class Unmasking:
    """The way back in a text that comes in pieces: a mask that is begun is held until it is whole, 40 characters at most."""

    __slots__ = ("_held", "_masks")

    def __init__(self, masks: Unmasks) -> None:
        """Begin an empty text."""
        self._masks = masks
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return what may go out."""
        text = self._held + text
        begun = _BEGUN.search(text, max(0, len(text) - 48))
        end = len(text) if begun is None else begun.start()
        self._held = text[end:]
        return self._masks.unmasked(text[:end])

    def finish(self) -> str:
        """Return the rest: nothing more comes."""
        text, self._held = self._held, ""
        return text
