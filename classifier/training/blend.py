"""The loads of a prompt that is unlike those with outcomes: the mean loads of prompts that are as hard.

Hard is what weak models fail and strong ones gain on; both orders count the same, so that a prompt which is easy for all
leads the list, and one that only the strong can do ends it.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KNOTS: Final = 9


class Blend(msgspec.Struct, frozen=True):
    """Loads at evenly spaced complexities from 0 to 1, between which they are interpolated."""

    complexity: list[float]
    loads: list[list[float]]

    def loads_at(self, complexity: Floats) -> Floats:
        """Return (prompts, loads): the loads of these complexities."""
        columns = np.array(self.loads).T
        return np.stack([np.interp(complexity, self.complexity, column) for column in columns], axis=1)


def blend_of(loads: Floats, weak: Floats, strong: Floats, weights: Floats) -> Blend:
    """Return the blend for prompts with these loads, chances of weak and strong models, and weights that add up to 1."""
    hardness = (_cumulative_shares(-weak, weights) + _cumulative_shares(strong - weak, weights)) / 2
    order = np.argsort(hardness, kind="stable")
    below = np.cumsum(weights[order])
    knots = np.linspace(0, 1, KNOTS)
    half = 1 / (KNOTS - 1)
    means = []
    for knot in knots:
        away = np.abs(below - knot)
        # Where a few prompts weigh much there may be none so near; then the nearest stand in.
        near = np.maximum(0.0, 1 - away / max(half, 2 * away.min())) * weights[order]
        means.append((near / near.sum()) @ loads[order])
    return Blend([round(float(knot), 6) for knot in knots], np.round(means, 5).tolist())


def _cumulative_shares(values: Floats, weights: Floats) -> Floats:
    """Return the weighted share of the whole that lies at or below each value."""
    order = np.argsort(values, kind="stable")
    shares = np.empty(len(values))
    shares[order] = np.cumsum(weights[order])
    return shares
