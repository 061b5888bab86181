"""Answer lengths of own traffic: a target's ratio to gpt-4o's usual length, once it has answered enough. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

FEWEST: Final = 200
"""Least answers of a target; with fewer their mix is mostly chance."""
MOST: Final = 2_000
"""Answers of a target that are looked at, the newest."""


class AnswerLength(NamedTuple):
    """One answer's billed tokens, and the usual ones that its prompt was thought to take."""

    target_id: str
    output_tokens: int
    usual_tokens: int


def own_ratios(answers: Iterable[AnswerLength]) -> Mapping[str, float]:
    """Log ratio by target, of those with FEWEST answers: halfway between that of the median answer and that of the sums."""
    by_target: dict[str, list[tuple[int, int]]] = {}
    for answer in answers:
        if answer.output_tokens > 0 and answer.usual_tokens > 0:
            by_target.setdefault(answer.target_id, []).append((answer.output_tokens, answer.usual_tokens))
    found = {}
    for target_id, told in by_target.items():
        if len(told) >= FEWEST:
            own, usual = np.array(told, np.float64).T
            found[target_id] = round(float(np.median(np.log(own / usual)) + np.log(own.sum() / usual.sum())) / 2, 4)
    return found
