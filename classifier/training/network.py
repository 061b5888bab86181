"""The network: ridge regression on hashed TF-IDF and plain facts, with shared weights and weights for each kind.

A kind (grade-school sums, competition mathematics, tool calls, …) has weights of its own beside the shared ones: every
term stands in the design once for all kinds and once for its own (Daumé 2007), where own weights are c times as free as
the shared. A prompt of no known kind is left with the shared part. A gate, linear in the same features, predicts the
kind.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import Ridge

from classifier.features import BUCKET_BITS, Features, Part

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
BIG_KIND: Final = 4_000
SMALL_KIND_SHIFT: Final = 3
"""Bits by which buckets are folded for a kind of fewer than BIG_KIND prompts: an eighth of the buckets."""
GATE_SHARPNESS: Final = 12.0
"""Factor of the gate's least-squares scores in a softmax: .99 where one score is 1 and six are near 0."""
_TOLERANCE: Final = 2e-2
"""Relative residual at which conjugate gradients stop. At 1e-3 the predictions correlate .999 with these, for twice the
time.
"""
_MOST_STEPS: Final = 1_000
_LEVELS: Final = 127
IDF_STEP: Final = 0.1
"""Inverse document frequencies are stored as 8-bit multiples of this, beside the weights of their bucket."""


class Scale(msgspec.Struct, frozen=True):
    """Scaling of facts for the network: clamped to [low, high], then (x - mean) * scale."""

    low: Floats
    high: Floats
    mean: Floats
    scale: Floats

    def of(self, facts: Floats) -> Floats:
        """Return the facts scaled."""
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
    log_tokens: Floats


def asks_of(features: Sequence[Features]) -> Rows:
    """Return the rows of each prompt's ask alone, without pasted material."""
    return rows_of([each.ask for each in features])


def rows_of(features: Sequence[Features | Part]) -> Rows:
    """Return the features of many prompts as arrays."""
    ends = np.cumsum([0, *(len(found.indices) for found in features)])
    indices = np.concatenate([found.indices for found in features])
    counts = np.concatenate([found.counts for found in features]).astype(np.float64)
    return Rows(
        sparse.csr_matrix((counts, indices, ends), shape=(len(features), BUCKETS)),
        np.stack([found.structure for found in features]).astype(np.float64),
    )


def idf_of(counts: sparse.csr_matrix) -> Floats:
    """Return (buckets,): inverse document frequencies, smoothed, rounded as they will be stored."""
    seen = np.bincount(counts.indices, minlength=BUCKETS)
    exact = np.log((1 + counts.shape[0]) / (1 + seen)) + 1
    weights: Floats = np.minimum(_LEVELS, np.rint(exact / IDF_STEP)) * IDF_STEP
    return weights


def weighed(counts: sparse.csr_matrix, idf: Floats) -> sparse.csr_matrix:
    """Return the sublinear TF-IDF, each row of length 1."""
    rows = counts.copy()
    rows.data = (1 + np.log(rows.data)) * idf[rows.indices]
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    return sparse.csr_matrix(sparse.diags(1 / np.maximum(norms, 1e-6)) @ rows)


def _scale(facts: Floats) -> Scale:
    mean, deviation = facts.mean(axis=0), facts.std(axis=0)
    # A fact that never varies says nothing.
    scale = np.where(deviation > 1e-6, STRUCTURE_SCALE / np.maximum(deviation, 1e-6), 0.0)
    return Scale(mean - CLAMP_DEVIATIONS * deviation, mean + CLAMP_DEVIATIONS * deviation, mean, scale)


def _own_scale(facts: Floats, shared: Scale) -> Scale:
    """Return a kind's mean and scale within the shared bounds, so that the graph clamps facts once for all kinds."""
    own = _scale(np.clip(facts, shared.low, shared.high))
    return Scale(shared.low, shared.high, own.mean, own.scale)


class _Design(msgspec.Struct, frozen=True):
    """The design matrix, and where in it each kind's own columns begin."""

    columns: sparse.csr_matrix
    shared: int
    """Columns of the shared part: words, facts, constant."""
    begins: list[int]
    shifts: list[int]
    scales: list[Scale]


def _with_constant(terms: sparse.csr_matrix, facts: Floats) -> sparse.csr_matrix:
    plain = sparse.csr_matrix(np.c_[facts, np.ones(len(facts))])
    return sparse.hstack([terms, plain], format="csr", dtype=np.float32)


def _design(terms: sparse.csr_matrix, facts: Floats, scale: Scale, kind_of: Integers, kinds: int) -> _Design:
    shared = _with_constant(terms, scale.of(facts))
    begins, shifts, scales, blocks, order = [], [], [], [], []
    width = shared.shape[1]
    for number in range(kinds):
        at = np.flatnonzero(kind_of == number)
        own, shift = _own_scale(facts[at], scale), 0 if len(at) >= BIG_KIND else SMALL_KIND_SHIFT
        blocks.append(_with_constant(_fold_buckets(terms[at], shift), own.of(facts[at])))
        begins.append(width)
        shifts.append(shift)
        scales.append(own)
        order.append(at)
        width += blocks[-1].shape[1]
    own_rows = sparse.block_diag(blocks, format="csr", dtype=np.float32)[np.argsort(np.concatenate(order))]
    whole = sparse.hstack(
        [shared * np.sqrt(1 - KIND_SHARE), own_rows * np.sqrt(KIND_SHARE)], format="csr", dtype=np.float32
    )
    return _Design(whole, shared.shape[1], begins, shifts, scales)


