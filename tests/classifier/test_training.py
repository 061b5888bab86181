"""Training on made-up prompts: it learns, what it writes serves the same numbers, and it is repeatable."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from classifier.config import ClassifierSection
from classifier.features import extract, shape_of
from classifier.manifest import Artifact, write_artifact
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from classifier.prediction import Prompt
from classifier.training.data import Corpus, load, stem, teaching_gain
from classifier.training.evaluate import apgr, cpt, measured
from classifier.training.model import fit, predict, structures, term_counts, to_onnx
from classifier.training.train import calibrated, equal_sources, folds, train

MODELS = ("mixtral-8x7b-instruct-v0.1", "llama-3-70b-instruct", "gpt-4o-2024-05-13", "claude-3-5-sonnet-20240620")
PLAIN = ("gate", "road", "scale", "truck", "driver", "morning", "crate", "ticket", "yard", "weight")
TRICKY = ("tensor", "lemma", "quorum", "manifold")


def made_up(draw: random.Random, number: int) -> tuple[str, bool, int]:
    """A prompt, whether only the strong models can do it, and how many tools it carries."""
    hard = draw.random() < 0.4
    words = [draw.choice(PLAIN) for _ in range(draw.randint(4, 30))]
    if hard:
        words.insert(draw.randrange(len(words)), draw.choice(TRICKY))
    text = f"Case {number} {' '.join(words)}?"
    if number % 3 == 1:
        text += "\nA. one\nB. two\nC. three\nD. four"
    return text, hard, 2 if number % 3 == 2 else 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three made-up sources in the files' real layout."""
    draw, prompts, outcomes = random.Random(5), [], []
    for number in range(360):
        text, hard, tools = made_up(draw, number)
        source = ("open_source", "choice_source", "tool_source")[number % 3]
        prompts.append({"source": source, "prompt_id": str(number), "prompt": text, "category": f"c{number % 5}"})
        for model in MODELS:
            right = not hard or model in MODELS[2:]
            right = right if draw.random() < 0.95 else not right
            extra = f'{{"n_tools": {tools}, "out_chars": {80 * len(text)}}}'
            outcomes.append(
                {"source": source, "prompt_id": str(number), "model": model, "score": float(right), "extra": extra}
            )
    path = tmp_path_factory.mktemp("data")
    pq.write_table(pa.Table.from_pylist(prompts), path / "prompts.parquet")
    pq.write_table(pa.Table.from_pylist(outcomes), path / "outcomes.parquet")
    return path


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Corpus:
    return load(folder)


@pytest.fixture(scope="module")
def artifact(corpus: Corpus) -> Artifact:
    return train(corpus, seed=3, metrics=False)


def test_the_corpus_is_read_as_it_lies(corpus: Corpus) -> None:
    """Prompts, scores, tools and lengths arrive row by row, and shapes follow from them."""
    assert len(corpus.texts) == 360
    assert set(corpus.scores) == set(MODELS)
    assert np.bincount(corpus.shapes).tolist() == [120, 120, 120]
    assert corpus.tools[2] == 2
    assert corpus.output_chars[0] == 80 * len(corpus.texts[0])


def test_one_question_has_one_stem() -> None:
    """Choices, case and signs do not make another question."""
    assert stem("What is  it?\nA. this\nB. that") == stem("what is it\nA) those") == "what is it"


