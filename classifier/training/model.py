"""The model: one ridge for each shape of prompt on hashed TF-IDF and plain facts, and its ONNX graph."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy import sparse
from sklearn.linear_model import Ridge

from classifier.features import BUCKET_BITS, SHAPES, STRUCTURE, WEIGHINGS, Features

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BUCKETS: Final = 2**BUCKET_BITS
STRUCTURE_SCALE: Final = 0.1
"""Facts are standardised and then made this small, so that ridge trusts words and facts about alike."""
CLAMP_DEVIATIONS: Final = 3.0
KNOWN_DOCUMENTS: Final = 3
"""A bucket is known when this many open prompts of the training data hit it."""
OPSET: Final = 17
IR_VERSION: Final = 9


class Fitted(msgspec.Struct, frozen=True):
    """All numbers of the model, in float64."""

    idf: Floats
    known: NDArray[np.bool_]
    words: Floats
    """(buckets, shapes)"""
    facts: Floats
    """(shapes, facts), for facts clamped to [low, high]."""
    low: Floats
    high: Floats
    bias: Floats
    length: Floats
    length_bias: float
    length_low: Floats
    length_high: Floats


def term_counts(features: Sequence[Features]) -> sparse.csr_matrix:
    ends = np.cumsum([0, *(len(found.indices) for found in features)])
    indices = np.concatenate([found.indices for found in features])
    counts = np.concatenate([found.counts for found in features]).astype(np.float64)
    return sparse.csr_matrix((counts, indices, ends), shape=(len(features), BUCKETS))


def structures(features: Sequence[Features]) -> Floats:
    return np.stack([found.structure for found in features]).astype(np.float64)


def _idf(counts: sparse.csr_matrix) -> Floats:
    seen = np.bincount(counts.indices, minlength=BUCKETS)
    # Rounded as it will be stored, so that training and serving see the same number.
    weights: Floats = (np.log((1 + counts.shape[0]) / (1 + seen)) + 1).astype(np.float16).astype(np.float64)
    return weights


def weighed(counts: sparse.csr_matrix, idf: Floats) -> sparse.csr_matrix:
    """Sublinear TF-IDF, each row of length 1."""
    rows = counts.copy()
    rows.data = (1 + np.log(rows.data)) * idf[rows.indices]
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags(1 / np.maximum(norms, 1e-6)) @ rows)


def _standard(facts: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, scale (0 for a fact that never varies) and the deviation."""
    mean, deviation = facts.mean(axis=0), facts.std(axis=0)
    scale = np.where(deviation > 1e-6, STRUCTURE_SCALE / np.maximum(deviation, 1e-6), 0.0)
    return mean, scale, deviation


class _Head(msgspec.Struct, frozen=True):
    words: Floats
    facts: Floats
    low: Floats
    high: Floats
    bias: float


def _head(terms: sparse.csr_matrix, facts: Floats, gains: Floats, alpha: float) -> _Head:
    mean, scale, deviation = _standard(facts)
    low, high = mean - CLAMP_DEVIATIONS * deviation, mean + CLAMP_DEVIATIONS * deviation
    scaled = (np.clip(facts, low, high) - mean) * scale
    design = sparse.csr_matrix(sparse.hstack([terms, sparse.csr_matrix(scaled)]))
    ridge = Ridge(alpha=alpha, solver="sparse_cg", tol=1e-4).fit(design, gains)
    words, weights = ridge.coef_[:BUCKETS], ridge.coef_[BUCKETS:] * scale
    return _Head(words, weights, low, high, float(ridge.intercept_ - mean @ weights))


