"""The sentence encoder: a text becomes one vector, in bounded time on one core.

The graph is MiniLM (BERT with few layers) in int8, and takes one text without padding, so there is no
mask in it. At most `MAX_TOKENS` tokens are read: the text's first three quarters of them, and its end.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from classifier.manifest import ArtifactMalformed, read_limited
from classifier.runtime import open_session
from classifier.wordpiece import VocabularyMalformed, WordPiece

MODEL_FILE: Final = "encoder.onnx"
VOCABULARY_FILE: Final = "encoder-vocabulary.txt"
MAX_TOKENS: Final = 256
MAX_MODEL_BYTES: Final = 20 * 2**20
MAX_VOCABULARY_BYTES: Final = 2**20

Vector = NDArray[np.float32]

_INPUTS: Final = {"tokens": "tensor(int64)"}
_OUTPUT: Final = "vector"


class EncodingFailed(Exception):
    """onnxruntime refused a text."""


class Encoder:
    """Not for the event loop: a long text takes milliseconds. Threads may share one."""

    def __init__(self, model: bytes, vocabulary: bytes) -> None:
        try:
            pieces = vocabulary.decode().splitlines()
            self._wordpiece = WordPiece(pieces, MAX_TOKENS)
        except (UnicodeDecodeError, VocabularyMalformed) as error:
            raise ArtifactMalformed(f"{VOCABULARY_FILE}: {error}") from error
        try:
            self._session = open_session(model, _INPUTS)
        except ArtifactMalformed as error:
            raise ArtifactMalformed(f"{MODEL_FILE}: {error}") from error
        (output,) = self._session.get_outputs()
        self.width = int(output.shape[0])
        try:
            # The first run allocates, and a vocabulary that is longer than the table of vectors fails here, not later.
            self._run([len(pieces) - 1])
        except EncodingFailed as error:
            raise ArtifactMalformed(f"{VOCABULARY_FILE} is of another graph") from error

    def vector(self, text: str) -> Vector:
        """The mean of the last layer's vectors, as they are: not of length 1."""
        return self._run(self._wordpiece.ids(text))

    def _run(self, tokens: list[int]) -> Vector:
        try:
            (vector,) = self._session.run([_OUTPUT], {"tokens": np.array(tokens, np.int64)})
        except Exception as error:  # onnxruntime's errors share no base class.
            raise EncodingFailed(type(error).__name__) from error
        found: Vector = vector
        return found


def read_encoder(folder: Path) -> Encoder | None:
    """The encoder that lies in `folder`, or None where there is none; raises ArtifactError for a broken one."""
    model, vocabulary = folder / MODEL_FILE, folder / VOCABULARY_FILE
    if not model.exists():
        return None
    return Encoder(read_limited(model, MAX_MODEL_BYTES), read_limited(vocabulary, MAX_VOCABULARY_BYTES))
