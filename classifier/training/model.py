"""The network: ridge regression on hashed TF-IDF and plain facts, with shared weights and weights for each kind.

A kind (grade-school sums, competition mathematics, tool calls, …) has weights of its own beside the shared ones, which
is ridge on the kernel (1 + c·[same kind]) · K, where own weights are c times as free as the shared. A prompt of no
known kind is left with the shared part. A gate, linear in the same features, predicts the kind.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy import sparse

from classifier.features import BUCKET_BITS, STRUCTURE, Features

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]

BUCKETS: Final = 2**BUCKET_BITS
ALPHA: Final = 4.0
KIND_SHARE: Final = 0.8
"""Part of a prompt's kernel that only prompts of its own kind share: c / (1 + c) for c = 4."""
STRUCTURE_SCALE: Final = 0.1
"""Standard deviation that facts are scaled to, so that ridge trusts words and facts about alike."""
CLAMP_DEVIATIONS: Final = 3.0
KNOWN_DOCUMENTS: Final = 3
"""Open prompts of the training data that have to hit a bucket for it to be known."""
BIG_KIND: Final = 4_000
SMALL_KIND_SHIFT: Final = 3
"""Bits by which buckets are folded for a kind of fewer than BIG_KIND prompts: an eighth of the buckets."""
GATE_SHARPNESS: Final = 12.0
"""Factor of the gate's least-squares scores in a softmax: .99 where one score is 1 and six are near 0."""
OPSET: Final = 18
IR_VERSION: Final = 9
_MAX_ITERATIONS: Final = 80
_TOLERANCE: Final = 2e-2
"""Relative residual at which conjugate gradients stop. At 3e-3 no ranking measure differs by more than .003, for twice
the time.
"""
_LEVELS: Final = 127


class Scale(msgspec.Struct, frozen=True):
    """Scaling of facts for the network: clamped to [low, high], then (x - mean) * scale."""

    low: Floats
    high: Floats
    mean: Floats
    scale: Floats

    def of(self, facts: Floats) -> Floats:
        """The facts scaled."""
        scaled: Floats = (np.clip(facts, self.low, self.high) - self.mean) * self.scale
        return scaled


class KindHead(msgspec.Struct, frozen=True):
    """The weights of one kind. `words` has a row for each of its own buckets, which are `bucket >> shift`."""

    shift: int
    words: Floats
    facts: Floats
    bias: Floats
    scale: Scale


class Fitted(msgspec.Struct, frozen=True):
    """All parameters of the network, rounded as they are stored, so that training and serving see the same."""

    kinds: list[str]
    idf: Floats
    known: NDArray[np.bool_]
    words: Floats
    """(buckets, loads + kinds): shared weights, and those of the gate."""
    facts: Floats
    bias: Floats
    scale: Scale
    heads: list[KindHead]
    length: Floats
    length_bias: float

    @property
    def loads(self) -> int:
        """The number of loads."""
        return len(self.bias) - len(self.kinds)


class Rows(msgspec.Struct, frozen=True):
    """Prompts as arrays: raw term counts and plain facts."""

    counts: sparse.csr_matrix
    facts: Floats

    def __getitem__(self, rows: Integers) -> "Rows":
        return Rows(self.counts[rows], self.facts[rows])


class Predicted(msgspec.Struct, frozen=True):
    """The network's outputs for many prompts: the reference for its ONNX graph."""

    loads: Floats
    kinds: Floats
    """(prompts, kinds): probabilities."""
    known: Floats
    likeness: Floats
    """The gate's highest score: near 1 for a prompt like those of its kind, .4 to .5 for one like none."""
    log_tokens: Floats


def rows_of(features: Sequence[Features]) -> Rows:
    """Features of many prompts as arrays."""
    ends = np.cumsum([0, *(len(found.indices) for found in features)])
    indices = np.concatenate([found.indices for found in features])
    counts = np.concatenate([found.counts for found in features]).astype(np.float64)
    return Rows(
        sparse.csr_matrix((counts, indices, ends), shape=(len(features), BUCKETS)),
        np.stack([found.structure for found in features]).astype(np.float64),
    )


def _idf(counts: sparse.csr_matrix) -> Floats:
    seen = np.bincount(counts.indices, minlength=BUCKETS)
    # Rounded as it will be stored.
    weights: Floats = (np.log((1 + counts.shape[0]) / (1 + seen)) + 1).astype(np.float16).astype(np.float64)
    return weights


