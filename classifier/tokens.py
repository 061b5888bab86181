"""How many tokens a text is, about, without a tokenizer.

Every byte belongs to one of sixteen classes, and every two neighbouring classes have a weight: the
sum of the weights is the estimate. That is one table look-up a byte. The weights were fitted against
cl100k_base by `classifier.training.tokens_fit`, which also prints the errors in docs/classifier.md.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

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
"""Letters are parted into those that end syllables, those that go with them, and those that begin new ones."""

# Thousandths of a token: a row for each class, a column for the class after it, both in the order above.
_WEIGHTS_TEXT: Final = """
 230 1381    0 1021 1480 1318 1092 1400    0 2553 2753 2653    0  204    0    0
   0    0    0  712  514  308  281  418    0  783  946 2169    0  373  596    0
 380 1744    0  547 1937  512 2429 2595    0 2694    0    0  605  208  299    0
 863 1352  841  103 2248 1717 1822 1767    0 1980    0    0    0    0 2268    0
   0  289  167  526   94   93   60  340    0 1148    0    0    0    0 2099    0
 312  855  478  224 1075   14   82  184    0 1167    0    0    0    0  913    0
 246  456  332  572 1101    0    0  120    0    0  954  165    0    0  444    0
  57  252    0  559 1984    1    0   47    0 1554    0    0    0    0  705    0
 229    0  178  196    0 2124  302 4951    0 1124  467  499  246  301 1569 4518
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0  851    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0 1086    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0    0    0    0    0    0    0    0    0
   0    0    0    0    0    0    0    0  982    0    0    0    0    0    0    0
"""
EXACT_CHARS: Final = 32_768
"""A longer text is estimated from samples of this many characters altogether."""
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
_WEIGHTS: Final = np.array(_WEIGHTS_TEXT.split(), np.float32) / np.float32(1000)


def class_pairs(text: str) -> NDArray[np.intp]:
    """Each byte's class with the class before it, as one number; before the first byte stands a newline."""
    data = f"\n{text}".encode("utf-8", "replace").translate(_CLASS)
    classes = np.frombuffer(data, np.uint8)
    pairs = classes[:-1] << _SHIFT
    pairs |= classes[1:]
    return pairs.astype(np.intp)


def _raw_estimate(text: str) -> float:
    return float(_WEIGHTS.take(class_pairs(text)).sum())


def estimate_tokens(text: str) -> int:
    """About how many tokens `text` is: 0 for nothing, never more than its UTF-8 bytes; never raises."""
    if not text:
        return 0
    if len(text) <= EXACT_CHARS:
        return max(1, round(min(_raw_estimate(text), 4.0 * len(text))))
    size = EXACT_CHARS // SAMPLES
    starts = [(len(text) - size) * i // (SAMPLES - 1) for i in range(SAMPLES)]
    seen = sum(_raw_estimate(text[at : at + size]) for at in starts)
    return max(1, round(min(seen / EXACT_CHARS, 4.0) * len(text)))
