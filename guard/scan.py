"""What of given kinds is in a text, and where: one pass of all patterns together, then only those that have a match.

A text is looked at as it is; where it has characters that are folded, also as folded; and what it has in base64 is decoded.
The work is linear in the text, whatever the patterns are.
"""

import base64
import binascii
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import re2

from guard.beginnings import beginnings, loosened
from guard.folding import Folded, odd_class
from guard.kinds import MOST_WITHIN_BYTES, Kind, Shape, compiled, entropy

MASK_PATTERN: Final = r"\[[A-Z][A-Z0-9]{1,15}_[a-z2-7]{6,16}\]"
"""What is put in a value's place (guard/masks.py). Nothing is found in one."""
_MAY_BE_ENCODED: Final = r"[A-Za-z0-9+/_-]{16}"
_RUN_PATTERN: Final = r"[A-Za-z0-9+/_-]{16,}={0,2}"
_LINE_ENDS: Final = frozenset({b"\r", b"\n"})
_SHORT_LINE: Final = 60
_LONG_LINE: Final = 76
_LINES: Final = r"(?:[A-Za-z0-9+/_-]{60,76}\r?\n)"
"""Mail and PEM break base64 into lines of 76 and of 64 characters; a value may stand over two of them."""
_ENCODED_PATTERN: Final = r"(?:" + _LINES + r"+[A-Za-z0-9+/_-]*|[A-Za-z0-9+/_-]{16,})={0,2}"
_ENCODED_TAIL: Final = _LINES + r"*(?:[A-Za-z0-9+/_-]{60,76}\r|[A-Za-z0-9+/_-]+={0,2}|)\z"
_ENCODED_CHARS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-")
_MAY_GO_ON: Final = frozenset(bytes([byte]) for byte in (*_ENCODED_CHARS, *b"=\r\n"))
_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_FIRST_ENCODED: Final = 24
"""By so many characters it shows whether a run of base64 is text: 18 bytes, of which these many are printable, all are of a shorter one, or
which are UTF-8."""
_LEAST_PRINTABLE: Final = 14
_PRINTABLE: Final = bytes([*range(9, 14), *range(32, 127)])
_MOST_UTF8: Final = 4
_SET_BYTES: Final = 64 << 20
"""The most that the states of all patterns together may need. A few MB is what they do."""
_BETWEEN_GROUPS: Final = (" ", "\n", "\t", "\r", "-", ".", "_")
_PENDING: Final = -1
_SKIPPED: Final = -1
_NONE: Final = -(1 << 62)
_MOST_HELD_BYTES: Final = 300
"""What is held for a pattern whose beginnings cannot be told."""

_MASK: Final = Kind(name="", title="", label="", group="own", shapes=(Shape(pattern=MASK_PATTERN),))

Span = tuple[int, int, int]
"""Begin, end, and the number of the rule."""


class Found(msgspec.Struct, frozen=True):
    """A value in a text: its kind's name, and where it begins and ends."""

    kind: str
    start: int
    end: int


class _Rule(msgspec.Struct, frozen=True):
    kind: str
    shape: Shape
    gate: str
    """What a text matches that may have such a value in it."""
    words_gate: str
    """What it matches as well, of a value that needs words beside it; empty for others."""
    regex: Any
    words: Any
    unless: Any
    plain: bool
    """Whether whatever the pattern matches is a value."""


class _View(msgspec.Struct, frozen=True):
    """A text as it is looked at: its bytes, which patterns may be in it, and from which byte on."""

    data: bytes
    hits: Sequence[int]
    start: int
    folded: Folded | None
    plain: bool

    def place(self, byte: int) -> int:
        """Return where in the text given the character stands that begins at a byte."""
        index = byte if self.plain else len(self.data[:byte].decode(errors="surrogatepass"))
        return index if self.folded is None else self.folded.place(index)

    def in_text(self, spans: list[Span]) -> list[Span]:
        """Return spans of bytes as spans of the text given."""
        spans = spans if self.plain else _in_chars(self.data, spans)
        folded = self.folded
        if folded is None:
            return spans
        return [(folded.place(start), folded.place(end - 1) + 1, rule) for start, end, rule in spans]