def weighed(counts: sparse.csr_matrix, idf: Floats) -> sparse.csr_matrix:
    """Sublinear TF-IDF, each row of length 1."""
    rows = counts.copy()
    rows.data = (1 + np.log(rows.data)) * idf[rows.indices]
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags(1 / np.maximum(norms, 1e-6)) @ rows)


def _scale(facts: Floats) -> Scale:
    mean, deviation = facts.mean(axis=0), facts.std(axis=0)
    # A fact that never varies says nothing.
    scale = np.where(deviation > 1e-6, STRUCTURE_SCALE / np.maximum(deviation, 1e-6), 0.0)
    return Scale(mean - CLAMP_DEVIATIONS * deviation, mean + CLAMP_DEVIATIONS * deviation, mean, scale)


class _KindRows(msgspec.Struct, frozen=True):
    """The prompts of one kind, over the buckets that they hit."""

    at: Integers
    used: Integers
    """The buckets that are hit, rising; the columns of `terms`."""
    terms: sparse.csr_matrix
    transposed: sparse.csr_matrix
    fold: sparse.csr_matrix | None
    """(used, own buckets): the own bucket that each falls into; None where every bucket is its own."""
    facts: Singles
    scale: Scale
    shift: int

    def spread(self, words: Singles) -> Singles:
        """Weights of the hit buckets as weights of all of the kind's own: (buckets >> shift, columns)."""
        full = np.zeros((BUCKETS, words.shape[1]), np.float32)
        full[self.used] = words
        summed: Singles = full.reshape(-1, 1 << self.shift, words.shape[1]).sum(axis=1)
        return summed


class _Weights(msgspec.Struct, frozen=True):
    """Primal weights: of words, of facts, and the constant."""

    words: Singles
    facts: Singles
    bias: Singles


class _Kernel(msgspec.Struct, frozen=True):
    """(1 - kind_share + kind_share · [same kind]) · K, with K = words · words + facts · facts + 1; never materialised."""

    facts: Singles
    own: list[_KindRows]
    kind_share: float

    def primal(self, dual: Singles) -> tuple[_Weights, list[_Weights]]:
        """The shared weights of a dual vector, and each kind's own, over the buckets that the kind hits."""
        each = [
            _Weights(own.transposed @ dual[own.at], own.facts.T @ dual[own.at], dual[own.at].sum(axis=0))
            for own in self.own
        ]
        words = np.zeros((BUCKETS, dual.shape[1]), np.float32)
        for own, one in zip(self.own, each, strict=True):
            words[own.used] += one.words
        shared = _Weights(words, self.facts.T @ dual, dual.sum(axis=0))
        return _scaled(shared, 1 - self.kind_share), [_scaled(one, self.kind_share) for one in each]

    def __matmul__(self, dual: Singles) -> Singles:
        shared, each = self.primal(dual)
        said: Singles = self.facts @ shared.facts + shared.bias
        for own, mine in zip(self.own, each, strict=True):
            # Both sums over words in one pass: that is where the time goes.
            words = shared.words[own.used]
            if self.kind_share:
                words += mine.words if own.fold is None else own.fold @ (own.fold.T @ mine.words)
            said[own.at] += own.terms @ words + own.facts @ mine.facts + mine.bias
        return said


def _scaled(weights: _Weights, share: float) -> _Weights:
    single = np.float32(share)
    return _Weights(weights.words * single, weights.facts * single, weights.bias * single)


def _kind_rows(terms: sparse.csr_matrix, facts: Floats, at: Integers) -> _KindRows:
    scale = _scale(facts[at])
    rows = terms[at].astype(np.float32)
    used, columns = np.unique(rows.indices, return_inverse=True)
    rows = sparse.csr_matrix((rows.data, columns, rows.indptr), shape=(len(at), len(used)))
    shift = 0 if len(at) >= BIG_KIND else SMALL_KIND_SHIFT
    fold = None
    if shift:
        _, place = np.unique(used >> shift, return_inverse=True)
        ones = np.ones(len(used), np.float32)
        fold = sparse.csr_matrix((ones, place, np.arange(len(used) + 1)))
    scaled = scale.of(facts[at]).astype(np.float32)
    return _KindRows(at, used, rows, sparse.csr_matrix(rows.T), fold, scaled, scale, shift)


