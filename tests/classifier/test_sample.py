"""The sample beside the model: read as it was written, and refused when it is something else."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.manifest import Artifact, ArtifactMalformed
from classifier.sample import Sample, read_sample, write_sample
from classifier.training.data import Corpus
from classifier.tuning import SKETCH

WIDTH = 6


def sample(rows: int = 5, width: int = WIDTH) -> Sample:
    draw = np.random.default_rng(0)
    return Sample(
        vectors=draw.normal(size=(rows, width)).astype(np.float32),
        input_tokens=np.arange(rows) * 100,
        output_tokens=np.arange(rows) + 1,
        weights=np.full(rows, 1 / max(1, rows)),
    )


def written(**columns: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=True, **columns)
    return buffer.getvalue()


def test_what_is_written_is_read() -> None:
    """Numbers come back to the digits of float16, and the same sample gives the same bytes."""
    whole = sample()
    content = write_sample(whole)
    found = read_sample(content, WIDTH)
    assert found.vectors == pytest.approx(whole.vectors, abs=2e-3)
    assert found.input_tokens.tolist() == whole.input_tokens.tolist()
    assert found.output_tokens.tolist() == whole.output_tokens.tolist()
    assert found.weights.sum() == pytest.approx(1.0)
    assert write_sample(whole) == content


@pytest.mark.parametrize("width", [WIDTH - 1, WIDTH + 1])
def test_a_sample_of_another_model_is_refused(width: int) -> None:
    """Vectors of another width are refused by name."""
    with pytest.raises(ArtifactMalformed, match=f"{width} finite numbers"):
        read_sample(write_sample(sample()), width)


def test_an_empty_sample_is_refused() -> None:
    """No curve can be computed on nothing."""
    with pytest.raises(ArtifactMalformed, match="finite numbers"):
        read_sample(write_sample(sample(rows=0)), WIDTH)


def test_what_is_no_number_is_refused() -> None:
    """One infinite load is noticed."""
    broken = sample()
    broken.vectors[2, 1] = np.inf
    with pytest.raises(ArtifactMalformed, match="finite numbers"):
        read_sample(write_sample(broken), WIDTH)


def test_columns_of_unlike_length_are_refused() -> None:
    """Every row needs its tokens and its weight."""
    one = np.ones(1)
    content = written(vectors=np.ones((2, WIDTH)), input_tokens=one, output_tokens=one, weights=one)
    with pytest.raises(ArtifactMalformed, match="differ in length"):
        read_sample(content, WIDTH)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        written(vectors=np.ones((2, WIDTH))),
        written(**{name: np.array([{}]) for name in ("vectors", "input_tokens", "output_tokens", "weights")}),
        written(**{name: np.array(["a"]) for name in ("vectors", "input_tokens", "output_tokens", "weights")}),
        write_sample(sample())[:-40],
    ],
    ids=["empty", "text", "columns missing", "objects", "words", "cut off"],
)
def test_what_is_no_sample_is_refused(content: bytes) -> None:
    """Anything else is refused by name; nothing is unpickled."""
    with pytest.raises(ArtifactMalformed):
        read_sample(content, WIDTH)


@settings(deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 255))
def test_a_flipped_byte_never_raises_anything_else(at: int, flip: int) -> None:
    """Broken bytes give a sample or the named error."""
    content = bytearray(write_sample(sample()))
    content[at % len(content)] ^= flip
    try:
        found = read_sample(bytes(content), WIDTH)
    except ArtifactMalformed:
        return
    assert found.vectors.shape[1] == WIDTH


def test_training_samples_every_source_alike(made_up_corpus: Corpus, made_up_artifact: Artifact) -> None:
    """The sample has loads and sketch of each prompt, weights that add up to 1, and lengths that a request has."""
    loads = made_up_artifact.manifest.loads
    found = read_sample(made_up_artifact.sample, loads + SKETCH)
    assert 0 < len(found.vectors) <= len(made_up_corpus.texts)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-3)
    assert found.output_tokens.min() >= 1
    assert np.linalg.norm(found.vectors[:, loads:], axis=1) == pytest.approx(np.ones(len(found.vectors)), abs=5e-3)
