"""The ONNX graph: network, difficulty and their blend for one prompt a call.

Hit buckets' rows are gathered from 8-bit tables, so nothing dense is made; all that follows the tables is arithmetic on a
few hundred numbers, which costs less here than as calls from Python.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from classifier.features import FLAGS, STRUCTURE
from classifier.heuristic import TOKENS_AT_EASIEST, TOKENS_BY_COMPLEXITY
from classifier.training.blend import Blend
from classifier.training.difficulty import CLAMP, FACTS, FLAGS_READ, NETWORKS, THRESHOLDS, Difficulty
from classifier.training.domain import AN_AGENTS_JOB, ONE_CALL, Domain
from classifier.training.network import BUCKETS, GATE_SHARPNESS, IDF_STEP, Fitted, Scale, column_scale
from classifier.training.task_kind import TaskKinds
from classifier.training.word_table import GRADED, WordTable

Floats = NDArray[np.float64]

OPSET: Final = 18
IR_VERSION: Final = 9
_SINGLE: Final = np.float32


class Whole(msgspec.Struct, frozen=True):
    """All parts of the model that ships."""

    network: Fitted
    difficulty: Difficulty
    table: WordTable
    domain: Domain
    task_kinds: TaskKinds
    blend: Blend


class _Graph:
    """Collects nodes and constants by name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[Any]] = {}

    def node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node; returns its output's name."""
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, name: str, value: Any, dtype: Any = _SINGLE) -> str:
        """Adds a constant; returns its name."""
        self.constants[name] = np.asarray(value, dtype)
        return name

    def gathered(self, table: str, indices: str, output: str) -> str:
        """Rows of an 8-bit or 16-bit table as single floats."""
        self.node("Gather", [table, indices], f"{output}_stored")
        return self.node("Cast", [f"{output}_stored"], output, to=TensorProto.FLOAT)

    def split(self, value: str, sizes: Sequence[int], outputs: Sequence[str]) -> None:
        """Parts of a row, by their sizes."""
        of_sizes = self.constant(f"{value}_sizes", sizes, np.int64)
        self.nodes.append(helper.make_node("Split", [value, of_sizes], list(outputs), axis=1))


def to_onnx(model: Whole) -> bytes:
    """The whole model as one graph, whose inputs and output classifier/onnx_classifier.py describes."""
    graph = _Graph()
    _gist_and_facts(graph, model)
    _terms(graph, model)
    _kinds(graph, model.network)
    _difficulty(graph, model)
    _trust(graph)
    _blend(graph, model)
    return _proto(graph, model)


def _table(columns: Floats) -> tuple[NDArray[np.int8], Floats]:
    scale = column_scale(columns)
    return np.rint(columns / scale).astype(np.int8), scale


def _unscaled(weights: Floats, scale: Scale, bias: Floats) -> Floats:
    """(facts + 1, outputs): what gives from clamped facts and a constant 1 what `weights` and `bias` give from scaled
    facts.
    """
    found = weights * scale.scale[:, None]
    return np.concatenate([found, [bias - scale.mean @ found]])


def _gist_and_facts(graph: _Graph, model: Whole) -> None:
    """One row of all that is clamped (gist, facts, constant), and one product of it for all that is linear in it.

    The gist is that of difficulty.gist_of.
    """
    columns, width = model.table.columns, 4 * model.table.columns
    graph.constant("meanings", model.table.rows, np.int8)
    graph.constant("meaning_at", model.table.index, np.int32)
    graph.node("Gather", ["meaning_at", "read"], "read_rows")
    graph.gathered("meanings", "read_rows", "meant")
    graph.node("MatMul", ["readings", "meant"], "summed")
    graph.node("Reshape", ["summed", graph.constant("as_row", [1, -1], np.int64)], "summed_row")
    graph.constant("one", [[1]])
    graph.node("Concat", ["summed_row", "structure", "flags", "one"], "known", axis=1)
    structure, flags = width, width + len(STRUCTURE)
    graded = np.arange(columns - GRADED - 1, columns - 1)
    gist = [
        *range(2 * columns),
        *(2 * columns + graded),
        *(3 * columns + graded),
        *(structure + at for at in FACTS),
        *(flags + at for at in FLAGS_READ),
    ]
    needed = [*gist, flags + FLAGS.index("tools"), *range(structure, structure + len(STRUCTURE)), flags + len(FLAGS)]
    network, mean, scale = model.network, model.difficulty.gist.mean, model.difficulty.gist.scale
    graph.node("Gather", ["known", graph.constant("needed", needed, np.int64)], "needed_row", axis=1)
    low = np.r_[mean - CLAMP / scale, 0, network.scale.low, 1]
    high = np.r_[mean + CLAMP / scale, 1, network.scale.high, 1]
    graph.node("Max", ["needed_row", graph.constant("low", low)], "raised")
    graph.node("Min", ["raised", graph.constant("high", high)], "clamped")
    graph.split("clamped", [len(gist) + 1, len(STRUCTURE) + 1], ["gist_clamped", "facts_clamped"])
    linear = _linear(model, len(needed))
    graph.node("MatMul", ["clamped", graph.constant("linear", np.concatenate([*linear.values()], axis=1))], "product")
    graph.split("product", [columns.shape[1] for columns in linear.values()], list(linear))


