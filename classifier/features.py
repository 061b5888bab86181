"""The one feature code of training and serving: a prompt becomes hashed words and a few plain facts.

Only numpy. Words are found as runs in a mask over the UTF-8 bytes and hashed all at once: prefix
sums of a polynomial over the bytes give each run's hash by one subtraction, so there is no Python
loop over words. Change anything here that changes a number and raise `FEATURE_VERSION`: an
artifact that was trained with another version is refused.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.prediction import Prompt

FEATURE_VERSION: Final = 1
BUCKET_BITS: Final = 17
"""Hashed words and word pairs share 2**17 buckets."""
HEAD_BYTES: Final = 8192
TAIL_BYTES: Final = 4096
"""Of a longer text only its head and its tail are read, so the time is bounded."""
FOLLOW_UP_CHARS: Final = 200
"""A last message shorter than this leans on the end of the conversation before it."""
CONTEXT_CHARS: Final = 1000

STRUCTURE: Final = (
    "log_bytes",
    "log_words",
    "bytes_per_word",
    "digit_share",
    "upper_share",
    "math_share",
    "bracket_share",
    "backslash_share",
    "dollar_share",
    "non_ascii_share",
    "log_lines",
    "log_questions",
    "log_numbers",
    "log_options",
    "code_fence",
    "cue_maths",
    "cue_code",
    "cue_constraint",
    "cue_reasoning",
    "cue_light",
    "log_turns",
    "log_tools",
    "log_images",
    "json_mode",
    "log_system_chars",
    "log_history_chars",
)

CUES: Final = (
    # Each group is one count. They are the plain words of a kind of work, chosen by hand.
    (
        "prove proof theorem lemma derive derivation integral derivative differentiate integrate matrix eigenvalue "
        "eigenvalues polynomial converge converges convergence probability modulo divisible irrational prime primes "
        "inequality combinatorial integers triangle equation equations perpendicular differential asymptotic bijection "
        "continuous homomorphism manifold variance posterior frac sqrt mathbb lim"
    ),
    (
        "def class function functions return import const sql select join python javascript typescript rust java golang "
        "algorithm algorithms compile compiler bug debug refactor thread threads async await mutex deadlock pointer "
        "regex api stack traceback exception lambda struct void static assert recursion kernel queue concurrent cache "
        "lock schema index database o linked scheduler"
    ),
    (
        "must exactly only without except ensure ensuring least never always constraint constraints requirement "
        "requirements avoid satisfy satisfies subject unless respectively cannot simultaneously strictly distinct "
        "maximum minimum bound bounded bounds no"
    ),
    (
        "step steps why analyze analyse compare evaluate justify design tradeoff tradeoffs optimal optimize optimise "
        "implement implementation strategy plan reason reasoning architecture distributed critique argue assess "
        "determine simulate rigorous rigorously detail detailed contradiction complexity efficient edge correctness "
        "prioritize scenario diagnose investigate propose consistent consistency migrate"
    ),
    (
        "hi hello hey thanks thank please capital joke haiku poem synonym synonyms spell weather name names favorite "
        "favourite birthday greeting greet color colour today okay ok bye who"
    ),
)

SHAPES: Final = ("open", "choice", "tools")
"""Open text; a question with three choices or more; a request that carries tools."""
_TOOLS_AT: Final = STRUCTURE.index("log_tools")
_OPTIONS_AT: Final = STRUCTURE.index("log_options")
_THREE_OPTIONS: Final = math.log1p(2.5)

Indices = NDArray[np.int64]
Values = NDArray[np.float32]
_Bytes = NDArray[np.uint8]
_Codes = NDArray[np.intp]

_MAX_BYTES: Final = HEAD_BYTES + TAIL_BYTES + 1
_SEED: Final = 20240623
_BASE: Final = 0x9E3779B97F4A7C15  # Odd, so it has an inverse modulo 2**64.
_PAIR: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_FINISH: Final = np.uint64(0xFF51AFD7ED558CCD)
_FOLD: Final = np.uint64(31)
_BUCKET_SHIFT: Final = np.uint64(64 - BUCKET_BITS)
_CUE_SHIFT: Final = np.uint64(64 - 16)

# What kind of byte each byte is, for the counts below.
_LOWER, _UPPER, _DIGIT, _SPACE, _NEWLINE, _MATH, _BRACKET, _BACKSLASH, _DOLLAR, _QUESTION, _LEAD, _REST, _OTHER = range(
    13
)


def _byte_kinds() -> _Codes:
    kinds = np.full(256, _OTHER, np.intp)
    for kind, members in (
        (_LOWER, b"abcdefghijklmnopqrstuvwxyz"),
        (_UPPER, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        (_DIGIT, b"0123456789"),
        (_SPACE, b" \t"),
        (_NEWLINE, b"\n"),
        (_MATH, b"+-*/=<>^%|~"),
        (_BRACKET, b"()[]{}"),
        (_BACKSLASH, b"\\"),
        (_DOLLAR, b"$"),
        (_QUESTION, b"?"),
        (_REST, bytes(range(0x80, 0xC0))),
        (_LEAD, bytes(range(0xC0, 0x100))),
    ):
        kinds[list(members)] = kind
    return kinds


def _byte_values() -> NDArray[np.uint64]:
    """A random number for each byte; upper case reads as lower case, every digit as the same digit."""
    drawn = np.frombuffer(
        b"".join(hashlib.blake2b(bytes([b]), digest_size=8, salt=b"weighbridge").digest() for b in range(256)), "<u8"
    ).astype(np.uint64)
    for byte in range(256):
        if chr(byte).isascii() and chr(byte).isupper():
            drawn[byte] = drawn[byte + 32]
        if chr(byte).isascii() and chr(byte).isdigit():
            drawn[byte] = drawn[ord("0")]
    return drawn


def _powers(base: int) -> NDArray[np.uint64]:
    out, power = [], 1
    for _ in range(_MAX_BYTES + 1):
        out.append(power)
        power = power * base % 2**64
    return np.array(out, np.uint64)


_KIND: Final = _byte_kinds()
_VALUE: Final = _byte_values()
_IN_WORD: Final = np.isin(np.arange(256), [*b"_", *range(0x80, 0x100)]) | (_KIND <= _DIGIT)
_POWER: Final = _powers(_BASE)
_INVERSE: Final = _powers(pow(_BASE, -1, 2**64))


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The high bits of a polynomial hash are good only after one more multiplication."""
    mixed: NDArray[np.uint64] = (hashes ^ (hashes >> _FOLD)) * _FINISH
    return mixed


