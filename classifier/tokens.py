"""Estimation of a text's number of tokens without a tokenizer.

Every byte belongs to one of sixteen classes, and every two neighbouring classes have a weight: the sum of the weights
is the estimate. That is one table look-up a byte. The weights were fitted against cl100k_base by
`classifier.training.tokens_fit`, which also prints the errors in docs/classifier.md.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from classifier.compiled import LIBRARY, load_pairs

CLASSES: Final[dict[str, bytes]] = {
    "sign": b"",  # Every byte that is in no other class.
    "blank": b" \t",
    "newline": b"\r\n",
    "digit": b"0123456789",
    "capital": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "vowel": b"aeiou",
    "common": b"tnsrhldcm",
    "rare": b"pfgbwyvkjxqz",
    # A character's first byte tells its script closely enough; all others continue it.
    "further": bytes(range(0x80, 0xC0)),
    "latin": bytes(range(0xC0, 0xD0)),
    "cyrillic": bytes(range(0xD0, 0xD4)),
    "two_bytes": bytes(range(0xD4, 0xE0)),
    "cjk": bytes(range(0xE3, 0xEA)),
    "hangul": bytes(range(0xEA, 0xEE)),
    "three_bytes": bytes((0xE0, 0xE1, 0xE2, 0xEE, 0xEF)),
    "four_bytes": bytes(range(0xF0, 0x100)),
}
"""Byte classes by name. Small letters are divided into vowels, common consonants and rare ones."""

# Thousandths of a token: a row for each class, a column for the class after it, both in the order above.
_WEIGHTS_TEXT: Final = """
 234 1305    0 1459 1172 1536  914 1128    0  811  646 1231    0   26  476    0
   0   20    0 1196  504  158  143  355    0    0  721 1667    0  390  226  123
   0 1341    0  764 1761 1169 2107 1978    0    0    0    0  462    0    0    0
 475  931  452  100 1708 1154 1273 1125    0 1494    0    0    0    0  938    0
 121  244  345  972  202  154    0  211    0 1802    0    0    0    0  664    0
 536  983  626  794 1028   49   75  192    0  368    1    0    0    0    0    0
 360  522  496 1162 1054    0   41  126    0  379   18    6    0    0    0    0
 406  341    9 1091 1973    0   28  177    0  577    0    0    0    0    0    0
 363  242  437  640    0 1556  851 2546  384 1311  472  589  126  335 1082  910
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0  588    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0  587    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0 1033    0    0    0    0    0    0    0
"""
EXACT_CHARS: Final = 32_768
"""Length up to which every byte is read; a longer text is estimated from samples of this many characters in total."""
SAMPLES: Final = 4

_SHIFT: Final = np.uint8(4)
PAIRS: Final = len(CLASSES) ** 2


def _class_of_byte() -> bytes:
    table = bytearray(256)
    for number, members in enumerate(CLASSES.values()):
        for member in members:
            table[member] = number
    return bytes(table)


_CLASS: Final = _class_of_byte()
_THOUSAND: Final = 1000
_WEIGHTS: Final = np.array(_WEIGHTS_TEXT.split(), np.int32)


def class_pairs(text: str) -> NDArray[np.intp]:
    """Return each byte's class and the class before it, as one number; before the first byte stands a newline."""
    data = f"\n{text}".encode("utf-8", "replace").translate(_CLASS)
    classes = np.frombuffer(data, np.uint8)
    pairs = classes[:-1] << _SHIFT
    pairs |= classes[1:]
    return pairs.astype(np.intp)


def estimate_by_numpy(text: str) -> int:
    """Return the thousandths of a token that `text` has."""
    return int(_WEIGHTS.take(class_pairs(text)).sum(dtype=np.int64))


_COMPILED: Final = load_pairs(LIBRARY, _CLASS, _WEIGHTS, _CLASS[ord("\n")])


def thousandths(text: str) -> int:
    """Return the thousandths of a token that `text` has, by the compiled library where there is one."""
    return estimate_by_numpy(text) if _COMPILED is None else _COMPILED.sum(text.encode("utf-8", "replace"))


def estimate_tokens(text: str) -> int:
    """Return estimated tokens of `text`: 0 for an empty one, at most 4 a character; never raises."""
    if not text:
        return 0
    if len(text) <= EXACT_CHARS:
        return max(1, round(min(thousandths(text) / _THOUSAND, 4.0 * len(text))))
    size = EXACT_CHARS // SAMPLES
    starts = [(len(text) - size) * i // (SAMPLES - 1) for i in range(SAMPLES)]
    seen = sum(thousandths(text[at : at + size]) for at in starts) / _THOUSAND
    return max(1, round(min(seen / EXACT_CHARS, 4.0) * len(text)))
