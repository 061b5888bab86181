"""What the encoder is tuned on; the tuning itself needs PyTorch, which the tests do without."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from classifier.training.data import Corpus, load
from classifier.training.encoder_tune import (
    BATCH_TOKENS,
    FOLDS,
    Lessons,
    batches,
    gain_head,
    held_fold,
    lessons,
    rate_at,
)

MODELS = ("mixtral-8x7b-instruct-v0.1", "llama-3.1-70b-instruct", "gpt-4o-2024-05-13")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two made-up sources; no model of the second is in any pair of its own."""
    draw, prompts, outcomes = np.random.default_rng(3), [], []
    for number in range(160):
        source = "mmlu_pro" if number % 4 else "other"
        prompts.append(
            {"source": source, "prompt_id": str(number), "prompt": f"question {number} of many", "category": "c"}
        )
        ease = draw.normal()
        for strength, model in enumerate(MODELS):
            score = float(draw.normal() < ease + strength)
            outcomes.append({"source": source, "prompt_id": str(number), "model": model, "score": score, "extra": "{}"})
    folder: Path = tmp_path_factory.mktemp("data")
    pq.write_table(pa.Table.from_pylist(prompts), folder / "prompts.parquet")
    pq.write_table(pa.Table.from_pylist(outcomes), folder / "outcomes.parquet")
    return load(folder)


@pytest.fixture(scope="module")
def given(corpus: Corpus) -> Lessons:
    return lessons(corpus, np.arange(len(corpus.texts)))


def test_columns_are_standardised_and_unknown_ones_weigh_nothing(corpus: Corpus, given: Lessons) -> None:
    """Loads are known of every prompt, a pair's gain in its own source alone."""
    loads = given.gains[0] - 1
    assert given.targets.shape[1] == loads + 2 * 2
    assert (given.weights[:, :loads] > 0).all()
    elsewhere = corpus.sources != "mmlu_pro"
    assert (given.weights[elsewhere, loads:] == 0).all()
    assert (given.weights[~elsewhere, loads:] > 0).all()
    assert np.isfinite(given.targets).all()
    assert np.allclose(given.targets[~elsewhere, loads:].std(axis=0), 1, atol=1e-3)


def test_a_small_source_weighs_more_a_row(corpus: Corpus, given: Lessons) -> None:
    """No source is drowned by a larger one, and none outweighs it without bound."""
    few, many = (given.weights[corpus.sources == name, 0].mean() for name in ("other", "mmlu_pro"))
    assert many <= few <= 3 * many


def test_the_head_for_gains_says_what_the_taught_head_says(given: Lessons) -> None:
    """Gains in units of outcomes are the taught columns of them, put back to their mean and deviation."""
    draw = np.random.default_rng(0)
    head = draw.normal(size=(6, given.targets.shape[1])).astype(np.float32)
    bias = draw.normal(size=(given.targets.shape[1],)).astype(np.float32)
    vectors = draw.normal(size=(5, 6)).astype(np.float32)
    said = ((vectors @ head + bias) * given.deviation + given.mean)[:, given.gains]
    found = gain_head(given, head, bias)
    assert len(given.pairs) == len(given.gains) > 0
    assert np.allclose(vectors @ found["gain_weights"] + found["gain_bias"], said, atol=1e-3)


def test_every_question_is_held_in_one_fold() -> None:
    """Prompts of one question are kept out together, and every prompt once."""
    groups = np.random.default_rng(1).integers(0, 40, 200)
    held = np.stack([held_fold(groups, number) for number in range(FOLDS)])
    assert (held.sum(axis=0) == 1).all()
    assert all(len(np.unique(held[:, groups == group], axis=1).T) == 1 for group in np.unique(groups))


def test_batches_hold_every_prompt_once_and_no_more_tokens_than_they_may() -> None:
    """Padded to the longest of a batch, or a prompt alone that is longer than that."""
    lengths = np.random.default_rng(2).integers(2, 257, 500)
    found = list(batches(lengths, np.random.default_rng(0)))
    assert sorted(np.concatenate(found).tolist()) == list(range(500))
    assert all(lengths[batch].max() * len(batch) <= BATCH_TOKENS for batch in found)


def test_the_rate_rises_and_falls_to_nothing() -> None:
    """It starts at nothing, is highest after the first steps, and ends at nothing."""
    rates = [rate_at(step, 100) for step in range(101)]
    assert rates[0] == rates[-1] == 0
    assert max(rates) == pytest.approx(1)
    assert rates.index(max(rates)) == 8
