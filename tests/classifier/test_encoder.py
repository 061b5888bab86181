from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import classifier
from classifier.encoder import MAX_TOKENS, MODEL_FILE, VOCABULARY_FILE, Encoder, read_encoder
from classifier.manifest import ArtifactMalformed, ArtifactMissing

ARTIFACTS: Final = Path(classifier.__file__).parent / "artifacts"
MODEL: Final = (ARTIFACTS / MODEL_FILE).read_bytes()
VOCABULARY: Final = (ARTIFACTS / VOCABULARY_FILE).read_bytes()


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(MODEL, VOCABULARY)


def likeness(encoder: Encoder, left: str, right: str) -> float:
    one, other = encoder.vector(left), encoder.vector(right)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_texts_of_one_meaning_lie_closer_than_others(encoder: Encoder) -> None:
    """The shipped weights, read through the shipped vocabulary, still know what sentences mean."""
    same = likeness(encoder, "How do I reverse a list in Python?", "Python code that turns an array around")
    other = likeness(encoder, "How do I reverse a list in Python?", "What did the Romans eat for breakfast?")
    assert same > other + 0.2


@pytest.mark.parametrize("text", ["", " ", "\x00", "\ud800", "🙂" * 5_000, "a" * 1_000_000, "word " * 100_000])
def test_any_text_gives_a_finite_vector(encoder: Encoder, text: str) -> None:
    """Empty, huge or of no language: there is a vector, and it is of numbers."""
    vector = encoder.vector(text)
    assert vector.shape == (encoder.width,)
    assert vector.dtype == np.float32
    assert np.isfinite(vector).all()


def test_a_text_gives_the_same_vector_in_every_thread(encoder: Encoder) -> None:
    """One session serves many threads at once, and one text's length leaves nothing for the next."""
    texts = [f"{'word ' * (number % 40)}{number}" for number in range(24)]
    alone = [encoder.vector(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(encoder.vector, texts))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_only_the_ends_of_a_long_text_count(encoder: Encoder) -> None:
    """No more than the limit of tokens is read, whatever stands between."""
    head, tail = "one two three " * MAX_TOKENS, " and so on" * MAX_TOKENS
    left, right = head + "red " * 5_000 + tail, head + "blue " * 9_000 + tail
    assert np.array_equal(encoder.vector(left), encoder.vector(right))


def test_a_folder_without_an_encoder_has_none(tmp_path: Path) -> None:
    """An artifact may come without the second weigher."""
    assert read_encoder(tmp_path) is None


def test_the_shipped_folder_has_one(encoder: Encoder) -> None:
    """What lies in the package is what is served."""
    found = read_encoder(ARTIFACTS)
    assert found is not None
    assert np.array_equal(found.vector("Hello"), encoder.vector("Hello"))


def test_a_model_without_its_vocabulary_is_refused(tmp_path: Path) -> None:
    """The graph alone cannot be served."""
    (tmp_path / MODEL_FILE).write_bytes(MODEL)
    with pytest.raises(ArtifactMissing, match=VOCABULARY_FILE):
        read_encoder(tmp_path)


@pytest.mark.parametrize(
    ("model", "vocabulary"),
    [
        (b"", VOCABULARY),
        (MODEL[:1000], VOCABULARY),
        ((ARTIFACTS / "model.onnx").read_bytes(), VOCABULARY),
        (MODEL, b""),
        (MODEL, b"\xff\xfe"),
        (MODEL, VOCABULARY.replace(b"[SEP]", b"[PES]")),
        (MODEL, VOCABULARY + b"one-more\n"),
    ],
    ids=["empty", "cut", "another graph", "no pieces", "not text", "no end", "more pieces than vectors"],
)
def test_what_does_not_belong_together_is_refused(model: bytes, vocabulary: bytes) -> None:
    """A broken file is told when it is opened, not when a prompt comes."""
    with pytest.raises(ArtifactMalformed):
        Encoder(model, vocabulary)
