"""The network: ridge as scikit-learn has it, a graph that says the same, and a gate that knows kinds apart."""

import random
from collections.abc import Iterator

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from scipy import sparse
from sklearn.linear_model import Ridge

from classifier.features import extract
from classifier.prediction import Prompt
from classifier.training.model import (
    ALPHA,
    BIG_KIND,
    BUCKETS,
    KIND_SHARE,
    Fitted,
    Floats,
    Integers,
    Predicted,
    Rows,
    _balanced_ridge,
    _idf,
    _Kernel,
    _kind_rows,
    _scale,
    _solve,
    fit,
    predict,
    rows_of,
    to_onnx,
    weighed,
)
from tests.classifier.made_up import WORDS, prompt_text

KINDS = list(WORDS)
LOADS = 4
STRANGE = (
    "Die Kündigung des Mietverhältnisses bedarf der Schriftform.",
    "Bonjour, pourriez-vous relire ce paragraphe sur la photosynthèse ?",
    "Sanitise untrusted markup before rendering, please.",
)


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
    """Loads that hang on words, on facts and on the kind."""
    said, kind_of = prompts(sizes)
    rows = rows_of([extract(prompt) for prompt in said])
    draw = np.random.default_rng(4)
    hidden = draw.normal(size=(BUCKETS, LOADS)) * (draw.random((BUCKETS, 1)) < 0.3)
    wanted = weighed(rows.counts, np.ones(BUCKETS)) @ hidden + 0.3 * kind_of[:, None] + 0.02 * rows.facts[:, :LOADS]
    wanted -= wanted.mean(axis=0)
    open_text = kind_of == 0
    tokens = np.where(np.arange(len(said)) % 5 == 0, np.nan, 20 * np.exp(rows.facts[:, 1]))
    return Taught(rows, kind_of, wanted, fit(rows, wanted, KINDS[: len(sizes)], kind_of, open_text, tokens))


@pytest.fixture(scope="module")
def small() -> Taught:
    return taught((150, 120, 60))


@pytest.fixture(scope="module")
def uneven() -> Taught:
    """One kind that is large enough to have every bucket for itself, and two that have not."""
    return taught((BIG_KIND, 150, 60))


def kernel_of(found: Taught, kind_share: float = KIND_SHARE) -> _Kernel:
    terms = weighed(found.rows.counts, _idf(found.rows.counts))
    scaled = _scale(found.rows.facts).of(found.rows.facts).astype(np.float32)
    own = [
        _kind_rows(terms, found.rows.facts, np.flatnonzero(found.kind_of == number))
        for number in range(len(found.model.kinds))
    ]
    return _Kernel(scaled, own, kind_share)


def columns(terms: sparse.csr_matrix, facts: Floats) -> sparse.csr_matrix:
    """Words, facts and the constant side by side."""
    return sparse.hstack([terms, sparse.csr_matrix(facts), np.ones((terms.shape[0], 1))], format="csr")


