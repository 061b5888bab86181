"""A prompt's prefix without its text: hashes of what stays the same, and positions of what varies.

What usually varies (dates, times, uuids, ids, numbers) is masked, so that prefixes that differ in nothing else share a
skeleton. Masking too much does no harm: a masked number that never varies has the same hash each time.
"""

import re
from array import array
from hashlib import blake2b
from typing import Final

import msgspec

KINDS: Final = ("uuid", "time", "date", "clock", "hex", "id", "number", "other")
"""Kinds of varying parts; `other` is one between constant parts that no mask recognises."""
OTHER: Final = KINDS.index("other")

LOOKED_BYTES: Final = 8_192
"""Length of a prefix that is masked, in bytes."""
KEPT_BYTES: Final = 65_536
"""Length of a prefix up to which its rest is compared as a whole; the text beyond is ignored."""
_SKELETON_BYTES: Final = 6_144
"""Shorter than the masked part: a counter that grew by a digit moves where the text is cut, but not where this is."""
_MOST_SPANS: Final = 128
_MOST_CHUNKS: Final = 96
_BLANK: Final = b"\x00"
_LEAST_COMMON: Final = 0.6
_LEAST_COMMON_AFTER_BYTES: Final = 128
"""Fewer bytes in common after the difference are chance, such as a closing line."""

_MONTH: Final = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_WEEKDAY: Final = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_ZONE: Final = r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)(?![A-Za-z0-9]))?"
_HALF: Final = r"(?: ?[AaPp](?:[Mm]\b|\.[Mm]\.))?"
_CLOCK: Final = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
# The first alternative that matches wins, so longer forms come first.
_DATES: Final = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?!\d)",
    r"\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d\d)(?!\d)",
    rf"\d{{1,2}}(?:st|nd|rd|th)?(?: of)?[ -]{_MONTH}(?:,?[ -]\d{{2,4}}\b)?",
    rf"{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?\b(?:,? \d{{4}}\b)?",
    rf"{_MONTH} \d{{4}}\b",
    _WEEKDAY,
)
# As Claude Code tells its version and each request's checksum: `cc_version=2.1.177.01c; cch=36ee5;`.
_VALUE: Final = r"(?<==)(?:(?=[0-9.]{1,24}[A-Za-z])\d[0-9A-Za-z.]{4,40}|(?=\d{0,4}[a-f])[0-9a-f]{5})(?![0-9A-Za-z])"
_WORDS: Final = {
    "uuid": rf"[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}(?![0-9A-Za-z])|{_VALUE}",
    "time": rf"\d{{4}}-\d\d-\d\d[Tt ]{_CLOCK}{_ZONE}",
    "date": "|".join(_DATES),
    "clock": rf"{_CLOCK}{_HALF}{_ZONE}",
    "hex": r"(?=[a-fA-F]{0,32}\d)[0-9a-fA-F]{12,}(?![0-9A-Za-z])",
    "id": r"(?=[A-Za-z]{0,32}\d[A-Za-z]{0,32}\d)[A-Za-z0-9]{10,}",
}
_ALTERNATIVES: Final = "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _WORDS.items())
_VARYING: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{_ALTERNATIVES})|(?P<number>\d+(?:[.,_]\d+)*)".encode(), re.ASCII)
_CHUNK: Final = re.compile(rb"[^\n.!?;]{0,512}[\n.!?;]?")


class PrefixShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of one prefix. It holds only keyed hashes and lengths, no text."""

    skeleton: bytes
    """Keyed hash of everything that is not masked."""
    end: int
    """Offset in the text where the skeleton ends."""
    rest: int
    """Hash of the text from there on."""
    length: int
    starts: "array[int]"
    """Masked parts, as parallel arrays: offset in the text, length, kind (index into `KINDS`), and hash."""
    lengths: "array[int]"
    kinds: bytes
    hashes: "array[int]"
    chunks: "array[int]"
    """Hashes of the skeleton's lines and sentences; `chunk_lengths` are their lengths in the text."""
    chunk_lengths: "array[int]"


class Break(msgspec.Struct, frozen=True):
    """The offset at which two prefixes first differ, and the number of bytes after it that are the same again."""

    at: int
    same_after: int
    kinds: tuple[int, ...]