def _linear(model: Whole, inputs: int) -> dict[str, Floats]:
    """By name (inputs, outputs): weights of gist, tools, facts, constant."""
    gist, domain, kinds = model.difficulty.gist, model.domain, model.task_kinds
    of_gist, tools = len(gist.mean), len(gist.mean)

    def standardised(weights: Floats, bias: Floats) -> Floats:
        found = np.zeros((inputs, weights.shape[1]))
        found[:of_gist] = weights * gist.scale[:, None]
        found[-1] = bias - gist.mean @ found[:of_gist]
        return found

    facts = np.zeros((inputs, _heads_width(model)))
    facts[-len(STRUCTURE) - 1 :] = _factual(model)
    of_domain = standardised(domain.gist[:, None], np.zeros(1))[:, 0]
    of_domain[tools] = domain.tools
    slope = 1 / (AN_AGENTS_JOB - ONE_CALL)
    facts[:, -2] += of_domain
    facts[tools, -1] = AN_AGENTS_JOB * slope
    by_complexity = np.zeros((inputs, 2))
    by_complexity[tools] = domain.tools_by_complexity, -slope
    # A unit that is always 1 carries the bias of what follows.
    hidden = np.c_[gist.hidden, np.zeros(of_gist)]
    return {
        "before_relu": standardised(hidden, np.r_[gist.hidden_bias, 1.0]),
        "task_scores": standardised(kinds.weights, kinds.bias),
        "factual": facts,
        "tools_by_complexity": by_complexity,
    }


def _heads_width(model: Whole) -> int:
    return model.network.loads + 1 + len(model.network.kinds) + len(THRESHOLDS) + 2


def _sharp(model: Whole) -> Floats:
    """(heads,): the gate's scores are used in a softmax alone, which is sharper."""
    sharp = np.ones(_heads_width(model))
    begin = model.network.loads + 1
    sharp[begin : begin + len(model.network.kinds)] = GATE_SHARPNESS
    return sharp


def _factual(model: Whole) -> Floats:
    """(facts + 1, heads): loads, log tokens, the gate's scores, tiers by words, domain, what tools allow."""
    network = model.network
    weights = _unscaled(network.facts, network.scale, network.bias)
    length = _unscaled(network.length[:, None], network.scale, np.array([network.length_bias]))
    others = np.zeros((len(weights), len(THRESHOLDS) + 2))
    others[-1] = *model.difficulty.words_bias, model.domain.bias, 0
    loads = network.loads
    whole: Floats = np.c_[weights[:, :loads], length, weights[:, loads:], others] * _sharp(model)
    return whole


def _terms(graph: _Graph, model: Whole) -> None:
    """Weights of the hit terms, and all that is linear in them and in facts."""
    network = model.network
    loads, nothing = network.loads, np.zeros((BUCKETS, 1))
    words = [network.words[:, :loads], nothing, network.words[:, loads:], model.difficulty.words]
    table, scale = _table(np.c_[(*words, model.domain.words, nothing)])
    # What tools allow is of no words; in its place stands the inverse document frequency, in the row that is read anyway.
    table[:, -1] = np.rint(network.idf / IDF_STEP)
    scale[-1] = 0.0
    graph.constant("table", table, np.int8)
    graph.constant("table_scale", [scale * _sharp(model)])
    graph.gathered("table", "indices", "hit")
    graph.node("Gather", ["hit", graph.constant("idf_at", len(scale) - 1, np.int64)], "hit_idf", axis=1)
    graph.node("Mul", ["sublinear", "hit_idf"], "unscaled")
    graph.node("LpNormalization", ["unscaled"], "weights", axis=1, p=2)
    graph.node("MatMul", ["weights", "hit"], "sums")
    graph.node("Mul", ["sums", "table_scale"], "lexical")
    graph.node("Add", ["lexical", "factual"], "heads")
    sizes = [loads + 1, len(network.kinds), len(THRESHOLDS), 2]
    graph.split("heads", sizes, ["shared", "sharp_scores", "by_words", "domain"])


