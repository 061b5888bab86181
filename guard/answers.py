"""What is done with the texts of one answer, whole or in pieces: what a rule forbids goes out as a mask or ends the answer, and masks
of the request become the caller's own values again. Pure.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from guard.gathered import Gathered, Heard
from guard.lane import Lane
from guard.masks import Unmasking
from guard.ruleset import Action, Finding, Masking, Ruleset

Means = Literal["text", "arguments", "thought"]
"""What a text is: `arguments`, JSON within it; `thought`, which may be signed, so nothing becomes again what it was."""
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^u])", re.DOTALL
)
_BEGUN_ESCAPE: Final = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?)?"
)
_PLAIN: Final = re.compile(r'[^"\\]+')
_FIXED: Final = frozenset({
    "id", "type", "role", "object", "model", "status", "finish_reason", "stop_reason", "stop_sequence", "call_id",
    "tool_call_id", "tool_use_id", "item_id", "index", "signature", "thought_signature", "encrypted_content",
    "system_fingerprint", "service_tier", "media_type", "file_id", "encrypted_index", "phase",
})  # fmt: skip
"""Fields that both sides have to go on calling by the same name, or that only their provider can read."""
_BLOBS: Final = frozenset({"data", "b64_json", "result"})
_ARGUMENTS: Final = frozenset({"arguments", "partial_json"})
_THOUGHTS: Final = frozenset({"thinking"})
_NAME: Final = "name"
_PROBABILITIES: Final = frozenset({"logprobs", "top_logprobs"})
"""What says an answer's tokens once more, each by itself, where no value is seen; so do words and tokens of transcripts."""


_AGAIN: Final = (b'logprobs"', b'"words"', b'"tokens"')
_NOT_AGAIN: Final = b'logprobs":null'


class Blocked(Exception):
    """The answer says what a rule lets no answer say. `args` is the kind's name, never the value."""

    before = ""
    """What may still go out of the text that says it, from before the value."""


class Voice(Protocol):
    """One text of an answer."""

    def feed(self, text: str) -> str:
        """Take the next piece and return what may go out. Raises Blocked."""
        ...

    def finish(self) -> str:
        """Return the rest: nothing more comes, for now. Raises Blocked."""
        ...


