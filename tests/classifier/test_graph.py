"""The ONNX graph says what the plain-numpy parts say, is stored in few bits, and is the same each time."""

import itertools
import random
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from classifier.features import Features, extract
from classifier.heuristic import structural_tokens
from classifier.manifest import Artifact
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt
from classifier.training.blend import KNOTS, Blend
from classifier.training.data import Corpus
from classifier.training.difficulty import gists_of
from classifier.training.domain import Sides
from classifier.training.graph import Whole, to_onnx
from classifier.training.network import IDF_STEP, Floats, predict, rows_of
from classifier.training.tier_set import LANGUAGES
from classifier.training.train import Everyday, Table, table_of, taught
from tests.classifier import made_up
from tests.classifier.made_up import WORDS, prompt_text

STRANGE = (
    Prompt(text=""),
    Prompt(text="", before="Explain the proof.", history="Explain the proof.", turns=2),
    Prompt(text="ok", before="\x00 \ud800"),
    Prompt(text="word " * 60_000),
    Prompt(text="漢字" * 20_000, before="为什么" * 500),
    Prompt(text="\ud800 \x00", tools=9, images=3),
    Prompt(text="zxqv grmpf blorx " * 3),
    Prompt(text="Größe 漢字 🙂 $\\sqrt{2}$ ```x```", system="s" * 10**5, turns=10**9, tools=10**9, json_mode=True),
)


def whole_of(table: Table) -> Whole:
    """The model of a corpus, with a blend that has nothing to do with it: a wrong row would not go unnoticed."""
    known = table.everyday
    learned = taught(table, np.arange(len(table.corpus.texts)), known.difficulty.idf)
    loads = np.random.default_rng(8).normal(size=(KNOTS, learned.network.loads))
    blend = Blend(np.linspace(0, 1, KNOTS).tolist(), loads.tolist())
    return Whole(learned.network, known.difficulty, known.table, learned.domain, known.task_kinds, blend)


@pytest.fixture(scope="module")
def table(made_up_corpus: Corpus, known_everyday: Everyday) -> Table:
    return table_of(made_up_corpus, known_everyday)


@pytest.fixture(scope="module")
def whole(table: Table) -> Whole:
    return whole_of(table)


@pytest.fixture(scope="module")
def graph(whole: Whole) -> bytes:
    return to_onnx(whole)


@pytest.fixture(scope="module")
def stored(graph: bytes) -> dict[str, NDArray[Any]]:
    return {array.name: numpy_helper.to_array(array) for array in onnx.load_from_string(graph).graph.initializer}


def asked() -> list[Prompt]:
    """Prompts like those that were taught, and others in five languages: alone, after another one, and with tools."""
    draw = random.Random(77)
    known = [
        Prompt(text=prompt_text(draw, kind, number, hard=number % 2 == 0), tools=2 * (kind == "calls"))
        for kind in WORDS
        for number in range(40)
    ]
    rows = made_up.tiered(6)
    assert {row.language for row in rows} >= set(LANGUAGES)
    others = [row.prompt for row in rows[::2]]
    following = [
        msgspec.structs.replace(prompt, before=before.text, history=before.text, turns=2)
        for prompt, before in itertools.pairwise(others)
    ]
    with_tools = [msgspec.structs.replace(prompt, tools=1) for prompt in others[::2]]
    return [*known, *others, *following, *with_tools, *STRANGE]


class Said(msgspec.Struct, frozen=True):
    """Outputs for many prompts."""

    complexity: Floats
    trust: Floats
    log_tokens: Floats
    scores: Floats
    """(prompts, kinds of task)"""
    loads: Floats


def reference(model: Whole, features: list[Features]) -> Said:
    rows, gists = rows_of(features), gists_of(features, model.table)
    standardised = model.difficulty.gist.standardised(gists)
    complexity = model.difficulty.complexity(rows, gists)
    trust = model.domain.trust(Sides(rows, standardised, complexity), model.difficulty.idf)
    said = predict(model.network, rows)
    by_complexity = np.log([structural_tokens(each) for each in complexity])
    part = trust[:, None]
    return Said(
        complexity=complexity,
        trust=trust,
        log_tokens=trust * said.log_tokens + (1 - trust) * by_complexity,
        scores=standardised @ model.task_kinds.weights + model.task_kinds.bias,
        loads=part * said.loads + (1 - part) * model.blend.loads_at(complexity),
    )


def test_the_graph_says_what_the_parts_say(whole: Whole, graph: bytes, made_up_artifact: Artifact) -> None:
    """Over hundreds of prompts, known, new, strange, empty and huge, what is served and plain numpy agree."""
    features = [extract(prompt) for prompt in asked()]
    expected = reference(whole, features)
    serving = OnnxClassifier(msgspec.structs.replace(made_up_artifact, model=graph))
    found = [serving.place(each) for each in features]
    trust, kind = np.array([each.trust for each in found]), np.array([each.kind for each in found])
    assert [each.complexity for each in found] == pytest.approx(expected.complexity, abs=1e-4)
    assert trust == pytest.approx(expected.trust, abs=1e-4)
    assert [each.log_tokens for each in found] == pytest.approx(expected.log_tokens, abs=1e-4)
    assert np.stack([each.loads for each in found]) == pytest.approx(expected.loads, abs=1e-4)
    best = expected.scores.max(axis=1)
    assert best - expected.scores[np.arange(len(kind)), kind] == pytest.approx(0, abs=1e-3)
    # What was compared has all sorts in it.
    assert np.percentile(expected.trust, 5) < 0.2
    assert np.percentile(expected.trust, 95) > 0.8
    assert expected.complexity.std() > 0.15
    assert set(kind.tolist()) == set(range(len(whole.task_kinds.names)))


def test_tables_are_of_few_bits(whole: Whole, stored: dict[str, NDArray[Any]]) -> None:
    """Weights and meanings are 8-bit, and no table of words has more; times their steps they are what was learned."""
    assert {stored[name].dtype for name in ("table", "kind_table", "meanings")} == {np.dtype(np.int8)}
    assert all(array.itemsize == 1 for array in stored.values() if array.ndim > 1 and len(array) > 1_000)
    exact = np.c_[whole.network.words, whole.difficulty.words, whole.domain.words]
    steps = np.abs(exact).max(axis=0) / 127
    # Behind the loads stands the length, which no word tells, and at the end the inverse document frequency.
    of_words = np.delete(stored["table"], [whole.network.loads, -1], axis=1)
    assert np.abs(of_words - exact / steps).max() <= 0.501
    assert not stored["table"][:, whole.network.loads].any()
    assert stored["table"][:, -1] * IDF_STEP == pytest.approx(whole.network.idf)
    heads = [head.words / (np.abs(head.words).max(axis=0) / 127) for head in whole.network.heads]
    np.testing.assert_allclose(stored["kind_table"], np.concatenate(heads), atol=1e-3)
    assert np.array_equal(stored["meanings"], whole.table.rows)


def test_a_graph_is_the_same_each_time(table: Table, graph: bytes) -> None:
    """The same rows make the same bytes."""
    assert to_onnx(whole_of(table)) == graph
