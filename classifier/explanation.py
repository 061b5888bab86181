"""Explanation of a prompt's score: each feature is removed in turn, and the prompt scored again."""

import re
from typing import Final

import msgspec

from classifier.features import STRUCTURE, Features, Values, extract, read_text
from classifier.onnx_classifier import OnnxClassifier
from classifier.prediction import Prompt

MAX_WORDS: Final = 400
"""Distinct words of a prompt that are examined, in order; each costs one more scoring."""
EXPLAINED: Final = frozenset(
    {"llama-3-70b-instruct", "llama-3.1-70b-instruct", "gpt-4o-2024-05-13", "claude-3-5-sonnet-20240620"}
)
"""Abilities whose probabilities are told beside a score when not all are."""
_WORD: Final = re.compile(r"\w+")
_LEAST: Final = 5e-5


class Contribution(msgspec.Struct, frozen=True):
    """The effect of one feature: without it the complexity would be lower by `effect`."""

    name: str
    effect: float


def contributions(classifier: OnnxClassifier, prompt: Prompt) -> list[Contribution]:
    """Return the effects of leaving each word out, and of giving each fact its usual value, largest first; tiny ones
    are left out.
    """
    whole = extract(prompt)
    score = _complexity(classifier, whole)
    found = [
        Contribution(f"word {word!r}", score - _complexity(classifier, without))
        for word, without in _without_words(prompt, whole)
    ]
    for at, name in enumerate(STRUCTURE):
        changed = with_fact(whole, at, classifier.manifest.usual_facts[at])
        found.append(Contribution(f"fact {name}", score - _complexity(classifier, changed)))
    return sorted((each for each in found if abs(each.effect) > _LEAST), key=lambda each: -abs(each.effect))


def with_fact(features: Features, at: int, value: float) -> Features:
    """Return the features with another value of this fact of STRUCTURE, of the message and of its parts that had the same one."""
    was = features.structure.item(at)

    def told(structure: Values) -> Values:
        changed = structure.copy()
        changed[at] = value if structure.item(at) == was else structure[at]
        return changed

    ask, question = (
        msgspec.structs.replace(part, structure=told(part.structure)) for part in (features.ask, features.question)
    )
    return msgspec.structs.replace(features, structure=told(features.structure), ask=ask, question=question)


def _complexity(classifier: OnnxClassifier, features: Features) -> float:
    return classifier.place(features).complexity


def _without_words(prompt: Prompt, whole: Features) -> list[tuple[str, Features]]:
    """Return each word with the features that remain without it; the facts stay, so the effect is the word's alone.

    Only the text that the classifier reads is examined: a bounded part of a long one.
    """
    text = read_text(prompt).decode("utf-8", "replace")
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))[:MAX_WORDS]
    found = []
    for word in words:
        rest = re.sub(rf"\b{re.escape(word)}\b", " ", text, flags=re.IGNORECASE)
        shorter = extract(Prompt(text=rest))
        ask, question = (
            msgspec.structs.replace(part, structure=own.structure)
            for part, own in ((shorter.ask, whole.ask), (shorter.question, whole.question))
        )
        told = msgspec.structs.replace(
            shorter, structure=whole.structure, before=whole.before, ask=ask, question=question
        )
        found.append((word, told))
    return found
