"""Estimate whether a text tries to overrule the instructions a model was given.

A linear model over hashed byte n-grams, read in windows: the table has a weight for each bucket, a running sum gives any
window by one subtraction, and the highest window is the text's score. It knows the wording of attacks that people published;
an instruction that reads like any other sentence, as in a poisoned document, it does not know. docs/injection.md has the
rates by family. Fitted by `python -m guard.training.train`, which serving never imports.
"""

import binascii
import functools
import hashlib
import io
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote_to_bytes

import msgspec
import numpy as np
import re2
from numpy.typing import NDArray

ARTIFACTS: Final = Path(__file__).parent / "artifacts"
WEIGHTS_FILE: Final = "injection.npz"
MANIFEST_FILE: Final = "injection.json"
MAX_FILE_BYTES: Final = 2**20
FEATURE_VERSION: Final = 1
"""Raised by whoever changes a number that `grams` or `windows` give; weights of another version are refused."""
BUCKET_BITS: Final = 17
WINDOWS: Final = (96, 384)
"""Bytes of a window: a sentence, and a paragraph."""
STEP: Final = 32
_LEAST_CHARS: Final = 12
"""Of an instruction. Names of tools and fields are shorter, mostly."""
MAX_CHARS: Final = 1_048_576
"""Characters read of a text; of a longer one its two ends, where instructions stand."""

Columns = NDArray[np.uint32]

_SHIFT: Final = np.uint32(32 - BUCKET_BITS)
# Odd numbers that multiply well; the order of an n-gram changes its hash.
_FOUR: Final = np.uint32(0x9E3779B1)
_SEVEN: Final = np.uint32(0x85EBCA77)
_TEN: Final = np.uint32(0xC2B2AE3D)
_ORDERS: Final = 3
_LONGEST: Final = 10


def _plain_bytes() -> bytes:
    """Return a table: letters as small ones, every other ASCII sign a blank, but digits as the letters they stand for."""
    table = bytearray(b" " * 128 + bytes(range(128, 256)))
    for byte in range(128):
        if chr(byte).isalpha():
            table[byte] = ord(chr(byte).lower())
    for sign, letter in zip(b"0123456789@$", b"oi0east000as", strict=True):
        table[sign] = letter
    return bytes(table)


_PLAIN: Final = _plain_bytes()
_LOOK_ALIKES: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0455\u0458\u04bb\u0501\u03bf\u03b1\u03c1\u03bd\u03b9\u03ba\u0131\u0251\u0261",
    "aeopcyxisjhdoapvikiag",
)
"""Letters of other scripts that look like Latin ones. Whole words of those scripts change alike wherever they stand."""
_UNSEEN: Final = re.compile(
    "[\u00ad\u0300-\u036f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]+"
)
"""Marks over letters, and characters without a shape."""
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_USUAL_CHARS: Final = 2
_ANY_APART: Final = re2.compile(rb"(?: [a-z]){4} ")
_LETTERS_APART: Final = re.compile(rb"(?: [a-z]){4,}(?= )")
_ENCODED: Final = re2.compile(rb"[A-Za-z0-9+/_-]{24,}={0,2}")
_MOST_ENCODED: Final = 64
_HEX: Final = re.compile(rb"(?:[0-9a-fA-F]{2})+")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_NO_LETTERS: Final = bytes(byte for byte in range(256) if not (bytes([byte]).isalpha() or bytes([byte]).isspace()))
_READABLE: Final = 0.8
_FEWEST_ESCAPES: Final = 8


