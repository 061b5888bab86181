"""A prompt's sketch: signed hashed words and pairs in SKETCH numbers, whose dot product is a similarity."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from classifier.features import BUCKET_BITS, HEAD_BYTES, TAIL_BYTES, Features
from classifier.tuning import SKETCH

_PLACE: Final = (np.arange(1 << BUCKET_BITS, dtype=np.uint32) * np.uint32(0x9E3779B1) >> np.uint32(25)).astype(np.uint8)
"""Each bucket's place among 2 * SKETCH; the lowest bit is the sign. As a table of bytes it takes a quarter of the cache that
the arithmetic's results would."""
_WEIGHTS: Final = np.log1p(np.arange(HEAD_BYTES + TAIL_BYTES + 2))
"""A term's weight by its count: no text that is read has more words than bytes."""


def sketch(features: Features) -> NDArray[np.float32]:
    """(SKETCH,): a vector of length 1, or all 0 for a prompt without words.

    A count sketch (Charikar, Chen and Farach-Colton 2002): dot products are those of the hashed terms, ± 0.125.
    """
    both = np.bincount(_PLACE.take(features.indices), _WEIGHTS.take(features.counts), 2 * SKETCH)
    summed = both[::2] - both[1::2]
    length = float(np.sqrt(summed @ summed))
    found: NDArray[np.float32] = (summed / length if length > 0 else summed).astype(np.float32)
    return found
