"""The class of each segment, by a linear score over its hashed words and its form: request, material, rule, or beside the point."""

import functools
import importlib.resources
import io
import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from classifier.asking.labels import MATERIAL_LABEL
from classifier.asking.lexicon import (
    ASKING,
    FNV_OFFSET,
    FNV_PRIME,
    STEM,
    UINT32,
    VERB,
    WORD_BYTES,
    WORDS,
    stem_hash,
    tokens_of,
)
from classifier.asking.segments import BESIDE, MATERIAL, REQUEST, RULE, Segment, SegmentedText, segment_text

WEIGHT_BITS: Final = 13

FIRST_TOKENS: Final = 20

LAST_TOKENS: Final = 6

_ALONE, _FIRST, _SECOND, _PAIR, _END, _OPENS, _LENGTH, _COUNT, _PLACED, _DENSE, _STEMMED, _OPENED = range(1, 13)


def _bucket(salt: int, one: int, other: int = 0) -> int:
    value = ((FNV_OFFSET ^ salt) * FNV_PRIME) & UINT32
    value = ((value ^ one) * FNV_PRIME) & UINT32
    value = ((value ^ (one >> 16)) * FNV_PRIME) & UINT32
    value = ((value ^ other) * FNV_PRIME) & UINT32
    value ^= value >> 15
    return (value * 0x2C1B3C6D & UINT32) >> (32 - WEIGHT_BITS)


