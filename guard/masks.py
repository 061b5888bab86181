"""What is put in a value's place, and how what a model says of it becomes the value again.

A mask is a label and a part of the value's HMAC under a secret of the gateway: the same value of the same team has the same
mask in each turn, so a provider's cache holds, and nobody can compute it from a guessed value. Only the request itself knows
which value a mask stands for.
"""

import base64
import hmac
import json
import re
from collections.abc import Mapping
from typing import Final

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

    def unmasked(self, text: str, *, in_json: bool = False) -> str:
        """Return the text with the values back in place of this request's masks; `in_json` as parts of JSON strings."""
        if not self._values or "[" not in text:
            return text
        return _WRITTEN.sub(lambda match: self._value(match, in_json=in_json), text)

    def _value(self, match: re.Match[str], *, in_json: bool) -> str:
        value = self._values.get(f"[{match[1].upper()}_{match[2].lower()}]")
        if value is None:
            return match[0]
        return json.dumps(value, ensure_ascii=False)[1:-1] if in_json else value

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


class Unmasking:
    """The way back in a text that comes in pieces: a mask that is begun is held until it is whole, 40 characters at most."""

    __slots__ = ("_held", "_in_json", "_masks")

    def __init__(self, masks: Masks, *, in_json: bool = False) -> None:
        """Begin an empty text."""
        self._masks = masks
        self._in_json = in_json
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return what may go out."""
        if not self._masks:
            return text
        text = self._held + text
        begun = _BEGUN.search(text, max(0, len(text) - 48))
        end = len(text) if begun is None else begun.start()
        self._held = text[end:]
        return self._masks.unmasked(text[:end], in_json=self._in_json)

    def finish(self) -> str:
        """Return the rest: nothing more comes."""
        text, self._held = self._held, ""
        return text
