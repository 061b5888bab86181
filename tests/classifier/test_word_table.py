"""What words mean: of five languages alike, of unknown ones nothing, and no word has another's meaning in its place."""

import numpy as np
import pytest

from classifier.features import extract, meaning_of
from classifier.prediction import Prompt
from classifier.training.word_table import (
    CLASSES,
    COMPONENTS,
    FOLDER,
    GRADED,
    LANGUAGES,
    LONGEST,
    Floats,
    WordTable,
    built,
    classes,
    embedding,
    lexicon,
    ratings,
)

PROVE = {"de": "beweise", "es": "demuestra", "fr": "démontrer", "zh": "证明"}
HARDEST = 9


@pytest.fixture(scope="module")
def table() -> WordTable:
    return built(["Prove that the sum of two even numbers is even.", "Set a timer for ten minutes, please."])


def meaning(table: WordTable, text: str) -> Floats:
    """The sum of the rows of a text's words."""
    rows = table.rows[table.index[extract(Prompt(text=text)).words]]
    return np.asarray(rows.sum(axis=0, dtype=np.float64))


def likeness(one: Floats, other: Floats) -> float:
    return float(
        one[:COMPONENTS] @ other[:COMPONENTS] / np.linalg.norm(one[:COMPONENTS]) / np.linalg.norm(other[:COMPONENTS])
    )


def test_an_unknown_word_means_nothing(table: WordTable) -> None:
    """Row 0 is all 0, and letters that make no word lead there, or to a bucket that chance gave them, seldom."""
    assert not table.rows[0].any()
    unknown = [f"q{one}x{other}zzv" for one in "bcdfghjklmnp" for other in "bcdfghjklmnp"]
    known = sum(meaning(table, word)[-1] for word in unknown)
    assert known / len(unknown) < 0.25


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_word_means_what_its_english_counterpart_means(table: WordTable, language: str) -> None:
    """A proof is asked for in five languages alike, and is unlike a timer."""
    english = meaning(table, "prove")
    other = meaning(table, PROVE[language])
    assert english[-1] == 1
    assert likeness(english, other) > 0.9
    assert likeness(english, meaning(table, "timer")) < 0.5


def test_no_rated_word_has_the_row_of_another(table: WordTable) -> None:
    """Of two words that share a bucket one keeps it; rated ones come first, so that hardly any of them lose theirs."""
    rows = {word: meaning(table, word) for word in ratings() if len(meaning_of(word)) == 1}
    buckets = [int(meaning_of(word)[0]) for word in rows]
    assert len(set(buckets)) / len(buckets) > 0.97
    assert all(row[-1] == 1 for row in rows.values())
    rated = [row[COMPONENTS + GRADED - 1] > 0 for row in rows.values()]
    assert np.mean(rated) == 1.0


def test_harder_words_are_rated_harder(table: WordTable) -> None:
    """The rating stands in the columns after the meaning and the classes: how hard, how easy."""
    hard, easy = meaning(table, "prove"), meaning(table, "hello")
    assert hard[COMPONENTS + CLASSES] > 0 == easy[COMPONENTS + CLASSES]
    assert easy[COMPONENTS + CLASSES + 1] > 0 == hard[COMPONENTS + CLASSES + 1]


def test_a_word_has_its_classes(table: WordTable) -> None:
    """Each class is a column, in other languages, too; a word of none has none."""
    names = list(classes())
    assert len(names) == CLASSES
    for word, name in (("prove", "rigour"), ("beweise", "rigour"), ("unless", "condition"), ("hello", "phatic")):
        assert meaning(table, word)[COMPONENTS + names.index(name)] > 0
    assert not meaning(table, "potato")[COMPONENTS : COMPONENTS + CLASSES].any()


def test_the_index_can_name_every_row(table: WordTable) -> None:
    """Rows are named by 16 bits; each that is named exists."""
    assert len(table.rows) < np.iinfo(np.uint16).max
    assert int(table.index.max()) < len(table.rows)
    assert table.columns == COMPONENTS + GRADED + 1


def test_ratings_and_lexicons_are_well_formed() -> None:
    """Each line is two words and a tab; a rating is one digit, and a word is listed once in a file."""
    for name in ("ratings", *LANGUAGES):
        lines = (FOLDER / f"{name}.tsv").read_text().splitlines()
        parts = [line.split("\t") for line in lines]
        assert all(len(part) == 2 and all(one.strip() == one and one for one in part) for part in parts), name
        assert len({part[0] for part in parts}) > 0.99 * len(parts), name
    assert all(0 <= digit <= HARDEST for digit in ratings().values())
    assert all(len(word) < LONGEST and english for word, english in lexicon().items())


def test_without_ratings_no_word_is_hard() -> None:
    """The columns are there, and 0."""
    plain = built(["Prove it."], rated=False)
    assert not plain.rows[:, COMPONENTS + CLASSES : COMPONENTS + GRADED].any()
    assert len(embedding()[0]) < len(plain.rows)
