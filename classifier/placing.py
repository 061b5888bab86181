"""The place of a prompt by the graph's scores: its complexity, the trust in the network, and its loads and length by that."""

import math
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.manifest import ArtifactMalformed, Manifest, Trust

Floats = NDArray[np.float64]
Values = NDArray[np.float32]

TIERS: Final = 3
"""Probabilities of this tier or more, whose mean is the complexity: they stand last."""
_BEFORE_LOADS: Final = 1
"""The logit of the domain stands before the loads."""
_MAX_LOGIT: Final = 30.0


class NotFinite(Exception):
    """The graph returned infinity or NaN."""


class PlacedPrompt(msgspec.Struct, frozen=True):
    """The place of a prompt."""

    complexity: float
    trust: float
    """Probability that the prompt is like those with known outcomes; where it is low, the complexity leads."""
    log_tokens: float
    kind: int
    kind_chance: float
    """Probability of that kind of task."""
    loads: Floats


Place = Callable[[bool], PlacedPrompt]
"""A function that returns the place of the prompt whose scores the graph left last, by whether tools are on offer. Raises
NotFinite.
"""


class Blend:
    """Loads and length of a prompt that is unlike those with outcomes: those of its complexity, between two knots."""

    def __init__(self, knots: list[list[float]]) -> None:
        here = np.array(knots)
        # A product of three rows takes half the time of a loop over their numbers. The first is for the network's own.
        self._pieces = np.stack([np.zeros_like(here[1:]), here[:-1], np.diff(here, axis=0)], axis=1)

    def mixed(self, own: Values, trust: float, complexity: float) -> Floats:
        """Return the network's own numbers as far as they are trusted, else those of this complexity, which is in [0, 1]."""
        along = complexity * len(self._pieces)
        at = min(int(along), len(self._pieces) - 1)
        rows, other = self._pieces[at], 1 - trust
        rows[0] = own
        found: Floats = np.array((trust, other, other * (along - at))).dot(rows)
        return found


def trust_in(settings: Trust, domain: float, complexity: float, *, tools: bool) -> float:
    """Return the probability of being in the domain, from its logit; with tools, at least what the complexity allows."""
    if tools:
        domain += settings.tools_by_complexity * complexity
    found = logistic(domain)
    if tools:
        allowed = (settings.agents_job - complexity) / (settings.agents_job - settings.one_call)
        return max(found, min(1.0, allowed))
    return found


def logistic(value: float) -> float:
    """Return the probability of a logit."""
    # A comparison costs a third of what a call of max does, and each request asks for some.
    return 1 / (1 + math.exp(-value if value > -_MAX_LOGIT else _MAX_LOGIT))


def place_by(scores: Values, manifest: Manifest) -> Place:
    """Return the function from the row that the graph leaves in `scores` to the prompt's place. Raises ArtifactMalformed for a
    row that is not as long as the manifest describes.
    """
    loads, kinds, trust, blend = manifest.loads, len(manifest.kinds), manifest.trust, Blend(manifest.blend)
    length = _BEFORE_LOADS + loads
    of_kinds = slice(length + 1, length + 1 + kinds)
    if len(scores) != of_kinds.stop + TIERS:
        raise ArtifactMalformed("the graph gives other outputs than the manifest describes")
    own = scores[_BEFORE_LOADS : length + 1]

    def place(tools: bool) -> PlacedPrompt:
        # Some dozen numbers are sooner handled as a list.
        told: list[float] = scores.tolist()
        if not math.isfinite(sum(told)):
            raise NotFinite("an output of the graph")
        one, two, three = told[-TIERS:]
        complexity = (logistic(one) + logistic(two) + logistic(three)) / TIERS
        trusted = trust_in(trust, told[0], complexity, tools=tools)
        mixed, likely = blend.mixed(own, trusted, complexity), told[of_kinds]
        most = max(likely)
        chance = 1 / sum([math.exp(each - most) for each in likely])
        return PlacedPrompt(complexity, trusted, float(mixed[loads]), likely.index(most), chance, mixed[:loads])

    return place