_CAPITALS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def buckets_of(text: bytes, segment: Segment, *, new_line: bool, new_block: bool) -> list[int]:
    """Return the buckets over which a segment's score is summed."""
    begin, end = segment.begin, segment.end
    tokens = tokens_of(text, begin, min(end, begin + _HEAD))
    hashes = [each[0] for each in tokens[:FIRST_TOKENS]]
    found = [_bucket(_ALONE, each) for each in hashes]
    found += [
        _bucket(_STEMMED, stem_hash(text, start, stop))
        for _, start, stop in tokens[:FIRST_TOKENS]
        if stop - start > STEM
    ]
    found += [_bucket(_PAIR, one, other) for one, other in itertools.pairwise(hashes)]
    if hashes:
        found.append(_bucket(_FIRST, hashes[0]))
    if len(hashes) > 1:
        found.append(_bucket(_SECOND, hashes[0], hashes[1]))
    if end - begin > _HEAD:
        tail = tokens_of(text, end - _TAIL, end)[-LAST_TOKENS:]
        found += [_bucket(_ALONE, each[0]) for each in tail]
    closing, opening = text[end - 1], text[begin]
    found.append(_bucket(_END, 0 if closing in WORD_BYTES else closing))
    first = _A if opening in _CAPITALS else 0 if opening in WORD_BYTES else opening
    found.append(_bucket(_OPENS, first))
    found.append(_bucket(_LENGTH, (end - begin).bit_length()))
    found.append(_bucket(_COUNT, min(len(hashes), 12)))
    found.append(_bucket(_PLACED, new_line | new_block << 1))
    odd = sum(1 for byte in text[begin : min(end, begin + _HEAD)] if byte not in WORD_BYTES and byte != _BLANK)
    found.append(_bucket(_DENSE, 16 * odd // max(1, min(end - begin, _HEAD))))
    # Whether it begins as a request does, whichever verb it is.
    opened = WORDS.get(hashes[0], 0) & (VERB | ASKING) if hashes else 0
    found.append(_bucket(_OPENED, opened, closing if closing in b"?:" else 0))
    return found


_HEAD: Final = 160

_BLANK, _A = b" A"

_TAIL: Final = 64


FORM_BUCKETS: Final = 7
"""The number of a segment's last buckets, which are of its form."""


@functools.cache
def weights(*, system: bool = False) -> NDArray[np.int8]:
    """Return (2**WEIGHT_BITS + 1, CLASSES): the weight of each bucket, and in the last row the bias of every class; for
    users' messages, or for system messages, where the same words are more often a rule.
    """
    content = (importlib.resources.files("classifier.asking") / "weights.npz").read_bytes()
    found: NDArray[np.int8] = np.load(io.BytesIO(content))["system_weights" if system else "weights"]
    return found


def all_buckets(taken: SegmentedText) -> Iterator[tuple[Segment, list[int]]]:
    """Return each segment that has to be told by its score, with its buckets."""
    segments = taken.segments
    for at, segment in enumerate(segments):
        if segment.kind < 0:
            before = segments[at - 1] if at else None
            new_line = before is None or before.line != segment.line
            new_block = before is None or before.block != segment.block
            yield segment, buckets_of(taken.text, segment, new_line=new_line, new_block=new_block)


MARGIN: Final = 12
"""Margin by which the score of a rule has to lead."""

SYSTEM_MARGIN: Final = 24
"""The same in a system message."""

SURELY_BESIDE: Final = 45
"""Margin of text beside the point: a segment that is left out by mistake is not read."""


LESS: Final = 2
"""A request whose lead is less than the surest one's lead divided by this is none."""


def score(taken: SegmentedText, *, system: bool = False) -> None:
    """Tell the class of each segment, of a user's message or of a system message."""
    table = weights(system=system)
    framed = system or _is_framed(taken)
    for segment, marks in all_buckets(taken):
        sums = table[-1].astype(int) + table[marks].astype(int).sum(axis=0)
        sums[RULE] -= SYSTEM_MARGIN if system else MARGIN
        sums[BESIDE] -= SURELY_BESIDE
        segment.kind = int(sums.argmax())
        if segment.kind == REQUEST:
            segment.lead = int(sums[REQUEST] - sums[1:].max())
        elif segment.kind == RULE and not framed:
            segment.lead = max(0, int(sums[REQUEST] - max(sums[MATERIAL], sums[BESIDE])))
    most = max((segment.lead for segment in taken.segments if segment.kind == REQUEST), default=0)
    for segment in taken.segments:
        if segment.kind == REQUEST and LESS * segment.lead < most:
            segment.kind = MATERIAL
        elif segment.kind == RULE and not framed:
            # Nobody's template: a caller's own rule is a part of what he asks.
            segment.kind = REQUEST
    _mark_signature(taken)
    _keep_inner(taken)


def _is_framed(taken: SegmentedText) -> bool:
    """Return True if a text has labels or tags, as a template has."""
    return any(label.rank >= MATERIAL_LABEL for label in taken.labels) or any(
        segment.lead < 0 and taken.text[segment.begin] == ord("<") for segment in taken.segments
    )


def _keep_inner(taken: SegmentedText) -> None:
    """Read segments beside the point as material, except at the start and at the end of the message."""
    segments = taken.segments
    begin, end = 0, len(segments)
    while begin < end and segments[begin].kind == BESIDE:
        begin += 1
    while end > begin and segments[end - 1].kind == BESIDE:
        end -= 1
    for segment in segments[begin:end]:
        if segment.kind == BESIDE and segment.lead == 0:
            segment.kind = MATERIAL


def _mark_signature(taken: SegmentedText) -> None:
    """Mark short lines at the end of a text as a signature where they follow text that is beside the point."""
    signed = len(taken.segments)
    for at in range(len(taken.segments) - 1, max(-1, len(taken.segments) - 1 - SIGNED_SEGMENTS), -1):
        segment = taken.segments[at]
        if segment.kind == REQUEST or segment.end - segment.begin > SIGNATURE_BYTES:
            break
        if segment.kind == BESIDE:
            signed = at
    for segment in taken.segments[signed:]:
        segment.kind = BESIDE


SIGNED_SEGMENTS: Final = 8

SIGNATURE_BYTES: Final = 80


def classify_segments(text: bytes, *, system: bool = False) -> SegmentedText:
    """Return a text in segments, each with its class; in a system message rules are to be expected."""
    taken = segment_text(text)
    score(taken, system=system)
    return taken
