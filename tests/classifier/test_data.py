"""Data that can be used is read as it lies; data that cannot is refused with its rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from classifier.training.data import BadData, load
from classifier.training.evaluate import GPT_4O, LLAMA
from tests.classifier.outcomes import MODELS, rows, write

Rows = list[dict[str, Any]]


@pytest.fixture
def good() -> tuple[Rows, Rows]:
    return rows(12)


def _refused(folder: Path, prompts: Rows, outcomes: Rows) -> str:
    with pytest.raises(BadData) as refused:
        load(write(folder, prompts, outcomes))
    return str(refused.value)


def test_outcomes_stand_beside_their_prompts(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Scores, reply lengths and tools arrive at the prompt and model they belong to; what was not asked is NaN."""
    prompts, outcomes = good
    del outcomes[0]
    corpus = load(write(tmp_path, prompts, outcomes))
    assert corpus.models == sorted(MODELS)
    assert np.isnan(corpus.scores[LLAMA][0])
    for outcome in outcomes:
        at = corpus.prompt_ids.index(outcome["prompt_id"])
        assert corpus.scores[outcome["model"]][at] == outcome["score"]
    assert corpus.output_tokens[3, corpus.models.index(GPT_4O)] == len(corpus.texts[3])
    assert corpus.tools[:3].tolist() == [0, 1, 0]
    assert corpus.prompt(1).tools == 1


