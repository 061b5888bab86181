"""The error of rows made of published scores alone: a part of `weighbridge classifier study-new-models`.

Judged are models that neither the network nor any row had seen, with their families, on prompts that it had not seen either.
Beside them stands what else is known of a new model before anything is asked: nothing (`declared .5`), or its price.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from classifier.measuring.ability_row import Floats, chances
from classifier.training.data import Integers
from classifier.training.measures import apgr
from classifier.training.published import (
    PLACED_BY,
    RELEASED,
    WIDER,
    Board,
    Placing,
    grounds_of,
    outcome_line,
    standings,
)
from classifier.tuning import Ability

Note = Callable[[str, str, float], None]

DECLARED: Final = 0.725
"""The chance that a declared capability of .5 stood for, before models had rows by their names."""
FEWEST: Final = 150
"""Least judged answers of a model in a source."""
LEAST_GAP: Final = 0.02
"""Least difference of two models' means for which one of them is the stronger."""
FEWEST_SCORES: Final = 2
"""Least published scores of a model that is judged."""
PRICES: Final = {
    "claude-3-5-sonnet-20240620": 15.0,
    "claude-3-haiku-20240307": 1.25,
    "claude-3-opus-20240229": 75.0,
    "claude-3-sonnet-20240229": 15.0,
    "command-r-plus": 15.0,
    "deepseek-v2-chat-0628": 0.28,
    "gemini-1.5-flash": 1.05,
    "gemini-1.5-flash-002": 0.3,
    "gemini-1.5-pro": 10.5,
    "gemini-1.5-pro-002": 5.0,
    "gpt-3.5-turbo-0125": 1.5,
    "gpt-4-0314": 60.0,
    "gpt-4-1106-preview": 30.0,
    "gpt-4-turbo-2024-04-09": 30.0,
    "gpt-4o-2024-05-13": 15.0,
    "gpt-4o-2024-08-06": 10.0,
    "gpt-4o-mini-2024-07-18": 0.6,
    "mistral-large-2": 9.0,
    "o1-mini-2024-09-12": 12.0,
    "o1-preview-2024-09-12": 60.0,
}
"""US$ for a million output tokens, as their providers listed them in 2024."""


class LeftOut:
    """Models of one family, judged on all of these prompts, for no answer to any of them goes into their rows."""

    def __init__(
        self,
        board: Board,
        models: list[str],
        known: Mapping[str, Ability],
        loads: Floats,
        sources: np.ndarray[tuple[int], np.dtype[np.str_]],
        answers: Callable[[str], Floats],
    ) -> None:
        lines = {outcome_line(model) for model in models}
        hidden = [at for at, line in enumerate(board.lines) if line in lines]
        found = standings(board.without(hidden, [name for name in board.columns if name.startswith("source")]))
        self.placing = Placing(found, grounds_of(loads, sources, known))
        self.models, self.known, self.loads, self.sources = models, known, loads, sources
        self._answers = answers
        self.scored = [model for model in models if self._scores(found.board, model) >= FEWEST_SCORES]

    @staticmethod
    def _scores(board: Board, model: str) -> int:
        line = outcome_line(model)
        if line not in board.lines:
            return 0
        told = zip(board.columns, board.values[board.lines.index(line)].tolist(), strict=True)
        return sum(not np.isnan(value) and name != RELEASED for name, value in told)

    def _rows(self, source: str, *models: str) -> Integers:
        there = np.isin(self.sources, PLACED_BY[source])
        for model in models:
            there = there & ~np.isnan(self._answers(model))
        return np.flatnonzero(there)

    def judge(self, note: Note) -> None:
        """Note the error of each model's mean in each source, the coverage of its interval, and the APGR of each pair."""
        rows = {model: self.placing.placed(outcome_line(model).key) for model in self.scored}
        for model, row in rows.items():
            for source, at in self._sources(model):
                true = float(self._answers(model)[at].mean())
                mean = float(chances(row.values, self.loads[at]).mean())
                logit, variance = self.placing.means(outcome_line(model).key)[source]
                away = 1.645 * WIDER * np.sqrt(variance)
                low, high = (1 / (1 + np.exp(-(logit + sign * away))) for sign in (-1, 1))
                for name in ("mean error", f"mean error {source}"):
                    note(name, "published", abs(mean - true))
                    note(name, "declared .5", abs(DECLARED - true))
                    if model in PRICES:
                        note(f"{name}, priced", "published", abs(mean - true))
                        note(f"{name}, priced", "by price", abs(float(self._levelled(model, at).mean()) - true))
                note("interval holds", "published", float(low <= true <= high))
        for weak, strong, at in self._pairs():
            gain = self._answers(strong)[at] - self._answers(weak)[at]
            said = chances(rows[strong].values, self.loads[at]) - chances(rows[weak].values, self.loads[at])
            note("APGR of pairs", "published", apgr(said, gain))
            note("APGR of pairs", "declared .5", apgr(np.zeros(len(at)), gain))
            if weak in PRICES and strong in PRICES:
                note("APGR of pairs, priced", "published", apgr(said, gain))
                said = self._levelled(strong, at) - self._levelled(weak, at)
                note("APGR of pairs, priced", "by price", apgr(said, gain))

    def _sources(self, model: str) -> Iterator[tuple[str, Integers]]:
        for source in self.placing.means(outcome_line(model).key):
            at = self._rows(source, model)
            if len(at) >= FEWEST:
                yield source, at

    def _pairs(self) -> Iterator[tuple[str, str, Integers]]:
        for one, other in itertools.combinations(self.scored, 2):
            for source in self.placing.grounds.loads:
                at = self._rows(source, one, other)
                if len(at) < FEWEST:
                    continue
                gap = float((self._answers(other)[at] - self._answers(one)[at]).mean())
                if abs(gap) >= LEAST_GAP:
                    yield (one, other, at) if gap > 0 else (other, one, at)

    def _levelled(self, model: str, at: Integers) -> Floats:
        """Return the average row of the known models, at the level of models of this price."""
        priced = [name for name in self.known if name in PRICES]
        levels = np.array([chances(self._row(name), self.loads[at]).mean() for name in priced])
        levels = np.log(levels / (1 - levels))
        slope, start = np.polyfit(np.log([PRICES[name] for name in priced]), levels, 1)
        wanted = 1 / (1 + np.exp(-(start + slope * np.log(PRICES[model]))))
        row = np.mean([self._row(name) for name in self.known], axis=0)
        for _ in range(50):
            row[0] += wanted - chances(row, self.loads[at]).mean()
        return chances(row, self.loads[at])

    def _row(self, name: str) -> Floats:
        row: Floats = np.r_[self.known[name].bias, self.known[name].weights]
        return row
