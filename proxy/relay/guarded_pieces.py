"""Transcripts that pass in pieces, as events or as plain text, as their caller may have them."""

import codecs
from typing import Any, Final

import msgspec

from guard.answers import Answer, Blocked
from guard.gathered import Gathered
from providers.sse import SseParser
from providers.wire import EVENTS_TYPE
from settings.decoding import DECODE_ERRORS

_DELTA: Final = "transcript.text.delta"
_BLOCKED: Final = {"type": "transcript.text.done", "text": ""}


class GuardedPieces:
    """One transcript. What is blocked ends it: events by a last one that says nothing, a text by its end."""

    def __init__(self, answer: Answer, media_type: str) -> None:
        """`answer` takes its texts."""
        self._answer = answer
        self._parser = SseParser() if media_type.startswith(EVENTS_TYPE) else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._voice = answer.voice("text")
        self.blocked = False
        """True once a rule ended it: no more of it is to be read."""

    @property
    def gathered(self) -> Gathered | None:
        """What is to be asked about before anything goes out."""
        return self._answer.gathered

    def feed(self, data: bytes) -> bytes:
        """Return what may go out with the next bytes. Raises EventTooLarge."""
        if self._parser is None:
            return self._piece(self._decoder.decode(data))
        return b"".join([self._event(each) for each in self._parser.feed(data) if not self.blocked])

    def finish(self) -> bytes:
        """Return what is left at the end."""
        return b"" if self.blocked else self._piece(self._decoder.decode(b"", final=True)) + self._rest()

    def ended(self) -> bytes:
        """Return what ends a transcript of which no more may go out."""
        self.blocked = True
        return b"" if self._parser is None else _written(_BLOCKED)

    def _event(self, payload: bytes) -> bytes:
        try:
            said = msgspec.json.decode(payload)
        except DECODE_ERRORS:
            said = None
        if not isinstance(said, dict):
            return b"data: " + payload + b"\n\n" if payload == b"[DONE]" else b""
        if said.get("type") == _DELTA and isinstance(said.get("delta"), str):
            return self._piece(said["delta"])
        rest = self._rest()
        if self.blocked:
            return rest
        try:
            return rest + _written(self._answer.tree(said))
        except Blocked:
            return rest + self.ended()

    def _piece(self, text: str) -> bytes:
        try:
            return self._said(self._voice.feed(text))
        except Blocked as blocked:
            return self._said(blocked.before) + self.ended()

    def _rest(self) -> bytes:
        voice, self._voice = self._voice, self._answer.voice("text")
        try:
            return self._said(voice.finish())
        except Blocked as blocked:
            return self._said(blocked.before) + self.ended()

    def _said(self, text: str) -> bytes:
        if not text:
            return b""
        return text.encode(errors="replace") if self._parser is None else _written({"type": _DELTA, "delta": text})


def _written(said: Any) -> bytes:
    return b"data: " + msgspec.json.encode(said) + b"\n\n"
