"""Arrays by name in one file, read without trusting it."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from classifier.manifest import ArtifactMalformed


def read_columns(content: bytes, what: str, columns: Sequence[tuple[str, DTypeLike]]) -> list[NDArray[Any]]:
    """Each named array of an .npz file as the type that is asked for. Raises ArtifactMalformed, naming `what`."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return [found[name].astype(dtype) for name, dtype in columns]
    except (
        Exception
    ) as error:  # A broken archive fails in many ways: zip's, zlib's, numpy's and the parser's of a header.
        raise ArtifactMalformed(f"{what} cannot be read: {type(error).__name__}") from error