def _kinds(graph: _Graph, network: Fitted) -> None:
    """Shared loads, and the likeliest kind's own, as far as the gate is sure of it. Behind the loads stands the length."""
    graph.node("Softmax", ["sharp_scores"], "kinds", axis=1)
    graph.node("ArgMax", ["sharp_scores"], "kinds_at", axis=1, keepdims=0)
    graph.node("Squeeze", ["kinds_at"], "kind")
    graph.node("ReduceMax", ["kinds", graph.constant("columns", [1], np.int64)], "certainty", keepdims=1)
    stored = [_table(head.words) for head in network.heads]
    graph.constant("kind_table", np.concatenate([words for words, _ in stored]), np.int8)
    graph.constant("kind_offset", np.cumsum([0, *(len(words) for words, _ in stored)])[:-1], np.int32)
    graph.constant("kind_width", [1 << head.shift for head in network.heads], np.int32)
    own = [
        np.r_[np.diag(scale), _unscaled(head.facts, head.scale, head.bias)]
        for head, (_, scale) in zip(network.heads, stored, strict=True)
    ]
    graph.constant("kind_weights", np.pad(np.stack(own), ((0, 0), (0, 0), (0, 1))))
    graph.node("Gather", ["kind_width", "kind"], "width")
    graph.node("Gather", ["kind_offset", "kind"], "offset")
    graph.node("Div", ["indices", "width"], "folded")
    graph.node("Add", ["folded", "offset"], "own_indices")
    graph.gathered("kind_table", "own_indices", "own_hit")
    graph.node("MatMul", ["weights", "own_hit"], "own_sums")
    graph.node("Concat", ["own_sums", "facts_clamped"], "own_inputs", axis=1)
    graph.node("Gather", ["kind_weights", "kind"], "own_weights")
    graph.node("MatMul", ["own_inputs", "own_weights"], "own")
    graph.node("Mul", ["own", "certainty"], "added")
    graph.node("Add", ["shared", "added"], "by_network")


def _difficulty(graph: _Graph, model: Whole) -> None:
    """Complexity: the networks' probabilities, and those by words."""
    gist = model.difficulty.gist
    graph.node("Relu", ["before_relu"], "inner")
    graph.node("MatMul", ["inner", graph.constant("out", np.r_[gist.out, [gist.out_bias]])], "by_gist")
    graph.node("Concat", ["by_gist", "by_words"], "tier_logits", axis=1)
    graph.node("Sigmoid", ["tier_logits"], "tiers")
    # Each network of the gist has an equal part in one half, the words the other half; thresholds count the same.
    parts = np.r_[np.full(NETWORKS * len(THRESHOLDS), 1 / NETWORKS), np.ones(len(THRESHOLDS))]
    graph.constant("tier_parts", parts[:, None] / (2 * len(THRESHOLDS)))
    graph.node("MatMul", ["tiers", "tier_parts"], "complexity")


def _trust(graph: _Graph) -> None:
    """See domain.Domain.trust: with tools both the logit and the least trust are straight lines of the complexity."""
    graph.node("Mul", ["complexity", "tools_by_complexity"], "by_complexity_of_tools")
    graph.node("Add", ["domain", "by_complexity_of_tools"], "lines")
    graph.split("lines", [1, 1], ["domain_logit", "tools_allow"])
    graph.node("Sigmoid", ["domain_logit"], "in_domain")
    graph.node("Max", ["in_domain", "tools_allow"], "unbounded_trust")
    graph.node("Min", ["unbounded_trust", "one"], "trust")


def _blend(graph: _Graph, model: Whole) -> None:
    """Loads and length: the network's as far as the prompt is like those with outcomes, else those of its complexity."""
    knots, values = np.array(model.blend.complexity), np.array(model.blend.loads)
    tokens = np.log(TOKENS_AT_EASIEST) + TOKENS_BY_COMPLEXITY * knots
    values = np.c_[values, tokens]
    # A broken line is a sum of rectified ones: at each knot the slope changes by so much. One more, which begins at -1,
    # lifts it to the value of the easiest.
    slopes = np.diff(values, axis=0) / np.diff(knots)[:, None]
    turns = np.r_[values[:1], np.diff(slopes, axis=0, prepend=values[:1])]
    graph.node("Sub", ["complexity", graph.constant("knots", np.r_[-1, knots[:-1]])], "beyond")
    graph.node("Relu", ["beyond"], "rectified")
    graph.node("MatMul", ["rectified", graph.constant("turns", turns)], "by_complexity")
    graph.node("Sub", ["by_network", "by_complexity"], "apart")
    graph.node("Mul", ["apart", "trust"], "moved")
    graph.node("Add", ["by_complexity", "moved"], "blended")
    graph.node("Concat", ["complexity", "trust", "blended", "task_scores"], "said", axis=1)


def _proto(graph: _Graph, model: Whole) -> bytes:
    value = helper.make_tensor_value_info
    whole = helper.make_graph(
        graph.nodes,
        "weighbridge",
        [
            value("indices", TensorProto.INT32, ["n"]),
            value("sublinear", TensorProto.FLOAT, [1, "n"]),
            value("structure", TensorProto.FLOAT, [1, len(STRUCTURE)]),
            value("read", TensorProto.INT32, ["w"]),
            value("readings", TensorProto.FLOAT, [4, "w"]),
            value("flags", TensorProto.FLOAT, [1, len(FLAGS)]),
        ],
        [value("said", TensorProto.FLOAT, [1, 3 + model.network.loads + len(model.task_kinds.names)])],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    proto = helper.make_model(
        whole, producer_name="weighbridge", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))
