"""Held-out prompts as numbers, stored beside the model, from which cost-quality curves are computed."""

import io
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.manifest import ArtifactMalformed, read_columns

_COLUMNS: Final = (
    ("vectors", np.float32),
    ("input_tokens", np.int64),
    ("output_tokens", np.int64),
    ("weights", np.float64),
)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out prompts, one row each. Weights add up to 1."""

    vectors: NDArray[np.float32]
    """(n, loads + SKETCH)"""
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    weights: NDArray[np.float64]


def write_sample(sample: Sample) -> bytes:
    """Return the sample as a compressed .npz file; the same sample gives the same bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        vectors=sample.vectors.astype("<f2"),
        input_tokens=sample.input_tokens.astype("<i4"),
        output_tokens=sample.output_tokens.astype("<i4"),
        weights=sample.weights.astype("<f4"),
    )
    return buffer.getvalue()


def read_sample(content: bytes, width: int) -> Sample:
    """Decode a sample. Raises ArtifactMalformed unless every vector has `width` finite numbers."""
    vectors, inputs, outputs, weights = read_columns(content, "the sample", _COLUMNS)
    if vectors.shape[1:] != (width,) or not len(vectors) or not np.isfinite(vectors).all():
        raise ArtifactMalformed(f"the sample's vectors must have {width} finite numbers")
    if {inputs.shape, outputs.shape, weights.shape} != {vectors.shape[:1]}:
        raise ArtifactMalformed("the sample's columns differ in length")
    return Sample(vectors=vectors, input_tokens=inputs, output_tokens=outputs, weights=weights)
