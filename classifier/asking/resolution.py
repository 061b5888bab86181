"""What a request asks, wherever it stands: in the last user message, in the system message, or in what the assistant proposed.

A message is often a template that a program filled in: rules, retrieved documents, a labelled question, a cue for the answer. A text is
taken apart into units, which are sentences or lines. A label such as "Question:" says which of them ask; without one a linear score over
their hashed words and their form tells requests, material, rules of a template, and what is beside the point (greetings, signatures,
how hard it is said to be). Rules and what is beside the point are not read; of the material what the ask speaks of, or shares
words with. A text in which nothing of that kind is found is read as it is.

The words are those of classifier/asking/vocabulary.py, the score's weights those of classifier/asking/weights.npz (`python -m
classifier.training.ask_fit`). classifier/featurize.c does the same.
"""
# ruff: noqa: RUF001 - signs of other languages

import functools
import hashlib
import importlib.resources
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.asking import vocabulary as words
from classifier.prediction import Prompt

Place = Literal["message", "label", "system", "proposal"]
"""Where the ask stands: in the last user message, behind a label of it, in the system message, or in the assistant's words before it."""

SEARCHED_BYTES: Final = 16_384
"""Of a longer message so many bytes of its start and of its end are searched for labels."""
SCORED_BYTES: Final = 6_144
"""Of these so many at either end are taken apart into sentences; what lies between is material."""
SYSTEM_BYTES: Final = 2_048
"""Of a longer system message so many bytes of its start and of its end are searched for a task."""
MOST_UNITS: Final = 1_024
MOST_LABELS: Final = 256
PROPOSAL_CHARS: Final = 4_000
CONSENT_CHARS: Final = 120

REQUEST, MATERIAL, RULE, BESIDE = range(4)
CLASSES: Final = 4
WEIGHT_BITS: Final = 13


SHOWN_CHARS: Final = 400
"""Characters of an ask that are shown to whoever asks what was taken for it."""
PLACES: Final = {
    "message": "in the user's message",
    "label": "behind a label of the user's message",
    "system": "in the system message",
    "proposal": "in what the assistant proposed",
}
"""Where an ask stands, in words."""


class Asked(msgspec.Struct, frozen=True):
    """What is read of a prompt, as UTF-8."""

    text: bytes
    """The ask, and what it is about."""
    ask: bytes
    """The words that ask. Empty where they are not told apart."""
    place: Place = "message"

    @property
    def shown(self) -> str:
        """The words that ask, on one line and bounded, for people."""
        said = " ".join((self.ask or self.text).decode("utf-8", "replace").split())
        return said if len(said) <= SHOWN_CHARS else f"{said[: SHOWN_CHARS - 1]}…"


# Letters that deceive.

_LOOKALIKES: Final = {mark.encode(): latin.encode() for mark, latin in words.LOOKALIKES.items()}
_ALPHABETS: Final = range(0x370, 0x530)
"""Greek and Cyrillic, whose letters have two bytes each."""
_OTHER_LETTER: Final = re.compile(rb"[\xcd-\xd4][\x80-\xbf]")
_LATIN: Final = re.compile(rb"[a-zA-Z]")
_LETTERS: Final = re.compile(rb"[a-zA-Z\x80-\xff]+")


def _without_lookalikes(data: bytes) -> bytes:
    """The text with Latin letters for such of Greek and Cyrillic as only look Latin.

    They are folded in a word that has Latin letters and none that only the other alphabet has, and in every word where the whole text has
    none of these: Russian and Greek stay as they are.
    """
    letters = _others_in(data)
    if not letters & _LOOKALIKES.keys() or not _LATIN.search(data):
        return data
    deceiving = letters <= _LOOKALIKES.keys()
    return _LETTERS.sub(lambda word: _latin(word[0], deceiving=deceiving), data)


def _others_in(data: bytes) -> set[bytes]:
    return {each for each in _OTHER_LETTER.findall(data) if ord(each.decode()) in _ALPHABETS}


def _latin(word: bytes, *, deceiving: bool) -> bytes:
    letters = _others_in(word)
    if not letters or not (deceiving or (_LATIN.search(word) and letters <= _LOOKALIKES.keys())):
        return word
    return _OTHER_LETTER.sub(lambda letter: _LOOKALIKES.get(letter[0], letter[0]), word)


# Labels and tags.

_ANSWER, _RULES, _MATERIAL, _HARNESS = -2, -1, 0, -3
LABELS: Final = {
    **{name.encode(): _MATERIAL for name in words.MATERIAL.split("|")},
    **{name.encode(): _RULES for name in words.RULES.split("|")},
    **{name.encode(): _ANSWER for name in words.ANSWERS.split("|")},
    **{name.encode(): rank for rank, names in words.LABELS.items() for name in names.split("|")},
}
"""What a label is worth: 1 and more for one behind which it stands what is asked, the strongest 3."""
TAGS: Final = {
    **{name: rank for name, rank in LABELS.items() if rank > 1},
    **{name.replace("_", " ").lower().encode(): _MATERIAL for name in words.MATERIAL_TAGS.split("|")},
    **{name.replace("_", " ").lower().encode(): _HARNESS for name in words.HARNESS_TAGS.split("|")},
    b"message": 1,
}
_ONLY_HARNESS: Final = re.compile(rf"\s*(?:<({words.HARNESS_TAGS})>(?:(?!</\1>).)*</\1>\s*)+", re.DOTALL)
LAST_WORDS: Final = {name.encode(): LABELS[name.encode()] for name in words.LAST_WORDS.split("|")}
"""What a label is worth by its last word, where it is not known as a whole."""
LONGEST_LABEL: Final = 40
_DECORATED: Final = 10
_BLANKS: Final = b" \t\n\r\v\f"
_EMPTY: Final = b" \t\n\r\v\f*_#=-`\"'>[]"
_IN_LABEL: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_' -") | frozenset(
    range(0x80, 0x100)
)


