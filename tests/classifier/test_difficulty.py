"""The difficulty model: probabilities that fall with the threshold's height, of two halves, from a gist of any prompt."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given

from classifier.features import SHORT_WORDS, extract
from classifier.prediction import Prompt
from classifier.tables import TEXTS
from classifier.training.difficulty import (
    FACTS,
    JOINED,
    MEANT,
    RATED,
    SENT_WEIGHT,
    THRESHOLDS,
    gist_of,
    gists_of,
    lesson_of,
    lessons,
)
from classifier.training.network import asks_of
from classifier.training.train import Everyday
from classifier.training.word_table import GRADED
from tests.classifier import made_up
from tests.classifier.test_features import PROMPTS


@given(PROMPTS)
def test_any_prompt_has_a_finite_gist(known_everyday: Everyday, prompt: Prompt) -> None:
    """Of any text, empty, huge or strange, the gist is of one length and finite, and so is the complexity in [0, 1]."""
    features = extract(prompt)
    gist = gist_of(features, known_everyday.table)
    assert gist.shape == (len(MEANT) * known_everyday.table.columns + TEXTS * len(FACTS) + len(RATED) * GRADED + 2,)
    assert np.isfinite(gist).all()
    (found,) = known_everyday.difficulty.complexity(asks_of([features]), gist[None])
    assert 0 <= found <= 1


def test_complexity_is_the_mean_of_joined_probabilities(known_everyday: Everyday) -> None:
    """Both halves say a logit for each threshold; the higher the tier, the less likely, on the average."""
    prompts = [row.prompt for row in made_up.tiered(4)]
    features = [extract(prompt) for prompt in prompts]
    rows, gists = asks_of(features), gists_of(features, known_everyday.table)
    by_words, by_gist = known_everyday.difficulty.parts(rows, gists)
    for part in (by_words, by_gist):
        assert part.shape == (len(prompts), len(THRESHOLDS))
        assert all(low > high for low, high in itertools.pairwise(part.mean(axis=0)))
    joined = [
        words * of_words + gist * of_gist + more
        for words, gist, (of_words, of_gist, more) in zip(by_words.T, by_gist.T, JOINED, strict=True)
    ]
    complexity = known_everyday.difficulty.complexity(rows, gists)
    assert complexity == pytest.approx(np.mean([1 / (1 + np.exp(-each)) for each in joined], axis=0))


def test_harder_tiers_are_more_complex(known_everyday: Everyday) -> None:
    """Prompts that were not taught stand by their tiers, on the average."""
    rows = made_up.tiered(6)
    features = [extract(row.prompt) for row in rows]
    found = known_everyday.difficulty.complexity(asks_of(features), gists_of(features, known_everyday.table))
    tiers = np.array([row.tier for row in rows])
    means = [found[tiers == tier].mean() for tier in sorted(set(tiers.tolist()))]
    assert means == sorted(means)
    assert means[-1] - means[0] > 0.3


def test_a_message_before_tells_only_of_a_short_one(known_everyday: Everyday) -> None:
    """The last numbers of a gist say whether there is a message before, and whether what follows it is short."""
    table, before = known_everyday.table, "Prove the theorem."
    short = Prompt(text="and now?", before=before, turns=2)
    long = msgspec.structs.replace(short, text="and now again " * SHORT_WORDS)
    alone = Prompt(text="and now?")
    assert gist_of(extract(short), table)[-2:].tolist() == [1, 1]
    assert gist_of(extract(long), table)[-2:].tolist() == [1, 0]
    assert gist_of(extract(alone), table)[-2:].tolist() == [0, 0]
    begin = len(MEANT) * table.columns + RATED.index(3) * GRADED
    context = slice(begin, begin + GRADED)
    assert gist_of(extract(short), table)[context].any()
    assert not gist_of(extract(long), table)[context].any()


def test_a_lesson_has_a_changed_copy_of_each_prompt(known_everyday: Everyday) -> None:
    """The copies keep tier and weight, and read otherwise; some stand in a template or a letter, and count less; the same seed makes the same."""
    taught = made_up.tiered()[:40]
    lesson = lessons(taught, known_everyday.table, seed=2)
    size = len(taught)
    assert lesson.tiers[: 2 * size].tolist() == [row.tier for row in taught] * 2
    assert lesson.weights[: 2 * size].tolist() == [row.weight for row in taught] * 2
    assert 2.5 * size < len(lesson.tiers) <= 3 * size
    assert set(lesson.weights[2 * size :]) == {SENT_WEIGHT * row.weight for row in taught}
    assert (lesson.gists[:size] != lesson.gists[size : 2 * size]).any(axis=1).mean() > 0.4
    again = lessons(taught, known_everyday.table, seed=2)
    assert np.array_equal(again.gists, lesson.gists)
    plain = lesson_of([row.prompt for row in taught], [row.tier for row in taught], [1.0] * size, known_everyday.table)
    assert np.array_equal(plain.gists, lesson.gists[:size])
