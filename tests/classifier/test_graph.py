"""Tables and ONNX graph say what the plain-numpy parts say, are stored in few bits, and are the same each time."""

import itertools
import random
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from classifier.features import Features, extract
from classifier.heuristic import structural_tokens
from classifier.manifest import Artifact
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt
from classifier.tables import Inputs, Tables, look_up_features, write_tables
from classifier.training.blend import KNOTS, Blend
from classifier.training.data import Corpus
from classifier.training.difficulty import gists_of
from classifier.training.domain import Sides
from classifier.training.graph import Whole, blend_rows, tables_of, to_onnx, trust_of
from classifier.training.network import IDF_STEP, Floats, asks_of, predict, rows_of
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
    Prompt(
        text='How much is it? "Found: one glove and half of a hat, for three pounds."\n\nmany lines\n\nProve it. Ok?',
        before="no",
    ),
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
def tables(whole: Whole) -> Tables:
    return tables_of(whole)


@pytest.fixture(scope="module")
def artifact(whole: Whole, tables: Tables, made_up_artifact: Artifact) -> Artifact:
    """The made-up artifact with this model in it."""
    manifest = msgspec.structs.replace(made_up_artifact.manifest, trust=trust_of(whole), blend=blend_rows(whole.blend))
    return msgspec.structs.replace(
        made_up_artifact, model=to_onnx(whole), tables=write_tables(tables), manifest=manifest
    )


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
    complexity = model.difficulty.complexity(asks_of(features), gists)
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


def test_what_is_served_says_what_the_parts_say(whole: Whole, artifact: Artifact) -> None:
    """Over hundreds of prompts, known, new, strange, empty and huge, what is served and plain numpy agree: from the text, and
    from features that somebody changed.
    """
    prompts = asked()
    features = [extract(prompt) for prompt in prompts]
    expected = reference(whole, features)
    serving = OnnxClassifier(artifact)
    assert [serving.place(each).complexity for each in features] == pytest.approx(expected.complexity, abs=1e-4)
    found = [serving.placed(serving.look_up(prompt)) for prompt in prompts]
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


def test_tables_are_of_few_bits(whole: Whole, tables: Tables) -> None:
    """Weights and meanings are 8-bit; times their steps they are what was learned."""
    loads = whole.network.loads
    assert {tables.terms.dtype, tables.own.dtype, tables.meanings.dtype} == {np.dtype(np.int8)}
    exact = np.c_[
        whole.network.words[:, :loads], whole.difficulty.words, whole.domain.words, whole.network.words[:, loads:]
    ]
    steps = np.abs(exact).max(axis=0) / 127
    columns = exact.shape[1]
    assert np.abs(tables.terms[:, :columns] - exact / steps).max() <= 0.501
    assert not tables.terms[:, columns:-1].any()
    assert tables.terms[:, -1] * IDF_STEP == pytest.approx(whole.network.idf)
    heads = [head.words / (np.abs(head.words).max(axis=0) / 127) for head in whole.network.heads]
    np.testing.assert_allclose(tables.own[:, :loads], np.concatenate(heads), atol=1e-3)
    assert np.array_equal(tables.meanings[:, : whole.table.columns], whole.table.rows)


def test_the_graph_is_of_few_nodes(artifact: Artifact) -> None:
    """Each costs more than what most of them compute, and what is large stands in the tables."""
    graph = onnx.load_from_string(artifact.model).graph
    assert len(graph.node) == 4
    assert all(numpy_helper.to_array(each).nbytes < 2**20 for each in graph.initializer)


def test_the_runtime_makes_three_nodes_of_them(artifact: Artifact, tmp_path: Path) -> None:
    """The rectifier is done with the product before it."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    onnxruntime.InferenceSession(artifact.model, options, providers=["CPUExecutionProvider"])
    run = [each.op_type for each in onnx.load(options.optimized_model_filepath).graph.node]
    assert sorted(run) == ["FusedGemm", "Gemm", "Gemm"]


def test_a_model_is_the_same_each_time(table: Table, artifact: Artifact) -> None:
    """The same rows make the same bytes."""
    again = whole_of(table)
    assert (to_onnx(again), write_tables(tables_of(again))) == (artifact.model, artifact.tables)


def test_the_likeliest_kind_alone_has_sums_of_its_own(whole: Whole, tables: Tables) -> None:
    """As far as the gate is sure of it, which is what stands in the place of a constant."""
    features = [extract(prompt) for prompt in asked()]
    expected = predict(whole.network, rows_of(features)).kinds
    seen, inputs = set(), Inputs(tables)
    for each, kinds in zip(features, expected, strict=True):
        look_up_features(tables, each, inputs)
        of_kinds = inputs.sums[0, -tables.kinds * tables.of_a_kind :].reshape(tables.kinds, -1)
        (kind,) = np.flatnonzero(of_kinds.any(axis=1))
        assert of_kinds[kind, -1] == pytest.approx(kinds.max(), abs=1e-4)
        assert kinds[kind] == pytest.approx(kinds.max(), abs=1e-4)
        seen.add(int(kind))
    assert len(seen) == tables.kinds
