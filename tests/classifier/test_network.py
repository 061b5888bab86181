"""The network: ridge as scikit-learn has it on the matrix spelt out, and a gate that knows kinds apart."""

import random

import msgspec
import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge

from classifier.features import extract
from classifier.prediction import Prompt
from classifier.training import network
from classifier.training.network import (
    ALPHA,
    BIG_KIND,
    BUCKETS,
    CLAMP_DEVIATIONS,
    KIND_SHARE,
    STRUCTURE_SCALE,
    Fitted,
    Floats,
    Integers,
    Predicted,
    Rows,
    fit,
    idf_of,
    predict,
    rows_of,
    weighed,
)
from tests.classifier.made_up import WORDS, prompt_text

KINDS = list(WORDS)
LOADS = 4
SIZES = (150, 120, 60)


def prompts(sizes: tuple[int, ...], seed: int = 2) -> tuple[list[Prompt], Integers]:
    draw = random.Random(seed)
    kind_of = np.repeat(np.arange(len(sizes)), sizes)
    said = [
        Prompt(
            text=prompt_text(draw, KINDS[kind], number, hard=draw.random() < 0.4), tools=2 * (KINDS[kind] == "calls")
        )
        for number, kind in enumerate(kind_of.tolist())
    ]
    return said, kind_of


class Taught(msgspec.Struct, frozen=True):
    """What a network is made of, and the network."""

    rows: Rows
    kind_of: Integers
    wanted: Floats
    model: Fitted


def taught(sizes: tuple[int, ...]) -> Taught:
    """Loads that hang on words, on facts and on the kind, in an order that mixes kinds."""
    said, kind_of = prompts(sizes)
    order = np.random.default_rng(6).permutation(len(said))
    rows, kind_of = rows_of([extract(said[at]) for at in order]), kind_of[order]
    draw = np.random.default_rng(4)
    hidden = draw.normal(size=(BUCKETS, LOADS)) * (draw.random((BUCKETS, 1)) < 0.3)
    wanted = weighed(rows.counts, np.ones(BUCKETS)) @ hidden + 0.3 * kind_of[:, None] + 0.02 * rows.facts[:, :LOADS]
    wanted -= wanted.mean(axis=0)
    tokens = np.where(np.arange(len(said)) % 5 == 0, np.nan, 20 * np.exp(rows.facts[:, 1]))
    return Taught(rows, kind_of, wanted, fit(rows, wanted, KINDS[: len(sizes)], kind_of, tokens))


@pytest.fixture(scope="module")
def small() -> Taught:
    return taught(SIZES)


@pytest.fixture(scope="module")
def uneven() -> Taught:
    """One kind that is large enough to have every bucket for itself, and two that have not."""
    return taught((BIG_KIND, 150, 60))


def clamped(facts: Floats, every: Floats) -> Floats:
    """Facts held to three deviations around the mean of every row."""
    mean, deviation = every.mean(axis=0), every.std(axis=0)
    return np.clip(facts, mean - CLAMP_DEVIATIONS * deviation, mean + CLAMP_DEVIATIONS * deviation)


def scaled(facts: Floats, of: Floats) -> Floats:
    """Facts by mean and deviation of these rows."""
    mean, deviation = of.mean(axis=0), of.std(axis=0)
    return np.where(deviation > 1e-6, STRUCTURE_SCALE * (facts - mean) / np.maximum(deviation, 1e-6), 0.0)


def columns(terms: sparse.csr_matrix, facts: Floats) -> sparse.csr_matrix:
    """Words, facts and the constant side by side."""
    return sparse.hstack([terms, sparse.csr_matrix(facts), np.ones((terms.shape[0], 1))], format="csr")


def shared_columns(found: Taught) -> sparse.csr_matrix:
    every = found.rows.facts
    return columns(weighed(found.rows.counts, idf_of(found.rows.counts)), scaled(clamped(every, every), every))


