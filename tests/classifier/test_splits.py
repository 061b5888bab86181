"""No question is on both sides of any split, however it is written, and the proof says so."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classifier.training.splits import (
    OWN,
    SPLITS,
    STEMS_FILE,
    NotDisjoint,
    Questions,
    Split,
    hashes_of,
    normalised,
    prove_hashes_disjoint,
    questions,
    read_stems,
    stem,
    stem_hashes,
    unseen,
    write_stems,
)
from tests.examples import examples


def made(texts: list[str], sources: list[str], categories: list[str]) -> Questions:
    stems, whole = hashes_of(texts)
    return Questions(np.array(sources), np.array(categories), questions(stems, whole), stems, whole)


@pytest.fixture(scope="module")
def corpus() -> Questions:
    """Three sources; every ninth question stands in two of them, once with choices."""
    texts, sources, categories = [], [], []
    for number in range(1500):
        source = number % 3
        copied = number % 27 == 1
        text = f"Question {number - copied} of the yard"
        texts.append(f"{text}?\nA. one\nB. two" if copied else text)
        sources.append(f"source {source}")
        categories.append(f"category {number % 8 if source else 0}")
    return made(texts, sources, categories)


@pytest.mark.parametrize("split", SPLITS)
def test_no_question_is_on_both_sides(corpus: Questions, split: Split) -> None:
    """In every fold of every split the taught and the kept prompts share no question, stem or text."""
    folds = list(corpus.folds(split, seed=3))
    assert folds or split == "own-1000"
    for fold in folds:
        assert not set(corpus.groups[fold.taught]) & set(corpus.groups[fold.kept])
        assert not set(corpus.stems[fold.taught].tolist()) & set(corpus.stems[fold.kept].tolist())
        assert not set(corpus.whole[fold.taught].tolist()) & set(corpus.whole[fold.kept].tolist())
    kept = np.concatenate([fold.kept for fold in folds]) if folds else np.zeros(0)
    assert len(kept) == len(np.unique(kept))


def test_ten_folds_judge_every_prompt(corpus: Questions) -> None:
    """In-domain, every prompt is held out exactly once."""
    kept = np.sort(np.concatenate([fold.kept for fold in corpus.folds("10-fold", seed=0)]))
    assert kept.tolist() == list(range(1500))


def test_categories_are_left_out_whole(corpus: Questions) -> None:
    """A held-out category of a source is taught by none of that source's prompts; small sources are not judged."""
    names = np.char.add(corpus.sources, corpus.categories)
    for fold in corpus.folds("leave-category-out", seed=0):
        assert not set(names[fold.taught]) & set(names[fold.kept])
        assert "source 0" not in corpus.sources[fold.kept]


def test_sources_are_left_out_whole(corpus: Questions) -> None:
    """What is judged comes from one source, and nothing of that source is taught."""
    for fold in corpus.folds("leave-source-out", seed=0):
        (source,) = np.unique(corpus.sources[fold.kept])
        assert source not in corpus.sources[fold.taught]


def test_own_labels_are_as_many_as_said_and_judge_the_same_rows(corpus: Questions) -> None:
    """Of its own source a fold is taught exactly its labels, and more labels are judged on the same prompts."""
    kept: dict[str, list[int]] = {}
    for split, labels in OWN.items():
        for fold in corpus.folds(split, seed=0):
            source = str(corpus.sources[fold.kept][0])
            mine = fold.taught[corpus.sources[fold.taught] == source]
            assert len(fold.own) == labels
            assert mine.tolist() == fold.own.tolist()
            assert kept.setdefault(source, fold.kept.tolist()) == fold.kept.tolist()


def test_choices_signs_case_and_letters_make_no_other_question() -> None:
    """One stem for a question whatever its choices, case, signs, white space and Unicode form."""
    wordings = (
        "What is ﬁxed, the gate?\nA. this\nB. that",
        "what is fixed  the gate",
        "What is fixed: the gate? A) one B) two",
        "WHAT IS FIXED THE GATE!!\n(A) x\n(B) y\n(C) z",
    )
    assert {stem(text) for text in wordings} == {"what is fixed the gate"}


def test_other_scripts_have_stems_of_their_own() -> None:
    """Questions that have no Latin letter are not all the same one, and signs alone stay what they are."""
    texts = ("什么是磅秤", "磅秤在哪里", "Где весы?", "?!", "+-", "A. one\nB. two", "")
    assert len({stem(text) for text in texts}) == len(texts)


def test_an_a_is_not_a_choice() -> None:
    """Without a second choice nothing is cut, so vitamin A does not hide the rest of a question."""
    assert stem("Vitamin A. Where is it stored?") == "vitamin a where is it stored"


@settings(max_examples=examples(60))
@given(st.text(max_size=200))
def test_any_text_has_a_stem_that_stays(text: str) -> None:
    """Normalising twice is normalising once, and no text is too strange."""
    assert normalised(normalised(text)) == normalised(text)
    assert stem(text) == stem(text)


def test_a_broken_split_is_told() -> None:
    """The proof names the kept rows that were taught, wherever their choices and case differ."""
    with pytest.raises(NotDisjoint, match=r"1 kept prompts .* rows 1"):
        prove_hashes_disjoint(hashes_of(["What is it?\nA. a\nB. b"]), hashes_of(["another", "WHAT is it\nA. c\nB. d"]))
    prove_hashes_disjoint(hashes_of(["what is it"]), hashes_of(["what is that"]))


def test_training_prompts_are_known_by_their_hashes(tmp_path: Path) -> None:
    """From the file beside a model a prompt is known to have been taught, and its text is not in it."""
    write_stems(tmp_path, stem_hashes(["What is it?\nA. a\nB. b", "And that?", "and that"]))
    stems = read_stems(tmp_path)
    assert stems is not None
    assert len(stems) == 2
    assert (tmp_path / STEMS_FILE).stat().st_size == 16
    assert unseen(["what is it", "AND THAT!", "something else"], stems).tolist() == [False, False, True]
    assert read_stems(tmp_path / "nowhere") is None