def _fold_buckets(terms: sparse.csr_matrix, shift: int) -> sparse.csr_matrix:
    if shift == 0:
        return terms
    return sparse.csr_matrix(
        (terms.data, terms.indices >> shift, terms.indptr), shape=(terms.shape[0], BUCKETS >> shift)
    )


def _ridge(design: sparse.csr_matrix, wanted: Floats, weights: Floats | None = None) -> Floats:
    """Return (columns, outputs): the weights of a ridge regression whose constant is a column like any other.

    As scikit-learn's `Ridge(solver="sparse_cg")` for more columns than rows, which solves for one output after the other and reads
    the design anew for each; here all take their steps together, in a quarter of the time.
    """
    scaled = np.ones(len(wanted)) if weights is None else np.sqrt(weights)
    rows = sparse.csr_matrix(sparse.diags(scaled.astype(np.float32)) @ design)
    left: Singles = (wanted * scaled[:, None]).astype(np.float32)
    found, step = np.zeros_like(left), left.copy()
    enough = _TOLERANCE**2 * _squares(left)
    now = _squares(left)
    for _ in range(_MOST_STEPS):
        open_ = np.flatnonzero(now > enough)
        if not len(open_):
            break
        towards = np.ascontiguousarray(step[:, open_])
        moved = rows @ (rows.T @ towards) + np.float32(ALPHA) * towards
        length = now[open_] / np.einsum("ij,ij->j", towards, moved)
        found[:, open_] += length * towards
        left[:, open_] -= length * moved
        then = _squares(left[:, open_])
        step[:, open_] = left[:, open_] + then / now[open_] * towards
        now[open_] = then
    fitted: Floats = np.asarray(rows.T @ found, np.float64)
    return fitted


def _squares(columns: Singles) -> Singles:
    found: Singles = np.einsum("ij,ij->j", columns, columns)
    return found


def _balance(kind_of: Integers) -> Floats:
    """Return a weight for each prompt that lets every kind count the same; otherwise the gate would ignore small kinds."""
    sizes = np.bincount(kind_of)
    weights: Floats = len(kind_of) / (np.count_nonzero(sizes) * sizes[kind_of])
    return weights


def quantised(columns: Floats) -> Floats:
    """Return the weights rounded to 8-bit integers with one scale for each column, as they are stored."""
    scale = column_scale(columns)
    rounded: Floats = np.rint(columns / scale) * scale
    return rounded


def column_scale(columns: Floats) -> Floats:
    """Return (columns,): what one step of an 8-bit integer is worth."""
    scale: Floats = np.maximum(np.abs(columns).max(axis=0, initial=0.0), 1e-12) / _LEVELS
    return scale.astype(np.float32).astype(np.float64)


def fit(
    rows: Rows, loads: Floats, kinds: Sequence[str], kind_of: Integers, tokens: Floats, idf: Floats | None = None
) -> Fitted:
    """Train the network to predict `loads` (prompts, L).

    `kind_of` numbers each prompt's kind, and `tokens` are answer lengths, NaN where unknown. `idf` is that of these
    rows where it is left out.
    """
    idf = idf_of(rows.counts) if idf is None else idf
    terms = weighed(rows.counts, idf)
    scale = _scale(rows.facts)
    design = _design(terms, rows.facts, scale, kind_of, len(kinds))
    found = _ridge(design.columns, loads)
    shared = found[: design.shared] * np.sqrt(1 - KIND_SHARE)
    told = (kind_of[:, None] == np.arange(len(kinds))).astype(np.float64)
    gate = _ridge(_with_constant(terms, scale.of(rows.facts)), told, _balance(kind_of))
    both = np.c_[shared, gate]
    length = _length_fit(scale.of(rows.facts), tokens, kind_of)
    return Fitted(
        kinds=list(kinds),
        idf=idf,
        words=quantised(both[:BUCKETS]),
        facts=both[BUCKETS:-1],
        bias=both[-1],
        scale=scale,
        heads=_heads(design, found * np.sqrt(KIND_SHARE)),
        length=length[0],
        length_bias=length[1],
    )


def _heads(design: _Design, weights: Floats) -> list[KindHead]:
    ends = [*design.begins[1:], len(weights)]
    heads = []
    for begin, end, shift, scale in zip(design.begins, ends, design.shifts, design.scales, strict=True):
        own, words = weights[begin:end], BUCKETS >> shift
        heads.append(KindHead(shift, quantised(own[:words]), own[words:-1], own[-1], scale))
    return heads


def _length_fit(facts: Floats, tokens: Floats, kind_of: Integers) -> tuple[Floats, float]:
    """Fit a ridge regression of the logarithm of an answer's tokens on the facts alone; zeros where no length is known.

    Every kind counts the same: with one in four of the prompts a long mathematical answer was told as .62 of what it takes, for
    the many others are explanations of one length.
    """
    known = ~np.isnan(tokens)
    if not known.any():
        return np.zeros(facts.shape[1]), 0.0
    weights = _balance(kind_of[known])
    model = Ridge(alpha=1.0).fit(facts[known], np.log(np.maximum(tokens[known], 1.0)), sample_weight=weights)
    return model.coef_, float(model.intercept_)


def predict(model: Fitted, rows: Rows) -> Predicted:
    """Predict by the network in plain numpy."""
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
    return Predicted(loads, kinds, scaled @ model.length + model.length_bias)