def design(found: Taught) -> sparse.csr_matrix:
    """The whole matrix: columns of all, then columns of each kind, 0 for prompts of other kinds."""
    terms = weighed(found.rows.counts, idf_of(found.rows.counts))
    parts = [np.sqrt(1 - KIND_SHARE) * shared_columns(found)]
    for number in range(len(found.model.kinds)):
        mine = found.kind_of == number
        width = 1 if mine.sum() >= BIG_KIND else 8
        folded = sparse.csr_matrix((terms.data, terms.indices // width, terms.indptr), (len(mine), BUCKETS // width))
        held = clamped(found.rows.facts, found.rows.facts)
        own = columns(folded, scaled(held, held[mine]))
        parts.append(np.sqrt(KIND_SHARE) * sparse.diags(mine.astype(float)) @ own)
    return sparse.hstack(parts, format="csr")


def exact_ridge(inputs: sparse.csr_matrix, wanted: Floats, weights: Floats | None = None) -> Ridge:
    return Ridge(alpha=ALPHA, fit_intercept=False, solver="sparse_cg", tol=1e-8).fit(inputs, wanted, weights)


def assert_stored(stored: Floats, exact: Floats) -> None:
    """Each weight is the exact one, but for the eight bits of its column."""
    step = np.abs(exact).max(axis=0) / 127
    assert np.all(np.abs(stored - exact) <= 0.51 * step + 1e-4)
    assert np.corrcoef(stored.ravel(), exact.ravel())[0, 1] > 0.999


@pytest.mark.parametrize("corpus", ["small", "uneven"])
def test_what_is_stored_is_near_ridge(corpus: str, request: pytest.FixtureRequest) -> None:
    """Stopping early, eight bits and the gate's doubt together move predictions little beside their spread."""
    found: Taught = request.getfixturevalue(corpus)
    inputs = design(found)
    exact = exact_ridge(inputs, found.wanted).predict(inputs)
    said = predict(found.model, found.rows).loads
    assert np.sqrt(((said - exact) ** 2).mean()) < 0.1 * exact.std()


def test_without_stopping_early_each_weight_is_ridges(small: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared weights, each kind's own and the gate's, whose kinds count the same, are ridge's on the matrix spelt out."""
    monkeypatch.setattr(network, "_TOLERANCE", 1e-6)
    model = taught(SIZES).model
    exact = exact_ridge(design(small), small.wanted).coef_.T
    width = BUCKETS + small.rows.facts.shape[1] + 1
    shared = np.sqrt(1 - KIND_SHARE) * exact[:width]
    assert_stored(model.words[:, :LOADS], shared[:BUCKETS])
    assert model.facts[:, :LOADS] == pytest.approx(shared[BUCKETS:-1], abs=1e-4)
    assert model.bias[:LOADS] == pytest.approx(shared[-1], abs=1e-4)
    own = np.sqrt(KIND_SHARE) * exact[width:].reshape(3, -1, LOADS)
    for head, weights in zip(model.heads, own, strict=True):
        assert_stored(head.words, weights[: BUCKETS // 8])
        assert head.bias == pytest.approx(weights[-1], abs=1e-4)
    told = (small.kind_of[:, None] == np.arange(3)).astype(np.float64)
    gate = exact_ridge(shared_columns(small), told, 110 / np.array(SIZES)[small.kind_of]).coef_.T
    assert_stored(model.words[:, LOADS:], gate[:BUCKETS])
    assert model.bias[LOADS:] == pytest.approx(gate[-1], abs=1e-4)


def test_it_learns(small: Taught) -> None:
    """Predictions follow what was taught."""
    said = predict(small.model, small.rows).loads
    assert np.corrcoef(said.ravel(), small.wanted.ravel())[0, 1] > 0.8


def test_words_weigh_eight_bits_and_the_model_knows_it(uneven: Taught) -> None:
    """Every weight of a word is a whole multiple, up to 127, of its column's step; only a large kind has all buckets."""
    for words in (uneven.model.words, *(head.words for head in uneven.model.heads)):
        levels = words / (np.abs(words).max(axis=0) / 127)
        assert np.abs(levels - np.rint(levels)).max() < 1e-4
    assert [head.shift for head in uneven.model.heads] == [0, 3, 3]
    assert [len(head.words) for head in uneven.model.heads] == [BUCKETS, BUCKETS // 8, BUCKETS // 8]


def says(model: Fitted, asked: list[Prompt]) -> Predicted:
    return predict(model, rows_of([extract(prompt) for prompt in asked]))


def test_the_gate_tells_kinds_apart(small: Taught) -> None:
    """New prompts of each kind are known as theirs, the small kind's too."""
    asked, kind_of = prompts((80, 80, 80), seed=50)
    said = says(small.model, asked)
    assert (said.kinds.argmax(axis=1) == kind_of).mean() > 0.97
    assert said.kinds.sum(axis=1) == pytest.approx(np.ones(240))


@pytest.mark.parametrize("few", [1, 3])
def test_a_kind_of_few_rows_does_no_harm(few: int) -> None:
    """A kind with a prompt or three is taught without a number that is none, and others stay as good."""
    found = taught((150, 120, few))
    said = predict(found.model, found.rows)
    assert np.isfinite(said.loads).all()
    others = found.kind_of < 2
    assert np.corrcoef(said.loads[others].ravel(), found.wanted[others].ravel())[0, 1] > 0.8
    assert np.isfinite(says(found.model, prompts((0, 0, 1), seed=9)[0]).loads).all()


def test_one_kind_alone_is_enough() -> None:
    """With one kind the gate is sure of it, and the network still learns."""
    found = taught((200,))
    said = predict(found.model, found.rows)
    assert said.kinds == pytest.approx(np.ones((200, 1)))
    assert np.corrcoef(said.loads.ravel(), found.wanted.ravel())[0, 1] > 0.8


def test_an_idf_that_is_given_is_used(small: Taught) -> None:
    """The network that ships shares the idf of the difficulty model; by itself it takes that of its rows."""
    even = np.ones(BUCKETS)
    model = fit(small.rows, small.wanted, KINDS, small.kind_of, np.full(330, np.nan), even)
    assert np.array_equal(model.idf, even)
    assert np.array_equal(small.model.idf, idf_of(small.rows.counts))
    assert not np.allclose(model.words, small.model.words, atol=1e-3)


def test_lengths_are_learned_from_facts(small: Taught) -> None:
    """An answer's length follows the prompt's; where no length is known it is 1 token."""
    said = np.exp(predict(small.model, small.rows).log_tokens)
    usual = 20 * np.exp(small.rows.facts[:, 1])
    assert np.median(np.abs(said / usual - 1)) < 0.15
    silent = fit(small.rows, small.wanted, KINDS, small.kind_of, np.full(330, np.nan))
    assert predict(silent, small.rows).log_tokens == pytest.approx(np.zeros(330))