def _label_at(text: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """The rank of a label that this line begins with, and where its value begins."""
    at = begin
    marked = False
    while at < end and at - begin < _DECORATED and text[at] in b' \t>*#_[("{,':
        marked = marked or text[at] in b"*#["
        at += 1
    name_at = at
    while at < end and at - name_at < LONGEST_LABEL and text[at] in _IN_LABEL:
        at += 1
    rank = _rank_of(_named(text[name_at:at]))
    if rank is None:
        return None
    if at < end and text[at] == ord("("):
        close = text.find(b")", at, min(end, at + 64))
        at = close + 1 if close > 0 else at
    while at < end and text[at] in b' \t*_#])"':
        at += 1
    if at < end and text[at] == ord(":"):
        return rank, at + 1
    return (rank, at) if marked and at == end else None


def _rank_of(name: bytes) -> int | None:
    """The rank of a label, by its last word where it is not known as a whole: "agent request" is a request."""
    rank = LABELS.get(name)
    if rank is None and b" " in name:
        rank = LAST_WORDS.get(name.rpartition(b" ")[2])
    return rank


_WEAKEST: Final = 1
_TASK: Final = 2
SURE: Final = 80
"""The lead of a request that is beyond doubt."""


def _named(name: bytes) -> bytes:
    return name.strip(b" _*-").replace(b"_", b" ").lower()


# Units.


class Unit(msgspec.Struct):
    """A sentence or line of a text, or a block of material in it."""

    begin: int
    end: int
    line: int
    """Number of the line in which it stands."""
    block: int
    """Number of the block, between blank lines."""
    kind: int = -1
    """One of the CLASSES; -1 where it has to be told by its score."""
    lead: int = 0
    """Of a request by how much its score leads; -1 for fenced or tagged material."""


class Label(msgspec.Struct, frozen=True):
    """A label, and where its value lies."""

    begin: int
    value: int
    end: int
    """Where the value ends; 0 where the next label ends it."""
    rank: int


class Taken(msgspec.Struct, frozen=True):
    """A text taken apart."""

    text: bytes
    units: list[Unit]
    labels: list[Label]


def taken_apart(text: bytes) -> Taken:
    """The units and labels of a text."""
    reader = _Reader(text)
    while reader.at < len(text):
        reader.line()
    return Taken(text, reader.units, reader.labels)


class _Reader:
    """Takes a text apart, line by line."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.units: list[Unit] = []
        self.labels: list[Label] = []
        self.at = self.number = self.block = 0
        self.fresh = True
        """Whether a block has just begun."""
        self._scored_whole = len(text) <= 2 * SCORED_BYTES

    def line(self) -> None:
        """Reads the line that begins where the reader stands, or what a fence or a tag encloses."""
        text = self.text
        end = text.find(b"\n", self.at)
        end = len(text) if end < 0 else end
        begin, stop = self.at, end
        while begin < stop and text[begin] in _BLANKS:
            begin += 1
        while begin < stop and text[stop - 1] in _BLANKS:
            stop -= 1
        self.at = end + 1
        self.number += 1
        if begin == stop or _is_break(text, begin, stop):
            if begin < stop and self.labels:
                # Whatever a label says ends at a rule across the page.
                self._label(begin, stop, 0, _RULES)
            self._break()
        elif text.startswith(_FENCE, begin):
            close = text.find(_FENCE, begin + len(_FENCE))
            self.at = len(text) if close < 0 else close + len(_FENCE)
            self._add(Unit(begin, self.at, self.number, self.block, MATERIAL, -1))
            self.fresh = False
        elif not (text[begin] == _LESS_THAN and self._tag(begin, stop)):
            self._sentences(begin, stop)

    def _break(self) -> None:
        self.block += not self.fresh
        self.fresh = True

    def _tag(self, begin: int, stop: int) -> bool:
        """Whether the line begins with a known tag, which is read."""
        tag = _tag_at(self.text, begin, stop)
        if tag is None:
            return False
        rank, value, close, after = tag
        if rank > 0:
            self._label(begin, value, close, rank)
            self._break()
            self.at = value
            return True
        if close:
            kind = BESIDE if rank == _HARNESS else MATERIAL
            self._add(Unit(begin, after, self.number, self.block, kind, -1))
            self.at = after
        self.block += 1
        self.fresh = True
        return True

    def _sentences(self, begin: int, stop: int) -> None:
        """Reads the labels and sentences of a line."""
        text, within = self.text, False
        scored = self._scored_whole or begin < SCORED_BYTES or begin >= len(text) - SCORED_BYTES
        while begin < stop:
            label = _label_at(text, begin, stop) if len(self.labels) < MOST_LABELS else None
            if label is not None and within and _WEAKEST >= label[0] > _ANSWER:
                # In the middle of a line only what is asked has a label, and the answer.
                label = None
            within = True
            if label is not None:
                rank, value = label
                self._label(begin, value, 0, rank)
                self._break()
                begin = value
                while begin < stop and text[begin] in b" \t*_":
                    begin += 1
                if begin == stop:
                    return
            self.fresh = False
            end = _sentence_end(text, begin, stop) if scored else stop
            if scored:
                self._add(Unit(begin, end, self.number, self.block))
            elif self.units and self.units[-1].line < 0 and label is None:
                self.units[-1].end = end
            else:
                self._add(Unit(begin, end, -1, self.block, MATERIAL))
            begin = end
            while begin < stop and text[begin] in _BLANKS:
                begin += 1

    def _label(self, begin: int, value: int, end: int, rank: int) -> None:
        if len(self.labels) < MOST_LABELS:
            self.labels.append(Label(begin, value, end, rank))

    def _add(self, unit: Unit) -> None:
        if len(self.units) < MOST_UNITS:
            self.units.append(unit)
        else:
            self.units[-1].end = unit.end


_FENCE: Final = b"```"
_LESS_THAN: Final = ord("<")
_FEWEST_SIGNS: Final = 3
_BEYOND_ASCII: Final = 0x80


def _is_break(text: bytes, begin: int, end: int) -> bool:
    """Whether a line is nothing but three signs or more."""
    return end - begin >= _FEWEST_SIGNS and all(text[at] in b"-=*_~#" for at in range(begin, min(end, begin + 200)))


def _sentence_end(text: bytes, begin: int, end: int) -> int:
    return next((at + 1 for at in range(begin, end) if ends_sentence(text, at, end)), end)


def ends_sentence(text: bytes, at: int, end: int) -> bool:
    """Whether a sentence ends with this byte."""
    return text[at] in b".!?" and (at + 1 == end or text[at + 1] in _BLANKS or text[at + 1] >= _BEYOND_ASCII)


_CAMEL: Final = re.compile(rb"(?<=[a-z])(?=[A-Z])")


def _tag_at(text: bytes, begin: int, end: int) -> tuple[int, int, int, int] | None:
    """For a line that begins with a known tag its rank, where its value begins and ends, and where what follows it begins."""
    at = begin + 1
    closing = at < end and text[at] == ord("/")
    at += closing
    name_at = at
    while at < end and at - name_at < LONGEST_LABEL and text[at] in _IN_LABEL and text[at] != ord(" "):
        at += 1
    raw = text[name_at:at]
    rank = _tag_rank(_named(_CAMEL.sub(b" ", raw.replace(b"-", b" "))))
    if not raw or at >= end or text[at] not in b"> \t":
        return None
    mark = text.find(b">", at, end)
    if mark < 0:
        return None
    if closing:
        return 0, mark + 1, 0, mark + 1
    close = text.find(b"</" + raw + b">", mark)
    if close < 0:
        return None
    return rank, mark + 1, close, close + len(raw) + 3


def _tag_rank(name: bytes) -> int:
    rank = TAGS.get(name)
    if rank is None and b" " in name:
        rank = LAST_WORDS.get(name.rpartition(b" ")[2])
    # What stands between tags that nobody knows is material.
    return _MATERIAL if rank is None or rank == _ANSWER else rank


# Scores.

_OFFSET, _PRIME, _MASK = 2166136261, 16777619, 0xFFFFFFFF
FIRST_TOKENS: Final = 20
LAST_TOKENS: Final = 6
_ALONE, _FIRST, _SECOND, _PAIR, _END, _OPENS, _LENGTH, _COUNT, _PLACED, _DENSE, _STEMMED, _OPENED = range(1, 13)


def _hashed(salt: int, one: int, other: int = 0) -> int:
    value = ((_OFFSET ^ salt) * _PRIME) & _MASK
    value = ((value ^ one) * _PRIME) & _MASK
    value = ((value ^ (one >> 16)) * _PRIME) & _MASK
    value = ((value ^ other) * _PRIME) & _MASK
    value ^= value >> 15
    return (value * 0x2C1B3C6D & _MASK) >> (32 - WEIGHT_BITS)


_LOWER: Final = bytes(
    ord("0") if chr(byte) in "0123456789" else ord(chr(byte).lower()) if byte < _BEYOND_ASCII else byte
    for byte in range(256)
)
"""By byte: how it is hashed, in small letters and every digit as the same one."""
_IN_WORD: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") | frozenset(
    range(0x80, 0x100)
)
_CAPITALS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_IDEOGRAPHS: Final = frozenset(range(0xE3, 0xEE))
"""First bytes of characters that are words of their own."""


def tokens_of(text: bytes, begin: int, end: int) -> list[tuple[int, int, int]]:
    """The hash, begin and end of each word between two places; an ideograph is a word of its own."""
    found = []
    at = begin
    while at < end:
        byte = text[at]
        if byte not in _IN_WORD:
            at += 1
            continue
        start, value, alone = at, _OFFSET, byte in _IDEOGRAPHS
        stop = min(end, at + 3) if alone else end
        while at < stop and text[at] in _IN_WORD and (alone or text[at] not in _IDEOGRAPHS):
            value = ((value ^ _LOWER[text[at]]) * _PRIME) & _MASK
            at += 1
        found.append((value, start, at))
    return found


def marks_of(text: bytes, unit: Unit, *, new_line: bool, new_block: bool) -> list[int]:
    """The buckets of what a unit's score is summed over."""
    begin, end = unit.begin, unit.end
    tokens = tokens_of(text, begin, min(end, begin + _HEAD))
    hashes = [each[0] for each in tokens[:FIRST_TOKENS]]
    found = [_hashed(_ALONE, each) for each in hashes]
    found += [
        _hashed(_STEMMED, _stem(text, start, stop)) for _, start, stop in tokens[:FIRST_TOKENS] if stop - start > STEM
    ]
    found += [_hashed(_PAIR, one, other) for one, other in itertools.pairwise(hashes)]
    if hashes:
        found.append(_hashed(_FIRST, hashes[0]))
    if len(hashes) > 1:
        found.append(_hashed(_SECOND, hashes[0], hashes[1]))
    if end - begin > _HEAD:
        tail = tokens_of(text, end - _TAIL, end)[-LAST_TOKENS:]
        found += [_hashed(_ALONE, each[0]) for each in tail]
    closing, opening = text[end - 1], text[begin]
    found.append(_hashed(_END, 0 if closing in _IN_WORD else closing))
    first = _A if opening in _CAPITALS else 0 if opening in _IN_WORD else opening
    found.append(_hashed(_OPENS, first))
    found.append(_hashed(_LENGTH, (end - begin).bit_length()))
    found.append(_hashed(_COUNT, min(len(hashes), 12)))
    found.append(_hashed(_PLACED, new_line | new_block << 1))
    odd = sum(1 for byte in text[begin : min(end, begin + _HEAD)] if byte not in _IN_WORD and byte != _BLANK)
    found.append(_hashed(_DENSE, 16 * odd // max(1, min(end - begin, _HEAD))))
    # Whether it begins as a request does, whichever verb it is.
    opened = WORDS.get(hashes[0], 0) & (VERB | ASKING) if hashes else 0
    found.append(_hashed(_OPENED, opened, closing if closing in b"?:" else 0))
    return found


_HEAD: Final = 160
_BLANK, _A = b" A"
_TAIL: Final = 64


OF_FORM: Final = 7
"""How many of a unit's marks, the last ones, are of its form."""


@functools.cache
def weights(*, system: bool = False) -> NDArray[np.int8]:
    """(2**WEIGHT_BITS + 1, CLASSES): the weight of each bucket, and in the last row what every score begins with; for users' messages, or
    for system messages, where the same words are more often a rule.
    """
    content = (importlib.resources.files("classifier.asking") / "weights.npz").read_bytes()
    found: NDArray[np.int8] = np.load(io.BytesIO(content))["system_weights" if system else "weights"]
    return found


def all_marks(taken: Taken) -> Iterator[tuple[Unit, list[int]]]:
    """Each unit that has to be told by its score, with its buckets."""
    units = taken.units
    for at, unit in enumerate(units):
        if unit.kind < 0:
            before = units[at - 1] if at else None
            new_line = before is None or before.line != unit.line
            new_block = before is None or before.block != unit.block
            yield unit, marks_of(taken.text, unit, new_line=new_line, new_block=new_block)


MARGIN: Final = 12
"""By how much more a rule has to be the likeliest."""
SYSTEM_MARGIN: Final = 24
"""The same in a system message."""
SURELY_BESIDE: Final = 45
"""By how much what is beside the point: what is left out by mistake is not read."""


LESS: Final = 2
"""A request that leads by less than the surest one's lead over this is none."""


def score(taken: Taken, *, system: bool = False) -> None:
    """Tells the class of each unit, of a user's message or of a system message."""
    table = weights(system=system)
    framed = system or _is_framed(taken)
    for unit, marks in all_marks(taken):
        sums = table[-1].astype(int) + table[marks].astype(int).sum(axis=0)
        sums[RULE] -= SYSTEM_MARGIN if system else MARGIN
        sums[BESIDE] -= SURELY_BESIDE
        unit.kind = int(sums.argmax())
        if unit.kind == REQUEST:
            unit.lead = int(sums[REQUEST] - sums[1:].max())
        elif unit.kind == RULE and not framed:
            unit.lead = max(0, int(sums[REQUEST] - max(sums[MATERIAL], sums[BESIDE])))
    most = max((unit.lead for unit in taken.units if unit.kind == REQUEST), default=0)
    for unit in taken.units:
        if unit.kind == REQUEST and LESS * unit.lead < most:
            unit.kind = MATERIAL
        elif unit.kind == RULE and not framed:
            # Nobody's template: a caller's own rule is a part of what he asks.
            unit.kind = REQUEST
    _sign(taken)
    _keep_within(taken)


def _is_framed(taken: Taken) -> bool:
    """Whether a text has labels or tags, as a template has."""
    return any(label.rank >= _MATERIAL for label in taken.labels) or any(
        unit.lead < 0 and taken.text[unit.begin] == ord("<") for unit in taken.units
    )


def _keep_within(taken: Taken) -> None:
    """What is beside the point stands at the start or at the end: elsewhere it is a part of the message."""
    units = taken.units
    begin, end = 0, len(units)
    while begin < end and units[begin].kind == BESIDE:
        begin += 1
    while end > begin and units[end - 1].kind == BESIDE:
        end -= 1
    for unit in units[begin:end]:
        if unit.kind == BESIDE and unit.lead == 0:
            unit.kind = MATERIAL


def _sign(taken: Taken) -> None:
    """Short lines at the end of a text that follow what is beside the point are a signature."""
    signed = len(taken.units)
    for at in range(len(taken.units) - 1, max(-1, len(taken.units) - 1 - _SIGNED), -1):
        unit = taken.units[at]
        if unit.kind == REQUEST or unit.end - unit.begin > _SIGNATURE_BYTES:
            break
        if unit.kind == BESIDE:
            signed = at
    for unit in taken.units[signed:]:
        unit.kind = BESIDE


_SIGNED: Final = 8
_SIGNATURE_BYTES: Final = 80


# Which label says what is asked.


def _labelled(taken: Taken) -> tuple[int, int, int] | None:
    """Where the value of the strongest label begins and ends, and the label's rank: of several the last."""
    text, labels = taken.text, taken.labels
    if not labels:
        return None
    best: tuple[int, int, int] | None = None
    open_cue = labels[-1].rank == _ANSWER and not text[labels[-1].value :].strip(_EMPTY)
    for at, each in enumerate(labels):
        if each.rank <= 0 or (each.rank == 1 and not open_cue):
            continue
        following = next((other for other in labels[at + 1 :] if not each.end or other.begin >= each.end), None)
        end = each.end or (following.begin if following else len(text))
        if not _is_value(text[each.value : end]):
            continue
        if following is not None and following.rank == _ANSWER and each.rank != _TASK and not each.end:
            after = labels.index(following) + 1
            answer_end = labels[after].begin if after < len(labels) else len(text)
            if text[following.value : answer_end].strip(_EMPTY):
                # A question that has its answer is an example, or what is to be judged.
                for unit in taken.units:
                    if each.value <= unit.begin < answer_end and unit.kind == REQUEST:
                        unit.kind = MATERIAL
                continue
        if best is None or each.rank >= best[2]:
            best = each.value, end, each.rank
    return best


_PLACEHOLDERS: Final = (
    b"the input question",
    b"the user's question",
    b"the user question",
    b"the user's query",
    b"the user's input",
)
"""What stands behind a label where a template only says what will."""


def _is_value(value: bytes) -> bool:
    said = value.strip(_EMPTY)
    return len(said) > 1 and not said[:LONGEST_LABEL].lower().startswith(_PLACEHOLDERS)


# What the ask is about.

NEAR, ARTICLE, THING, OWN, INPUT, VERB, ASKING = 1, 2, 4, 8, 16, 32, 64


def _word_hash(word: str) -> int:
    return tokens_of(word.encode(), 0, len(word.encode()))[0][0]


def _kinds() -> dict[int, int]:
    found: dict[int, int] = {}
    for kind, said in (
        (OWN, words.OWN),
        (NEAR, words.NEAR),
        (ARTICLE, words.ARTICLES),
        (THING, words.THINGS),
        (INPUT, words.INPUTS),
        (VERB, words.VERBS),
        (ASKING, words.ASKED_WITH),
        # A Chinese word is told by its first character.
        (ASKING, " ".join(word[0] for word in words.ASKED_CHINESE.split())),
    ):
        for word in said.split():
            hashed = _word_hash(word)
            found[hashed] = found.get(hashed, 0) | kind
    return found


WORDS: Final = _kinds()
"""By a word's hash what it is in a request."""
STEM: Final = 5
STEM_BITS: Final = 14


def _stem(text: bytes, start: int, stop: int) -> int:
    """The hash of a word's first STEM bytes."""
    value = _OFFSET
    for byte in text[start : min(stop, start + STEM)]:
        value = ((value ^ _LOWER[byte]) * _PRIME) & _MASK
    return value


def _stems(text: bytes, begin: int, end: int) -> set[int]:
    return {
        (_stem(text, start, stop) * 0x2C1B3C6D & _MASK) >> (32 - STEM_BITS)
        for _, start, stop in tokens_of(text, begin, end)
        if stop - start >= STEM
    }


COMMON: Final = frozenset(
    stem for word in words.COMMON.split() for stem in _stems(word.encode(), 0, len(word.encode()))
)
_CHINESE_NEAR: Final = tuple(word.encode() for word in words.NEAR_CHINESE.split())
_CHINESE_INPUTS: Final = tuple(word.encode() for word in words.INPUTS_CHINESE.split())


def speaks_of(text: bytes, begin: int, end: int, *, loosely: bool = False, system: bool = False) -> bool:
    """Whether words speak of something that stands beside them; `loosely`: also of what is one's own; those of a `system` message: also of
    whoever sends it.
    """
    article = 2
    for hashed, _, _ in tokens_of(text, begin, end):
        kind = WORDS.get(hashed, 0)
        article += 1
        meant = NEAR | (THING if article <= 1 + loosely else 0) | (OWN if loosely else 0) | (INPUT if system else 0)
        if kind & meant:
            return True
        if kind & ARTICLE:
            article = 0
    part = text[begin:end]
    if system and any(word in part for word in _CHINESE_INPUTS):
        return True
    return part.endswith(b":") or any(word in part for word in _CHINESE_NEAR)


FEWEST_TELLING: Final = 3
COMPARED_BYTES: Final = 2_048
BYTES_A_SHARED_WORD: Final = 200


def _without(taken: Taken, ask: list[Unit], rank: int) -> list[Unit]:
    """The units that are read: the ask, and of the material what belongs to it."""
    text = taken.text
    near = any(speaks_of(text, unit.begin, unit.end, loosely=not rank) for unit in ask)
    telling: set[int] = set()
    for unit in ask:
        telling |= _stems(text, unit.begin, unit.end)
    telling -= COMMON
    # Who says little means what stands beside it.
    near = near or (not rank and len(telling) < FEWEST_TELLING)
    asking = {id(unit) for unit in ask}
    blocks = {unit.block for unit in ask} if not rank else set()
    shared: dict[int, tuple[int, set[int]]] = {}
    for unit in taken.units:
        if id(unit) not in asking and unit.kind == MATERIAL and unit.block not in blocks:
            size, found = shared.get(unit.block, (0, set()))
            if size < COMPARED_BYTES:
                found = found | (_stems(text, unit.begin, min(unit.end, unit.begin + COMPARED_BYTES)) & telling)
            shared[unit.block] = size + unit.end - unit.begin, found
    kept = {
        block
        for block, (size, found) in shared.items()
        if near or len(found) > min(size, COMPARED_BYTES) // BYTES_A_SHARED_WORD
    }
    return [
        unit
        for unit in taken.units
        if id(unit) in asking
        # What may be a request is read even where another is surer.
        or (unit.kind == MATERIAL and (unit.block in kept or unit.block in blocks or (not rank and unit.lead > 0)))
    ]


LONG_BYTES: Final = 1_024
"""Material in the line of a request that is longer is no part of the ask."""


def _asking(taken: Taken) -> tuple[list[Unit], int]:
    """The units that ask, and the rank of the label that says so: 0 where it is their score."""
    labelled = _labelled(taken)
    if labelled is not None:
        begin, end, rank = labelled
        inside = [unit for unit in taken.units if begin <= unit.begin < end]
        # What follows a label's first block is asked where it asks, and otherwise what it is about.
        blocks = {unit.block for unit in inside if unit.kind == REQUEST} | {unit.block for unit in inside[:1]}
        inside = [unit for unit in inside if unit.block in blocks]
        kept = [unit for unit in inside if unit.kind in {REQUEST, MATERIAL}]
        own = max((unit.lead for unit in inside), default=0)
        opening = taken.units[0]
        outside = 0 if begin <= opening.begin < end else opening.lead
        # A weak label within what somebody pasted does not outdo what he asks of it.
        if inside and not (rank == _TASK and outside > LESS * max(own, SURE // 4)):
            return kept or inside, rank
    if not any(unit.kind == REQUEST for unit in taken.units):
        # Where nothing else asks a rule does.
        for unit in taken.units:
            unit.kind = REQUEST if unit.kind == RULE else unit.kind
    requests = [unit for unit in taken.units if unit.kind == REQUEST]
    lines = {unit.line for unit in requests}
    beside: dict[int, int] = {}
    for unit in taken.units:
        if unit.kind == MATERIAL and unit.line in lines:
            beside[unit.line] = beside.get(unit.line, 0) + unit.end - unit.begin
    return [
        unit
        for unit in taken.units
        if unit.kind == REQUEST or (unit.kind == MATERIAL and beside.get(unit.line, LONG_BYTES) < LONG_BYTES)
    ], 0


def _joined(text: bytes, units: list[Unit], every: list[Unit]) -> bytes:
    """The units' text, with what stands between those that are neighbours."""
    number = {id(unit): at for at, unit in enumerate(every)}
    out = []
    for at, unit in enumerate(units):
        if at:
            before = units[at - 1]
            if number[id(unit)] == number[id(before)] + 1:
                out.append(text[before.end : unit.begin])
            else:
                out.append(b" " if before.line == unit.line else b"\n" if before.block == unit.block else b"\n\n")
        out.append(text[unit.begin : unit.end])
    return b"".join(out)


def analysed(text: bytes, *, system: bool = False) -> Taken:
    """A text taken apart, with each unit's class: a user's message, or a system message, in which rules are to be expected."""
    taken = taken_apart(text)
    score(taken, system=system)
    return taken


def read_of(text: bytes, system: bytes = b"") -> Asked:
    """What is read of a user's message with this system message, both with plain marks."""
    taken = analysed(text)
    ask, rank = _asking(taken)
    if system and rank <= _TASK:
        found = _standing_task(system, taken, ask, rank)
        if found:
            return Asked(found + b"\n\n" + text, found, "system")
    if not ask:
        return Asked(text, b"")
    kept = _without(taken, ask, rank)
    place: Place = "label" if rank else "message"
    if len(kept) == len(taken.units) and not rank:
        told = max(unit.lead for unit in ask) >= TOLD
        return Asked(text, _joined(text, ask, taken.units) if told else b"", place)
    return Asked(_joined(text, kept, taken.units), _joined(text, ask, taken.units), place)


PASTED_BYTES: Final = 200
TOLD: Final = 40
"""The lead from which on a request is told apart where nothing is left out."""
LEAST_TASK: Final = 20
"""The lead from which on a sentence of a system message sets a task; half of it where it speaks of what the user sends."""
TASK_SHARE: Final = 3
"""A task that does not speak of what the user sends is at least this part of its system message; a smaller one is a rule among others."""
LEAST_SHARE: Final = 12
"""The same for a task that speaks of it."""
SURE_TASK: Final = 35
"""The lead from which on it goes before a request that a user's message makes."""
LONG_SYSTEM_BYTES: Final = 3_072
"""A longer system message is mostly a role with its rules: of it only a task for whatever the user sends counts."""


def _standing_task(system: bytes, message: Taken, ask: list[Unit], message_rank: int) -> bytes:
    """The task that a system message sets for whatever the user sends, or nothing."""
    taken = analysed(system, system=True)
    tasks, rank = _asking(taken)
    tasks = [unit for unit in tasks if unit.kind in {REQUEST, MATERIAL}]
    lead = max((unit.lead for unit in tasks), default=0)
    near = any(speaks_of(system, unit.begin, unit.end, system=True) for unit in tasks)
    requests = [unit for unit in ask if unit.kind == REQUEST]
    size = sum(unit.end - unit.begin for unit in message.units)
    pasted = size > PASTED_BYTES and sum(unit.end - unit.begin for unit in requests) < size // 2
    labelled = any(label.rank == _MATERIAL for label in message.labels)
    brings = pasted or labelled or any(unit.kind == MATERIAL and unit.lead < 0 for unit in message.units)
    own = max((unit.lead for unit in ask), default=0)
    of_tasks = sum(unit.end - unit.begin for unit in tasks)
    of_system = sum(unit.end - unit.begin for unit in taken.units if unit.lead >= 0)
    most, some = TASK_SHARE * of_tasks >= of_system, LEAST_SHARE * of_tasks >= of_system
    if lead < (1 if rank > 1 or most else LEAST_TASK // 2 if near else LEAST_TASK):
        return b""
    # Documents in a system message are what a user's own question is about.
    if any(unit.lead < 0 for unit in taken.units):
        some = most
    if len(system) > LONG_SYSTEM_BYTES:
        wins = near and most and (brings or lead > LESS * own)
    elif message_rank:
        # A label in what is pasted, such as "Problem:", does not outdo the task; one before a request does.
        wins = near and most and lead > own
    elif requests:
        # A user's own request goes before what may be a rule among others.
        wins = (near and some) or (most and lead >= SURE_TASK and size > PASTED_BYTES // 2)
    else:
        # To a greeting nobody applies a task.
        wins = (near and some) or most or size > PASTED_BYTES // 2
    if not wins:
        return b""
    return _joined(system, tasks, taken.units)


# The prompt.

PLAIN_MARKS: Final = {
    **dict(zip("\uff0c\u3002\uff1b\uff1a\uff1f\uff01\u3001\uff08\uff09", ",.;:?!,()", strict=True)),
    **dict.fromkeys("\u00ab\u00bb\u2018\u201a\u201c\u201d\u201e\u2039\u203a", '"'),
    **dict.fromkeys("\u00bf\u00a1\u00a0\u2013\u2014\u2026\u202f", " "),
    "\u2019": "'",
    # Full-width letters and digits, and what nobody sees.
    **{chr(code + 0xFEE0): chr(code) for code in range(0x30, 0x7B) if chr(code).isalnum()},
    **dict.fromkeys(words.INVISIBLE, ""),
}
"""Signs beyond ASCII and what they are read as; they would be read as parts of the words beside them."""
_MARKS_BY_LEAD: Final = tuple(
    (
        bytes([lead]),
        tuple((mark.encode(), sign.encode()) for mark, sign in PLAIN_MARKS.items() if mark.encode()[0] == lead),
    )
    for lead in sorted({mark.encode()[0] for mark in PLAIN_MARKS})
)
"""The same by their first byte. One byte is found much faster than two."""
MARKS: Final = [
    bytes([len(mark)]) + mark.ljust(3) + sign.ljust(1, b"\0") for _, marks in _MARKS_BY_LEAD for mark, sign in marks
]
"""The same for the compiled library, those of one first byte after the other."""


def with_plain_marks(data: bytes) -> bytes:
    """The text with ASCII signs in place of others, so that none is read as a part of a word; without what nobody sees; and with Latin letters
    for such as only look like them.
    """
    if data.isascii():
        return data
    for lead, marks in _MARKS_BY_LEAD:
        if lead in data:
            for mark, sign in marks:
                data = data.replace(mark, sign)
    return _without_lookalikes(data)


def bounded(text: str, head: int, tail: int) -> bytes:
    """A text as UTF-8: of a long one so many bytes of its start and of its end, on lines of their own."""
    # A lone surrogate cannot be encoded; it reads as a question mark.
    if len(text) > head + tail:
        # A character has a byte at least, so each end is long enough.
        ends = text[:head].encode("utf-8", "replace")[:head], text[-tail:].encode("utf-8", "replace")[-tail:]
        return b"\n".join(ends)
    data = text.encode("utf-8", "replace")
    return b"%b\n%b" % (data[:head], data[-tail:]) if len(data) > head + tail + 1 else data


def searched(text: str) -> bytes:
    """What is searched of a message for its ask."""
    return bounded(text, SEARCHED_BYTES, SEARCHED_BYTES)


def resolve(prompt: Prompt) -> Asked:
    """What a prompt asks, with plain marks. The time is bounded for any text."""
    text, system, settled = to_search(prompt)
    data = with_plain_marks(text)
    return Asked(data, data, "proposal") if settled else read_of(data, with_plain_marks(system))


def to_search(prompt: Prompt) -> tuple[bytes, bytes, bool]:
    """What is searched of a prompt's last user message and of its system message; or what the message accepts of the assistant's words,
    which is settled: it is read as it is.
    """
    text, system = prompt.text, prompt.system
    if prompt.before and _ONLY_HARNESS.fullmatch(text, 0, SEARCHED_BYTES):
        # Nothing but a program's own words: what the user asked stands before.
        text = prompt.before
    if prompt.proposal and len(text) <= CONSENT_CHARS:
        accepted = accepted_of(text, prompt.proposal)
        if accepted:
            return searched(accepted), b"", True
    return searched(text), bounded(system, SYSTEM_BYTES, SYSTEM_BYTES) if system else b"", False


# For the compiled library.


def tables() -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Arrays and numbers for classifier/featurize.c, which does the same."""
    common = np.zeros(2**STEM_BITS // 64, np.uint64)
    for stem in COMMON:
        common[stem >> 6] |= np.uint64(1 << (stem & 63))
    arrays: dict[str, NDArray[Any]] = {
        "weights": weights(),
        "system_weights": weights(system=True),
        "common": common,
        "lookalike": np.frombuffer(
            bytes(words.LOOKALIKES.get(chr(code), "\0").encode()[0] for code in _ALPHABETS), np.uint8
        ),
        "alike": np.frombuffer(bytes(_LOWER[byte] if byte in _IN_WORD else 0 for byte in range(256)), np.uint8),
        "near": _sequences(_CHINESE_NEAR),
        "inputs": _sequences(_CHINESE_INPUTS),
        "fill": _sequences(_PLACEHOLDERS),
    }
    numbers = {
        "weight_bits": WEIGHT_BITS,
        "scored": SCORED_BYTES,
        "long_system": LONG_SYSTEM_BYTES,
        "margin": MARGIN,
        "system_margin": SYSTEM_MARGIN,
        "surely_beside": SURELY_BESIDE,
        "less": LESS,
        "compared": COMPARED_BYTES,
        "a_shared_word": BYTES_A_SHARED_WORD,
        "long_material": LONG_BYTES,
        "pasted": PASTED_BYTES,
        "signed_units": _SIGNED,
        "signature": _SIGNATURE_BYTES,
        "fewest_telling": FEWEST_TELLING,
        "sure": SURE,
        "told": TOLD,
        "least_task": LEAST_TASK,
        "sure_task": SURE_TASK,
        "task_share": TASK_SHARE,
        "least_share": LEAST_SHARE,
    }
    known = {
        name: {_name_hash(key): value for key, value in names.items()}
        for name, names in (("label", LABELS), ("tag", TAGS), ("last", LAST_WORDS))
    }
    for name, values in (*known.items(), ("word", WORDS)):
        keys, ranks = _slots(values)
        arrays |= {f"{name}_keys": keys, f"{name}_values": ranks}
        numbers[f"{name}_mask"] = len(keys) - 1
    return arrays, numbers


def fingerprint() -> str:
    """SHA-256 of the tables and numbers by which what is asked is found."""
    arrays, numbers = tables()
    parts = [f"{name} {value}" for name, value in sorted(numbers.items())]
    parts += [f"{name} {hashlib.sha256(array.tobytes()).hexdigest()}" for name, array in sorted(arrays.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _name_hash(name: bytes) -> int:
    value = _OFFSET
    for byte in name:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value or 1


def _slots(values: Mapping[int, int]) -> tuple[NDArray[np.uint32], NDArray[np.int8]]:
    """Hashes in slots, at most a quarter of them taken, and the values beside; 0 is no hash."""
    size = 1 << (4 * len(values)).bit_length()
    keys, found = np.zeros(size, np.uint32), np.zeros(size, np.int8)
    for key, value in values.items():
        slot = key & (size - 1)
        while keys[slot]:
            slot = (slot + 1) & (size - 1)
        keys[slot], found[slot] = key, value
    return keys, found


def _sequences(parts: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(bytes([len(part)]) + part for part in parts) + b"\0", np.uint8)


# Consent to what the assistant proposed.

_CONSENT: Final = re.compile(words.CONSENT, re.IGNORECASE)
_BETWEEN: Final = r"[\s,.!;:…，。！、-]"
# Each word is atomic, so that no text takes longer than its length.
_PRAISING: Final = re.compile(
    rf"(?>(?:{words.THANKS}|{words.PRAISE})(?:\b|(?<=[\u4e00-\u9fff])){_BETWEEN}*)+", re.IGNORECASE
)
_ASSENTING: Final = re.compile(
    rf"(?>(?:{words.PLAIN_ASSENT}|{words.PRAISE})(?:\b|(?<=[\u4e00-\u9fff])){_BETWEEN}*)+", re.IGNORECASE
)
_DIRECT: Final = re.compile(words.DIRECT, re.IGNORECASE)
_PROPOSING: Final = re.compile(words.PROPOSING, re.IGNORECASE)
_SENTENCES: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_WHOLE: Final = re.compile(
    r"\b(?:all|everything|plan|steps?|alles|todo|tout|migration)\b|全部|都|方案|计划", re.IGNORECASE
)
_OPTION: Final = re.compile(
    r"(?:option|choice|variant|number|no\.?|plan|variante|opción|opcion|nummer|numéro|方案|选项|第|the|la|el|le|die)?\s*#?"
    r"([1-9]|[a-e]\b|一|二|三|四|one\b|two\b|three\b|first\b|second\b|third\b|fourth\b|last\b|primera?\b|segunda?\b|premi[eè]re?\b|deuxième\b|erste[nrs]?\b|zweite[nrs]?\b|dritte[nrs]?\b)",
    re.IGNORECASE,
)


def _declined(ordinal: str) -> tuple[str, ...]:
    return ordinal, *(f"{ordinal}{end}" for end in "nrs")


_ORDINALS: Final = {
    **dict.fromkeys(("one", "first", "一", "primera", "primero", "premier", "première", *_declined("erste")), "1"),
    **dict.fromkeys(("two", "second", "二", "segunda", "segundo", "deuxième", *_declined("zweite")), "2"),
    **dict.fromkeys(("three", "third", "三", *_declined("dritte")), "3"),
    **dict.fromkeys(("fourth", "四"), "4"),
}
_LISTED: Final = re.compile(
    r"(?:^|\n|(?<=[.:;,]\s)|(?<=\s)(?=\())[^\n\w]*(?:option|plan|variant|variante|opción|方案)?\s*\(?([1-9]|[a-e])\s?[.):：-]\)?\s",
    re.IGNORECASE,
)
_THANKS_FIRST: Final = re.compile(
    r"(?:many )?thank|thx|ty\b|danke|vielen dank|gracias|muchas|merci|谢|多谢", re.IGNORECASE
)
_CHOOSING: Final = re.compile(
    rf"(?:{words.CHOOSING}){_BETWEEN}*+(?P<part>(?:the |la |el |le |den |die |das |nur )?(?:step|option|point|part|schritt|paso|étape|opción|variante|第)?\s*#?(?:[1-9]|[a-e]|first|second|third|last|one|two"
    rf"|erste[nrs]?|zweite[nrs]?|dritte[nrs]?|primer[ao]?|segund[ao]|premi[eè]re?|deuxième|[一二三四])"
    rf"(?: (?:step|one|option|point|part|schritt|paso|étape))?[个步项]?)(?:[\s,]+(?:please|bitte|por favor|s'il (?:te|vous) plaît|for now|only|only please))?[\s.!。]*",
    re.IGNORECASE,
)
"""A refusal or an assent that names one part of a proposal."""
_MOST_TERMS: Final = 6
_OWN_TERMS: Final = re.compile(
    r"[?？]|\b(?:not|no|but|don't|nothing|none|never|nein|nicht|aber|kein|lieber|pero|non|pas|mais|rien|instead|already|later)\b|不|但",
    re.IGNORECASE,
)
"""Words by which somebody refuses, or asks for something of his own."""
_OR: Final = re.compile(r",?\s+(?:or|oder|ou)\s+|,\s+o\s+|还是|或者", re.IGNORECASE)
LONG_PROPOSAL: Final = 1_200


def accepted_of(text: str, proposal: str) -> str:
    """What a message accepts of the assistant's words: an option that it names, or what they propose; nothing where it is no consent."""
    said = text.strip()
    if _PRAISING.fullmatch(said):
        return ""
    offered = proposal[-PROPOSAL_CHARS:].strip()
    chosen = _CHOOSING.fullmatch(said)
    # Terms of one's own that name a part of what was proposed.
    part = _option(chosen["part"], offered) if chosen else ""
    if part:
        return part
    match = _CONSENT.match(said)
    if match is None or not match.end():
        return ""
    more = said[match.end() :].strip()
    if more and (len(more.split()) > _MOST_TERMS or _OWN_TERMS.search(said) or _THANKS_FIRST.match(said)):
        return ""
    asks = "?" in offered[-400:] or "？" in offered[-400:]
    if not (asks or _DIRECT.search(said)) and (not _PROPOSING.search(offered) or _ASSENTING.fullmatch(said)):
        return ""
    accepted = _option(said, offered) or _offer(said, offered)
    return f"{accepted}\n{text.strip()}" if more else accepted


def _option(said: str, offered: str) -> str:
    match = _OPTION.search(said)
    if match is None:
        return ""
    name = _ORDINALS.get(match[1].lower(), match[1].lower())
    listed = list(_LISTED.finditer(offered))
    for at, each in enumerate(listed):
        if each[1].lower() == name or (match[1].lower() == "last" and at + 1 == len(listed)):
            end = listed[at + 1].start() if at + 1 < len(listed) else offered.find("\n\n", each.end())
            chosen = offered[each.end() : end if end > 0 else len(offered)].strip()
            last = chosen.rpartition("\n")[2]
            return chosen[: -len(last)].strip() if last != chosen and last.endswith(("?", "？")) else chosen
    # Alternatives without numbers: "I could do this, or do that".
    sentence = next((each for each in reversed(_SENTENCES.split(offered)) if len(_OR.split(each)) > 1), "")
    parts = _OR.split(sentence)
    if not listed and len(parts) > 1 and (name.isdigit() or match[1].lower() == "last"):
        number = len(parts) if match[1].lower() == "last" else int(name)
        return parts[number - 1].strip() if number <= len(parts) else ""
    return ""


def _offer(said: str, offered: str) -> str:
    last = offered.rpartition("\n\n")[2]
    offering = [
        each for each in _SENTENCES.split(last) if _PROPOSING.search(each) or each.rstrip().endswith(("?", "？"))
    ]
    ask = " ".join(offering) or last
    # Of a long answer that ends with an offer it is the offer that is accepted; a plan is accepted as a whole.
    return offered if len(offered) <= LONG_PROPOSAL or _WHOLE.search(f"{said} {ask}") else ask