def _word_hashes(codes: _Codes) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Each word's hash and the byte it begins at."""
    inside = np.zeros(len(codes) + 2, np.bool_)
    inside[1:-1] = _IN_WORD.take(codes)
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts, ends = edges[::2], edges[1::2]
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(_VALUE.take(codes) * _POWER[: len(codes)], out=sums[1:])
    return (sums[ends] - sums[starts]) * _INVERSE[starts], starts


def _codes(data: bytes) -> _Codes:
    """The bytes as table positions, converted once for every table."""
    return np.frombuffer(data, np.uint8).astype(np.intp)


def _cue_groups() -> _Bytes:
    """The group of each cue word by 16 bits of its hash; 0 for all other words."""
    table = np.zeros(2**16, np.uint8)
    for group, words in enumerate(CUES, 1):
        hashes, _ = _word_hashes(_codes(words.encode()))
        table[(_mixed(hashes) >> _CUE_SHIFT).astype(np.int64)] = group
    return table


_CUE: Final = _cue_groups()


class Features(msgspec.Struct, frozen=True):
    """A prompt as the model sees it: bucket numbers in rising order, how often each was hit, and the plain facts."""

    indices: Indices
    counts: Values
    structure: Values


def read_text(prompt: Prompt) -> bytes:
    """The bytes that are read: the last message, led by the end of the conversation when it is a short follow-up."""
    text = prompt.text
    if prompt.history and len(text) < FOLLOW_UP_CHARS:
        text = f"{prompt.history[-CONTEXT_CHARS:]}\n{text}"
    if len(text) > HEAD_BYTES + TAIL_BYTES:
        text = f"{text[:HEAD_BYTES]}\n{text[-TAIL_BYTES:]}"
    # A lone surrogate cannot be encoded; it reads as a question mark.
    data = text.encode("utf-8", "replace")
    if len(data) > _MAX_BYTES:
        data = data[:HEAD_BYTES] + b"\n" + data[-TAIL_BYTES:]
    return data