class Scanner:
    """Finds what is of the given kinds. Building one takes tens of milliseconds: not on the event loop."""

    __slots__ = ("_encoded", "_gate", "_gate_of_pieces", "_open", "_open_far", "_rules", "_run", "_tail", "labels")

    def __init__(self, kinds: Iterable[Kind]) -> None:
        """Compile the kinds' patterns. Raises BadPattern."""
        kinds = tuple(kinds)
        self.labels = {kind.name: kind.label for kind in kinds}
        self._rules = [_rule(kind, shape) for kind in kinds for shape in kind.shapes]
        self._encoded = compiled(_ENCODED_PATTERN)
        self._run = compiled(_RUN_PATTERN)
        self._tail = compiled(_ENCODED_TAIL)
        # A mask is a rule, too: it wins over what is found within it, and is then left out.
        self._rules.append(_rule(_MASK, _MASK.shapes[0]))
        self._gate = _gate([rule.words_gate or rule.gate for rule in self._rules])
        self._gate_of_pieces = _gate([rule.gate for rule in self._rules])
        """In a text that goes on, a value may come before the word beside it."""
        begun = [beginnings(rule.shape.pattern) for rule in self._rules]
        self._open = compiled("(?:" + "|".join(pattern for pattern in begun if pattern) + r")\z", _SET_BYTES)
        self._open_far = any(pattern is None for pattern in begun)

    def find(self, text: str) -> tuple[Found, ...]:
        """Return what is found, in the order of the text. No two overlap: the longer one stays, of equals the first."""
        spans: list[Span] = []
        for view in self._views(text, 0):
            spans += view.in_text(self._in_view(view, final=True)[0])
        return self._resolved(spans)

    def sees_nothing(self, data: bytes) -> bool:
        """Return True where nothing is found in the text of these bytes, nor in any part of it that ends at a quotation mark. False says
        nothing.
        """
        hits = self._gate(data)
        return not hits or (list(hits) == [len(self._rules) + 1] and not self._decoded(data, 0))

    def partial(self, text: str, begin: int, *, final: bool) -> tuple[tuple[Found, ...], int]:
        """Return what is found from `begin` on, and how far the text is settled, whatever may follow it.

        What stands before `begin` was settled before; the words beside a value are looked for there, too. All that is found
        ends where the text is settled or before.
        """
        spans: list[Span] = []
        settled = len(text)
        for view in self._views(text, begin, goes_on=not final):
            found, waiting = self._in_view(view, final=final)
            spans += view.in_text(found)
            if not final:
                settled = min(settled, view.place(min(waiting, self._open_in(view.data, view.start))))
        settled = len(text) if final else _outside(spans, max(settled, begin))
        return self._resolved([span for span in spans if span[1] <= settled]), settled

    def _views(self, text: str, begin: int, *, goes_on: bool = False) -> list[_View]:
        """Return the text as it is and, where that is another one, as folded: those in which something may be found."""
        data = _bytes(text)
        gate = self._gate_of_pieces if goes_on else self._gate
        hits = gate(data)
        views: list[_View] = []
        if hits or goes_on:
            plain = len(data) == len(text)
            views.append(_View(data, hits, begin if plain else len(_bytes(text[:begin])), None, plain))
        if len(self._rules) in hits:
            folded = Folded(text)
            data = _bytes(folded.text)
            start = len(_bytes(folded.text[: folded.index(begin)]))
            views.append(_View(data, gate(data), start, folded, len(data) == len(folded.text)))
        return views

    def _in_view(self, view: _View, *, final: bool) -> tuple[list[Span], int]:
        """Return what is found, overlapping, and from where on something waits for words that may still come."""
        spans: list[Span] = []
        waiting = len(view.data)
        for number in view.hits:
            if number < len(self._rules):
                found, waits = self._of_rule(view.data, number, view.start, final=final)
                spans += found
                waiting = min(waiting, waits)
        if len(self._rules) + 1 in view.hits:
            spans += self._decoded(view.data, view.start)
        return spans, waiting

    def _of_rule(self, data: bytes, number: int, place: int, *, final: bool) -> tuple[list[Span], int]:
        rule = self._rules[number]
        spans: list[Span] = []
        waiting = len(data)
        while (match := rule.regex.search(data, place)) is not None:
            start, end = match.span()
            judged = _judged(rule, data, start, end, final=final)
            if judged == _PENDING:
                waiting = min(waiting, start)
            if judged > start:
                spans.append((start, judged, number))
                place = judged
            elif rule.shape.check is not None or end == start:
                # It may have begun a group of digits too early.
                place = start + 1
            else:
                spans.append((start, end, _SKIPPED))
                place = end
        return spans, waiting

    def _decoded(self, data: bytes, place: int) -> list[Span]:
        spans: list[Span] = []
        while (match := self._run.search(data, place)) is not None:
            from_, place = match.span()
            if data[place : place + 1] in _LINE_ENDS and _SHORT_LINE <= place - from_ <= _LONG_LINE:
                place = self._encoded.search(data, from_).end()
            if (from_ and data[from_ - 1] in _ENCODED_CHARS) or not _is_text(data[from_:place]):
                continue
            decoded = _decode(data[from_:place].rstrip(b"="))
            rule = None if decoded is None else self._first_in(decoded)
            if rule is not None:
                spans.append((from_, place, rule))
        return spans

    def _first_in(self, decoded: bytes) -> int | None:
        """Return the rule of the first value in what was encoded, as it is or as it is read; None where there is none."""
        hits = self._gate(decoded)
        inner = self._values_in(decoded, hits)
        if not inner and len(self._rules) in hits:
            read = _bytes(Folded(decoded.decode(errors="replace")).text)
            inner = self._values_in(read, self._gate(read))
        return min(inner)[2] if inner else None

    def _values_in(self, data: bytes, hits: Sequence[int]) -> list[Span]:
        last = len(self._rules) - 1
        return [
            span for hit in hits if hit < last for span in self._of_rule(data, hit, 0, final=True)[0] if span[2] >= 0
        ]

    def _open_in(self, data: bytes, start: int) -> int:
        place = self._open.search(data, start).start()
        if self._open_far:
            place = min(place, len(data) - _MOST_HELD_BYTES)
        tail = self._tail.search(data) if data[-1:] in _MAY_GO_ON else None
        if tail is not None and tail.start() >= start:
            run = data[tail.start() :]
            if len(run) < _FIRST_ENCODED or _is_text(run):
                place = min(place, tail.start())
        return int(max(place, start))

    def _resolved(self, spans: list[Span]) -> tuple[Found, ...]:
        taken: list[Span] = []
        for span in sorted(spans, key=lambda span: (span[0] - span[1], span[2], span[0])):
            if span[2] == _SKIPPED:
                continue
            place = bisect(taken, span)
            before, after = taken[place - 1 : place], taken[place : place + 1]
            if not (before and before[0][1] > span[0]) and not (after and after[0][0] < span[1]):
                taken.insert(place, span)
        return tuple(Found(self._rules[rule].kind, from_, to) for from_, to, rule in taken if self._rules[rule].kind)