def _solve(kernel: _Kernel, wanted: Floats, ridge: Singles, *, tolerance: float = _TOLERANCE) -> Singles:
    """Ridge's dual, (K + ridge) x = wanted, for all columns at once by conjugate gradients; one ridge for each prompt."""
    aim = wanted.astype(np.float32)
    found = np.zeros_like(aim)
    left = aim.copy()
    step = left.copy()
    size = np.einsum("ij,ij->j", left, left)
    enough = tolerance**2 * size
    for _ in range(_MAX_ITERATIONS):
        image = kernel @ step + ridge[:, None] * step
        length = size / np.maximum(np.einsum("ij,ij->j", step, image), 1e-30)
        found += length * step
        left -= length * image
        smaller = np.einsum("ij,ij->j", left, left)
        if (smaller <= enough).all():
            break
        step = left + smaller / np.maximum(size, 1e-30) * step
        size = smaller
    return found


def _fold_buckets(terms: sparse.csr_matrix, shift: int) -> sparse.csr_matrix:
    if shift == 0:
        return terms
    return sparse.csr_matrix(
        (terms.data, terms.indices >> shift, terms.indptr), shape=(terms.shape[0], BUCKETS >> shift)
    )


def _balanced_ridge(kind_of: Integers) -> Singles:
    """A ridge for each prompt that lets every kind count the same; otherwise the gate would ignore small kinds."""
    sizes = np.bincount(kind_of)[kind_of]
    return (ALPHA * sizes * np.count_nonzero(np.bincount(kind_of)) / len(kind_of)).astype(np.float32)


def _quantised(columns: Floats) -> Floats:
    """Weights rounded to 8-bit integers with one scale for each column, as they are stored."""
    scale = _column_scale(columns)
    rounded: Floats = np.rint(columns / scale) * scale
    return rounded


def _column_scale(columns: Floats) -> Floats:
    scale: Floats = np.maximum(np.abs(columns).max(axis=0, initial=0.0), 1e-12) / _LEVELS
    return scale.astype(np.float32).astype(np.float64)


def fit(
    rows: Rows, loads: Floats, kinds: Sequence[str], kind_of: Integers, open_text: NDArray[np.bool_], tokens: Floats
) -> Fitted:
    """Trains the network to predict `loads` (prompts, L).

    `kind_of` numbers each prompt's kind, `open_text` marks the prompts that define known words, and `tokens` are answer
    lengths, NaN where unknown.
    """
    idf = _idf(rows.counts)
    terms = weighed(rows.counts, idf)
    scale = _scale(rows.facts)
    scaled = scale.of(rows.facts).astype(np.float32)
    own = [_kind_rows(terms, rows.facts, np.flatnonzero(kind_of == number)) for number in range(len(kinds))]
    kernel = _Kernel(scaled, own, KIND_SHARE)
    shared, heads = kernel.primal(_solve(kernel, loads, np.full(len(loads), ALPHA, np.float32)))
    plain = _Kernel(scaled, own, 0.0)
    told = (kind_of[:, None] == np.arange(len(kinds))).astype(np.float64)
    gate, _ = plain.primal(_solve(plain, told, _balanced_ridge(kind_of)))
    length, length_bias = _fit_length(scale.of(rows.facts), tokens)
    return Fitted(
        kinds=list(kinds),
        idf=idf,
        known=np.bincount(rows.counts[np.flatnonzero(open_text)].indices, minlength=BUCKETS) >= KNOWN_DOCUMENTS,
        words=_quantised(np.c_[shared.words, gate.words].astype(np.float64)),
        facts=np.c_[shared.facts, gate.facts].astype(np.float64),
        bias=np.r_[shared.bias, gate.bias].astype(np.float64),
        scale=scale,
        heads=[_head(one, weights) for one, weights in zip(own, heads, strict=True)],
        length=length,
        length_bias=length_bias,
    )


def _head(own: _KindRows, weights: _Weights) -> KindHead:
    words = _quantised(own.spread(weights.words).astype(np.float64))
    return KindHead(own.shift, words, weights.facts.astype(np.float64), weights.bias.astype(np.float64), own.scale)


def _fit_length(facts: Floats, tokens: Floats) -> tuple[Floats, float]:
    """Ridge of the logarithm of an answer's tokens on the facts alone; zeros where no length is known."""
    known = np.flatnonzero(~np.isnan(tokens))
    if not len(known):
        return np.zeros(facts.shape[1]), 0.0
    logs = np.log(np.maximum(tokens[known], 1.0))
    inputs = facts[known]
    mean = inputs.mean(axis=0)
    square = (inputs - mean).T @ (inputs - mean) + np.eye(inputs.shape[1])
    weights = np.linalg.solve(square, (inputs - mean).T @ (logs - logs.mean()))
    return weights, float(logs.mean() - mean @ weights)


