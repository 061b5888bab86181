"""A sketch: of length 1, alike for prompts alike, and telling of words alone."""

import random

import numpy as np
import pytest
from hypothesis import given, settings

from classifier.features import extract
from classifier.prediction import Prompt
from classifier.tuning import SKETCH
from tests.classifier.made_up import WORDS
from tests.classifier.test_features import PROMPTS

VOCABULARY = [f"{one}{other}" for words in WORDS.values() for one in words for other in words]


def of(text: str) -> np.ndarray:
    return extract(Prompt(text=text)).sketch


@settings(deadline=None)
@given(PROMPTS)
def test_any_prompt_has_a_sketch_of_length_one(prompt: Prompt) -> None:
    """Any prompt gives SKETCH finite numbers of length 1, or nothing but 0, and the same each time."""
    found = extract(prompt).sketch
    assert found.shape == (SKETCH,)
    assert found.dtype == np.float32
    length = float(np.linalg.norm(found))
    assert length == pytest.approx(1.0, abs=1e-5) or length == 0.0
    assert np.array_equal(extract(prompt).sketch, found)


def test_no_words_no_sketch() -> None:
    """A prompt without words is like nothing, not even like itself."""
    assert not of("").any()
    assert not of("?! ...").any()


def test_prompts_from_one_template_are_alike_and_others_are_not() -> None:
    """Filled templates lie near each other; unlike texts have a likeness of about 0, give or take an eighth."""
    draw = random.Random(3)
    same = [
        of(f"Sort this complaint about {draw.choice(VOCABULARY)} into one of five queues: ours, mail")
        for _ in range(20)
    ]
    other = [of(" ".join(draw.choices(VOCABULARY, k=12))) for _ in range(200)]
    assert min(float(one @ same[0]) for one in same) > 0.5
    between = [float(one @ two) for one, two in zip(other[::2], other[1::2], strict=True)]
    assert abs(np.mean(between)) < 0.05
    assert np.std(between) < 0.2


def test_a_dot_product_is_about_that_of_the_words() -> None:
    """Half of the words in common is a likeness of about one half."""
    draw, found = random.Random(1), []
    for _ in range(100):
        words = draw.sample(VOCABULARY, 30)
        # Blank lines between words would not matter: pairs are told by neighbours, so whole halves are kept.
        found.append(float(of(" ".join(words[:20])) @ of(" ".join(words[:10] + words[20:]))))
    assert np.mean(found) == pytest.approx(0.5, abs=0.06)


def test_facts_do_not_move_it() -> None:
    """Tools, images and turns are no words."""
    bare, laden = Prompt(text="book a slot"), Prompt(text="book a slot", tools=5, images=1, turns=4)
    assert np.array_equal(extract(bare).sketch, extract(laden).sketch)
