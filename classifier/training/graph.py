"""The model as it ships: tables that are looked up, and the ONNX graph of all that follows.

Both are of one prompt a call. The tables are those of classifier/tables.py, 8-bit, so nothing dense is made; the graph is few
nodes on few numbers, since each node costs more than the arithmetic in it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from classifier.features import STRUCTURE
from classifier.heuristic import TOKENS_AT_EASIEST, TOKENS_BY_COMPLEXITY
from classifier.manifest import Trust
from classifier.runtime import INPUTS, OUTPUT
from classifier.tables import ALL_READINGS, TEXTS, Tables, widened
from classifier.training.blend import Blend
from classifier.training.difficulty import (
    CLAMP,
    FACTS,
    FLAGS_READ,
    MEANT,
    MORE,
    OF_GIST,
    OF_WORDS,
    RATED,
    THRESHOLDS,
    Difficulty,
)
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


def tables_of(model: Whole) -> Tables:
    """Return the tables, from which classifier/tables.py makes the graph's inputs."""
    network, scale = model.network, model.network.scale
    terms, _ = _terms(model)
    terms = widened(terms, more=1)
    terms[:, -1] = np.rint(network.idf / IDF_STEP)
    own = [_table(head.words)[0] for head in network.heads]
    return Tables(
        sizes=np.array([network.loads, _summed(model), len(THRESHOLDS)], np.int32),
        terms=terms,
        own=widened(np.concatenate(own)),
        own_first=np.cumsum([0, *map(len, own)], dtype=np.int32)[:-1],
        own_shift=np.array([head.shift for head in network.heads], np.int32),
        gate=_gate(model).astype(_SINGLE),
        meaning_at=model.table.index,
        meanings=widened(model.table.rows),
        needed=np.array(_needed(model.table.columns), np.int32),
        gist_bounds=_gist_bounds(model.difficulty).astype(_SINGLE),
        fact_bounds=np.stack([scale.low, scale.high]).astype(_SINGLE),
    )


def trust_of(model: Whole) -> Trust:
    """Return the settings that decide on trust beside the domain; see domain.Domain.trust."""
    return Trust(tools_by_complexity=model.domain.tools_by_complexity, one_call=ONE_CALL, agents_job=AN_AGENTS_JOB)


def blend_rows(blend: Blend) -> list[list[float]]:
    """Return the blend as the manifest has it: each complexity's loads, and the logarithm of its tokens."""
    tokens = [float(np.log(TOKENS_AT_EASIEST) + TOKENS_BY_COMPLEXITY * each) for each in blend.complexity]
    return [[*loads, round(each, 6)] for loads, each in zip(blend.loads, tokens, strict=True)]


def _summed(model: Whole) -> int:
    """Return the number of sums over terms that the graph takes: loads, tiers by words, domain."""
    return model.network.loads + len(THRESHOLDS) + 1


def _terms(model: Whole) -> tuple[NDArray[np.int8], Floats]:
    """Return (buckets, columns): each term's weights for the loads, the tiers, the domain and the gate's kinds, and the
    steps.
    """
    loads = model.network.loads
    words = model.network.words
    return _table(np.c_[words[:, :loads], model.difficulty.words, model.domain.words, words[:, loads:]])


def _table(columns: Floats) -> tuple[NDArray[np.int8], Floats]:
    scale = column_scale(columns)
    return np.rint(columns / scale).astype(np.int8), scale


def _unscaled(weights: Floats, scale: Scale, bias: Floats) -> Floats:
    """Return (facts + 1, outputs): weights for clamped facts and a constant 1 that give the same as `weights` and
    `bias` on scaled facts.
    """
    found = weights * scale.scale[:, None]
    return np.concatenate([found, [bias - scale.mean @ found]])


def _gate(model: Whole) -> Floats:
    """Return (kinds, 1 + facts + 1): as Tables has it. Its scores are used in a softmax alone, which is sharper."""
    network, (_, steps) = model.network, _terms(model)
    loads = network.loads
    facts = _unscaled(network.facts[:, loads:], network.scale, network.bias[loads:])
    found: Floats = GATE_SHARPNESS * np.c_[steps[_summed(model) :], facts.T]
    return found


def _needed(columns: int) -> list[int]:
    """Return the numbers of difficulty.gist_of among those that Tables.needed names, where a meaning is as wide as is stored."""
    width = widened(np.zeros((1, columns), np.int8)).shape[1]
    graded = range(columns - GRADED - 1, columns - 1)
    structure = ALL_READINGS * width
    return [
        *(reading * width + at for reading in MEANT for at in range(columns)),
        *(reading * width + at for reading in RATED for at in graded),
        *(structure + text * len(STRUCTURE) + at for text in range(TEXTS) for at in FACTS),
        *(structure + TEXTS * len(STRUCTURE) + at for at in FLAGS_READ),
    ]


