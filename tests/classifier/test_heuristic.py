"""The structural rule and the length that a prompt asks for."""

import pytest
from hypothesis import given, settings

from classifier.features import extract
from classifier.heuristic import MAX_OUTPUT_TOKENS, MIN_OUTPUT_TOKENS, HeuristicClassifier, asked_tokens
from classifier.prediction import Prompt
from tests.classifier.obvious import EASY, HARD
from tests.classifier.test_features import PROMPTS


@settings(deadline=None)
@given(PROMPTS)
def test_any_prompt_is_scored_within_bounds(prompt: Prompt) -> None:
    """Any prompt gets a complexity in [0, 1] and a bounded length, and says where it comes from."""
    rule = HeuristicClassifier()
    said = rule.classify(prompt)
    assert 0 <= said.complexity <= 1
    assert MIN_OUTPUT_TOKENS <= said.expected_output_tokens <= MAX_OUTPUT_TOKENS
    assert said.source == "heuristic"
    assert rule.fallbacks == 0


def test_obvious_prompts_are_in_order() -> None:
    """Every plainly easy prompt scores below every plainly hard one."""
    rule = HeuristicClassifier()
    easy = [rule.classify(Prompt(text=text)).complexity for text in EASY]
    hard = [rule.classify(Prompt(text=text)).complexity for text in HARD]
    assert max(easy) < min(hard)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Explain it in 200 words.", 270),
        ("a 2-page letter", 1300),
        ("Three paragraphs, please.", None),
        ("Describe 0 words", None),
        ("", None),
    ],
)
def test_a_length_that_is_asked_for_is_read(text: str, tokens: float | None) -> None:
    """A number of words, lines, sentences, paragraphs or pages becomes tokens; anything else does not."""
    assert asked_tokens(extract(Prompt(text=text)).asked) == pytest.approx(tokens)
