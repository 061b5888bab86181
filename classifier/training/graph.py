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

from classifier.features import STRUCTURE
from classifier.heuristic import TOKENS_AT_EASIEST, TOKENS_BY_COMPLEXITY
from classifier.training.blend import Blend
from classifier.training.difficulty import CLAMP, FACTS, HALF_KNOWN, NETWORKS, THRESHOLDS, Difficulty
from classifier.training.domain import AN_AGENTS_JOB, ONE_CALL, Domain
from classifier.training.network import GATE_SHARPNESS, IDF_STEP, Fitted, Scale, column_scale
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
        """Parts of a vector, by their sizes."""
        of_sizes = self.constant(f"{value}_sizes", sizes, np.int64)
        self.nodes.append(helper.make_node("Split", [value, of_sizes], list(outputs), axis=0))

    def clamped(self, value: str, low: str, high: str, output: str) -> str:
        """Each number of a vector held to bounds of its own."""
        self.node("Max", [value, low], f"{output}_raised")
        return self.node("Min", [f"{output}_raised", high], output)


def to_onnx(model: Whole) -> bytes:
    """The whole model as one graph, whose inputs and output classifier/onnx_classifier.py describes."""
    graph = _Graph()
    _terms(graph, model)
    _network(graph, model.network)
    _gist(graph, model)
    _difficulty(graph, model)
    _blend(graph, model)
    return _proto(graph, model)


def _table(columns: Floats) -> tuple[NDArray[np.int8], Floats]:
    scale = column_scale(columns)
    return np.rint(columns / scale).astype(np.int8), scale


def _terms(graph: _Graph, model: Whole) -> None:
    """Weights of the hit terms, and one sum for all that is linear in them and in facts."""
    network, tiers = model.network, len(THRESHOLDS)
    table, scale = _table(np.c_[network.words, model.difficulty.words, model.domain.words])
    # In the row that is read anyway: a table of its own would miss the cache once more for each term.
    table = np.c_[table, np.rint(network.idf / IDF_STEP).astype(np.int8)]
    scale = np.r_[scale, 0.0]
    # The gate's scores are used in a softmax alone, which is sharper.
    sharp = np.ones(len(scale))
    sharp[network.loads : network.loads + len(network.kinds)] = GATE_SHARPNESS
    graph.constant("table", table, np.int8)
    graph.constant("table_scale", scale * sharp)
    graph.constant("one", 1)
    graph.constant("all", [0], np.int64)
    graph.gathered("table", "indices", "hit")
    graph.node("Gather", ["hit", graph.constant("idf_at", len(scale) - 1, np.int64)], "hit_idf", axis=1)
    graph.node("Mul", ["sublinear", "hit_idf"], "unscaled")
    graph.node("LpNormalization", ["unscaled"], "weights", axis=0, p=2)
    graph.node("MatMul", ["weights", "hit"], "sums")
    graph.node("Mul", ["sums", "table_scale"], "lexical")
    others = np.zeros((len(STRUCTURE), tiers + 1))
    weights, bias = _unscaled(np.c_[network.facts, others, network.length], network.scale)
    bias += np.r_[network.bias, model.difficulty.words_bias, model.domain.bias, network.length_bias]
    graph.constant("low", network.scale.low)
    graph.constant("high", network.scale.high)
    graph.clamped("structure", "low", "high", "clamped")
    graph.node("MatMul", ["clamped", graph.constant("facts", weights * sharp)], "factual")
    graph.node("Add", ["factual", graph.constant("bias", bias * sharp)], "plain")
    graph.node("Add", ["lexical", "plain"], "heads")
    sizes = [network.loads, len(network.kinds), tiers, 1, 1]
    graph.split("heads", sizes, ["shared_loads", "sharp_scores", "by_words", "lexical_domain", "network_tokens"])


def _unscaled(weights: Floats, scale: Scale) -> tuple[Floats, Floats]:
    """Weights and bias that give from clamped facts what `weights` give from scaled ones."""
    found = weights * scale.scale[:, None]
    return found, -scale.mean @ found