def _gist_bounds(difficulty: Difficulty) -> Floats:
    """Return (2, gist): the clamp of the standardised gist, before it is standardised."""
    mean, scale = difficulty.gist.mean, difficulty.gist.scale
    return np.stack([mean - CLAMP / scale, mean + CLAMP / scale])


class _Columns:
    """The place of each part in the row of scores, as classifier/runtime.py has it."""

    def __init__(self, model: Whole) -> None:
        loads, kinds, tiers = model.network.loads, len(model.task_kinds.names), len(THRESHOLDS)
        self.domain = 0
        self.loads = slice(1, 1 + loads)
        self.length = 1 + loads
        self.kinds = slice(2 + loads, 2 + loads + kinds)
        self.tiers = slice(self.kinds.stop, self.kinds.stop + tiers)
        self.all = self.tiers.stop


def to_onnx(model: Whole) -> bytes:
    """Return the graph, whose inputs and output classifier/runtime.py describes."""
    at = _Columns(model)
    before, bias, after = _by_gist(model, at)
    weights, constant = _by_sums(model, at)
    return scoring_graph(
        {"by_sums": weights, "constant": constant, "hidden": before, "hidden_bias": bias, "out": after}
    )


def scoring_graph(constants: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the graph of these weights, which onnxruntime runs as three nodes, for it does the rectifier with the product before
    it.
    """
    nodes = [
        helper.make_node("Gemm", ["sums", "by_sums", "constant"], ["straight"]),
        helper.make_node("Gemm", ["gist", "hidden", "hidden_bias"], ["before_relu"]),
        helper.make_node("Relu", ["before_relu"], ["inner"]),
        helper.make_node("Gemm", ["inner", "out", "straight"], [OUTPUT]),
    ]
    widths = {"gist": len(constants["hidden"]), "sums": len(constants["by_sums"])}
    whole = helper.make_graph(
        nodes,
        "weighbridge",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, widths[name]]) for name in INPUTS],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, len(constants["constant"])])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in constants.items()],
    )
    proto = helper.make_model(
        whole, producer_name="weighbridge", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))


def _by_gist(model: Whole, at: _Columns) -> tuple[Floats, Floats, Floats]:
    """Return the two layers on the gist: weights, bias, and weights. Whatever is linear in the gist passes the rectifier as two
    units, its positive part and its negative.
    """
    gist = model.difficulty.gist
    linear = np.c_[model.task_kinds.weights, model.domain.gist]
    before = np.c_[gist.hidden, linear, -linear] * gist.scale[:, None]
    told = np.r_[model.task_kinds.bias, 0.0]
    bias = np.r_[gist.hidden_bias, told, -told] - gist.mean @ before
    hidden = gist.hidden.shape[1]
    after = np.zeros((before.shape[1], at.all))
    after[:hidden, at.tiers] = gist.out * OF_GIST
    through = np.zeros((linear.shape[1], at.all))
    through[:-1, at.kinds] = np.eye(len(model.task_kinds.names))
    through[-1, at.domain] = 1
    after[hidden:] = np.concatenate([through, -through])
    return before, bias, after


def _by_sums(model: Whole, at: _Columns) -> tuple[Floats, Floats]:
    """Return (sums, scores) and (scores,): all that is linear in sums over terms, in facts, and in what a kind has of its own."""
    network, facts, (_, steps) = model.network, len(STRUCTURE), _terms(model)
    loads, summed, each = network.loads, _summed(model), network.loads + facts + 1
    weights, constant = np.zeros((summed + facts + 1 + len(network.kinds) * each, at.all)), np.zeros(at.all)
    told = [*range(at.loads.start, at.loads.stop), *range(at.tiers.start, at.tiers.stop), at.domain]
    weights[np.arange(summed), told] = steps[:summed]
    weights[:summed, at.tiers] *= OF_WORDS
    of_facts = _unscaled(network.facts[:, :loads], network.scale, network.bias[:loads])
    of_length = _unscaled(network.length[:, None], network.scale, np.array([network.length_bias]))[:, 0]
    weights[summed : summed + facts, at.loads], constant[at.loads] = of_facts[:-1], of_facts[-1]
    weights[summed : summed + facts, at.length], constant[at.length] = of_length[:-1], of_length[-1]
    weights[summed + facts, at.domain], constant[at.domain] = model.domain.tools, model.domain.bias
    for number, head in enumerate(network.heads):
        begin = summed + facts + 1 + number * each
        own = np.r_[np.diag(_table(head.words)[1]), _unscaled(head.facts, head.scale, head.bias)]
        weights[begin : begin + each, at.loads] = own
    difficulty = model.difficulty
    constant[at.tiers] = OF_WORDS * difficulty.words_bias + OF_GIST * difficulty.gist.out_bias + MORE
    return weights, constant