def shape_of(text: bytes, key: bytes) -> PrefixShape:
    """Compute the shape of a text. Pure, and bounded: a few hundred microseconds, whatever the text."""
    looked = text[:LOOKED_BYTES]
    skeleton = bytearray()
    starts, lengths, hashes, kinds = array("I"), array("I"), array("Q"), bytearray()
    at = 0
    for found in _VARYING.finditer(looked):
        begin, after = found.span()
        skeleton += looked[at:begin]
        at = begin
        if len(skeleton) >= _SKELETON_BYTES or len(starts) == _MOST_SPANS:
            break
        skeleton += _BLANK
        at = after
        starts.append(begin)
        lengths.append(after - begin)
        kinds.append(KINDS.index(found.lastgroup or "number"))
        hashes.append(_digest(found.group(), key))
    skeleton += looked[at:]
    end = _end(skeleton, lengths)
    del skeleton[_SKELETON_BYTES:]
    chunks, chunk_lengths = _chunks(skeleton, lengths, key)
    return PrefixShape(
        skeleton=blake2b(skeleton, key=key, digest_size=16).digest(),
        end=end,
        rest=_digest(text[end:KEPT_BYTES], key),
        length=min(len(text), KEPT_BYTES),
        starts=starts,
        lengths=lengths,
        kinds=bytes(kinds),
        hashes=hashes,
        chunks=chunks,
        chunk_lengths=chunk_lengths,
    )


def masked(text: bytes) -> tuple[bytes, int]:
    """Return the text without what usually varies, and the kinds of that: bit n for `KINDS[n]`."""
    kinds = 0

    def blank(found: re.Match[bytes]) -> bytes:
        nonlocal kinds
        kinds |= 1 << KINDS.index(found.lastgroup or "number")
        return _BLANK

    return _VARYING.sub(blank, text), kinds


def masked_break(before: PrefixShape, now: PrefixShape) -> Break | None:
    """Compare two prefixes of one skeleton. None when they do not differ in the masked part."""
    differing = [at for at, (old, new) in enumerate(zip(before.hashes, now.hashes, strict=False)) if old != new]
    if not differing:
        return None
    first = now.starts[differing[0]]
    # Text behind the masked part counts when it is the same; where it differs, how much of it does is unknown.
    last = now.length if before.rest == now.rest else now.end
    varying = sum(now.lengths[at] for at in differing)
    kinds = tuple(sorted({now.kinds[at] for at in differing}))
    return Break(first, max(0, last - first - varying), kinds)


def other_break(before: PrefixShape, now: PrefixShape) -> Break | None:
    """Compare two prefixes that differ in something that no mask recognises. None when they are unrelated.

    They are related when most of the longer one is in both, and not only before the difference.
    """
    common = 0
    for old, new in zip(before.chunks, now.chunks, strict=False):
        if old != new:
            break
        common += 1
    known = set(before.chunks[common:])
    at = sum(now.chunk_lengths[:common])
    after = sum(
        length for chunk, length in zip(now.chunks[common:], now.chunk_lengths[common:], strict=True) if chunk in known
    )
    longer = max(sum(now.chunk_lengths), sum(before.chunk_lengths))
    if after < _LEAST_COMMON_AFTER_BYTES or at + after < _LEAST_COMMON * longer:
        return None
    rest = now.length - now.end if before.rest == now.rest else 0
    return Break(at, after + rest, (OTHER,))


def family_name(before: PrefixShape, now: PrefixShape) -> bytes:
    """Name of a family of related prefixes: the hash of the longest chunk in common, which other processes will
    probably find too.
    """
    known = set(before.chunks)
    parts = zip(now.chunk_lengths, now.chunks, strict=True)
    _length, chunk = max(part for part in parts if part[1] in known)
    return b"\x00" * 8 + chunk.to_bytes(8, "big")


def _end(skeleton: bytearray, lengths: "array[int]") -> int:
    """Return the offset in the text at which the kept part of the skeleton ends."""
    kept = min(len(skeleton), _SKELETON_BYTES)
    blanks = skeleton.count(_BLANK, 0, kept)
    return kept + sum(lengths[:blanks]) - min(blanks, len(lengths))


def _chunks(skeleton: bytearray, lengths: "array[int]", key: bytes) -> "tuple[array[int], array[int]]":
    hashes, sizes = array("Q"), array("I")
    blanks = 0
    for found in _CHUNK.finditer(skeleton):
        part = found.group()
        if not part or len(hashes) == _MOST_CHUNKS:
            break
        more = part.count(_BLANK)
        hashes.append(_digest(part, key))
        sizes.append(len(part) + sum(lengths[blanks : blanks + more]) - len(lengths[blanks : blanks + more]))
        blanks += more
    return hashes, sizes


def _digest(part: bytes, key: bytes) -> int:
    return int.from_bytes(blake2b(part, key=key, digest_size=8).digest(), "big")