def _network(graph: _Graph, network: Fitted) -> None:
    """Shared loads, and the likeliest kind's own, as far as the gate is sure of it."""
    graph.node("Softmax", ["sharp_scores"], "kinds")
    graph.node("ArgMax", ["kinds"], "kind", keepdims=0)
    graph.node("ReduceMax", ["kinds", "all"], "certainty", keepdims=0)
    stored = [_table(head.words) for head in network.heads]
    plain = [_unscaled(head.facts, head.scale) for head in network.heads]
    graph.constant("kind_table", np.concatenate([words for words, _ in stored]), np.int8)
    graph.constant("kind_offset", np.cumsum([0, *(len(words) for words, _ in stored)])[:-1], np.int32)
    graph.constant("kind_width", [1 << head.shift for head in network.heads], np.int32)
    graph.constant("kind_facts", np.stack([weights for weights, _ in plain]))
    rows = [
        np.r_[head.scale.low, head.scale.high, scale, bias + head.bias]
        for head, (_, scale), (_, bias) in zip(network.heads, stored, plain, strict=True)
    ]
    graph.constant("kind_rows", np.stack(rows))
    graph.node("Gather", ["kind_width", "kind"], "width")
    graph.node("Gather", ["kind_offset", "kind"], "offset")
    graph.node("Div", ["indices", "width"], "folded")
    graph.node("Add", ["folded", "offset"], "own_indices")
    graph.gathered("kind_table", "own_indices", "own_hit")
    graph.node("MatMul", ["weights", "own_hit"], "own_sums")
    graph.node("Gather", ["kind_rows", "kind"], "own_row")
    sizes = [len(STRUCTURE), len(STRUCTURE), network.loads, network.loads]
    graph.split("own_row", sizes, ["own_low", "own_high", "own_scale", "own_bias"])
    graph.node("Mul", ["own_sums", "own_scale"], "own_lexical")
    graph.clamped("structure", "own_low", "own_high", "own_clamped")
    graph.node("Gather", ["kind_facts", "kind"], "own_facts")
    graph.node("MatMul", ["own_clamped", "own_facts"], "own_factual")
    graph.node("Sum", ["own_lexical", "own_factual", "own_bias"], "own_loads")
    graph.node("Mul", ["own_loads", "certainty"], "added")
    graph.node("Add", ["shared_loads", "added"], "network_loads")


def _gist(graph: _Graph, model: Whole) -> None:
    """The gist, clamped: see difficulty.gist_of. Of `flags` three tell whether there is a message before, and a short one
    after it.
    """
    meanings = model.table.columns - 1
    graph.constant("meanings", model.table.rows, np.int8)
    graph.constant("meaning_at", model.table.index, np.int32)
    for name in ("words", "before"):
        graph.node("Gather", ["meaning_at", name], f"{name}_rows")
        graph.gathered("meanings", f"{name}_rows", f"{name}_meant")
        graph.node("ReduceSum", [f"{name}_meant", "all"], f"{name}_summed", keepdims=0)
    graph.split("words_summed", [meanings, 1], ["summed", "known"])
    graph.node("Add", ["known", "one"], "known_and_one")
    graph.node("Div", ["summed", "known_and_one"], "meaning")
    graph.node("Add", ["known", graph.constant("half_known", HALF_KNOWN)], "known_and_half")
    graph.node("Sqrt", ["known_and_half"], "root")
    graph.node("Div", ["summed", "root"], "weight_of_meaning")
    graph.node("Gather", ["structure", graph.constant("facts_read", FACTS, np.int64)], "facts_of_form")
    graph.split("before_summed", [meanings - GRADED, GRADED, 1], ["unread", "graded_before", "known_before"])
    graph.node("Add", ["known_before", "one"], "known_before_and_one")
    graph.node("Div", ["graded_before", "known_before_and_one"], "context")
    graph.split("flags", [1, 1, 1, 1], ["short", "follows", "follows_short", "tools"])
    graph.node("Mul", ["context", "short"], "context_if_short")
    parts = ["meaning", "weight_of_meaning", "facts_of_form", "context", "context_if_short", "follows", "follows_short"]
    graph.node("Concat", parts, "gist", axis=0)
    gist = model.difficulty.gist
    graph.constant("gist_low", gist.mean - CLAMP / gist.scale)
    graph.constant("gist_high", gist.mean + CLAMP / gist.scale)
    graph.clamped("gist", "gist_low", "gist_high", "gist_clamped")