def fit(
    counts: sparse.csr_matrix, facts: Floats, shapes: Integers, gains: Floats, output_tokens: Floats, alpha: float
) -> Fitted:
    """Fit every shape that has rows; a shape without any keeps zero weights and the mean gain."""
    idf = _idf(counts)
    terms = weighed(counts, idf)
    count = len(SHAPES)
    words, weights = np.zeros((BUCKETS, count)), np.zeros((count, len(STRUCTURE)))
    low, high, bias = np.zeros_like(weights), np.zeros_like(weights), np.full(count, float(np.nanmean(gains)))
    for shape in range(count):
        rows = np.flatnonzero((shapes == shape) & ~np.isnan(gains))
        if len(rows):
            head = _head(terms[rows], facts[rows], gains[rows], alpha)
            words[:, shape], weights[shape], bias[shape] = head.words, head.facts, head.bias
            low[shape], high[shape] = head.low, head.high
    spoken = np.flatnonzero(~np.isnan(output_tokens))
    length, length_bias, length_low, length_high = _fit_length(facts[spoken], np.log(output_tokens[spoken]))
    open_rows = counts[np.flatnonzero(shapes == 0)]
    known = np.bincount(open_rows.indices, minlength=BUCKETS) >= KNOWN_DOCUMENTS
    return Fitted(idf, known, words, weights, low, high, bias, length, length_bias, length_low, length_high)


def _fit_length(facts: Floats, log_tokens: Floats) -> tuple[Floats, float, Floats, Floats]:
    mean, scale, deviation = _standard(facts)
    low, high = mean - CLAMP_DEVIATIONS * deviation, mean + CLAMP_DEVIATIONS * deviation
    ridge = Ridge(alpha=1.0).fit((np.clip(facts, low, high) - mean) * scale, log_tokens)
    weights = ridge.coef_ * scale
    return weights, float(ridge.intercept_ - mean @ weights), low, high


def predict(model: Fitted, counts: sparse.csr_matrix, facts: Floats, shapes: Integers) -> tuple[Floats, Floats, Floats]:
    """Gain, share of known words and log output tokens of many prompts: the reference for the graph."""
    lexical = np.asarray(weighed(counts, model.idf) @ model.words)
    clamped = np.clip(facts[:, None, :], model.low, model.high)
    gains = lexical + np.einsum("nsk,sk->ns", clamped, model.facts) + model.bias
    totals = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1)
    known = np.asarray(counts @ model.known.astype(np.float64)).ravel() / totals
    lengths = np.clip(facts, model.length_low, model.length_high) @ model.length + model.length_bias
    return gains[np.arange(len(shapes)), shapes], known, lengths


def _table(model: Fitted) -> NDArray[np.float16]:
    """What a bucket adds to each sum, a row a bucket, so that a prompt's bucket is one place in memory."""
    idf = model.idf[:, None]
    return np.hstack([model.words * idf, idf**2, model.known[:, None]]).astype(np.float16)


def to_onnx(model: Fitted) -> bytes:
    """The graph: look up the hit buckets' rows and sum them, and weigh the facts. One prompt a call, nothing dense.

    Few nodes and no more: each costs as much as a thousand additions. `sums` has a row for each weighing of the
    terms (sublinear, its square, plain) and a column for each of the table's, of which the serving side reads five.
    """
    node = helper.make_node
    rows = len(SHAPES) + 1
    arrays: dict[str, NDArray[Any]] = {
        "table": _table(model),
        "low": np.vstack([model.low, model.length_low]).astype(np.float32),
        "high": np.vstack([model.high, model.length_high]).astype(np.float32),
        "facts": np.vstack([model.facts, model.length]).astype(np.float32),
        "bias": np.append(model.bias, model.length_bias).astype(np.float32),
        "last": np.array([1], np.int64),
    }
    nodes = [
        node("Gather", ["table", "indices"], ["hit_half"]),
        node("Cast", ["hit_half"], ["hit"], to=TensorProto.FLOAT),
        node("MatMul", ["weights", "hit"], ["sums"]),
        node("Max", ["structure", "low"], ["raised"]),
        node("Min", ["raised", "high"], ["clamped"]),
        node("Mul", ["clamped", "facts"], ["terms"]),
        node("ReduceSum", ["terms", "last"], ["unbiased"], keepdims=0),
        node("Add", ["unbiased", "bias"], ["plain"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "weighbridge",
        [
            value("indices", TensorProto.INT32, ["n"]),
            value("weights", TensorProto.FLOAT, [WEIGHINGS, "n"]),
            value("structure", TensorProto.FLOAT, [len(STRUCTURE)]),
        ],
        [
            value("sums", TensorProto.FLOAT, [WEIGHINGS, len(SHAPES) + 2]),
            value("plain", TensorProto.FLOAT, [rows]),
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    proto = helper.make_model(
        graph,
        producer_name="weighbridge",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString(deterministic=True))
