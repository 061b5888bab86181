"""Feature extraction, shared by training and serving: a prompt becomes hashed words and a few plain facts.

Words are found as runs in a mask over the UTF-8 bytes and hashed all at once: prefix sums of a polynomial over the bytes
give each run's hash by one subtraction, so there is no Python loop over words. A Chinese, Japanese or Korean character is
a word of its own, and two neighbours are one more. What numpy does here classifier/featurize.c does in a quarter of the time
where the installation could compile it; the numbers are the same. Whoever changes anything here that changes a
number has to raise `FEATURE_VERSION`: an artifact that was trained with another version is refused.
"""

import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.asking.compiled_tables import compiled_tables, fingerprint
from classifier.asking.normalization import MARKS, PLAIN_MARKS, with_plain_marks
from classifier.asking.resolution import bounded, resolve, to_search
from classifier.compiled import LIBRARY, CompiledFeaturizer, Found, Request, load
from classifier.prediction import Prompt
from classifier.tuning import SKETCH

FEATURE_VERSION: Final = 7
BUCKET_BITS: Final = 17
"""Hashed words and word pairs share 2**17 buckets."""
WORD_BITS: Final = 18
"""Words whose meaning is looked up have 2**18 buckets of their own."""
HEAD_WORDS: Final = 160
TAIL_WORDS: Final = 64
"""Words of a longer text's start and end whose meaning is looked up."""
CONTEXT_WORDS: Final = 48
"""Words of the user message before the last one whose meaning is looked up."""
CONTEXT_CHARS: Final = 400
SHORT_WORDS: Final = 8
"""Number of words below which a message is read with the one before it."""
HALF_READ: Final = 8.0
"""Words at which a message counts about half as much as a long one, in the second reading."""
READINGS: Final = 5
PART_READINGS: Final = 3
FIRST_WORDS: Final = 6
"""Words of a message's start that are read by themselves, for there most requests say what they ask for."""
HEAD_BYTES: Final = 1536
TAIL_BYTES: Final = 768
"""Bytes read of a longer text's end, after the first HEAD_BYTES, which bounds the time. Reading five times as many moves no
APGR of the ten folds in docs/classifier.md by more than .004.
"""

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
    "log_commas",
    "log_stops",
    "log_items",
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

FLAGS: Final = ("follows", "follows_short", "tools")
"""Names of the flags: a user message before, this one short besides, and tools on offer."""
SHAPES: Final = ("open", "choice", "tools")
"""Shapes of a prompt: open text, a question with three choices or more, a request with tools."""
_TOOLS_AT: Final = STRUCTURE.index("log_tools")
_OPTIONS_AT: Final = STRUCTURE.index("log_options")
_THREE_OPTIONS: Final = math.log1p(2.5)

Indices = NDArray[np.int32]
Integers = NDArray[np.intp]
Values = NDArray[np.float32]
_Bytes = NDArray[np.uint8]

_MAX_BYTES: Final = HEAD_BYTES + TAIL_BYTES + 1
_SEED: Final = 20240623
_BASE: Final = 0x9E3779B97F4A7C15  # Odd, so it has an inverse modulo 2**64.
_PAIR: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_FINISH: Final = np.uint64(0xFF51AFD7ED558CCD)
_FOLD: Final = np.uint64(31)
_BUCKET_SHIFT: Final = np.uint64(64 - BUCKET_BITS)
_WORD_SHIFT: Final = np.uint64(64 - WORD_BITS)
_NO_WORDS: Final = np.empty(0, np.int32)
_CUE_SHIFT: Final = np.uint64(64 - 16)
_BLANK: Final = 32
_ZERO: Final = np.uint8(ord("0"))
_TEN: Final = np.uint8(10)

# What kind of byte each byte is, for the counts below.
_LOWER, _UPPER, _DIGIT, _UNDERSCORE, _LEAD, _REST, _SPACE, _NEWLINE, _MATH, _BRACKET, _BACKSLASH, _DOLLAR = range(12)
_QUESTION, _COMMA, _STOP_MARK, _OTHER = 12, 13, 14, 15
_LOWER_BYTES: Final = b"abcdefghijklmnopqrstuvwxyz"
_COMMON: Final = _LOWER_BYTES + b" "
"""The bytes that most texts consist of, which are counted without looking at each."""


