"""What a loaded classifier says of a corpus, through the same doors as a request, and how long it takes."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol, runtime_checkable

import msgspec
import numpy as np

from classifier.prediction import Prediction, Prompt
from classifier.training.data import Corpus, Floats, Integers
from classifier.training.evaluate import Scored, Timing

WARM_UP: Final = 50
TIMED_SECOND: Final = 400
"""So many prompts tell how long the second weigher takes where no more of it is needed."""
TRIED: Final = 5
TOLD_EVERY_S: Final = 10.0


class Weighs(Protocol):
    def classify(self, prompt: Prompt) -> Prediction: ...


@runtime_checkable
class Reconsiders(Protocol):
    async def reconsider(self, prompt: Prompt, prediction: Prediction, team_id: str = "") -> Prediction: ...


class Weighed(msgspec.Struct, frozen=True):
    scored: Scored
    timing: Timing
    late: int
    """How often the second weigher did not answer in time, so that the first's answer stood."""


def weighed(classifier: Weighs, corpus: Corpus, rows: Integers, say: Callable[[str], None]) -> Weighed:
    """Both weighers on `rows`; the first alone, for its time, on every other prompt."""
    size = len(corpus.texts)
    first_ms, second_ms = np.full(size, np.nan), np.full(size, np.nan)
    first = _weigh_first(classifier, corpus, first_ms, say)
    scored = _table(corpus, rows, {row: first[row] for row in rows.tolist()})
    second = asyncio.run(_weigh_second(classifier, corpus, rows, first, second_ms, say))
    reconsidered = _table(corpus, rows, second).adequate if second and len(rows) else None
    late = sum(each.source != "encoder" for each in second.values())
    characters = np.array([len(text) for text in corpus.texts], np.float64)
    scored = msgspec.structs.replace(scored, reconsidered=reconsidered)
    return Weighed(scored, Timing(first_ms, second_ms, characters), late)


def _weigh_first(
    classifier: Weighs, corpus: Corpus, spent: Floats, say: Callable[[str], None]
) -> dict[int, Prediction]:
    for row in range(min(WARM_UP, len(corpus.texts))):
        classifier.classify(corpus.prompt(row))
    found = {}
    for row in _told("first weigher", range(len(corpus.texts)), say):
        prompt = corpus.prompt(row)
        start = time.perf_counter()
        found[row] = classifier.classify(prompt)
        spent[row] = 1000 * (time.perf_counter() - start)
    return found


async def _weigh_second(
    classifier: Weighs,
    corpus: Corpus,
    rows: Integers,
    first: dict[int, Prediction],
    spent: Floats,
    say: Callable[[str], None],
) -> dict[int, Prediction]:
    """Nothing where there is no second weigher. Without rows to judge it is only timed, on prompts from everywhere."""
    if not isinstance(classifier, Reconsiders):
        return {}
    every = np.linspace(0, len(corpus.texts) - 1, min(TIMED_SECOND, len(corpus.texts))).astype(np.int64)
    wanted = (rows if len(rows) else every).tolist()
    tries = [await classifier.reconsider(corpus.prompt(row), first[row]) for row in wanted[:TRIED]]
    if not any(each.source == "encoder" for each in tries):
        return {}
    found = {}
    for row in _told("second weigher", wanted, say):
        prompt = corpus.prompt(row)
        start = time.perf_counter()
        found[row] = await classifier.reconsider(prompt, first[row])
        spent[row] = 1000 * (time.perf_counter() - start)
    return found


def _told(what: str, rows: "range | list[int]", say: Callable[[str], None]) -> Iterable[int]:
    told_at = time.monotonic()
    for done, row in enumerate(rows):
        if time.monotonic() - told_at > TOLD_EVERY_S:
            told_at = time.monotonic()
            say(f"{what}: {done} of {len(rows)} prompts")
        yield row


def _table(corpus: Corpus, rows: Integers, found: dict[int, Prediction]) -> Scored:
    """What was said, by model; NaN for every prompt that is not among the rows."""
    size = len(corpus.texts)
    models = sorted({name for each in found.values() for name in each.outlooks} & set(corpus.models))
    adequate, low, high = ({name: np.full(size, np.nan) for name in models} for _ in range(3))
    complexity = np.full(size, np.nan)
    for row in rows.tolist():
        complexity[row] = found[row].complexity
        for name in models:
            outlook = found[row].outlooks.get(name)
            if outlook is not None:
                adequate[name][row], low[name][row], high[name][row] = outlook.adequate, outlook.low, outlook.high
    return Scored(adequate=adequate, low=low, high=high, complexity=complexity)