def test_folds_never_share_a_question() -> None:
    """No question stands on both sides of a fold, and every row is held out once."""
    groups = np.array([number // 3 for number in range(90)])
    held: list[int] = []
    for taught, kept in folds(groups, seed=1):
        assert not set(groups[taught]) & set(groups[kept])
        held += kept.tolist()
    assert sorted(held) == list(range(90))


def test_the_graph_says_what_ridge_says(corpus: Corpus) -> None:
    """Over some hundred prompts the ONNX graph and the sklearn-fitted model agree to float16 rounding."""
    counts, facts = term_counts(corpus.features), structures(corpus.features)
    model = fit(counts, facts, corpus.shapes, teaching_gain(corpus), corpus.output_chars / 4, alpha=1.0)
    gains, known, lengths = predict(model, counts, facts, corpus.shapes)
    manifest = load_classifier(ClassifierSection())
    assert isinstance(manifest, OnnxClassifier)
    graph = OnnxClassifier(Artifact(to_onnx(model), manifest.manifest))
    said = np.array([graph.raw(features) for features in corpus.features])
    assert said[np.arange(len(gains)), corpus.shapes] == pytest.approx(gains, abs=2e-3)
    assert said[:, 3] == pytest.approx(known, abs=1e-5)
    assert said[:, 4] == pytest.approx(lengths, abs=1e-3)
    assert np.std(gains) > 0.1


def test_the_reference_is_ridge_itself(corpus: Corpus) -> None:
    """The exported numbers, put together by hand, give what sklearn's own `predict` gives."""
    from scipy import sparse
    from sklearn.linear_model import Ridge

    from classifier.training.model import _idf, _standard, weighed

    rows = np.flatnonzero(corpus.shapes == 0)
    counts, facts = term_counts(corpus.features), structures(corpus.features)
    gains = teaching_gain(corpus)
    model = fit(counts, facts, corpus.shapes, gains, corpus.output_chars / 4, alpha=1.0)
    mean, scale, deviation = _standard(facts[rows])
    scaled = (np.clip(facts[rows], mean - 3 * deviation, mean + 3 * deviation) - mean) * scale
    design = sparse.csr_matrix(sparse.hstack([weighed(counts, _idf(counts))[rows], sparse.csr_matrix(scaled)]))
    ridge = Ridge(alpha=1.0, solver="sparse_cg", tol=1e-4).fit(design, gains[rows])
    assert predict(model, counts[rows], facts[rows], corpus.shapes[rows])[0] == pytest.approx(
        ridge.predict(design), abs=1e-6
    )


def test_it_learns_what_only_the_strong_can_do(corpus: Corpus, artifact: Artifact) -> None:
    """A new prompt with a word that only the strong models cope with scores above one without."""
    classifier = OnnxClassifier(artifact)
    draw = random.Random(99)
    hard: list[float] = []
    easy: list[float] = []
    for number in range(1001, 1100, 3):
        text, is_hard, tools = made_up(draw, number)
        (hard if is_hard else easy).append(classifier.classify(Prompt(text=text, tools=tools)).complexity)
    assert np.mean(hard) > np.mean(easy) + 0.2


def test_training_is_repeatable(corpus: Corpus, artifact: Artifact) -> None:
    """The same corpus and seed give the same model, byte for byte, and the same manifest."""
    again = train(corpus, seed=3, metrics=False)
    assert again.model == artifact.model
    assert again.manifest == artifact.manifest


def test_what_training_writes_can_be_served(tmp_path: Path, artifact: Artifact) -> None:
    """The written folder loads, and says what training stored as references."""
    write_artifact(tmp_path, artifact)
    classifier = load_classifier(ClassifierSection(artifact_dir=tmp_path))
    assert isinstance(classifier, OnnxClassifier)
    for reference in classifier.manifest.references:
        assert classifier.classify(reference.prompt).complexity == pytest.approx(reference.complexity, abs=1e-4)


def test_complexity_is_a_share_of_the_training_prompts() -> None:
    """Calibrated on evenly spread gains, complexity is the share of them below."""
    gains = np.linspace(-1, 1, 1001)
    calibration = calibrated(gains, np.full(1001, 1 / 1001))
    assert [calibration.complexity_of(gain) for gain in (-0.5, 0.0, 0.5)] == pytest.approx([0.25, 0.5, 0.75], abs=0.002)


def test_sources_count_the_same() -> None:
    """A small source weighs as much in the calibration as a large one."""
    weights = equal_sources(np.array(["large"] * 90 + ["small"] * 10))
    assert weights[:90].sum() == pytest.approx(0.5)
    assert weights[90:].sum() == pytest.approx(0.5)


GAINS = np.array([0.0, 1.0, 0.0, 1.0, 0.0, -1.0])


def test_a_constant_score_is_the_random_router() -> None:
    """Ties count in expectation: a constant score has APGR one half and CPT(50 %) of 50."""
    assert apgr(np.zeros(6), GAINS) == pytest.approx(0.5)
    assert cpt(0.5, np.zeros(6), GAINS) == pytest.approx(50)


def test_the_oracle_beats_everything() -> None:
    """The gain itself as the score wins all it can with the first calls; its opposite is below random."""
    assert cpt(1.0, GAINS, GAINS) == pytest.approx(100 / 6)
    assert apgr(GAINS, GAINS) > 0.9
    assert apgr(-GAINS, GAINS) < 0.5
    found = measured(GAINS, GAINS, seed=0)
    assert found.low <= found.high


def test_metrics_of_the_shipped_model_are_told() -> None:
    """The shipped manifest carries the measured pairs with intervals, and no text of the data."""
    shipped = load_classifier(ClassifierSection())
    assert isinstance(shipped, OnnxClassifier)
    pairs = shipped.manifest.metrics["pairs"]
    assert len(pairs) == 9
    assert all(row["shipped"]["low"] <= row["shipped"]["apgr"] <= row["shipped"]["high"] for row in pairs)
    assert msgspec.to_builtins(shipped.manifest.rows).keys() >= {"routellm_mmlu", "mmlu_pro", "bfcl_v1"}


def test_shapes_come_from_the_same_code(corpus: Corpus) -> None:
    """Training's features are serving's features."""
    prompt = Prompt(text=corpus.texts[4], tools=int(corpus.tools[4]))
    assert np.array_equal(extract(prompt).indices, corpus.features[4].indices)
    assert shape_of(extract(prompt)) == corpus.shapes[4]
