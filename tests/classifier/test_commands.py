"""Training's commands without their command line: what is judged, what is refused, what is written."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from classifier.prediction import Prompt
from classifier.training.commands import (
    PACKAGED,
    NothingToJudge,
    Recalibrated,
    accept,
    calibrate,
    evaluate,
    mended,
    open_shipped,
    recalibrated,
)
from classifier.training.data import Corpus, load
from classifier.training.evaluate import GPT_4O, LLAMA, SONNET, Scored
from classifier.training.measures import Platt, logit
from classifier.training.splits import SPLITS, STEMS_FILE, Split, stem_hashes, write_stems
from classifier.tuning import Ability
from tests.classifier.outcomes import rows, write
from tests.classifier.test_evaluate import knowing, scored


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data"), *rows(720))


@pytest.fixture(scope="module")
def corpus(data: Path) -> Corpus:
    return load(data)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """The packaged artifact, which was not trained on anything made up."""
    folder = shutil.copytree(PACKAGED, tmp_path / "artifact")
    write_stems(folder, stem_hashes(["something else altogether"]))
    return folder


def crossed(corpus: Corpus, _split: Split) -> Scored:
    return scored(corpus)


def test_new_prompts_are_judged_and_taught_ones_left_out(data: Path, corpus: Corpus, artifact: Path) -> None:
    """Rows of the artifact come from prompts that its hashes do not know, and a note says how many were left out."""
    write_stems(artifact, stem_hashes(corpus.texts[:240]))
    found = evaluate(data, artifact_dir=artifact)
    assert found.notes[0].startswith("240 of 720 prompts are among those that the artifact was trained on")
    assert {row.split for row in found.rows} == {"shipped"}
    assert {row.n for row in found.rows} == {160}
    assert all(row.ms_p50 > 0 for row in found.rows)


@pytest.mark.parametrize("splits", [("10-fold", "own-0"), pytest.param(SPLITS, marks=pytest.mark.long)])
def test_cross_validation_stands_beside_it(data: Path, artifact: Path, splits: tuple[Split, ...]) -> None:
    """Each split of the protocol has its rows beside the artifact's own."""
    found = evaluate(data, artifact_dir=artifact, cross_validate=crossed, splits=splits)
    assert {row.split for row in found.rows} == {"shipped", *splits}
    assert "no question is on both sides of any fold, by normalised prompt text: 10-fold (10)" in found.notes[1]


def test_when_every_prompt_was_taught_only_cross_validation_remains(data: Path, corpus: Corpus, artifact: Path) -> None:
    """No artifact is judged on its own training prompts: without cross-validation that is an error that says so."""
    write_stems(artifact, stem_hashes(corpus.texts))
    with pytest.raises(NothingToJudge, match="all 720 prompts are among those that the artifact was trained on"):
        evaluate(data, artifact_dir=artifact)
    found = evaluate(data, artifact_dir=artifact, cross_validate=crossed, splits=["10-fold"])
    assert {row.split for row in found.rows} == {"10-fold"}


def test_an_artifact_without_hashes_cannot_call_anything_unseen(data: Path, artifact: Path) -> None:
    """Without the file that tells what was taught, the artifact gets no row, and the notes say why."""
    (artifact / STEMS_FILE).unlink()
    with pytest.raises(NothingToJudge, match=r"training_stems\.bin is missing"):
        evaluate(data, artifact_dir=artifact)
    found = evaluate(data, artifact_dir=artifact, cross_validate=crossed, splits=["10-fold"])
    assert "shipped" not in {row.split for row in found.rows}
    assert "training_stems.bin is missing" in found.notes[0]


def test_the_heuristic_is_never_judged_as_the_artifact(data: Path, artifact: Path) -> None:
    """A broken artifact is an error here; serving would go on with the rule."""
    (artifact / "model.onnx").write_bytes(b"broken")
    with pytest.raises(NothingToJudge, match="the artifact cannot be used"):
        evaluate(data, artifact_dir=artifact)


