"""The protocol on made-up outcomes: which pairs are judged, on which rows, and what is said of them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from classifier.prediction import Prediction, Prompt, TargetPrediction
from classifier.training.data import BadData, Corpus, Floats, load
from classifier.training.evaluate import (
    GPT_4O,
    HAIKU,
    LLAMA,
    PAIRS,
    SONNET,
    Evaluation,
    Pair,
    Scored,
    Timing,
    evaluated,
    pairs_of,
    said_of,
)
from classifier.training.measures import apgr
from classifier.training.shipped import weighed
from tests.classifier.outcomes import MODELS, WEAK, rows, write


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load(write(tmp_path_factory.mktemp("data"), *rows(720)))


def timing(corpus: Corpus) -> Timing:
    size = len(corpus.texts)
    return Timing(np.full(size, 0.1), np.array([float(len(text)) for text in corpus.texts]))


def knowing(corpus: Corpus, blur: float = 0.0) -> dict[str, Floats]:
    """Probabilities of one who sees the telling word, more or less."""
    chance = np.random.default_rng(0)
    hard = np.array(["quorum" in text for text in corpus.texts])
    noise = blur * chance.normal(size=len(hard))
    return {
        model: np.clip(np.where(hard, 0.08 if model in WEAK else 0.92, 0.92) + noise, 0.01, 0.99) for model in MODELS
    }


def scored(corpus: Corpus) -> Scored:
    return Scored(adequate=knowing(corpus, blur=0.2))


@pytest.fixture(scope="module")
def found(corpus: Corpus) -> Evaluation:
    said = scored(corpus)
    return evaluated(corpus, {"shipped": lambda: said, "10-fold": lambda: said, "own-50": lambda: said}, timing(corpus))


def test_rows_say_what_the_issue_asks_for(found: Evaluation) -> None:
    """Each row has exactly the agreed names, one row for each pair and split, and intervals around the number."""
    names = ["pair", "split", "n", "apgr", "lo", "hi", "cpt50", "cpt80", "ms_p50", "ms_p99"]
    told = msgspec.to_builtins(found.rows)
    assert all(list(row) == names for row in told)
    assert len({(row["pair"], row["split"]) for row in told}) == len(told)
    assert all(row["lo"] <= row["apgr"] <= row["hi"] for row in told)
    assert f"bfcl_v1: {LLAMA} / {SONNET}" in {row["pair"] for row in told}


def test_what_knows_more_scores_more(corpus: Corpus, found: Evaluation) -> None:
    """One who sees the telling word clearly is above one who sees it blurred."""
    clear = evaluated(corpus, {"shipped": lambda: Scored(adequate=knowing(corpus))}, timing(corpus))
    pair = f"zeroeval_crux: {LLAMA} / {GPT_4O}"
    better, worse = (next(row.apgr for row in each.rows if row.pair == pair) for each in (clear, found))
    assert better > worse


def test_time_is_that_of_the_pairs_prompts(found: Evaluation) -> None:
    """Each row tells the times of the prompts that it is judged on."""
    assert {(row.ms_p50, row.ms_p99) for row in found.rows} == {(0.1, 0.1)}


def test_everything_else_is_told_of_whole_splits_only(found: Evaluation) -> None:
    """Calibration and several targets at once are measured on the splits that judge every prompt."""
    assert {each.split for each in found.targets} == {"shipped", "10-fold"}
    assert {each.split for each in found.many} == {"shipped", "10-fold"}
    (many, *_) = found.many
    assert many.found.area > many.found.random_area
    assert [each.floor for each in many.promises] == [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0]


def test_listed_pairs_first_then_standard_ones(corpus: Corpus) -> None:
    """A source of the protocol has its own pairs; another source has those families that answered it."""
    pairs, _ = pairs_of(corpus)
    named = [pair.name for pair in pairs]
    assert f"zeroeval_crux: {LLAMA} / {GPT_4O}" in named
    assert [name for name in named if name.startswith("chat_of_ours")] == [
        f"chat_of_ours: {LLAMA} / {GPT_4O}",
        f"chat_of_ours: mixtral-8x7b-instruct-v0.1 / {GPT_4O}",
        f"chat_of_ours: {HAIKU} / {SONNET}",
    ]
    listed = {pair.name: pair.baseline for pair in PAIRS}
    assert all(pair.baseline == listed.get(pair.name) for pair in pairs)


def test_unknown_models_are_judged_worst_against_best(tmp_path: Path) -> None:
    """Where nobody knows the models there is still a pair: the worst and the best."""
    prompts, outcomes = rows(360)
    for outcome in outcomes:
        outcome["model"] = {LLAMA: "little", SONNET: "great"}.get(outcome["model"], "")
    kept = [outcome for outcome in outcomes if outcome["model"]]
    pairs, _ = pairs_of(load(write(tmp_path, prompts, kept)))
    assert {(pair.weak, pair.strong) for pair in pairs} == {("little", "great")}


def _same(prompts: list[dict[str, Any]], outcomes: list[dict[str, Any]], source: str) -> None:
    for outcome in outcomes:
        if outcome["source"] == source:
            outcome["score"] = 1.0


def test_one_class_only_is_said_and_skipped(tmp_path: Path) -> None:
    """A source whose models never differ has no row, and a note says why; when nothing is left, it is an error."""
    prompts, outcomes = rows(360)
    _same(prompts, outcomes, "zeroeval_crux")
    pairs, notes = pairs_of(load(write(tmp_path, prompts, outcomes)))
    assert "zeroeval_crux" not in {pair.source for pair in pairs}
    assert any(note.startswith(f"zeroeval_crux: {LLAMA} / {GPT_4O}: left out, one class only") for note in notes)
    few_prompts, few_outcomes = rows(60)
    with pytest.raises(BadData, match="no pair of models to judge") as refused:
        pairs_of(load(write(tmp_path, few_prompts, few_outcomes)))
    assert "chat_of_ours: left out, fewer than two models answered 100 of its prompts" in str(refused.value)


def test_rows_that_must_not_be_judged_are_not(corpus: Corpus) -> None:
    """Where the model says nothing, because it was taught there, no number is made."""
    said = scored(corpus)
    taught = np.arange(len(corpus.texts)) < 360
    hidden = {name: np.where(taught, np.nan, values) for name, values in said.adequate.items()}
    pair = Pair("bfcl_v1", LLAMA, SONNET)
    judged = said_of(msgspec.structs.replace(said, adequate=hidden), corpus, pair)
    assert judged.rows.min() >= 360
    assert (corpus.sources[judged.rows] == "bfcl_v1").all()


def test_complexity_stands_in_for_unmeasured_targets(corpus: Corpus) -> None:
    """Targets of which the artifact knows nothing are routed by complexity, so they are judged by it."""
    rising = np.linspace(0, 1, len(corpus.texts))
    said = said_of(Scored(adequate={}, complexity=rising), corpus, Pair("bfcl_v1", LLAMA, SONNET))
    assert np.array_equal(said.score, rising[said.rows])


class Weigher:
    """Says 0.9 of everything."""

    def classify(self, prompt: Prompt) -> Prediction:
        outlook = TargetPrediction(adequate=0.9, low=0.7, high=1.0, output_tokens=1, output_tokens_p90=2)
        return Prediction(
            complexity=len(prompt.text) / 1000, source="onnx", expected_output_tokens=1, outlooks={LLAMA: outlook}
        )


def test_a_served_classifier_is_asked_as_requests_ask_it(corpus: Corpus) -> None:
    """It speaks on the rows to judge and is silent elsewhere; its time is known of every prompt."""
    told = np.arange(0, 720, 9)
    said = weighed(Weigher(), corpus, told, lambda _line: None)
    assert np.flatnonzero(~np.isnan(said.scored.adequate[LLAMA])).tolist() == told.tolist()
    assert set(said.scored.adequate) == {LLAMA}
    assert not np.isnan(said.timing.spent).any()


def test_the_score_is_the_gain_that_is_said(corpus: Corpus) -> None:
    """A pair's row is APGR of P(strong) less P(weak)."""
    first = knowing(corpus, blur=0.3)
    only = evaluated(corpus, {"10-fold": lambda: Scored(adequate=first)}, timing(corpus))
    pair = Pair("bfcl_v1", LLAMA, SONNET)
    (row,) = [each for each in only.rows if each.pair == pair.name]
    at = corpus.sources == "bfcl_v1"
    assert row.apgr == round(apgr((first[SONNET] - first[LLAMA])[at], corpus.gain(LLAMA, SONNET)[at]), 4)
    assert row.ms_p50 == 0.1