def _difficulty(graph: _Graph, model: Whole) -> None:
    """Complexity, and what kind of task it is."""
    gist, kinds, domain = model.difficulty.gist, model.task_kinds, model.domain
    # One product for all that reads the gist.
    weights = np.c_[gist.hidden, kinds.weights, domain.gist] * gist.scale[:, None]
    bias = np.r_[gist.hidden_bias, kinds.bias, 0.0] - gist.mean @ weights
    graph.node("MatMul", ["gist_clamped", graph.constant("gist_weights", weights)], "gist_product")
    graph.node("Add", ["gist_product", graph.constant("gist_bias", bias)], "gist_said")
    sizes = [gist.hidden.shape[1], len(kinds.names), 1]
    graph.split("gist_said", sizes, ["before_relu", "task_scores", "gist_domain"])
    graph.node("ArgMax", ["task_scores"], "task_at", keepdims=1)
    graph.node("Cast", ["task_at"], "task", to=TensorProto.FLOAT)
    graph.node("Relu", ["before_relu"], "inner")
    graph.node("MatMul", ["inner", graph.constant("out", gist.out)], "out_product")
    graph.node("Add", ["out_product", graph.constant("out_bias", gist.out_bias)], "by_gist")
    graph.node("Concat", ["by_gist", "by_words"], "tier_logits", axis=0)
    graph.node("Sigmoid", ["tier_logits"], "tiers")
    # Each network of the gist has an equal part in one half, the words the other half; thresholds count the same.
    parts = np.r_[np.full(NETWORKS * len(THRESHOLDS), 1 / NETWORKS), np.ones(len(THRESHOLDS))]
    graph.constant("tier_parts", parts[:, None] / (2 * len(THRESHOLDS)))
    graph.node("MatMul", ["tiers", "tier_parts"], "complexity")


def _blend(graph: _Graph, model: Whole) -> None:
    """Loads and length: the network's as far as the prompt is like those with outcomes, else those of its complexity."""
    knots, values = np.array(model.blend.complexity), np.array(model.blend.loads)
    tokens = np.log(TOKENS_AT_EASIEST) + TOKENS_BY_COMPLEXITY * knots
    values = np.c_[values, tokens]
    # A broken line is a sum of rectified ones: at each knot the slope changes by so much.
    slopes = np.diff(values, axis=0) / np.diff(knots)[:, None]
    turns = np.diff(slopes, axis=0, prepend=np.zeros((1, values.shape[1])))
    _trust(graph, model.domain)
    graph.node("Sub", ["complexity", graph.constant("knots", knots[:-1])], "beyond")
    graph.node("Relu", ["beyond"], "rectified")
    graph.node("MatMul", ["rectified", graph.constant("turns", turns)], "risen")
    graph.node("Add", ["risen", graph.constant("at_easiest", values[0])], "by_complexity")
    graph.node("Concat", ["network_loads", "network_tokens"], "by_network", axis=0)
    graph.node("Sub", ["by_network", "by_complexity"], "apart")
    graph.node("Mul", ["apart", "trust"], "moved")
    graph.node("Add", ["by_complexity", "moved"], "blended")
    graph.node("Concat", ["complexity", "trust", "task", "blended"], "said", axis=0)


def _trust(graph: _Graph, domain: Domain) -> None:
    """See domain.Domain.trust: with tools both the logit and the least trust are straight lines of the complexity."""
    slope = -1 / (AN_AGENTS_JOB - ONE_CALL)
    graph.node(
        "Mul", ["complexity", graph.constant("tools_slopes", [domain.tools_by_complexity, slope])], "tools_risen"
    )
    graph.node(
        "Add", ["tools_risen", graph.constant("tools_at_0", [domain.tools, -slope * AN_AGENTS_JOB])], "tools_line"
    )
    graph.node("Mul", ["tools_line", "tools"], "by_tools")
    graph.split("by_tools", [1, 1], ["tools_domain", "tools_allow"])
    graph.node("Sum", ["gist_domain", "lexical_domain", "tools_domain"], "domain_logit")
    graph.node("Sigmoid", ["domain_logit"], "in_domain")
    graph.node("Max", ["in_domain", "tools_allow"], "unbounded_trust")
    graph.node("Min", ["unbounded_trust", "one"], "trust")


def _proto(graph: _Graph, model: Whole) -> bytes:
    value = helper.make_tensor_value_info
    whole = helper.make_graph(
        graph.nodes,
        "weighbridge",
        [
            value("indices", TensorProto.INT32, ["n"]),
            value("sublinear", TensorProto.FLOAT, ["n"]),
            value("structure", TensorProto.FLOAT, [len(STRUCTURE)]),
            value("words", TensorProto.INT32, ["w"]),
            value("before", TensorProto.INT32, ["b"]),
            value("flags", TensorProto.FLOAT, [4]),
        ],
        [value("said", TensorProto.FLOAT, [4 + model.network.loads])],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    proto = helper.make_model(
        whole, producer_name="weighbridge", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))