def _byte_kinds() -> bytes:
    kinds = bytearray([_OTHER]) * 256
    for kind, members in (
        (_LOWER, _LOWER_BYTES),
        (_UPPER, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        (_DIGIT, b"0123456789"),
        (_UNDERSCORE, b"_"),
        (_REST, bytes(range(0x80, 0xC0))),
        (_LEAD, bytes(range(0xC0, 0x100))),
        (_SPACE, b" \t"),
        (_NEWLINE, b"\n"),
        (_MATH, b"+-*/=<>^%|~"),
        (_BRACKET, b"()[]{}"),
        (_BACKSLASH, b"\\"),
        (_DOLLAR, b"$"),
        (_QUESTION, b"?"),
        (_COMMA, b","),
        (_STOP_MARK, b".!;:"),
    ):
        for member in members:
            kinds[member] = kind
    return bytes(kinds)


def _byte_values() -> NDArray[np.uint64]:
    """Return a random number for each byte of a word, 0 for every other byte.

    Upper case reads as lower case, every digit as the same digit.
    """
    drawn = np.frombuffer(
        b"".join(hashlib.blake2b(bytes([b]), digest_size=8, salt=b"weighbridge").digest() for b in range(256)), "<u8"
    ).astype(np.uint64)
    for byte in range(256):
        if chr(byte).isascii() and chr(byte).isupper():
            drawn[byte] = drawn[byte + 32]
        if chr(byte).isascii() and chr(byte).isdigit():
            drawn[byte] = drawn[ord("0")]
        if _KIND[byte] > _REST:
            drawn[byte] = 0
    return drawn


def _powers(base: int, first: int) -> NDArray[np.uint64]:
    out, power = [], first
    for _ in range(_MAX_BYTES + 1):
        out.append(power)
        power = power * base % 2**64
    return np.array(out, np.uint64)


_KIND: Final = _byte_kinds()
_IDEOGRAPH_BYTES: Final = 3
# U+3000 to U+DFFF: Chinese, Japanese and Korean characters, each of three bytes that begin with one of these.
_LEADS_IDEOGRAPH: Final = np.isin(np.arange(256), np.arange(0xE3, 0xEE))
_VALUE: Final = _byte_values()
_BLOCK_BYTES: Final = 64
_UNBASE: Final = pow(_BASE, -1, 2**64)
_POWER: Final = _powers(_BASE, _UNBASE)
"""Powers of the base. The first belongs to the blank before the text, so that the text's first byte has the power 0."""
_INVERSE: Final = _powers(_UNBASE, 1)


def _in_a_block(base: int) -> NDArray[np.uint64]:
    """Return the powers of the base for the compiled library, which reads blocks of _BLOCK_BYTES: of 0 up to as many."""
    return np.array([pow(base, power, 2**64) for power in range(_BLOCK_BYTES + 1)], np.uint64)


def _mark_at(byte: int) -> int:
    """Return the place in MARKS of those that begin with this byte; its length where none does."""
    return next((at for at, mark in enumerate(MARKS) if mark[1] == byte), len(MARKS))


def _mix(hashes: NDArray[np.uint64]) -> None:
    """Mix hashes in place: a polynomial hash has good high bits only after one more multiplication."""
    hashes ^= hashes >> _FOLD
    hashes *= _FINISH


def _word_hashes(view: _Bytes, *, ideographs: bool = False) -> tuple[NDArray[np.uint64], Integers, int]:
    """Return the hash of each word, the place of its first byte, and the number of bytes within words.

    `ideographs` says that there may be characters which are words of their own.
    """
    size = len(view)
    at = np.empty(size + 1, np.intp)
    at[0] = _BLANK
    at[1:] = view
    values = _VALUE.take(at)
    inside = values != 0
    begins = np.empty(size + 1, np.bool_)
    np.greater(inside[1:], inside[:-1], out=begins[:-1])
    if ideographs:
        lead = _LEADS_IDEOGRAPH.take(view)
        begins[:-1] |= lead
        begins[3:-1] |= lead[:-3] & inside[4:]
    begins[-1] = True
    (bounds,) = begins.nonzero()
    values *= _POWER[: size + 1]
    sums = values.cumsum()
    # Bytes between words add nothing, so a word's sum ends where the next word's begins, or at the end of the text.
    before = sums.take(bounds)
    hashes = before[1:] - before[:-1]
    starts = bounds[:-1]
    hashes *= _INVERSE.take(starts)
    return hashes, starts, int(np.count_nonzero(inside))


def _cue_groups() -> _Bytes:
    """Return a table from 16 bits of a word's hash to its cue group, 0 for words of none."""
    table = np.zeros(2**16, np.uint8)
    for group, words in enumerate(CUES, 1):
        hashes, _, _ = _word_hashes(np.frombuffer(words.encode(), np.uint8))
        _mix(hashes)
        table[(hashes >> _CUE_SHIFT).astype(np.int64)] = group
    return table


_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789", b"0" * 9)
_WORD: Final = re.compile(rb"[a-z0-9_\x80-\xff]+")
_LINE_STARTS: Final = re.compile(rb"\n(?:([A-J])[.)]|(?:[-*]|[12]\.) )")
"""Lines that begin like a choice, whose letter is the group, or as a list's; of a numbered one the first two items are
enough to tell."""
UNITS: Final = ("word", "sentence", "paragraph", "line", "page")
"""Units of a length that a text may ask for."""
# The first digit stands alone so that the search can skip to one; it would try every byte otherwise. Spaces that do not break
# stand in texts of some languages.
_ASKED_LENGTH: Final = re.compile(
    rb"([0-9][0-9]{0,4})(?:[\s-]|\xc2\xa0|\xe2\x80\xaf){1,3}(word|sentence|paragraph|line|page)s?\b", re.IGNORECASE
)
_SEARCHED_BYTES: Final = 1000

# What is quoted, fenced or stands between a text's first line and its last is material, and not what is asked.
_LONG_QUOTE: Final = 20
_FENCED: Final = re.compile(rb"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED: Final = re.compile(rb'"[^"]{%d,}(?:"|\Z)' % _LONG_QUOTE)
_ALSO_QUOTED: Final = re.compile(rb"'[^'\n]{%d,}'(?![\w\x80-\xff])" % _LONG_QUOTE)
_IN_A_WORD: Final = re.compile(rb"[\w\x80-\xff]")
_MARKED: Final = re.compile(rb"`[^`]{12,}`")
# Two words, or four characters that are words of their own.
_ENOUGH: Final = re.compile(rb"[A-Za-z0-9_\x80-\xff][^A-Za-z0-9_\x80-\xff]+[A-Za-z0-9_\x80-\xff]|[\x80-\xff]{12}")
_QUESTION_MARKS: Final = re.compile(rb"\?(?=[\s\x80-\xff]|\Z)")
_LONGEST_SENTENCE: Final = 400
_SENTENCE_ENDS: Final = re.compile(rb"[.!?](?=[\s\x80-\xff]|\Z)|\n")
_CUE: Final = _cue_groups()
_CUE_GROUPS: Final = range(1, len(CUES) + 1)
_PLACING: Final = 0x9E3779B1
_PLACE: Final = (np.arange(1 << BUCKET_BITS, dtype=np.uint32) * np.uint32(_PLACING) >> np.uint32(25)).astype(np.uint8)
"""Each bucket's place among 2 * SKETCH; the lowest bit is the sign. As a table of bytes it takes a quarter of the cache that
the arithmetic's results would."""
# By count: no text that is read has more words than bytes.
_COUNTS: Final = np.arange(-(-_MAX_BYTES // _BLOCK_BYTES) * _BLOCK_BYTES + 1)
_SKETCHED: Final = np.log1p(_COUNTS)
_SUBLINEAR: Final = (1 + np.log(np.maximum(1, _COUNTS))).astype(np.float32)


class Part(msgspec.Struct, frozen=True):
    """A part of a message, read like a message of its own. See `Features`."""

    indices: Indices
    counts: Integers
    sublinear: Values
    structure: Values
    words: Indices

    @property
    def readings(self) -> Values:
        """(PART_READINGS, words): how much each word counts: the mean, the sum as it grows, and the mean of the first ones."""
        return _readings(len(self.words), 0)[OF_A_PART]


OF_A_PART: Final = [0, 1, 4]
"""Indices of the READINGS that a part has."""


class Features(msgspec.Struct, frozen=True):
    """A prompt as the model takes it: bucket numbers in rising order, their counts, and the facts of STRUCTURE."""

    indices: Indices
    counts: Integers
    sublinear: Values
    """Weight of each bucket in the graph: 1 + log(count)."""
    structure: Values
    terms: int
    """Number of words and word pairs: the sum of `counts`."""
    words: Indices
    """Buckets of the message's words, HEAD_WORDS of its start and TAIL_WORDS of its end, by meaning: 2**WORD_BITS."""
    sketch: Values
    """(SKETCH,): signed hashed words and pairs, whose dot product is a similarity; see `_sketched`."""
    asked: tuple[int, int]
    """The length that the text asks for, as in "300 words": the number, and which of UNITS from 1 on; 0 for none."""
    before: Indices
    """The same as `words` of the user message before it, CONTEXT_WORDS of its start."""
    ask: Part
    """The message without what is pasted: see `ask_in`."""
    question: Part
    """The sentence of it that asks: see `question_in`."""

    @property
    def readings(self) -> Values:
        """(READINGS, words + before): how much each word counts. See `_readings`."""
        return _readings(len(self.words), len(self.before))

    @property
    def flags(self) -> Values:
        """The facts of FLAGS."""
        return _FLAG_VALUES[len(self.words) < SHORT_WORDS, len(self.before) > 0, self.structure.item(_TOOLS_AT) > 0]


_FLAG_VALUES: Final = {
    (short, follows, tools): np.array([follows, follows and short, tools], np.float32)
    for short in (False, True)
    for follows in (False, True)
    for tools in (False, True)
}


@functools.lru_cache(maxsize=1024)
def _readings(words: int, before: int) -> Values:
    """Return the weights of a message's words and of those before it, in five readings: the mean of the message's,
    their sum as it grows with its length, the mean of those before, the same again where the message is short, and the
    mean of the first ones.
    """
    weights = np.zeros((READINGS, words + before), np.float32)
    weights[0, :words] = 1 / (1 + words)
    weights[1, :words] = 1 / math.sqrt(HALF_READ + words)
    weights[2, words:] = 1 / (1 + before)
    if words < SHORT_WORDS:
        weights[3] = weights[2]
    first = min(words, FIRST_WORDS)
    weights[4, :first] = 1 / (1 + first)
    return weights


def parts_of(prompt: Prompt) -> tuple[bytes, bytes]:
    """Return the part of a prompt that is read, and its ask, with plain marks. See classifier/asking."""
    asked = resolve(prompt)
    text = _ends(asked.text)
    return text, text if asked.ask == asked.text else _ends(asked.ask)


def read_text(prompt: Prompt) -> bytes:
    """Return the part of a prompt that is read, with plain marks."""
    if COMPILED is None:
        return parts_of(prompt)[0]
    data, system, settled = to_search(prompt)
    return COMPILED.parts(data, system, settled=settled)[0]


def _ends(data: bytes) -> bytes:
    return b"%b\n%b" % (data[:HEAD_BYTES], data[-TAIL_BYTES:]) if len(data) > HEAD_BYTES + TAIL_BYTES + 1 else data


def ask_in(data: bytes, *, edges: bool = True) -> bytes:
    """Return the ask of a text, without long quotations and fences, and of several lines only the first and the last (`edges`).
    Where that leaves less than two words it is the text itself.
    """
    rest = data
    if b"`" in rest:
        rest = _MARKED.sub(b" ", _FENCED.sub(b"\n", rest))
    if b'"' in rest:
        rest = _QUOTED.sub(b" ", rest)
    if b"'" in rest:
        rest = _ALSO_QUOTED.sub(_unless_in_a_word, rest)
    if edges and b"\n" in rest:
        lines = [line for line in map(bytes.strip, rest.split(b"\n")) if line]
        rest = b"\n".join(lines if len(lines) < _EDGES else (lines[0], lines[-1]))
    return rest if rest is data or _ENOUGH.search(rest) else data


_EDGES: Final = 3


def _unless_in_a_word(quoted: re.Match[bytes]) -> bytes:
    """Return '' in place of a quotation; an apostrophe in a word quotes nothing."""
    begin = quoted.start()
    return quoted[0] if begin and _IN_A_WORD.match(quoted.string, begin - 1) else b" "


def question_in(ask: bytes) -> bytes:
    """Return the last sentence that ends in a question mark, of which _LONGEST_SENTENCE bytes at most; otherwise the first one."""
    at = -1
    for found in _QUESTION_MARKS.finditer(ask):
        at = found.start()
    if at < 0:
        return next((ask[: end.end()] for end in _SENTENCE_ENDS.finditer(ask) if ask[: end.end()].strip()), ask)
    begin = max(0, at - _LONGEST_SENTENCE)
    for found in _SENTENCE_ENDS.finditer(ask, begin, at + 1):
        begin = found.end() if found.end() <= at else begin
    return ask[begin : at + 1]


def extract(prompt: Prompt) -> Features:
    """Return the features of one prompt, in bounded time, for any text."""
    return extract_by_numpy(prompt) if COMPILED is None else extract_compiled(prompt, COMPILED)


def extract_compiled(prompt: Prompt, compiled: CompiledFeaturizer) -> Features:
    """Return the features of one prompt, computed by the compiled library."""
    before = compiled.words(text_before(prompt), CONTEXT_WORDS) if prompt.before else _NO_WORDS
    request = request_of(prompt)
    data, system, settled = to_search(prompt)
    texts = compiled.parts(data, system, settled=settled)
    return _with_parts(texts, lambda text: compiled.features(text, request), before)


def texts_of(prompt: Prompt) -> tuple[bytes, bytes, bytes]:
    """Return the part of a prompt that is read, its ask, and its question."""
    data, asking = parts_of(prompt)
    ask = ask_in(asking or data, edges=not asking)
    return data, data if ask == data else ask, question_in(ask)


def _with_parts(texts: tuple[bytes, bytes, bytes], found_in: Callable[[bytes], Found], before: Indices) -> Features:
    data, ask, question = texts
    whole = found_in(data)
    of_ask = whole if ask is data else found_in(ask)
    of_question = of_ask if question == ask else found_in(question)
    return Features(*whole, before, _part(of_ask), _part(of_question))


def _part(found: Found) -> Part:
    indices, counts, sublinear, structure, _, words, _, _ = found
    return Part(indices, counts, sublinear, structure, words)


def request_of(prompt: Prompt) -> Request:
    """Return the facts of a request that the compiled library takes beside its text."""
    return prompt.turns, prompt.tools, prompt.images, prompt.json_mode, len(prompt.system), len(prompt.history)


def extract_by_numpy(prompt: Prompt) -> Features:
    """Return the features of one prompt, computed by numpy."""
    before = _words_before(prompt) if prompt.before else _NO_WORDS
    return _with_parts(texts_of(prompt), lambda text: _found_by_numpy(text, prompt), before)


def _found_by_numpy(data: bytes, prompt: Prompt) -> Found:
    view = np.frombuffer(data, np.uint8)
    ideographs = not data.isascii() and bool(_LEADS_IDEOGRAPH.take(view).any())
    hashes, starts, in_words = _word_hashes(view, ideographs=ideographs)
    words = len(hashes)
    # Words first, then the pairs of neighbours.
    terms = np.empty(max(0, 2 * words - 1), np.uint64)
    terms[:words] = hashes
    pairs = terms[words:]
    np.multiply(hashes[:-1], _PAIR, out=pairs)
    pairs += hashes[1:]
    _mix(terms)
    indices, counts = _counted((terms >> _BUCKET_SHIFT).astype(np.int32))
    cues = _CUE.take((terms[:words] >> _CUE_SHIFT).astype(np.intp)).tobytes()
    facts = [
        *_text_facts(data, view, starts, in_words),
        *(math.log1p(cues.count(group)) for group in _CUE_GROUPS),
        *_request_facts(prompt),
    ]
    meanings = _meanings(terms, words, view, starts, ideographs=ideographs)
    structure = np.array(facts, np.float32)
    sublinear, sketch = _SUBLINEAR.take(counts), _sketched(indices, counts)
    return indices, counts, sublinear, structure, len(terms), meanings, sketch, _asked(data)


def _meanings(terms: NDArray[np.uint64], words: int, view: _Bytes, starts: Integers, *, ideographs: bool) -> Indices:
    """Return the buckets by meaning of words, and of pairs of ideographs."""
    read = terms[:words]
    if ideographs:
        alone = _LEADS_IDEOGRAPH.take(view.take(starts))
        joined = alone[:-1] & alone[1:] & (starts[1:] - starts[:-1] == _IDEOGRAPH_BYTES)
        read = np.concatenate([read, terms[words:][joined]])
    if len(read) > HEAD_WORDS + TAIL_WORDS:
        read = np.concatenate([read[:HEAD_WORDS], read[-TAIL_WORDS:]])
    return (read >> _WORD_SHIFT).astype(np.int32)


def meaning_of(word: str) -> Indices:
    """Return the buckets by meaning of one word, as training's table needs them: a text's words, then pairs of ideographs."""
    return extract(Prompt(text=word)).words


def words_of(text: str) -> list[str]:
    """Return a text's words as they are hashed: lower case, and every digit a 0."""
    folded = with_plain_marks(text.encode("utf-8", "replace")).lower().translate(_DIGITS_ALIKE)
    return [word.decode("utf-8", "replace") for word in _WORD.findall(folded)]


def raw_text_before(prompt: Prompt) -> bytes:
    """Return the UTF-8 bytes that are read of the user message before the last one: its start."""
    return bounded(prompt.before[:CONTEXT_CHARS], CONTEXT_CHARS, CONTEXT_CHARS)


def text_before(prompt: Prompt) -> bytes:
    """Return the same bytes with plain marks."""
    return with_plain_marks(raw_text_before(prompt))


def _words_before(prompt: Prompt) -> Indices:
    """Return the buckets by meaning of the start of the user message before the last one."""
    data = np.frombuffer(text_before(prompt), np.uint8)
    hashes, _, _ = _word_hashes(data, ideographs=not prompt.before.isascii())
    hashes = hashes[:CONTEXT_WORDS]
    _mix(hashes)
    return (hashes >> _WORD_SHIFT).astype(np.int32)


def _counted(buckets: Indices) -> tuple[Indices, Integers]:
    """Return distinct buckets with their counts, as `np.unique` gives them, at half its price for short arrays. Sorts
    in place.
    """
    if not len(buckets):
        return buckets, np.empty(0, np.intp)
    buckets.sort()
    first = np.empty(len(buckets) + 1, np.bool_)
    first[0] = first[-1] = True
    np.not_equal(buckets[1:], buckets[:-1], out=first[1:-1])
    (at,) = first.nonzero()
    return buckets.take(at[:-1]), at[1:] - at[:-1]


def _sketched(indices: Indices, counts: Integers) -> Values:
    """Return (SKETCH,): a vector of length 1, or all 0 for a prompt without words.

    A count sketch (Charikar, Chen and Farach-Colton 2002): dot products are those of the hashed terms, ± 0.125.
    """
    both = np.bincount(_PLACE.take(indices), _SKETCHED.take(counts), 2 * SKETCH)
    summed = both[::2] - both[1::2]
    # One after the other, so that the compiled library adds up to the same.
    length = math.sqrt((summed * summed).cumsum().item(-1))
    return (summed / length if length > 0 else summed).astype(np.float32)


def _asked(data: bytes) -> tuple[int, int]:
    found = _ASKED_LENGTH.search(data, 0, _SEARCHED_BYTES)
    return (int(found[1]), UNITS.index(found[2].lower().decode()) + 1) if found else (0, 0)


def _text_facts(data: bytes, view: _Bytes, starts: Integers, in_words: int) -> list[float]:
    rare = data.translate(_KIND, _COMMON)
    kinds = np.bincount(np.frombuffer(rare, np.uint8), minlength=_OTHER + 1).tolist()
    size, words = max(1, len(data)), len(starts)
    beyond_ascii = kinds[_LEAD] + kinds[_REST]
    # Of a word's bytes, what is none of these is a small letter.
    letters = max(1, in_words - kinds[_DIGIT] - kinds[_UNDERSCORE] - beyond_ascii)
    numbers = 0
    if kinds[_DIGIT]:
        # Below "0" the difference wraps around and is far above 9.
        numbers = int(np.count_nonzero(view.take(starts) - _ZERO < _TEN))
    line_starts = _LINE_STARTS.findall(data) if kinds[_NEWLINE] else []
    items = line_starts.count(b"")
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
        beyond_ascii / size,
        math.log1p(kinds[_NEWLINE]),
        math.log1p(kinds[_QUESTION]),
        math.log1p(numbers),
        math.log1p(len(line_starts) - items),
        math.log1p(kinds[_COMMA]),
        math.log1p(kinds[_STOP_MARK]),
        math.log1p(items),
        # One byte is found much faster than three.
        1.0 if b"`" in data and b"```" in data else 0.0,
    ]


def _request_facts(prompt: Prompt) -> list[float]:
    return [
        math.log1p(max(0, prompt.turns - 1)),
        math.log1p(max(0, prompt.tools)),
        math.log1p(max(0, prompt.images)),
        1.0 if prompt.json_mode else 0.0,
        math.log1p(len(prompt.system)),
        math.log1p(len(prompt.history)),
    ]


def shape_of(features: Features) -> int:
    """Return the index in `SHAPES` of a prompt's shape."""
    if features.structure[_TOOLS_AT] > 0:
        return 2
    return 1 if features.structure[_OPTIONS_AT] > _THREE_OPTIONS else 0


PROBES: Final = (
    Prompt(text=""),
    Prompt(text="What's the capital of France?\nA. Paris\nB. Lyon"),
    Prompt(text="def f(x):\n    return x ** 2  # Größe 漢字 🙂", tools=2, images=1, json_mode=True),
    Prompt(text="and then?", system="Be brief.", before="one 1 two 22 三三", history="one 1 two 22 three 333", turns=3),
    Prompt(text="Prove that $\\sqrt{2}$ is irrational. " * 400),
    Prompt(
        text="Hi. Whose is it?\n\n\"Found: one glove, and half of a hat.\"\n```\nx = 1\n```\nSay 'it is that of the owner', ok? Thanks."
    ),
)


def _described(prompts: Iterable[Prompt], how: Callable[[Prompt], Features]) -> list[Any]:
    found = [how(prompt) for prompt in prompts]
    return [
        [
            f.indices.tolist(),
            f.counts.astype(np.float32).tolist(),
            f.words.tolist(),
            f.before.tolist(),
            [float(f"{value:.4g}") for part in (f, f.ask, f.question) for value in part.structure.tolist()],
            [part.words.tolist() for part in (f.ask, f.question)],
        ]
        for f in found
    ]


def feature_hash() -> str:
    """Return the SHA-256 of the features' parameters and of their values for some probe prompts, which changes when
    they do.
    """
    said = [
        FEATURE_VERSION,
        BUCKET_BITS,
        WORD_BITS,
        HALF_READ,
        FIRST_WORDS,
        STRUCTURE,
        CUES,
        SHAPES,
        FLAGS,
        fingerprint(),
        _described(PROBES, extract),
    ]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()


def compiled_featurizer(library: Path) -> CompiledFeaturizer | None:
    """Return the compiled library, where there is one and it gives numpy's numbers: one of another version does not."""
    tables: dict[str, NDArray[Any]] = {
        "value": _VALUE,
        "ideograph": _LEADS_IDEOGRAPH.view(np.uint8),
        "cue": _CUE,
        "is_cue": np.packbits(_CUE > 0, bitorder="little"),
        "log_more": _SKETCHED,
        "sublinear": _SUBLINEAR,
        "power": _in_a_block(_BASE),
        "inverse": _in_a_block(_UNBASE),
        "tally": np.eye(_OTHER + 1, dtype=np.uint8)[np.frombuffer(_KIND, np.uint8)],
        "marks": np.frombuffer(b"".join(MARKS), np.uint8),
        "mark_at": np.array([_mark_at(byte) for byte in range(256)], np.uint8),
    }
    numbers = {
        "pair": int(_PAIR),
        "finish": int(_FINISH),
        "placing": _PLACING,
        "word_bits": WORD_BITS,
        "head_words": HEAD_WORDS,
        "tail_words": TAIL_WORDS,
        "head_bytes": HEAD_BYTES,
        "tail_bytes": TAIL_BYTES,
        "sketch": SKETCH,
        "searched": _SEARCHED_BYTES,
        "marks_known": len(PLAIN_MARKS),
        "long_quote": _LONG_QUOTE,
        "long_sentence": _LONGEST_SENTENCE,
    }
    found = load(library, tables, numbers, compiled_tables())
    if found is None:
        return None
    by_numpy = _described(PROBES, extract_by_numpy)
    return found if _described(PROBES, lambda prompt: extract_compiled(prompt, found)) == by_numpy else None


COMPILED: Final = compiled_featurizer(LIBRARY)
"""The library of this installation, or None."""
