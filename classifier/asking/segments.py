"""A text cut into segments, which are sentences, lines or fenced blocks, with the labels between them."""

from typing import Final

import msgspec

from classifier.asking.labels import ANSWER_LABEL, HARNESS_LABEL, RULES_LABEL, WEAKEST_LABEL, label_at, tag_at
from classifier.asking.lexicon import BEYOND_ASCII

SCORED_BYTES: Final = 6_144
"""Bytes at either end that are taken apart into sentences; the text between is material."""

MOST_SEGMENTS: Final = 1_024

MOST_LABELS: Final = 256

REQUEST, MATERIAL, RULE, BESIDE = range(4)

CLASSES: Final = 4

BLANKS: Final = b" \t\n\r\v\f"


class Segment(msgspec.Struct):
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
    """Lead of a request's score over the other classes; -1 for fenced or tagged material."""


class Label(msgspec.Struct, frozen=True):
    """A label, and where its value lies."""

    begin: int
    value: int
    end: int
    """End of the value; 0 where the next label ends it."""
    rank: int


class SegmentedText(msgspec.Struct, frozen=True):
    """A text taken apart."""

    text: bytes
    segments: list[Segment]
    labels: list[Label]


def segment_text(text: bytes) -> SegmentedText:
    """Return the segments and labels of a text."""
    reader = _Segmenter(text)
    while reader.at < len(text):
        reader.line()
    return SegmentedText(text, reader.segments, reader.labels)


class _Segmenter:
    """A parser that takes a text apart, line by line."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.segments: list[Segment] = []
        self.labels: list[Label] = []
        self.at = self.number = self.block = 0
        self.fresh = True
        """True at the beginning of a block."""
        self._scored_whole = len(text) <= 2 * SCORED_BYTES

    def line(self) -> None:
        """Read the line that begins at `at`, or the whole of a fence or a tag."""
        text = self.text
        end = text.find(b"\n", self.at)
        end = len(text) if end < 0 else end
        begin, stop = self.at, end
        while begin < stop and text[begin] in BLANKS:
            begin += 1
        while begin < stop and text[stop - 1] in BLANKS:
            stop -= 1
        self.at = end + 1
        self.number += 1
        if begin == stop or _is_break(text, begin, stop):
            if begin < stop and self.labels:
                # Whatever a label says ends at a rule across the page.
                self._label(begin, stop, 0, RULES_LABEL)
            self._break()
        elif text.startswith(_FENCE, begin):
            close = text.find(_FENCE, begin + len(_FENCE))
            self.at = len(text) if close < 0 else close + len(_FENCE)
            self._add(Segment(begin, self.at, self.number, self.block, MATERIAL, -1))
            self.fresh = False
        elif not (text[begin] == _LESS_THAN and self._tag(begin, stop)):
            self._sentences(begin, stop)

    def _break(self) -> None:
        self.block += not self.fresh
        self.fresh = True

    def _tag(self, begin: int, stop: int) -> bool:
        """Read the known tag that the line begins with; return False where it begins with none."""
        tag = tag_at(self.text, begin, stop)
        if tag is None:
            return False
        rank, value, close, after = tag
        if rank > 0:
            self._label(begin, value, close, rank)
            self._break()
            self.at = value
            return True
        if close:
            kind = BESIDE if rank == HARNESS_LABEL else MATERIAL
            self._add(Segment(begin, after, self.number, self.block, kind, -1))
            self.at = after
        self.block += 1
        self.fresh = True
        return True

    def _sentences(self, begin: int, stop: int) -> None:
        """Read the labels and sentences of a line."""
        text, within = self.text, False
        scored = self._scored_whole or begin < SCORED_BYTES or begin >= len(text) - SCORED_BYTES
        while begin < stop:
            label = label_at(text, begin, stop) if len(self.labels) < MOST_LABELS else None
            if label is not None and within and WEAKEST_LABEL >= label[0] > ANSWER_LABEL:
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
                self._add(Segment(begin, end, self.number, self.block))
            elif self.segments and self.segments[-1].line < 0 and label is None:
                self.segments[-1].end = end
            else:
                self._add(Segment(begin, end, -1, self.block, MATERIAL))
            begin = end
            while begin < stop and text[begin] in BLANKS:
                begin += 1

    def _label(self, begin: int, value: int, end: int, rank: int) -> None:
        if len(self.labels) < MOST_LABELS:
            self.labels.append(Label(begin, value, end, rank))

    def _add(self, segment: Segment) -> None:
        if len(self.segments) < MOST_SEGMENTS:
            self.segments.append(segment)
        else:
            self.segments[-1].end = segment.end


_FENCE: Final = b"```"

_LESS_THAN: Final = ord("<")

_FEWEST_SIGNS: Final = 3


def _is_break(text: bytes, begin: int, end: int) -> bool:
    """Return True if a line is nothing but three signs or more."""
    return end - begin >= _FEWEST_SIGNS and all(text[at] in b"-=*_~#" for at in range(begin, min(end, begin + 200)))


def _sentence_end(text: bytes, begin: int, end: int) -> int:
    return next((at + 1 for at in range(begin, end) if ends_sentence(text, at, end)), end)


def ends_sentence(text: bytes, at: int, end: int) -> bool:
    """Return True if a sentence ends with this byte."""
    return text[at] in b".!?" and (at + 1 == end or text[at + 1] in BLANKS or text[at + 1] >= BEYOND_ASCII)