def design(found: Taught) -> sparse.csr_matrix:
    """The matrix that the kernel stands for: columns of all, then columns of each kind, 0 for prompts of other kinds."""
    terms = weighed(found.rows.counts, _idf(found.rows.counts))
    parts = [np.sqrt(1 - KIND_SHARE) * columns(terms, _scale(found.rows.facts).of(found.rows.facts))]
    for number in range(len(found.model.kinds)):
        mine = found.kind_of == number
        width = 1 if mine.sum() >= BIG_KIND else 8
        folded = sparse.csr_matrix((terms.data, terms.indices // width, terms.indptr), (len(mine), BUCKETS // width))
        facts = _scale(found.rows.facts[mine]).of(found.rows.facts)
        parts.append(np.sqrt(KIND_SHARE) * sparse.diags(mine.astype(float)) @ columns(folded, facts))
    return sparse.hstack(parts, format="csr")


@pytest.mark.parametrize("corpus", ["small", "uneven"])
def test_the_solver_finds_what_ridge_finds(corpus: str, request: pytest.FixtureRequest) -> None:
    """Conjugate gradients on the kernel give the predictions of scikit-learn's ridge on the explicit matrix."""
    found: Taught = request.getfixturevalue(corpus)
    kernel = kernel_of(found)
    ridge = np.full(len(found.wanted), ALPHA, np.float32)
    dual = _solve(kernel, found.wanted, ridge, tolerance=1e-6)
    inputs = design(found)
    theirs = Ridge(alpha=ALPHA, fit_intercept=False, solver="sparse_cg", tol=1e-8).fit(inputs, found.wanted)
    assert kernel @ dual == pytest.approx(theirs.predict(inputs), abs=2e-4)
    shared, _ = kernel.primal(dual)
    coefficients = np.sqrt(1 - KIND_SHARE) * theirs.coef_.T
    np.testing.assert_allclose(shared.words, coefficients[:BUCKETS], atol=2e-4)
    assert shared.bias == pytest.approx(coefficients[BUCKETS + shared.facts.shape[0]], abs=2e-4)


def test_the_gate_is_ridge_that_counts_kinds_the_same(small: Taught) -> None:
    """A ridge for each prompt is scikit-learn's ridge with a weight for each prompt."""
    kernel = kernel_of(small, kind_share=0.0)
    told = (small.kind_of[:, None] == np.arange(3)).astype(np.float64)
    ridge = _balanced_ridge(small.kind_of)
    terms = weighed(small.rows.counts, _idf(small.rows.counts))
    inputs = columns(terms, _scale(small.rows.facts).of(small.rows.facts))
    theirs = Ridge(alpha=1.0, fit_intercept=False, solver="sparse_cg", tol=1e-8)
    theirs.fit(inputs, told, sample_weight=1 / ridge.astype(np.float64))
    assert kernel @ _solve(kernel, told, ridge, tolerance=1e-6) == pytest.approx(theirs.predict(inputs), abs=2e-4)
    weights = [float((1 / ridge)[small.kind_of == number].sum()) for number in range(3)]
    assert weights == pytest.approx([weights[0]] * 3)


def test_what_is_stored_is_near_ridge(uneven: Taught) -> None:
    """Stopping early, eight bits and the gate's doubt together move predictions little beside their spread."""
    kernel = kernel_of(uneven)
    ridge = np.full(len(uneven.wanted), ALPHA, np.float32)
    exact = kernel @ _solve(kernel, uneven.wanted, ridge, tolerance=1e-6)
    said = predict(uneven.model, uneven.rows).loads
    assert np.sqrt(((said - exact) ** 2).mean()) < 0.1 * exact.std()


def test_it_learns(small: Taught) -> None:
    """Predictions follow what was taught."""
    said = predict(small.model, small.rows).loads
    assert np.corrcoef(said.ravel(), small.wanted.ravel())[0, 1] > 0.8


def graph_says(model: Fitted, asked: list[Prompt]) -> Iterator[tuple[Floats, Floats, float, float, float]]:
    session = ort.InferenceSession(to_onnx(model), providers=["CPUExecutionProvider"])
    for prompt in asked:
        found = extract(prompt)
        given = {
            "indices": found.indices,
            "counts": found.counts.astype(np.float32),
            "structure": found.structure,
        }
        loads, kinds, known, likeness, log_tokens = session.run(None, given)
        yield loads, kinds, float(known) / max(1, found.terms), float(likeness), float(log_tokens[0])


@pytest.mark.parametrize("corpus", ["small", "uneven"])
def test_the_graph_says_what_the_model_says(corpus: str, request: pytest.FixtureRequest) -> None:
    """Over hundreds of prompts, known, new, strange and empty, the ONNX graph and plain numpy agree."""
    model = request.getfixturevalue(corpus).model
    asked = [*prompts((60, 60, 60), seed=2)[0], *prompts((60, 60, 60), seed=77)[0], *map(_open, STRANGE)]
    asked += [Prompt(text=""), Prompt(text="word " * 3000), Prompt(text="\ud800 \x00", tools=9, images=3)]
    said = predict(model, rows_of([extract(prompt) for prompt in asked]))
    columns_found = [np.array(column) for column in zip(*graph_says(model, asked), strict=True)]
    expected = (said.loads, said.kinds, said.known, said.likeness, said.log_tokens)
    for found, wanted in zip(columns_found, expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)
    assert said.loads.std() > 0.1


def test_words_weigh_eight_bits_and_the_model_knows_it(uneven: Taught) -> None:
    """The graph's tables are 8-bit, and times their scales they are exactly the weights that the reference uses."""
    graph = onnx.load_from_string(to_onnx(uneven.model)).graph
    stored = {array.name: numpy_helper.to_array(array) for array in graph.initializer}
    assert stored["table"].dtype == stored["kind_table"].dtype == np.int8
    np.testing.assert_allclose(
        stored["table"] * stored["table_scale"].astype(np.float64), uneven.model.words, atol=1e-12
    )
    assert np.abs(stored["table"]).max(axis=0).tolist() == [127] * (LOADS + 3)
    start = 0
    for head, scale in zip(uneven.model.heads, stored["kind_scale"], strict=True):
        words = stored["kind_table"][start : start + len(head.words)]
        np.testing.assert_allclose(words * scale.astype(np.float64), head.words, atol=1e-12)
        start += len(head.words)
    assert start == len(stored["kind_table"])
    assert [head.shift for head in uneven.model.heads] == [0, 3, 3]


def test_a_graph_is_the_same_each_time(small: Taught) -> None:
    """The same rows make the same bytes."""
    assert to_onnx(taught((150, 120, 60)).model) == to_onnx(small.model)


def says(model: Fitted, asked: list[Prompt]) -> Predicted:
    return predict(model, rows_of([extract(prompt) for prompt in asked]))


def _open(text: str) -> Prompt:
    return Prompt(text=text)


def test_the_gate_tells_kinds_apart(small: Taught) -> None:
    """New prompts of each kind are known as theirs, the small kind's too, and what is like none has little likeness."""
    asked, kind_of = prompts((80, 80, 80), seed=50)
    said = says(small.model, asked)
    assert (said.kinds.argmax(axis=1) == kind_of).mean() > 0.97
    assert said.kinds.sum(axis=1) == pytest.approx(np.ones(240))
    strange = says(small.model, [_open(text) for text in STRANGE])
    assert strange.likeness.max() < 0.65 < np.percentile(said.likeness, 5)


def test_known_words_are_those_of_open_text(small: Taught) -> None:
    """Words that only other kinds use are not known, nor words nobody used, and an empty text knows nothing."""
    chat, exam = (f"{' '.join(WORDS[kind])}" for kind in ("chat", "exam"))
    # Of words and pairs together: pairs of the vocabulary in this order are mostly new.
    known = says(small.model, [_open(chat), _open(exam), _open(STRANGE[0]), _open("")]).known
    assert known[0] > 0.5
    assert known[1:].max() < 0.1
    assert known[3] == 0


@pytest.mark.parametrize("few", [1, 3])
def test_a_kind_of_few_rows_does_no_harm(few: int) -> None:
    """A kind with a prompt or three is taught without a number that is none, and others stay as good."""
    found = taught((150, 120, few))
    said = predict(found.model, found.rows)
    assert np.isfinite(said.loads).all()
    assert np.corrcoef(said.loads[:270].ravel(), found.wanted[:270].ravel())[0, 1] > 0.8
    (graph,) = graph_says(found.model, [prompts((0, 0, 1), seed=9)[0][0]])
    assert np.isfinite(graph[0]).all()


def test_one_kind_alone_is_enough() -> None:
    """With one kind the gate is sure of it, and the network still learns."""
    found = taught((200,))
    said = predict(found.model, found.rows)
    assert said.kinds == pytest.approx(np.ones((200, 1)))
    assert np.corrcoef(said.loads.ravel(), found.wanted.ravel())[0, 1] > 0.8


def test_lengths_are_learned_from_facts(small: Taught) -> None:
    """An answer's length follows the prompt's; where no length is known it is 1 token."""
    said = np.exp(predict(small.model, small.rows).log_tokens)
    usual = 20 * np.exp(small.rows.facts[:, 1])
    assert np.median(np.abs(said / usual - 1)) < 0.15
    silent = fit(small.rows, small.wanted, KINDS, small.kind_of, small.kind_of == 0, np.full(330, np.nan))
    assert predict(silent, small.rows).log_tokens == pytest.approx(np.zeros(330))