class InjectionModelError(Exception):
    """The shipped weights cannot be used."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored beside the weights: how to read them, where they come from, and what was measured."""

    feature_version: int
    weights_sha256: str
    scale: float
    bias: float
    thresholds: list[tuple[float, float]]
    """Pairs of a false rate on held benign texts and the score above which it is reached, falling rates first."""
    sources: dict[str, str]
    """SHA-256 of each source's files."""
    libraries: dict[str, str]
    rates: dict[str, dict[str, float]]
    """By family: number of texts, and the share of them at or above each threshold."""

    def __post_init__(self) -> None:
        rates = [rate for rate, _ in self.thresholds]
        scores = [score for _, score in self.thresholds]
        if not rates or rates != sorted(rates, reverse=True) or scores != sorted(scores):
            raise ValueError("thresholds have to rise while their false rates fall")
        if not (self.scale > 0 and math.isfinite(self.bias)):
            raise ValueError("the scale has to be above 0 and the bias a number")


def plain(text: str) -> bytes:
    """Return the text's words as bytes: small plain letters, one blank between words and at either end.

    What is disguised is read: letters of other scripts and widths, unseen characters, digits for letters, letters set apart,
    and, behind the text, what its long words mean in base64 or hexadecimal.
    """
    if not text.isascii():
        text = _NOT_ASCII.sub(_as_plain, text)
    raw = text.encode("utf-8", "replace")
    if raw.count(b"%") >= _FEWEST_ESCAPES:
        raw = unquote_to_bytes(raw)
    hidden = _ENCODED.findall(raw)
    if hidden:
        raw = b" ".join([raw, *map(_meaning, hidden[:_MOST_ENCODED])])
    data = b" %b " % b" ".join(raw.translate(_PLAIN).split())
    return _LETTERS_APART.sub(_together, data) if _ANY_APART.search(data) else data


def _as_plain(run: re.Match[str]) -> str:
    said = run[0]
    # Dashes and quotation marks come again and again; longer runs are what somebody wrote, and are kept nowhere.
    return _usual_plain(said) if len(said) <= _USUAL_CHARS else _unmarked(said)


def _unmarked(said: str) -> str:
    return _UNSEEN.sub("", unicodedata.normalize("NFKD", said)).lower().translate(_LOOK_ALIKES)


_usual_plain: Final = functools.lru_cache(maxsize=1_024)(_unmarked)


def _together(letters: re.Match[bytes]) -> bytes:
    return b" " + letters[0].replace(b" ", b"")


def _meaning(word: bytes) -> bytes:
    """Return what a word means in hexadecimal or base64; nothing where that is not readable."""
    try:
        if _HEX.fullmatch(word):
            data = binascii.a2b_hex(word)
        else:
            bare = word.rstrip(b"=").translate(_URL_SAFE)
            data = binascii.a2b_base64(bare + b"=" * (-len(bare) % 4))
    except ValueError:
        return b""
    letters = len(data.translate(None, _NO_LETTERS))
    return data if letters >= _READABLE * len(data) else b""


def grams(data: bytes) -> Columns:
    """Return buckets of the n-grams that begin at each byte, a row for each of three orders.

    Behind the end stand blanks, so every byte begins one of each order.
    """
    padded = np.frombuffer(data + b" " * (_LONGEST - 1), np.uint8).astype(np.uint32)
    pairs = padded[:-1] | padded[1:] << np.uint32(8)
    four = (pairs[:-2] | pairs[2:] << np.uint32(16)) * _FOUR
    four ^= four >> np.uint32(15)
    size = len(data)
    out = np.empty((_ORDERS, size), np.uint32)
    out[0] = four[:size]
    out[1] = four[:size] * _SEVEN + four[3 : 3 + size]
    out[2] = out[1] * _TEN + four[6 : 6 + size]
    out *= _FOUR
    out >>= _SHIFT
    return out


def _lengths(size: int) -> Iterator[int]:
    for window in WINDOWS:
        yield min(window, size)
        if size <= window:
            return


def windows(size: int) -> list[tuple[int, int]]:
    """Return where each window of a text of `size` bytes begins, and how long it is; the last one of each kind ends with the text."""
    return [
        (start, length)
        for length in _lengths(size)
        for start in sorted({*range(0, size + 1 - length, STEP), size - length})
    ]


