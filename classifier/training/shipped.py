"""Scores and times of a loaded classifier on a corpus, through the same interface as a request."""

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
import numpy as np

from classifier.prediction import Prediction, Prompt
from classifier.training.data import Corpus, Floats, Integers
from classifier.training.evaluate import Scored, Timing

WARM_UP: Final = 50
TOLD_EVERY_S: Final = 10.0


class ShippedClassifier(Protocol):
    """A classifier as requests use it."""

    def classify(self, prompt: Prompt) -> Prediction: ...


class Weighed(msgspec.Struct, frozen=True):
    """Scores of the chosen rows, and times of all."""

    scored: Scored
    timing: Timing


def weighed(classifier: ShippedClassifier, corpus: Corpus, rows: Integers, say: Callable[[str], None]) -> Weighed:
    """Classify the whole corpus: scores for `rows`, times for every prompt."""
    spent_ms = np.full(len(corpus.texts), np.nan)
    found = _classify_all(classifier, corpus, spent_ms, say)
    characters = np.array([len(text) for text in corpus.texts], np.float64)
    return Weighed(_as_scored(corpus, rows, {row: found[row] for row in rows.tolist()}), Timing(spent_ms, characters))


def _classify_all(
    classifier: ShippedClassifier, corpus: Corpus, spent: Floats, say: Callable[[str], None]
) -> dict[int, Prediction]:
    for row in range(min(WARM_UP, len(corpus.texts))):
        classifier.classify(corpus.prompt(row))
    found = {}
    for row in _with_progress(range(len(corpus.texts)), say):
        prompt = corpus.prompt(row)
        start = time.perf_counter()
        found[row] = classifier.classify(prompt)
        spent[row] = 1000 * (time.perf_counter() - start)
    return found


def _with_progress(rows: range, say: Callable[[str], None]) -> Iterable[int]:
    told_at = time.monotonic()
    for done, row in enumerate(rows):
        if time.monotonic() - told_at > TOLD_EVERY_S:
            told_at = time.monotonic()
            say(f"weighed {done} of {len(rows)} prompts")
        yield row


def _as_scored(corpus: Corpus, rows: Integers, found: dict[int, Prediction]) -> Scored:
    """Return the predictions as a Scored; NaN for every prompt that is not among the rows."""
    size = len(corpus.texts)
    models = sorted({name for each in found.values() for name in each.outlooks} & set(corpus.models))
    adequate = {name: np.full(size, np.nan) for name in models}
    output_tokens = {name: np.full(size, np.nan) for name in models}
    complexity = np.full(size, np.nan)
    for row in rows.tolist():
        complexity[row] = found[row].complexity
        for name in models:
            outlook = found[row].outlooks.get(name)
            if outlook is not None:
                adequate[name][row] = outlook.adequate
                output_tokens[name][row] = outlook.output_tokens
    return Scored(adequate=adequate, complexity=complexity, output_tokens=output_tokens)
