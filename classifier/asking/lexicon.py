"""Hashed words of a text, and the kinds of words by which a request speaks of what stands beside it."""

from typing import Final

from classifier.asking import vocabulary as words

BEYOND_ASCII: Final = 0x80

FNV_OFFSET, FNV_PRIME, UINT32 = 2166136261, 16777619, 0xFFFFFFFF


FOLDED: Final = bytes(
    ord("0") if chr(byte) in "0123456789" else ord(chr(byte).lower()) if byte < BEYOND_ASCII else byte
    for byte in range(256)
)
"""Hashed form of each byte: in small letters, and every digit as the same one."""

WORD_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") | frozenset(
    range(0x80, 0x100)
)

_IDEOGRAPHS: Final = frozenset(range(0xE3, 0xEE))
"""First bytes of characters that are words of their own."""


def tokens_of(text: bytes, begin: int, end: int) -> list[tuple[int, int, int]]:
    """Return the hash, begin and end of each word between two places; an ideograph is a word of its own."""
    found = []
    at = begin
    while at < end:
        byte = text[at]
        if byte not in WORD_BYTES:
            at += 1
            continue
        start, value, alone = at, FNV_OFFSET, byte in _IDEOGRAPHS
        stop = min(end, at + 3) if alone else end
        while at < stop and text[at] in WORD_BYTES and (alone or text[at] not in _IDEOGRAPHS):
            value = ((value ^ FOLDED[text[at]]) * FNV_PRIME) & UINT32
            at += 1
        found.append((value, start, at))
    return found


NEAR, ARTICLE, THING, OWN, INPUT, VERB, ASKING = 1, 2, 4, 8, 16, 32, 64


def _word_hash(word: str) -> int:
    return tokens_of(word.encode(), 0, len(word.encode()))[0][0]


def _word_kinds() -> dict[int, int]:
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


WORDS: Final = _word_kinds()
"""Role in a request by a word's hash."""

STEM: Final = 5

STEM_BITS: Final = 14


def stem_hash(text: bytes, start: int, stop: int) -> int:
    """Return the hash of a word's first STEM bytes."""
    value = FNV_OFFSET
    for byte in text[start : min(stop, start + STEM)]:
        value = ((value ^ FOLDED[byte]) * FNV_PRIME) & UINT32
    return value


def stem_buckets(text: bytes, begin: int, end: int) -> set[int]:
    return {
        (stem_hash(text, start, stop) * 0x2C1B3C6D & UINT32) >> (32 - STEM_BITS)
        for _, start, stop in tokens_of(text, begin, end)
        if stop - start >= STEM
    }


COMMON: Final = frozenset(
    stem for word in words.COMMON.split() for stem in stem_buckets(word.encode(), 0, len(word.encode()))
)

CHINESE_NEAR: Final = tuple(word.encode() for word in words.NEAR_CHINESE.split())

CHINESE_INPUTS: Final = tuple(word.encode() for word in words.INPUTS_CHINESE.split())


def speaks_of(text: bytes, begin: int, end: int, *, loosely: bool = False, system: bool = False) -> bool:
    """Return True if words speak of something beside them: with `loosely` also of one's own things, with `system` also of the
    sender.
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
    if system and any(word in part for word in CHINESE_INPUTS):
        return True
    return part.endswith(b":") or any(word in part for word in CHINESE_NEAR)
