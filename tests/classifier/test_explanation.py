"""An explanation: taking a feature away and weighing again gives the effect that is told, and nothing else does."""

import pytest
from hypothesis import given, settings

from classifier.explanation import MAX_WORDS, Contribution, contributions, with_fact
from classifier.features import STRUCTURE, extract
from classifier.manifest import Artifact
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt
from tests.classifier.test_features import PROMPTS
from tests.examples import examples

HARD = Prompt(text="Case 9 gate road truck driver lemma morning ticket yard coffee garden letter?")


@pytest.fixture
def classifier(made_up_artifact: Artifact) -> OnnxClassifier:
    return OnnxClassifier(made_up_artifact)


def by_name(found: list[Contribution]) -> dict[str, float]:
    return {each.name: each.effect for each in found}


def test_the_word_that_made_it_hard_leads(classifier: OnnxClassifier) -> None:
    """Of all words the one that only strong models cope with raised the score most."""
    words = [each for each in contributions(classifier, HARD) if each.name.startswith("word")]
    most = max(words, key=lambda each: each.effect)
    assert most.name == "word 'lemma'"
    assert most.effect > 0.05


def test_an_effect_is_what_the_score_would_lose(classifier: OnnxClassifier) -> None:
    """The effect of a fact is the score less that of the same prompt with the fact's usual value."""
    whole, at = extract(HARD), STRUCTURE.index("log_words")
    usual = with_fact(whole, at, classifier.manifest.usual_facts[at])
    placed = [classifier.place(each) for each in (whole, usual)]
    with_it, without = (each.complexity for each in placed)
    assert by_name(contributions(classifier, HARD)).get("fact log_words", 0.0) == pytest.approx(
        with_it - without, abs=1e-4
    )
    assert classifier.classify(HARD).complexity == pytest.approx(with_it)


def test_the_largest_effect_comes_first(classifier: OnnxClassifier) -> None:
    """Ordered by size whatever the sign; what moved nothing is left out."""
    sizes = [abs(each.effect) for each in contributions(classifier, HARD)]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0


def test_a_word_is_explained_once_in_all_its_spellings(classifier: OnnxClassifier) -> None:
    """Capitals make no other word, and a part of a word is not the word."""
    found = by_name(contributions(classifier, Prompt(text=HARD.text + " LEMMA Lemma lemmas")))
    assert len([name for name in found if "lemma'" in name]) == 1


def test_a_long_text_is_explained_by_what_is_read_of_it(classifier: OnnxClassifier) -> None:
    """A megabyte of words takes as many weighings as are allowed; words beyond what is read do not count."""
    text = f"{' '.join(f'w{number}' for number in range(10**5))} lemma {'yard ' * 2000}"
    found = contributions(classifier, Prompt(text=text))
    assert len(found) <= MAX_WORDS + len(STRUCTURE)
    assert "word 'lemma'" not in by_name(found)


@settings(deadline=None, max_examples=examples(30))
@given(PROMPTS)
def test_any_prompt_can_be_explained(made_up_artifact: Artifact, prompt: Prompt) -> None:
    """No prompt makes it fail, the same effects come out each time, and none is more than the whole range."""
    classifier = OnnxClassifier(made_up_artifact)
    found = contributions(classifier, prompt)
    assert all(-1 <= each.effect <= 1 for each in found)
    assert contributions(classifier, prompt) == found


def test_signs_of_a_pattern_in_a_prompt_are_plain_text(classifier: OnnxClassifier) -> None:
    """What looks like a regular expression is taken as it stands."""
    found = by_name(contributions(classifier, Prompt(text=rf"(.*) [a-z]+ \1 $ ^ {HARD.text} (?P<")))
    assert found["word 'lemma'"] > 0