def predict(model: Fitted, rows: Rows) -> Predicted:
    """The network in plain numpy."""
    terms = weighed(rows.counts, model.idf)
    scaled = model.scale.of(rows.facts)
    said = np.asarray(terms @ model.words) + scaled @ model.facts + model.bias
    sharp = GATE_SHARPNESS * said[:, model.loads :]
    kinds = np.exp(sharp - sharp.max(axis=1, keepdims=True))
    kinds /= kinds.sum(axis=1, keepdims=True)
    loads = said[:, : model.loads].copy()
    likeliest = kinds.argmax(axis=1)
    for number, head in enumerate(model.heads):
        at = np.flatnonzero(likeliest == number)
        if len(at):
            own = np.asarray(_fold_buckets(terms[at], head.shift) @ head.words)
            own += head.scale.of(rows.facts[at]) @ head.facts + head.bias
            loads[at] += kinds[at, number, None] * own
    totals = np.maximum(np.asarray(rows.counts.sum(axis=1)).ravel(), 1)
    known = np.asarray(rows.counts @ model.known.astype(np.float64)).ravel() / totals
    return Predicted(loads, kinds, known, said[:, model.loads :].max(axis=1), scaled @ model.length + model.length_bias)


def _as_int8(columns: Floats) -> tuple[NDArray[np.int8], Singles]:
    scale = _column_scale(columns)
    return np.rint(columns / scale).astype(np.int8), scale.astype(np.float32)


def _arrays(model: Fitted) -> dict[str, NDArray[Any]]:
    table, table_scale = _as_int8(model.words)
    # One table for all kinds' own buckets, one scale for each kind's columns.
    stored = [_as_int8(head.words) for head in model.heads]
    offsets = np.cumsum([0, *(len(words) for words, _ in stored)])[:-1]
    single = np.float32
    return {
        "idf": model.idf.astype(np.float16),
        "known": model.known.astype(np.uint8),
        "table": table,
        "table_scale": table_scale,
        "kind_table": np.concatenate([words for words, _ in stored]),
        "kind_scale": np.stack([scale for _, scale in stored]),
        "kind_offset": offsets.astype(np.int32),
        "kind_width": np.array([1 << head.shift for head in model.heads], np.int32),
        "low": model.scale.low.astype(single),
        "high": model.scale.high.astype(single),
        "mean": model.scale.mean.astype(single),
        "scale": model.scale.scale.astype(single),
        "facts": np.c_[model.facts, model.length].astype(single),
        "bias": np.r_[model.bias, model.length_bias].astype(single),
        "kind_low": np.stack([head.scale.low for head in model.heads]).astype(single),
        "kind_high": np.stack([head.scale.high for head in model.heads]).astype(single),
        "kind_mean": np.stack([head.scale.mean for head in model.heads]).astype(single),
        "kind_fact_scale": np.stack([head.scale.scale for head in model.heads]).astype(single),
        "kind_facts": np.stack([head.facts for head in model.heads]).astype(single),
        "kind_bias": np.stack([head.bias for head in model.heads]).astype(single),
        "one": np.array(1, single),
        "tiny": np.array(1e-6, single),
        "sharpness": np.array(GATE_SHARPNESS, single),
        "all": np.array([0], np.int64),
        "from_first": np.array([0], np.int64),
        "to_loads": np.array([model.loads], np.int64),
        "to_kinds": np.array([model.loads + len(model.kinds)], np.int64),
        "to_end": np.array([model.loads + len(model.kinds) + 1], np.int64),
    }


