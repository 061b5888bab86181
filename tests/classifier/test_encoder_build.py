"""The encoder that is built from made-up weights: it computes BERT, it is small, and it is repeatable."""

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from classifier.encoder import MAX_TOKENS, MODEL_FILE, VOCABULARY_FILE, Encoder, read_encoder
from classifier.training.encoder_build import (
    HEADS,
    NIBBLE_LIMIT,
    encoder_graph,
    nibbles,
    packaged_weights,
    reachable,
    tuned_weights,
)

Floats = NDArray[np.float32]

WIDTH: Final = 96
INNER: Final = 128
LAYERS: Final = 2
PIECES: Final = ["[PAD]", "[unused0]", "[UNK]", "[unused7]", "[CLS]", "[SEP]", "red", "blue", "##ish", "gate", "?"]
DENSE: Final = (
    ("attention.self.query", WIDTH, WIDTH),
    ("attention.self.key", WIDTH, WIDTH),
    ("attention.self.value", WIDTH, WIDTH),
    ("attention.output.dense", WIDTH, WIDTH),
    ("intermediate.dense", WIDTH, INNER),
    ("output.dense", INNER, WIDTH),
)


def made_up() -> dict[str, Floats]:
    draw = np.random.default_rng(7)

    def normal(*shape: int, scale: float = 1.0) -> Floats:
        return draw.normal(0, scale, shape).astype(np.float32)

    def norm(name: str) -> dict[str, Floats]:
        return {f"{name}.weight": 1 + normal(WIDTH, scale=0.1), f"{name}.bias": normal(WIDTH, scale=0.1)}

    weights = {
        "embeddings.word_embeddings.weight": normal(len(PIECES), WIDTH),
        "embeddings.position_embeddings.weight": normal(512, WIDTH, scale=0.3),
        "embeddings.token_type_embeddings.weight": normal(2, WIDTH, scale=0.1),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(LAYERS):
        key = f"encoder.layer.{layer}"
        for name, rows, columns in DENSE:
            weights[f"{key}.{name}.weight"] = normal(rows, columns, scale=1 / math.sqrt(rows))
            weights[f"{key}.{name}.bias"] = normal(columns, scale=0.1)
        weights |= {**norm(f"{key}.attention.output.LayerNorm"), **norm(f"{key}.output.LayerNorm")}
    return weights


WEIGHTS: Final = made_up()
VOCABULARY: Final = reachable(PIECES)


def plain_bert(tokens: list[int]) -> Floats:
    """BERT as its paper has it, in float32 and with the package's rows."""

    def norm(value: Floats, key: str) -> Floats:
        centred = value - value.mean(axis=1, keepdims=True)
        scaled: Floats = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * WEIGHTS[f"{key}.weight"] + WEIGHTS[f"{key}.bias"]

    def dense(value: Floats, key: str) -> Floats:
        product: Floats = value @ WEIGHTS[f"{key}.weight"] + WEIGHTS[f"{key}.bias"]
        return product

    def heads(value: Floats) -> Floats:
        apart: Floats = value.reshape(len(value), HEADS, -1).transpose(1, 0, 2)
        return apart

    value = WEIGHTS["embeddings.word_embeddings.weight"][tokens]
    value = value + WEIGHTS["embeddings.position_embeddings.weight"][: len(tokens)]
    value = norm(value + WEIGHTS["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(LAYERS):
        key = f"encoder.layer.{layer}"
        query, keys, values = (
            heads(dense(value, f"{key}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        likeness = query @ keys.transpose(0, 2, 1) / math.sqrt(WIDTH / HEADS)
        shares = np.exp(likeness - likeness.max(axis=2, keepdims=True))
        mixed = (shares / shares.sum(axis=2, keepdims=True)) @ values
        joined = dense(mixed.transpose(1, 0, 2).reshape(len(tokens), WIDTH), f"{key}.attention.output.dense")
        middle = norm(joined + value, f"{key}.attention.output.LayerNorm")
        wide = dense(middle, f"{key}.intermediate.dense")
        bent = wide * np.vectorize(lambda x: (1 + math.erf(x / math.sqrt(2))) / 2)(wide).astype(np.float32)
        value = norm(dense(bent, f"{key}.output.dense") + middle, f"{key}.output.LayerNorm")
    mean: Floats = value.mean(axis=0)
    return mean


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(encoder_graph(WEIGHTS, VOCABULARY.rows), "\n".join(VOCABULARY.pieces).encode())


@pytest.mark.parametrize(
    ("text", "words"),
    [("", []), ("Red gate?", ["red", "gate", "?"]), ("blueish " * 40, ["blue", "##ish"] * 40), ("zzz", ["[UNK]"])],
)
def test_the_graph_computes_bert(encoder: Encoder, text: str, words: list[str]) -> None:
    """In four and eight bits the vector points where the float32 one does."""
    expected = plain_bert([PIECES.index(word) for word in ["[CLS]", *words, "[SEP]"]])
    found = encoder.vector(text)
    assert float(found @ expected / np.linalg.norm(found) / np.linalg.norm(expected)) > 0.98


def test_the_longest_text_fills_every_position(encoder: Encoder) -> None:
    """The table of positions has a row for each token that is ever read, and no more."""
    expected = plain_bert([PIECES.index(word) for word in ["[CLS]", *["gate"] * (MAX_TOKENS - 2), "[SEP]"]])
    found = encoder.vector("gate " * 10_000)
    assert float(found @ expected / np.linalg.norm(found) / np.linalg.norm(expected)) > 0.98


def test_the_same_weights_give_the_same_bytes() -> None:
    """Nothing but the weights is in the file."""
    assert encoder_graph(WEIGHTS, VOCABULARY.rows) == encoder_graph(WEIGHTS, VOCABULARY.rows)


def test_free_places_of_the_vocabulary_are_left_out() -> None:
    """They keep their order and lose what no text can be cut into."""
    assert VOCABULARY.pieces == [piece for piece in PIECES if not piece.startswith("[unused")]
    assert [PIECES[row] for row in VOCABULARY.rows] == VOCABULARY.pieces


def test_four_bits_hold_each_number_to_within_a_step() -> None:
    """What is unpacked is what was packed, but for half a step, or the cut of a group's widest numbers."""
    words = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32)
    words[3] = 0
    packed, scales = nibbles(words)
    whole = np.hstack([packed & 15, packed >> 4]).astype(np.float32) - 8
    unpacked = (whole.reshape(50, -1, 32) * scales.astype(np.float32)).reshape(words.shape)
    widest = np.abs(words.reshape(50, -1, 32)).max(axis=2).repeat(32, axis=1)
    # The cut takes at most two fifths of the widest number.
    assert (np.abs(unpacked - words) <= 0.4 * widest + 1e-3).all()
    assert np.sqrt(np.square(unpacked - words).mean()) < np.sqrt(np.square(widest / NIBBLE_LIMIT).mean()) / 3


def test_a_package_s_weights_are_found_by_their_paths(tmp_path: Path) -> None:
    """Matrices that the exporter turned and numbered get their names back."""
    content = encoder_like_export()
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    found = packaged_weights(path)
    assert set(found) == {"embeddings.LayerNorm.weight", "encoder.layer.1.attention.self.query.weight"}
    assert found["encoder.layer.1.attention.self.query.weight"][0].tolist() == [1.0, 2.0]


def encoder_like_export() -> bytes:
    value = helper.make_tensor_value_info
    arrays: dict[str, NDArray[Any]] = {
        "onnx::MatMul_9": np.array([[1, 2], [3, 4]], np.float32),
        "model.0.auto_model.embeddings.LayerNorm.weight": np.ones(2, np.float32),
        "other": np.zeros(2, np.float32),
    }
    path = "/model.0/auto_model/encoder/layer.1/attention/self/query/MatMul"
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "onnx::MatMul_9"], ["y"], name=path)],
        "export",
        [value("x", TensorProto.FLOAT, ["n", 2])],
        [value("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model: onnx.ModelProto = helper.make_model(graph)
    return bytes(model.SerializeToString())


def test_tuned_weights_take_the_package_s_place(tmp_path: Path) -> None:
    """Weights of other names are refused, since they would be left out in silence."""
    changed: dict[str, Any] = {"embeddings.LayerNorm.bias": np.full(WIDTH, 2.0)}
    np.savez(tmp_path / "tuned.npz", **changed)
    tuned = tuned_weights(tmp_path / "tuned.npz", WEIGHTS)
    assert tuned["embeddings.LayerNorm.bias"].tolist() == [2.0] * WIDTH
    assert tuned["embeddings.LayerNorm.weight"] is WEIGHTS["embeddings.LayerNorm.weight"]
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    with pytest.raises(KeyError, match="other"):
        tuned_weights(tmp_path / "other.npz", WEIGHTS)


def test_what_is_built_is_what_is_read(tmp_path: Path) -> None:
    """The two files, under the names that serving looks for."""
    (tmp_path / MODEL_FILE).write_bytes(encoder_graph(WEIGHTS, VOCABULARY.rows))
    (tmp_path / VOCABULARY_FILE).write_text("\n".join(VOCABULARY.pieces) + "\n", encoding="utf-8")
    found = read_encoder(tmp_path)
    assert found is not None
    assert found.width == WIDTH
