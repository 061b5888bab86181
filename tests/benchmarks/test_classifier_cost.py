"""The benchmark of a score's cost."""

from benchmarks.classifier_cost import fastest_us, parts, prompt_of
from classifier.prediction import Prompt
from classifier.tokens import estimate_tokens


def test_a_prompt_has_as_many_tokens_as_were_asked_for() -> None:
    """And is a text's beginning."""
    text = "A sentence of some words, and a number: 1234.\n" * 400
    found = prompt_of(text, 300)
    assert text.startswith(found.text)
    assert 295 <= estimate_tokens(found.text) <= 300


def test_every_part_is_measured() -> None:
    """All take time, and the parts less than the whole."""
    found = parts(Prompt(text="Prove that the square root of two is irrational. " * 20), rounds=3)
    assert all(us > 0 for us in found.values())
    assert found["features and what they look up"] < found["text to outlooks"]


def test_the_fastest_round_counts() -> None:
    """Each of the calls of a round is made."""
    made: list[int] = []
    fastest_us(lambda: made.append(1), rounds=5, calls=4)
    assert len(made) == 20