def _nodes() -> list[onnx.NodeProto]:
    """The graph's nodes in the order of computing: terms, shared part, gate, own part of the kind."""
    node = helper.make_node
    return [
        node("Log", ["counts"], ["log_counts"]),
        node("Add", ["log_counts", "one"], ["sublinear"]),
        node("Gather", ["idf", "indices"], ["hit_idf"]),
        node("Cast", ["hit_idf"], ["hit_idf_single"], to=TensorProto.FLOAT),
        node("Mul", ["sublinear", "hit_idf_single"], ["unscaled"]),
        node("ReduceSumSquare", ["unscaled", "all"], ["square"], keepdims=0),
        node("Sqrt", ["square"], ["length"]),
        node("Max", ["length", "tiny"], ["norm"]),
        node("Div", ["unscaled", "norm"], ["weights"]),
        node("Gather", ["known", "indices"], ["hit_known"]),
        node("Cast", ["hit_known"], ["hit_known_single"], to=TensorProto.FLOAT),
        node("MatMul", ["counts", "hit_known_single"], ["known_terms"]),
        node("Gather", ["table", "indices"], ["hit"]),
        node("Cast", ["hit"], ["hit_single"], to=TensorProto.FLOAT),
        node("MatMul", ["weights", "hit_single"], ["sums"]),
        node("Mul", ["sums", "table_scale"], ["lexical"]),
        node("Max", ["structure", "low"], ["raised"]),
        node("Min", ["raised", "high"], ["clamped"]),
        node("Sub", ["clamped", "mean"], ["centred"]),
        node("Mul", ["centred", "scale"], ["scaled"]),
        node("MatMul", ["scaled", "facts"], ["factual"]),
        node("Add", ["factual", "bias"], ["plain"]),
        node("Slice", ["plain", "from_first", "to_kinds"], ["plain_heads"]),
        node("Slice", ["plain", "to_kinds", "to_end"], ["log_tokens"]),
        node("Add", ["lexical", "plain_heads"], ["heads"]),
        node("Slice", ["heads", "from_first", "to_loads"], ["shared_loads"]),
        node("Slice", ["heads", "to_loads", "to_kinds"], ["scores"]),
        node("ReduceMax", ["scores", "all"], ["likeness"], keepdims=0),
        node("Mul", ["scores", "sharpness"], ["sharp"]),
        node("Softmax", ["sharp"], ["kinds"]),
        node("ArgMax", ["kinds"], ["kind"], keepdims=0),
        node("ReduceMax", ["kinds", "all"], ["trust"], keepdims=0),
        node("Gather", ["kind_width", "kind"], ["width"]),
        node("Gather", ["kind_offset", "kind"], ["offset"]),
        node("Div", ["indices", "width"], ["folded"]),
        node("Add", ["folded", "offset"], ["own_indices"]),
        node("Gather", ["kind_table", "own_indices"], ["own_hit"]),
        node("Cast", ["own_hit"], ["own_hit_single"], to=TensorProto.FLOAT),
        node("MatMul", ["weights", "own_hit_single"], ["own_sums"]),
        node("Gather", ["kind_scale", "kind"], ["own_scale"]),
        node("Mul", ["own_sums", "own_scale"], ["own_lexical"]),
        node("Gather", ["kind_low", "kind"], ["own_low"]),
        node("Gather", ["kind_high", "kind"], ["own_high"]),
        node("Gather", ["kind_mean", "kind"], ["own_mean"]),
        node("Gather", ["kind_fact_scale", "kind"], ["own_fact_scale"]),
        node("Gather", ["kind_facts", "kind"], ["own_facts"]),
        node("Gather", ["kind_bias", "kind"], ["own_bias"]),
        node("Max", ["structure", "own_low"], ["own_raised"]),
        node("Min", ["own_raised", "own_high"], ["own_clamped"]),
        node("Sub", ["own_clamped", "own_mean"], ["own_centred"]),
        node("Mul", ["own_centred", "own_fact_scale"], ["own_scaled"]),
        node("MatMul", ["own_scaled", "own_facts"], ["own_factual"]),
        node("Add", ["own_lexical", "own_factual"], ["own_unbiased"]),
        node("Add", ["own_unbiased", "own_bias"], ["own_loads"]),
        node("Mul", ["own_loads", "trust"], ["added"]),
        node("Add", ["shared_loads", "added"], ["loads"]),
    ]


def to_onnx(model: Fitted) -> bytes:
    """The network as an ONNX graph for one prompt a call; hit buckets' rows are gathered, nothing dense is made."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        _nodes(),
        "weighbridge",
        [
            value("indices", TensorProto.INT32, ["n"]),
            value("counts", TensorProto.FLOAT, ["n"]),
            value("structure", TensorProto.FLOAT, [len(STRUCTURE)]),
        ],
        [
            value("loads", TensorProto.FLOAT, [model.loads]),
            value("kinds", TensorProto.FLOAT, [len(model.kinds)]),
            value("known_terms", TensorProto.FLOAT, []),
            value("likeness", TensorProto.FLOAT, []),
            value("log_tokens", TensorProto.FLOAT, [1]),
        ],
        [numpy_helper.from_array(array, name) for name, array in _arrays(model).items()],
    )
    proto = helper.make_model(
        graph,
        producer_name="weighbridge",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(proto, full_check=True)
    return bytes(proto.SerializeToString(deterministic=True))
