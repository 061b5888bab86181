"""Training on made-up prompts: it learns, what it writes serves the same numbers, and it is repeatable."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from classifier.config import ClassifierSection
from classifier.features import extract, shape_of
from classifier.manifest import Artifact, write_artifact
from classifier.onnx_classifier import OnnxClassifier, load_classifier
from classifier.prediction import Prompt
from classifier.training import train as training
from classifier.training.blend import KNOTS, Blend, blend_of
from classifier.training.data import BadData, Corpus, Floats, load
from classifier.training.domain import ONE_CALL
from classifier.training.factors import equal_sources
from classifier.training.graph import Whole, to_onnx
from classifier.training.measures import apgr
from classifier.training.splits import SPLITS, Split
from classifier.training.tier_set import HELD_KINDS, written
from classifier.training.train import (
    Everyday,
    Table,
    abilities_of,
    chances,
    cross_validated,
    kinds_in,
    reference_pair,
    table_of,
    taught,
    train,
)
from classifier.tuning import SKETCH
from tests.classifier import made_up
from tests.classifier.made_up import GPT_4O, HAIKU, LLAMA, MODELS, SONNET, STRONG, WEAK, WORDS, prompt_text
from tests.classifier.outcomes import write

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def table(made_up_corpus: Corpus, known_everyday: Everyday) -> Table:
    return table_of(made_up_corpus, known_everyday)


@pytest.fixture(scope="module")
def ten_folds(made_up_corpus: Corpus, known_everyday: Everyday) -> dict[str, Floats]:
    return dict(cross_validated(made_up_corpus, "10-fold", known_everyday).adequate)


def renamed(folder: Path, names: dict[str, str], prompts: int = 600) -> Corpus:
    """The made-up corpus under other models' names; models that are not named are left out."""
    told, outcomes = made_up.rows(prompts)
    kept = [{**row, "model": names[row["model"]]} for row in outcomes if row["model"] in names]
    return load(write(folder, told, kept))


def test_what_only_the_strong_can_do_is_worse_for_the_weak_alone(made_up_artifact: Artifact) -> None:
    """Where the network is trusted, a new prompt with a word that only strong models cope with tells models apart."""
    classifier = OnnxClassifier(made_up_artifact, {"small": LLAMA, "big": GPT_4O})
    draw = random.Random(99)
    found: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for number in range(1001, 1121):
        source, hard = list(WORDS)[number % 3], number % 2 == 0
        prompt = Prompt(text=prompt_text(draw, source, number, hard=hard), tools=2 * (source == "calls"))
        outlooks = classifier.classify(prompt).outlooks
        trust = classifier.place(extract(prompt)).trust
        found[hard].append((trust, outlooks["small"].adequate, outlooks["big"].adequate))
    demanding, plain = (np.array(found[each]) for each in (True, False))
    trusts = np.concatenate([demanding, plain])[:, 0]
    assert np.percentile(trusts, 5) > 0.7
    assert np.median(trusts) > 0.9
    assert demanding[:, 1].mean() < plain[:, 1].mean() - 0.2
    assert demanding[:, 2].mean() > plain[:, 2].mean() - 0.15


def test_everyday_prompts_follow_their_complexity(made_up_artifact: Artifact) -> None:
    """Of kinds that nothing was learned from, the expected tier follows the written one, and without tools on offer no
    prompt is trusted to the network; a request with tools that is no harder than one call is.
    """
    classifier = OnnxClassifier(made_up_artifact)
    rows = [row for row in written() if row.kind in HELD_KINDS][::2]
    found = [classifier.place(extract(row.prompt)) for row in rows]
    tiers, complexity = np.array([row.tier for row in rows]), np.array([each.complexity for each in found])
    assert np.corrcoef(complexity, tiers)[0, 1] > 0.6
    assert np.all(np.diff([complexity[tiers == tier].mean() for tier in range(4)]) > 0.03)
    tools, trust = np.array([row.prompt.tools > 0 for row in rows]), np.array([each.trust for each in found])
    assert np.percentile(trust[~tools], 90) < 0.5
    assert np.all(trust[tools & (complexity < ONE_CALL)] > 0.999)