def _rule(kind: Kind, shape: Shape) -> _Rule:
    if shape.within > MOST_WITHIN_BYTES:
        raise ValueError(f"{kind.name}: words are looked for within {MOST_WITHIN_BYTES} bytes at most")
    words = f"(?i:{'|'.join(_word(word) for word in shape.words)})" if shape.words else ""
    return _Rule(
        kind=kind.name,
        shape=shape,
        # A secret begins with letters of its own, so few texts come this far. Counting would cost the Set a state for each number.
        gate=loosened(shape.pattern) if kind.group == "secrets" else shape.pattern,
        words_gate=words,
        regex=compiled(shape.pattern),
        words=compiled(words) if words else None,
        unless=compiled(shape.unless) if shape.unless else None,
        plain=not (shape.check or shape.entropy or shape.unless),
    )


def _word(word: str) -> str:
    return (r"\b" if word[0].isascii() else "") + str(re2.escape(word))


def _gate(patterns: Sequence[str]) -> Callable[[bytes], Sequence[int]]:
    """Return what tells which patterns are in a text; after them come the odd characters and runs of base64."""
    options = re2.Options()
    options.max_mem = _SET_BYTES
    options.log_errors = False
    gate = re2.Set.SearchSet(options)
    for pattern in (*patterns, odd_class(), _MAY_BE_ENCODED, r"\z"):
        gate.Add(pattern.encode())
    gate.Compile()
    match = gate.Match
    always = len(patterns) + 2

    def hits(data: bytes) -> Sequence[int]:
        found = match(data)
        if not found:
            # Every text has an end: the Set ran out of memory. Then each pattern is asked by itself.
            return range(always)
        return () if len(found) == 1 else sorted(hit for hit in found if hit != always)

    return hits