def test_a_part_of_a_corpus_is_a_corpus(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Choosing rows takes every column along."""
    corpus = load(write(tmp_path, *good))
    part = corpus.only(np.array([5, 2]))
    assert part.texts == [corpus.texts[5], corpus.texts[2]]
    assert np.array_equal(part.outcomes, corpus.outcomes[[5, 2]])
    assert part.questions.groups.tolist() == corpus.groups[[5, 2]].tolist()


@pytest.mark.parametrize(
    "extra", [None, "", "{", "[1]", '{"out_chars": "many", "n_tools": -4}', '{"out_chars": 1e300}']
)
def test_extra_may_be_anything(tmp_path: Path, good: tuple[Rows, Rows], extra: str | None) -> None:
    """What is only extra never stops a run: broken or strange, it counts as unknown."""
    prompts, outcomes = good
    for outcome in outcomes:
        outcome["extra"] = extra
    corpus = load(write(tmp_path, prompts, outcomes))
    assert np.isnan(corpus.output_tokens).all()
    assert not corpus.tools.any()


def test_extra_may_be_missing(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """A table without the column `extra` is complete."""
    prompts, outcomes = good
    bare = [{name: value for name, value in outcome.items() if name != "extra"} for outcome in outcomes]
    assert len(load(write(tmp_path, prompts, bare)).texts) == 12


def test_sources_and_models_may_be_unknown(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Nobody has to have heard of a source or a model."""
    prompts, outcomes = good
    for row in (*prompts, *outcomes):
        row["source"] = "of our own"
    for outcome in outcomes:
        outcome["model"] = f"new-{outcome['model']}"
    assert load(write(tmp_path, prompts, outcomes)).models[0].startswith("new-")


def test_missing_files_are_named(tmp_path: Path) -> None:
    """A folder without the files is told which files it should hold."""
    with pytest.raises(BadData, match=r"(?s)prompts\.parquet: there is no such file.*outcomes\.parquet: there is no"):
        load(tmp_path)


def test_a_file_of_another_kind_is_named(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """What is no Parquet file is refused as such."""
    write(tmp_path, *good)
    (tmp_path / "outcomes.parquet").write_text("source,prompt_id,model,score")
    with pytest.raises(BadData, match=r"outcomes\.parquet: cannot be read as Parquet"):
        load(tmp_path)


def test_missing_columns_are_named_with_what_is_expected(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Both files' missing columns are told at once, beside the expected and the found ones."""
    prompts, outcomes = good
    message = _refused(
        tmp_path,
        [{"source": row["source"], "prompt_id": row["prompt_id"], "text": row["prompt"]} for row in prompts],
        [{name: value for name, value in row.items() if name != "score"} for row in outcomes],
    )
    assert "prompts.parquet: missing columns: prompt, category; expected source, prompt_id, prompt, category" in message
    assert "found source, prompt_id, text" in message
    assert "outcomes.parquet: missing columns: score; expected source, prompt_id, model, score" in message


def test_empty_tables_are_refused(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """A table without rows is no data."""
    write(tmp_path, *good)
    table = pq.read_table(tmp_path / "prompts.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "prompts.parquet")
    with pytest.raises(BadData, match="has no rows"):
        load(tmp_path)


@pytest.mark.parametrize("score", [1.5, -0.1])
def test_scores_out_of_range_are_named_by_row(tmp_path: Path, good: tuple[Rows, Rows], score: float) -> None:
    """A score outside [0, 1] is told with its row, its prompt and its model."""
    prompts, outcomes = good
    outcomes[7]["score"] = score
    message = _refused(tmp_path, prompts, outcomes)
    assert "the score is outside [0, 1]" in message
    assert f"row 8: bfcl_v1 / id1 / {outcomes[7]['model']}: {score}" in message


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_scores_must_be_numbers(tmp_path: Path, good: tuple[Rows, Rows], score: float | None) -> None:
    """No score, NaN and infinity are no outcomes."""
    prompts, outcomes = good
    outcomes[0]["score"] = score
    message = _refused(tmp_path, prompts, outcomes)
    assert "the score is not a number" in message
    assert "row 1: zeroeval_crux / id0" in message


def test_scores_written_as_words_are_refused(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """A column of text is refused row by row, and no more than ten rows are printed."""
    prompts, outcomes = good
    for outcome in outcomes:
        outcome["score"] = "yes"
    message = _refused(tmp_path, prompts, outcomes)
    assert message.count("'yes'") == 10
    assert "and 50 more" in message


def test_orphans_and_doubles_are_named(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Outcomes without a prompt, a prompt id twice and an outcome twice: all told at once, each with its row."""
    prompts, outcomes = good
    outcomes.append({**outcomes[0], "prompt_id": "nowhere"})
    outcomes.append(dict(outcomes[2]))
    prompts.append(dict(prompts[4]))
    message = _refused(tmp_path, prompts, outcomes)
    assert "an outcome without a prompt:\n    row 61: zeroeval_crux / nowhere" in message
    assert "the same outcome twice:\n    row 62: zeroeval_crux / id0" in message
    assert "first in row 3" in message
    assert "the same (source, prompt_id) twice:\n    row 13: bfcl_v1 / id4, first in row 5" in message


def test_a_prompt_in_two_splits_is_named(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Where the file itself says who is taught and who is judged, one prompt may not be both."""
    prompts, outcomes = good
    for number, prompt in enumerate(prompts):
        prompt["split"] = "train" if number < 6 else "test"
    load(write(tmp_path / "fine", prompts, outcomes))
    prompts[9]["prompt"] = f"  {prompts[2]['prompt'].upper()} !"
    message = _refused(tmp_path, prompts, outcomes)
    assert "the same prompt stands in two splits" in message
    assert "row 10: zeroeval_crux / id9 in test, the same as row 3 in train" in message


def test_prompts_without_text_or_name_are_named(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """A prompt that is null and an id that is empty are told with their rows."""
    prompts, outcomes = good
    prompts[3]["prompt"] = None
    prompts[5]["prompt_id"] = " "
    message = _refused(tmp_path, prompts, outcomes)
    assert "the prompt is no text:\n    row 4: zeroeval_crux / id3" in message
    assert "no source or no prompt_id:\n    row 6" in message


def test_one_class_is_refused(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Where every score is the same there is nothing to learn, and the message says which rows."""
    prompts, outcomes = good
    for outcome in outcomes:
        outcome["score"] = 1.0
    assert "one class only: every score of rows 1 to 60 is 1" in _refused(tmp_path, prompts, outcomes)


def test_half_right_is_a_score(tmp_path: Path, good: tuple[Rows, Rows]) -> None:
    """Scores between 0 and 1 are outcomes too, and whole numbers are numbers."""
    prompts, outcomes = good
    table = pa.Table.from_pylist(outcomes).set_column(3, "score", pa.array([1, 0] * 30))
    write(tmp_path, prompts, outcomes)
    pq.write_table(table, tmp_path / "outcomes.parquet")
    assert set(np.unique(load(tmp_path).outcomes)) == {0.0, 1.0}
    outcomes[0]["score"] = 2 / 3
    corpus = load(write(tmp_path, prompts, outcomes))
    assert corpus.outcomes[0, corpus.models.index(outcomes[0]["model"])] == pytest.approx(2 / 3)