@pytest.mark.long
def test_training_is_repeatable(
    made_up_corpus: Corpus,
    known_everyday: Everyday,
    made_up_artifact: Artifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same corpus and seed give the same artifact, byte for byte.

    With another seed the network is the same, for it is taught everything; what hangs on held-out prompts is not.
    """
    made: list[Whole] = []

    def kept(whole: Whole) -> bytes:
        made.append(whole)
        return to_onnx(whole)

    monkeypatch.setattr(training, "to_onnx", kept)
    again, other = (train(made_up_corpus, known_everyday, seed=seed) for seed in (3, 4))
    assert again.model == made_up_artifact.model
    assert again.tables == made_up_artifact.tables
    assert again.sample == made_up_artifact.sample
    assert again.manifest == made_up_artifact.manifest
    assert np.array_equal(made[0].network.words, made[1].network.words)
    assert made[0].blend != made[1].blend
    assert other.manifest.abilities != made_up_artifact.manifest.abilities


def test_what_training_writes_can_be_served(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """The written folder loads, and says what training stored as references."""
    write_artifact(tmp_path, made_up_artifact)
    classifier = load_classifier(ClassifierSection(artifact_dir=tmp_path))
    assert isinstance(classifier, OnnxClassifier)
    assert len(classifier.manifest.references) > 5
    for reference in classifier.manifest.references:
        said = classifier.classify(reference.prompt)
        assert said.complexity == pytest.approx(reference.complexity, abs=1e-5)
        assert said.expected_output_tokens == reference.expected_output_tokens


def test_the_manifest_tells_what_it_was_made_of(
    made_up_corpus: Corpus, known_everyday: Everyday, made_up_artifact: Artifact
) -> None:
    """Rows of each source, kinds of task, the data's hash and the libraries are told; no prompt of the data is."""
    manifest = made_up_artifact.manifest
    assert manifest.rows == {"chat": 200, "exam": 200, "calls": 200}
    assert manifest.kinds == known_everyday.task_kinds.names
    assert manifest.training["tiered_prompts"] == len(made_up.tiered())
    assert manifest.training["known_words"] == len(known_everyday.table.rows) - 1
    assert set(manifest.libraries) == set(training.LIBRARIES)
    assert manifest.data_sha256 == made_up_corpus.data_sha256
    assert set(manifest.abilities) == set(MODELS)
    assert manifest.training["kind_told_right"] > 0.97
    told = msgspec.json.encode(manifest).decode()
    assert not any(text in told for text in made_up_corpus.texts)


def test_features_of_training_are_those_of_serving(made_up_corpus: Corpus) -> None:
    """A row as a request would bring it has the features and the shape that were taught."""
    for row in range(9):
        found = extract(made_up_corpus.prompt(row))
        assert np.array_equal(found.indices, made_up_corpus.features[row].indices)
        assert shape_of(found) == made_up_corpus.shapes[row]


@pytest.mark.long
@pytest.mark.parametrize("sources", [("chat",), ("exam", "calls")])
def test_a_corpus_of_few_sources_trains(tmp_path: Path, known_everyday: Everyday, sources: tuple[str, ...]) -> None:
    """One source or two are enough, with fewer models than there are loads."""
    artifact = train(made_up.corpus(tmp_path, 660, sources), known_everyday, seed=0)
    assert set(artifact.manifest.rows) == set(sources)
    assert artifact.manifest.loads == len(artifact.manifest.abilities) < 16
    said = OnnxClassifier(artifact).classify(Prompt(text="gate road truck"))
    assert said.source == "onnx"
    assert len(said.vector) == 2 * (len(artifact.manifest.abilities) + SKETCH)


def test_too_small_a_corpus_is_refused(tmp_path: Path, known_everyday: Everyday) -> None:
    """Where no two models have enough outcomes it is said how many have, and how many are enough."""
    with pytest.raises(BadData, match="0 of 5 models have 200 outcomes or more; training needs two such models"):
        train(made_up.corpus(tmp_path, 90), known_everyday, seed=0)


def test_a_model_that_few_asked_has_no_ability(tmp_path: Path, known_everyday: Everyday) -> None:
    """Haiku answered two sources of three: with fewer prompts it is left out, and the others are not."""
    artifact = train(made_up.corpus(tmp_path, 240), known_everyday, seed=0)
    assert set(artifact.manifest.abilities) == set(MODELS) - {HAIKU}


@pytest.mark.parametrize("usual", [(), WEAK[:2], STRONG], ids=["none", "weak", "strong"])
def test_without_both_usual_references_the_halves_do(
    tmp_path: Path, known_everyday: Everyday, usual: tuple[str, ...]
) -> None:
    """The weaker half is told by its outcomes, whatever the names are; usual models of one side are no reference."""
    others = {LLAMA: "zebra", WEAK[1]: "yak", GPT_4O: "ant", SONNET: "bee"}
    names = {name: name if name in usual else other for name, other in others.items()}
    corpus = renamed(tmp_path, names)
    weak, strong = reference_pair(table_of(corpus, known_everyday), np.arange(len(corpus.texts)))
    assert set(weak) == {names[LLAMA], names[WEAK[1]]}
    assert set(strong) == {names[GPT_4O], names[SONNET]}


def test_the_usual_references_are_taken_where_there_are_both(table: Table) -> None:
    """The other models of the corpus are left out of it."""
    assert reference_pair(table, np.arange(len(table.rows.facts))) == (WEAK[:2], STRONG)


def test_cross_validation_judges_every_prompt_once(made_up_corpus: Corpus, ten_folds: dict[str, Floats]) -> None:
    """Ten folds give each prompt a probability for every model, and it knows which prompts gain."""
    assert set(ten_folds) == set(MODELS)
    for said in ten_folds.values():
        assert np.all((said > 0) & (said < 1))
    gained = made_up_corpus.gain(LLAMA, GPT_4O)
    assert apgr(ten_folds[GPT_4O] - ten_folds[LLAMA], gained) > 0.75


def test_probabilities_are_calibrated(made_up_corpus: Corpus, ten_folds: dict[str, Floats]) -> None:
    """On prompts that were not taught the mean probability is the share that was right, for weak and for strong."""
    for model in (LLAMA, GPT_4O):
        right = made_up_corpus.scores[model]
        assert ten_folds[model].mean() == pytest.approx(right.mean(), abs=0.04)
        sure = ten_folds[model] > 0.7
        assert sure.any()
        assert right[sure].mean() > 0.7


@pytest.mark.long
@pytest.mark.parametrize("split", SPLITS)
def test_what_no_fold_judges_has_no_number(made_up_corpus: Corpus, known_everyday: Everyday, split: Split) -> None:
    """Exactly the prompts that a split keeps have a probability, in (0, 1); all others have none."""
    kept = np.zeros(len(made_up_corpus.texts), np.bool_)
    for fold in made_up_corpus.questions.folds(split, 0):
        kept[fold.kept] = True
    for said in cross_validated(made_up_corpus, split, known_everyday).adequate.values():
        assert np.array_equal(~np.isnan(said), kept)
        assert np.all((said[kept] > 0) & (said[kept] < 1))


@pytest.mark.parametrize("split", ["leave-source-out", "own-0"])
def test_with_nothing_to_learn_from_there_is_no_number(tmp_path: Path, known_everyday: Everyday, split: Split) -> None:
    """A corpus of one source has no other source to be taught on: no probability, and no error."""
    found = cross_validated(made_up.corpus(tmp_path, 660, ("chat",)), split, known_everyday)
    assert all(np.isnan(said).all() for said in found.adequate.values())


def test_a_source_of_few_prompts_breaks_no_fold(tmp_path: Path, known_everyday: Everyday) -> None:
    """A source of eight prompts, which weighs as much as one of two hundred, is judged like the others."""
    told, outcomes = made_up.rows(624)
    few = {row["prompt_id"] for row in told if row["source"] == "exam"} - {str(number) for number in range(24)}
    corpus = load(write(tmp_path, *([row for row in part if row["prompt_id"] not in few] for part in (told, outcomes))))
    assert np.count_nonzero(corpus.sources == "exam") == 8
    for said in cross_validated(corpus, "10-fold", known_everyday).adequate.values():
        assert np.all((said > 0) & (said < 1))


def test_no_number_comes_from_a_question_that_was_taught(tmp_path: Path, known_everyday: Everyday) -> None:
    """Turning a question's own outcomes round moves next to nothing of what cross-validation says of it.

    It cannot be nothing: abilities are fitted to answers about other folds, and those networks had seen the question.
    Complexity follows no outcomes at all.
    """
    told, outcomes = made_up.rows(300)
    whole = load(write(tmp_path / "whole", told, outcomes))
    turned = [{**row, "score": 1 - row["score"]} if row["prompt_id"] == "0" else row for row in outcomes]
    other = load(write(tmp_path / "turned", told, turned))
    one, two = (table_of(corpus, known_everyday).sides.complexity for corpus in (whole, other))
    assert np.array_equal(one, two)
    before, after = (cross_validated(corpus, "10-fold", known_everyday).adequate for corpus in (whole, other))
    for model in before:
        assert after[model][0] == pytest.approx(before[model][0], abs=0.01)
    # Networks that are taught it move with it much further than that.
    assert max(float(np.abs(after[model] - before[model]).max()) for model in before) > 0.02


def copies(folder: Path, names: Sequence[tuple[str, int, int]]) -> Corpus:
    """Sources that hold the questions from one number to another."""
    told, outcomes = [], []
    for source, first, last in names:
        for number in range(first, last):
            same = {"source": source, "prompt_id": str(number)}
            told.append({**same, "prompt": f"question number {number}?", "category": "c"})
            outcomes.append({**same, "model": "one", "score": float(number % 2)})
    return load(write(folder, told, outcomes))


def test_sources_of_the_same_questions_are_one_kind(tmp_path: Path) -> None:
    """Two that share most of the smaller one's questions are one kind; two that share few are two."""
    corpus = copies(tmp_path, [("a", 0, 100), ("b", 10, 60), ("c", 95, 200), ("d", 300, 310)])
    kinds, kind_of = kinds_in(corpus)
    assert kinds == ["a", "c", "d"]
    assert [kinds[number] for number in kind_of] == ["a"] * 150 + ["c"] * 105 + ["d"] * 10


def test_a_chain_of_sources_is_one_kind(tmp_path: Path) -> None:
    """A source that is like one which was merged falls into the same kind."""
    kinds, _ = kinds_in(copies(tmp_path, [("a", 0, 100), ("b", 0, 100), ("c", 0, 50)]))
    assert kinds == ["a"]


def test_lengths_are_the_prompts_and_the_models(made_up_artifact: Artifact) -> None:
    """The artifact's ratios are those of the models' answers to the same prompts."""
    table = made_up_artifact.manifest.abilities
    assert np.exp(table[SONNET].log_length - table[GPT_4O].log_length) == pytest.approx(2.0, rel=0.05)
    assert table[GPT_4O].log_length == pytest.approx(0.0, abs=1e-9)


def test_the_blends_rows_go_from_what_all_can_do_to_what_only_the_strong_can(table: Table) -> None:
    """The blend's first row is easy for weak models, and its last a gain of the strong ones."""
    basis = taught(table, np.arange(len(table.sides.complexity))).basis
    loads = basis.loads(np.where(np.isnan(table.outcomes), basis.mean, table.outcomes))
    sides = [[table.models.index(name) for name in names] for names in (WEAK[:2], STRONG)]
    said = basis.outcomes(loads)
    of_weak, of_strong = (said[:, side].mean(axis=1) for side in sides)
    blend = blend_of(loads, of_weak, of_strong, equal_sources(table.corpus.sources))
    assert blend.complexity == np.linspace(0, 1, KNOTS).tolist()
    weak, strong = (basis.outcomes(np.array(blend.loads))[:, side].mean(axis=1) for side in sides)
    assert weak[0] > 0.9
    assert weak[-1] < 0.3
    assert strong[-1] > 0.8


def test_a_blend_is_a_straight_line_between_knots() -> None:
    """Knots have their rows, the middle of two has the middle, and beyond the ends nothing moves."""
    blend = Blend([0.0, 0.5, 1.0], [[0.0, 3.0], [1.0, 3.0], [5.0, -1.0]])
    said = blend.loads_at(np.array([-1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 2.0]))
    assert said[:, 0].tolist() == [0.0, 0.0, 0.5, 1.0, 3.0, 5.0, 5.0]
    assert said[:, 1].tolist() == [3.0, 3.0, 3.0, 3.0, 1.0, -1.0, -1.0]


def test_one_heavy_prompt_leaves_no_row_of_the_blend_empty() -> None:
    """Where no prompt lies near a complexity the nearest one stands in, and no number is none."""
    loads, weights = np.array([[0.0], [1.0], [2.0]]), np.array([0.05, 0.9, 0.05])
    blend = blend_of(loads, np.array([0.9, 0.6, 0.1]), np.array([0.9, 0.8, 0.9]), weights)
    rows = np.array(blend.loads)[:, 0]
    assert np.isfinite(rows).all()
    assert rows[0] == 0.0
    assert rows[KNOTS // 2] == pytest.approx(1.0, abs=0.05)
    assert rows[-1] > 1.0


def test_an_ability_without_outcomes_is_the_linear_one(table: Table) -> None:
    """A model that nobody asked in these rows keeps what the factors say of it."""
    rows = np.flatnonzero(table.corpus.sources == "exam")
    basis = taught(table, np.arange(len(table.sides.complexity))).basis
    loads = np.random.default_rng(0).normal(size=(len(rows), len(basis.rows)))
    haiku = abilities_of(table, rows, basis, loads)[HAIKU]
    assert haiku.verdicts == 0
    level = basis.mean[table.models.index(HAIKU)]
    assert chances(haiku, np.zeros((1, len(basis.rows))))[0] == pytest.approx(level, abs=1e-4)