class Answer:
    """The texts of one request's answer."""

    def __init__(
        self,
        rules: Ruleset,
        own: Masking | None,
        new: Masking,
        *,
        is_callers: Callable[[str], bool] = lambda _name: False,
        gathered: Gathered | None = None,
    ) -> None:
        """`own` are the masks of the request; `new` those of what the model says by itself. `is_callers` tells of a tool's name whether it is
        one of the request's. `gathered` takes what is said, where somebody is asked about it before it goes out.
        """
        self._rules = rules
        self._is_callers = is_callers
        self.gathered = gathered
        self._own = own
        self._new = new
        self._counts: dict[tuple[str, str, Action], int] = {}
        self.changed = 0
        """How many masks were put in."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what was found and done so far: names and counts."""
        return tuple(Finding(name, label, did, count, "output") for (name, label, did), count in self._counts.items())

    @property
    def looks(self) -> bool:
        """True where a rule looks at answers."""
        return bool(self._rules.output or self._rules.of_answers)

    def voice(self, means: Means) -> Voice:
        """Return a new text."""
        voice = _Arguments(self) if means == "arguments" else _Text(self, unmasks=means == "text")
        return voice if self.gathered is None else _Held(voice, self.gathered)

    def heard(self) -> Heard | None:
        """Return what takes what one text says; None where nobody is asked."""
        return None if self.gathered is None else self.gathered.heard()

    def lane(self) -> Lane | None:
        """Return what finds values in one text; None where no rule looks for any."""
        return Lane(self._rules, self.act) if self._rules.output else None

    def unmasking(self) -> Unmasking | None:
        """Return what puts the caller's values back into one text; None where nothing was masked."""
        return None if self._own is None else Unmasking(self._own)

    def act(self, kind: str, value: str) -> str | None:
        """Return what stands in a value's place; None where it stays. Raises Blocked."""
        does = self._rules.output[kind]
        did: Action = "flag" if does.action == "off" else does.action
        place = (does.name, does.label, did)
        self._counts[place] = self._counts.get(place, 0) + 1
        if did == "block":
            raise Blocked(does.name)
        if did != "mask":
            return None
        self.changed += 1
        return self._new.mask(kind, value)

    def passes(self, raw: bytes) -> bool:
        """Return True for a whole answer that goes out as it is. False says nothing."""
        if self._own is not None or self.gathered is not None:
            return False
        said = raw.replace(_NOT_AGAIN, b"")
        return not any(each in said for each in _AGAIN) and self._rules.passes(raw)

    def whole(self, text: str, means: Means = "text") -> str:
        """Return a whole text as it may go out. Raises Blocked."""
        is_plain = self.gathered is None and means != "arguments" and (self._own is None or means == "thought")
        if is_plain and self._rules.passes_text(text):
            return text
        voice = _Arguments(self) if means == "arguments" else _Text(self, unmasks=means == "text")
        return voice.feed(text) + voice.finish()

    def name(self, text: str) -> str:
        """Return the name of a tool as it may go out: one that the request has is its caller's own word. Raises Blocked."""
        return text if self._is_callers(text) else self.whole(text, "thought")

    def tree(self, value: Any, name: str = "") -> Any:
        """Return an answer's JSON with all its texts as they may go out. What has no known name is a text. Raises Blocked."""
        if isinstance(value, str):
            if name in _FIXED or (name in _BLOBS and len(value) > _LONG_CHARS):
                return value
            return self.name(value) if name == _NAME else self._named(value, name)
        if isinstance(value, list):
            return [self.tree(each, name) for each in value]
        return self._object(value) if isinstance(value, dict) else value

    def _named(self, text: str, name: str) -> str:
        means: Means = "arguments" if name in _ARGUMENTS else "thought" if name in _THOUGHTS else "text"
        return self.whole(text, means)

    def _object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        if value.get("object") == "response" and self.gathered is not None:
            return self._response(value, self.gathered)
        return self._fields(value.items())

    def _response(self, value: Mapping[str, Any], gathered: Gathered) -> dict[str, Any]:
        """Change a response, of which most repeats what its caller sent: about that nobody is asked."""
        with gathered.paused():
            rest = self._fields(((name, each) for name, each in value.items() if name != "output"))
        said = self._fields(((name, each) for name, each in value.items() if name == "output"))
        return {name: said[name] if name in said else rest[name] for name in value}

    def _fields(self, items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        changed = self.changed
        made: dict[str, Any] = {}
        for name, each in items:
            if self.looks and _says_again(name, each):
                made[name] = [] if isinstance(each, list) else None
            elif name in {"input", *_ARGUMENTS} and isinstance(each, dict | list):
                made[name] = self._meant(each)
            else:
                made[name] = self.tree(each, name)
        if changed != self.changed and made.get("signature"):
            # Nobody signed it as it is now. Without a signature it is not sent back.
            made["signature"] = ""
        return made

    def _meant(self, value: Any) -> Any:
        written = msgspec.json.encode(value).decode()
        said = self.whole(written, "arguments")
        return value if said == written else msgspec.json.decode(said)


def _says_again(name: str, value: Any) -> bool:
    if name in _PROBABILITIES:
        return True
    if name not in {"words", "tokens"} or not isinstance(value, list):
        return False
    return all(isinstance(each, int) or (isinstance(each, dict) and "word" in each) for each in value)


_LONG_CHARS: Final = 4_096
"""Longer ones of such fields are pictures or sound."""


class _Held:
    """A text of which nothing goes out until enough is gathered to ask about it."""

    __slots__ = ("_gathered", "_pieces", "_voice")

    def __init__(self, voice: Voice, gathered: Gathered) -> None:
        self._voice = voice
        self._gathered = gathered
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        self._take(lambda: self._voice.feed(text))
        return self._given() if self._gathered.is_due else ""

    def finish(self) -> str:
        self._take(self._voice.finish)
        return self._given()

    def _take(self, said: Callable[[], str]) -> None:
        try:
            self._pieces.append(said())
        except Blocked as blocked:
            blocked.before = self._given() + blocked.before
            raise

    def _given(self) -> str:
        pieces, self._pieces = self._pieces, []
        return "".join(pieces)


class _Text:
    __slots__ = ("_heard", "_lane", "_unmasking")

    def __init__(self, answer: Answer, *, unmasks: bool) -> None:
        self._heard = answer.heard()
        self._lane = answer.lane()
        self._unmasking = answer.unmasking() if unmasks else None

    def feed(self, text: str) -> str:
        return self._unmasked(text if self._lane is None else self._looked_at(self._lane, text, final=False))

    def finish(self) -> str:
        text = "" if self._lane is None else self._looked_at(self._lane, "", final=True)
        text = self._unmasked(text, final=True)
        if self._heard is not None:
            self._heard.ended = True
        return text

    def _looked_at(self, lane: Lane, text: str, *, final: bool) -> str:
        try:
            return lane.ended(text) if final else lane.feed(text)
        except Blocked as blocked:
            blocked.before = self._unmasked(lane.before, final=True)
            raise

    def _unmasked(self, text: str, *, final: bool = False) -> str:
        if self._heard is not None:
            # As it is with its masks: what they stand for is shown to nobody.
            self._heard.add(text)
        unmasking = self._unmasking
        if unmasking is None:
            return text
        return unmasking.feed(text) + unmasking.finish() if final else unmasking.feed(text)


class _Arguments:
    """JSON that comes in pieces. What stands in its strings is read as it is meant, and written as JSON again."""

    __slots__ = ("_answer", "_begun", "_heard", "_inside", "_lane", "_unmasking")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._heard = answer.heard()
        self._lane = None if answer.lane() is None else Lane(answer._rules, self._act)  # noqa: SLF001
        self._unmasking = answer.unmasking()
        self._inside = False
        self._begun = ""
        """The beginning of an escape."""

    def _act(self, kind: str, value: str) -> str | None:
        instead = self._answer.act(kind, value)
        # A number becomes a string.
        return instead if self._inside or instead is None else f'"{instead}"'

    def feed(self, text: str) -> str:
        text = self._begun + text
        self._begun = ""
        pieces: list[str] = []
        place = 0
        while place < len(text):
            place = self._string(text, place, pieces) if self._inside else self._between(text, place, pieces)
        return "".join(pieces)

    def finish(self) -> str:
        begun, self._begun = self._begun, ""
        text = (self._said(begun) if begun else "") + self._rest()
        if self._heard is not None:
            self._heard.ended = True
        return text

    def _between(self, text: str, place: int, pieces: list[str]) -> int:
        end = text.find('"', place)
        between = text[place:] if end < 0 else text[place:end]
        between = between if self._lane is None else self._lane.feed(between)
        self._hear(between)
        pieces.append(between)
        if end < 0:
            return len(text)
        pieces += (self._rest(), '"')
        self._hear('"')
        self._inside = True
        return end + 1

    def _string(self, text: str, place: int, pieces: list[str]) -> int:
        """Read a string on, to its end or that of the piece."""
        said: list[str] = []
        while place < len(text) and text[place] != '"':
            plain = _PLAIN.match(text, place)
            escape = None if plain else _ESCAPE.match(text, place)
            begun = None if plain else _BEGUN_ESCAPE.fullmatch(text, place)
            if begun is not None:
                self._begun = text[place:]
                place = len(text)
                break
            found = plain or escape
            said.append(text[place] if found is None else found[0] if plain else _meant(found[0]))
            place = place + 1 if found is None else found.end()
        pieces.append(self._said("".join(said)))
        if place >= len(text):
            return place
        pieces += (self._rest(), '"')
        self._hear('"')
        self._inside = False
        return place + 1

    def _hear(self, text: str) -> None:
        if self._heard is not None:
            self._heard.add(text)

    def _said(self, text: str) -> str:
        if self._lane is not None:
            text = self._lane.feed(text)
        self._hear(text)
        if self._unmasking is not None and self._inside:
            text = self._unmasking.feed(text)
        return _escaped(text) if self._inside else text

    def _rest(self) -> str:
        text = "" if self._lane is None else self._lane.finish()
        self._hear(text)
        if self._unmasking is not None and self._inside:
            text = self._unmasking.feed(text) + self._unmasking.finish()
        return _escaped(text) if self._inside else text


def _meant(escape: str) -> str:
    try:
        meant: str = json.loads(f'"{escape}"', strict=False)
    except ValueError:
        return escape
    return meant


def _escaped(text: str) -> str:
    if not text:
        return ""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]
