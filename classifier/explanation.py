"""Which features of a prompt moved its score: each is taken away in turn, and the prompt weighed again."""

import re
from typing import Final

import msgspec
import numpy as np

from classifier.features import STRUCTURE, Features, extract, read_text
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt

MAX_WORDS: Final = 400
"""Different words of a prompt that are looked at, the first ones: each costs one weighing."""
_WORD: Final = re.compile(r"\w+")
_LEAST: Final = 5e-5


class Contribution(msgspec.Struct, frozen=True):
    """How far one feature moved the complexity: it would be lower by `effect` without it."""

    name: str
    effect: float


def contributions(classifier: OnnxClassifier, prompt: Prompt) -> list[Contribution]:
    """Words that are left out, and facts that are given their usual value, largest effect first."""
    whole = extract(prompt)
    score = _complexity(classifier, whole)
    found = [
        Contribution(f"word {word!r}", score - _complexity(classifier, without))
        for word, without in _without_words(prompt, whole)
    ]
    for at, name in enumerate(STRUCTURE):
        structure = whole.structure.copy()
        structure[at] = classifier.manifest.usual_facts[at]
        changed = Features(whole.indices, whole.counts, structure, whole.terms)
        found.append(Contribution(f"fact {name}", score - _complexity(classifier, changed)))
    return sorted((each for each in found if abs(each.effect) > _LEAST), key=lambda each: -abs(each.effect))


def _complexity(classifier: OnnxClassifier, features: Features) -> float:
    return classifier.complexity_of(classifier.place(features))


def _without_words(prompt: Prompt, whole: Features) -> list[tuple[str, Features]]:
    """The facts stay as they are, so that a word's effect is that of the word alone.

    Of a long text only what is read is gone through, and of a conversation also the end that is read before a follow-up.
    """
    text = read_text(prompt).decode("utf-8", "replace")
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))[:MAX_WORDS]
    found = []
    for word in words:
        rest = re.sub(rf"\b{re.escape(word)}\b", " ", text, flags=re.IGNORECASE)
        shorter = extract(Prompt(text=rest))
        found.append((word, Features(shorter.indices, shorter.counts, np.copy(whole.structure), shorter.terms)))
    return found