def extract(prompt: Prompt) -> Features:
    """The features of one prompt, in bounded time, for any text."""
    data = read_text(prompt)
    codes = _codes(data)
    hashes, starts = _word_hashes(codes)
    words = _mixed(hashes)
    pairs = _mixed(hashes[:-1] * _PAIR + hashes[1:])
    buckets = (np.concatenate((words, pairs)) >> _BUCKET_SHIFT).astype(np.int64)
    indices, counts = _counted(buckets)
    cues = np.bincount(_CUE[(words >> _CUE_SHIFT).astype(np.int64)], minlength=len(CUES) + 1)
    facts = _text_facts(data, codes, starts) + [math.log1p(n) for n in cues[1:].tolist()] + _request_facts(prompt)
    return Features(indices, counts.astype(np.float32), np.array(facts, np.float32))


def _counted(buckets: Indices) -> tuple[Indices, Indices]:
    """What `np.unique` with counts gives, at half its price for short arrays."""
    if not len(buckets):
        return buckets, buckets
    buckets.sort()
    first = np.empty(len(buckets) + 1, np.bool_)
    first[0] = first[-1] = True
    np.not_equal(buckets[1:], buckets[:-1], out=first[1:-1])
    at = np.flatnonzero(first)
    return buckets[at[:-1]], np.diff(at)


def _text_facts(data: bytes, codes: _Codes, starts: NDArray[np.intp]) -> list[float]:
    of_byte = _KIND.take(codes)
    kinds = np.bincount(of_byte, minlength=_OTHER + 1).tolist()
    size, words = max(1, len(data)), len(starts)
    letters = max(1, kinds[_LOWER] + kinds[_UPPER])
    numbers = int(np.count_nonzero(of_byte[starts] == _DIGIT))
    return [
        math.log1p(len(data)),
        math.log1p(words),
        min(16.0, len(data) / max(1, words)),
        kinds[_DIGIT] / size,
        kinds[_UPPER] / letters,
        kinds[_MATH] / size,
        kinds[_BRACKET] / size,
        kinds[_BACKSLASH] / size,
        kinds[_DOLLAR] / size,
        (kinds[_LEAD] + kinds[_REST]) / size,
        math.log1p(kinds[_NEWLINE]),
        math.log1p(kinds[_QUESTION]),
        math.log1p(numbers),
        math.log1p(_options(np.frombuffer(data, np.uint8)) if kinds[_NEWLINE] else 0),
        1.0 if b"```" in data else 0.0,
    ]


def _options(view: _Bytes) -> int:
    """Lines that begin like a choice: `A. `, `B) `."""
    at = np.flatnonzero(view[:-2] == ord("\n"))
    letter, mark = view[at + 1], view[at + 2]
    choice = (letter >= ord("A")) & (letter <= ord("J")) & ((mark == ord(".")) | (mark == ord(")")))
    return int(np.count_nonzero(choice))


def _request_facts(prompt: Prompt) -> list[float]:
    return [
        math.log1p(max(0, prompt.turns - 1)),
        math.log1p(max(0, prompt.tools)),
        math.log1p(max(0, prompt.images)),
        1.0 if prompt.json_mode else 0.0,
        math.log1p(len(prompt.system)),
        math.log1p(len(prompt.history)),
    ]


def structure_of(features: Features) -> dict[str, float]:
    """The plain facts by name."""
    return dict(zip(STRUCTURE, features.structure.tolist(), strict=True))


def shape_of(features: Features) -> int:
    """Which of `SHAPES` a prompt has; the model keeps one set of weights for each."""
    if features.structure[_TOOLS_AT] > 0:
        return 2
    return 1 if features.structure[_OPTIONS_AT] > _THREE_OPTIONS else 0


_PROBES: Final = (
    Prompt(text=""),
    Prompt(text="What's the capital of France?\nA. Paris\nB. Lyon"),
    Prompt(text="def f(x):\n    return x ** 2  # Größe 漢字 🙂", tools=2, images=1, json_mode=True),
    Prompt(text="and then?", system="Be brief.", history="one 1 two 22 three 333", turns=3),
    Prompt(text="Prove that $\\sqrt{2}$ is irrational. " * 400),
)


def _described(prompts: Iterable[Prompt]) -> list[Any]:
    found = [extract(prompt) for prompt in prompts]
    return [
        [f.indices.tolist(), f.counts.tolist(), [float(f"{value:.4g}") for value in f.structure.tolist()]]
        for f in found
    ]


def feature_hash() -> str:
    """What these features are, told by what they do: their parameters and the features of some probes."""
    said = [FEATURE_VERSION, BUCKET_BITS, STRUCTURE, CUES, SHAPES, _described(_PROBES)]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()