def _judged(rule: _Rule, data: bytes, start: int, end: int, *, final: bool) -> int:
    """Return where the value ends that begins at `start`, 0 if there is none, or _PENDING while words may still come."""
    if not rule.plain:
        end = _checked(rule, data, start, end)
    if rule.words is None or end <= start:
        return end
    within = rule.shape.within
    if rule.words.search(data[max(0, start - within) : start]) or rule.words.search(data[end : end + within]):
        return end
    return 0 if final or end + within <= len(data) else _PENDING


def _checked(rule: _Rule, data: bytes, start: int, end: int) -> int:
    """Return where the value ends by its row, 0 if it is none."""
    shape = rule.shape
    value = data[start:end].decode(errors="replace")
    if rule.unless is not None and rule.unless.search(data[start:end]) is not None:
        return 0
    if shape.entropy and entropy(value) < shape.entropy:
        return 0
    if shape.check is None or (not _is_fraction(data, start) and shape.check(value)):
        return end
    return max(0, start + _shorter(shape.check, value)) if shape.shorter else 0


def _shorter(check: Callable[[str], bool], value: str) -> int:
    """Return the bytes of a value that is written in groups and goes on into the next word, as an account number does into a bank's
    code; negative if it is none however it is cut.
    """
    while value:
        value = value[:-1].rstrip()
        value = value[: max(map(value.rfind, _BETWEEN_GROUPS))].rstrip("".join(_BETWEEN_GROUPS))
        if value and check(value):
            return len(value.encode())
    return _NONE


def _is_fraction(data: bytes, start: int) -> bool:
    """Return True where a decimal number's point stands before a digit."""
    return (
        data[start - 1 : start] == b"."
        and data[start : start + 1].isdigit()
        and data[max(0, start - 2) : start - 1].isdigit()
    )


def _is_text(run: bytes) -> bool:
    decoded = _decode(run[:_FIRST_ENCODED])
    if decoded is None:
        return False
    printable = len(decoded) - len(decoded.translate(None, _PRINTABLE))
    return printable >= min(_LEAST_PRINTABLE, len(decoded)) or _is_utf8(decoded)


def _is_utf8(begun: bytes) -> bool:
    """Return True for the first bytes of a text, of which the last character may be cut."""
    try:
        return begun.decode().isprintable()
    except UnicodeDecodeError as error:
        return (
            error.end == len(begun)
            and len(begun) - error.start < _MOST_UTF8
            and begun[: error.start].decode().isprintable()
        )


def _decode(run: bytes) -> bytes | None:
    whole = run.translate(_TO_STANDARD, b"\r\n")
    if len(whole) % 4 == 1:
        whole = whole[:-1]
    try:
        return base64.b64decode(whole + b"=" * (-len(whole) % 4))
    except binascii.Error:
        return None


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _in_chars(data: bytes, spans: list[Span]) -> list[Span]:
    """Return spans of bytes as spans of characters."""
    places = sorted({place for from_, to, _ in spans for place in (from_, to)})
    chars: dict[int, int] = {}
    before = counted = 0
    for place in places:
        counted += len(data[before:place].decode(errors="surrogatepass"))
        chars[place] = counted
        before = place
    return [(chars[from_], chars[to], rule) for from_, to, rule in spans]


def _outside(spans: list[Span], place: int) -> int:
    """Return `place`, moved to the front of all values that reach over it and over each other."""
    for from_, to, _ in sorted(spans, key=lambda span: -span[1]):
        if from_ < place < to:
            place = from_
    return place