def shortened(text: str) -> str:
    """Return what is read of a text."""
    half = MAX_CHARS // 2
    return text if len(text) <= MAX_CHARS else f"{text[:half]} {text[-half:]}"


class Injection:
    """The shipped model."""

    def __init__(self, weights: NDArray[np.int8], manifest: Manifest) -> None:
        self._weights = weights
        self.manifest = manifest

    @classmethod
    def load(cls, folder: Path = ARTIFACTS) -> Self:
        """Read the weights and check that they fit this code. Raises InjectionModelError."""
        try:
            packed = _read(folder / WEIGHTS_FILE)
            manifest = msgspec.json.decode(_read(folder / MANIFEST_FILE), type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise InjectionModelError(f"the injection model cannot be read: {error}") from error
        if manifest.feature_version != FEATURE_VERSION:
            raise InjectionModelError("the injection model was trained with other feature code; train it anew")
        if manifest.weights_sha256 != hashlib.sha256(packed).hexdigest():
            raise InjectionModelError(f"{WEIGHTS_FILE} is not the file that the manifest describes")
        with np.load(io.BytesIO(packed), allow_pickle=False) as found:
            weights = found["weights"]
        if weights.shape != (2**BUCKET_BITS,) or weights.dtype != np.int8:
            raise InjectionModelError(f"{WEIGHTS_FILE} has another shape than this code reads")
        return cls(weights, manifest)

    def score(self, text: str) -> float:
        """Return 0 to 1: the highest window's estimate; 0 for a text without words. Compare it with `threshold`."""
        data = plain(shortened(text))
        size = len(data)
        if not data.strip():
            return 0.0
        sums = np.zeros(size + 1, np.int32)
        np.cumsum(self._weights.take(grams(data)).sum(axis=0, dtype=np.int32), out=sums[1:])
        best = -math.inf
        for length in _lengths(size):
            last = int(sums[size] - sums[size - length])
            others = int((sums[length::STEP] - sums[: size + 1 - length : STEP]).max())
            best = max(best, max(last, others) / math.sqrt(length))
        return 1.0 / (1.0 + math.exp(-(best * self.manifest.scale + self.manifest.bias)))

    def threshold(self, false_rate: float) -> float:
        """Return the score that at most this share of held benign texts reached.

        Raises ValueError for a rate below the lowest that was measured: no threshold is known to keep it.
        """
        for rate, score in self.manifest.thresholds:
            if rate <= false_rate:
                return score
        raise ValueError(f"no false rate below {self.manifest.thresholds[-1][0]:g} was measured")


class Attempt(msgspec.Struct, frozen=True):
    """A text that is an attempt, from its begin to its end."""

    kind: str
    start: int
    end: int


class Attempts:
    """Finds attempts, as the rules of a caller want to be told of them."""

    def __init__(self, model: Injection, rates: Mapping[str, float]) -> None:
        """`rates` are the rules' names and false rates."""
        self._model = model
        self._least = {name: model.threshold(rate) for name, rate in rates.items()}
        self.labels: Mapping[str, str] = {}
        """Nothing is masked."""

    def find(self, text: str) -> Sequence[Attempt]:
        """Return the text as a whole, for each rule that takes it for an attempt."""
        if len(text) < _LEAST_CHARS:
            return ()
        score = self._model.score(text)
        return [Attempt(name, 0, len(text)) for name, least in self._least.items() if score >= least]

    def partial(self, text: str, _begin: int, *, final: bool) -> tuple[Sequence[Attempt], int]:  # noqa: ARG002 - as scanners are asked
        """Hold nothing back: answers are not looked at for attempts."""
        return (), len(text)


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    if len(content) > MAX_FILE_BYTES:
        raise InjectionModelError(f"{path.name} is larger than {MAX_FILE_BYTES} bytes")
    return content