def test_models_that_the_artifact_does_not_know_are_named(tmp_path: Path, artifact: Path) -> None:
    """A slip in a model's name is told, not met with silence."""
    prompts, outcomes = rows(90)
    slipped = [{**each, "model": "gtp-4o"} if each["model"] == GPT_4O else each for each in outcomes]
    told: list[str] = []
    with pytest.raises(NothingToJudge):
        calibrate(write(tmp_path, prompts, slipped), artifact_dir=artifact, say=told.append)
    assert "no probability of it: gtp-4o" in "\n".join(told)


def test_bent_probabilities_are_mended(corpus: Corpus) -> None:
    """What says too much is found out on one half and judged better on the other; the halves share no prompt."""
    bent = {name: Platt(3.0, 1.0)(said) for name, said in knowing(corpus).items()}
    found = {each.model: each for each in recalibrated(corpus, Scored(adequate=bent), seed=0)}
    llama = found[LLAMA]
    assert llama.better
    assert llama.ece_after < llama.ece_before
    assert llama.fitted_on + llama.n == 720
    assert all(isinstance(each, Recalibrated) for each in found.values())


def test_too_few_labels_mend_nothing(corpus: Corpus) -> None:
    """With fewer than a hundred new prompts in each half nothing is fitted."""
    part = corpus.only(np.arange(150))
    with pytest.raises(NothingToJudge, match="no target has 200 new labelled prompts"):
        recalibrated(part, Scored(adequate=knowing(part)), seed=0)


def test_a_mended_ability_says_what_was_fitted() -> None:
    """The new row's logit is the old one's, stretched and shifted; lengths stay."""
    loads = np.random.default_rng(0).normal(size=(20, 4))
    old = Ability(weights=[0.5, -1.0, 0.2, 0.0], bias=0.3, log_length=0.1, verdicts=7)
    change = Platt(0.6, -0.2)
    new = mended(old, change)
    said = 1 / (1 + np.exp(-(loads @ old.weights + old.bias)))
    assert loads @ new.weights + new.bias == pytest.approx(logit(change(said)))
    assert (new.log_length, new.verdicts) == (0.1, 7)


def test_an_accepted_change_is_what_serves(artifact: Path, tmp_path: Path) -> None:
    """What is written loads, says the mended probabilities, keeps what was taught, and its references hold."""
    change = Platt(0.5, 0.4)
    worse = Recalibrated(SONNET, 100, 100, 0.1, 0.2, 0.1, 0.2, change)
    better = Recalibrated(LLAMA, 100, 100, 0.2, 0.1, 0.2, 0.1, change)
    out = tmp_path / "mended"
    assert accept([worse, better], artifact, out) == [LLAMA]
    before, after = (open_shipped(folder, [LLAMA, SONNET]) for folder in (artifact, out))
    prompt = Prompt(text="How much does the truck in the yard weigh?")
    old, new = before.classify(prompt).outlooks, after.classify(prompt).outlooks
    assert new[LLAMA].adequate == pytest.approx(float(change(np.array([old[LLAMA].adequate]))[0]))
    assert new[SONNET].adequate == pytest.approx(old[SONNET].adequate)
    assert (out / STEMS_FILE).read_bytes() == (artifact / STEMS_FILE).read_bytes()
    for reference in after.manifest.references:
        assert after.classify(reference.prompt).complexity == pytest.approx(reference.complexity, abs=1e-5)
    assert before.manifest.abilities[LLAMA] != after.manifest.abilities[LLAMA]


def test_pairs_of_the_made_up_data_are_there(data: Path, artifact: Path) -> None:
    """The evaluation of the real artifact names pairs as `source: weak / strong`."""
    assert f"bfcl_v1: {LLAMA} / {SONNET}" in {row.pair for row in evaluate(data, artifact_dir=artifact).rows}
