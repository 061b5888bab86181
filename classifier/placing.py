"""Where a prompt stands, by what the graph says of it: how far the network is trusted, and its loads and length by that.

The compiled library does the same with the same numbers, in a fifth of the time.
"""

import itertools
import math
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from classifier.compiled import PLACED, CompiledWords
from classifier.features import COMPILED
from classifier.manifest import ArtifactMalformed, Manifest, Trust

Floats = NDArray[np.float64]
Values = NDArray[np.float32]

BEFORE_LOADS: Final = 2
"""The complexity and the logit of the domain stand before the loads in what the graph says."""
_MAX_LOGIT: Final = 30.0


class NotFinite(Exception):
    """The graph returned infinity or NaN."""


class PlacedPrompt(msgspec.Struct, frozen=True):
    """Where a prompt stands."""

    complexity: float
    trust: float
    """Probability that the prompt is like those with known outcomes; where it is low, the complexity leads."""
    log_tokens: float
    kind: int
    held: bytes
    """The loads, and behind them the vector, as bytes: of few prompts either is asked for."""
    loads_at: slice
    """Where the loads lie in it."""

    @property
    def loads(self) -> Floats:
        """The loads."""
        return np.frombuffer(self.held[self.loads_at], np.float64)

    @property
    def vector(self) -> bytes:
        """Loads, then the sketch, as little-endian float16."""
        return self.held[self.loads_at.stop :]


Place = Callable[[bool], PlacedPrompt]
"""Where the prompt stands of which the graph spoke last, by whether tools are on offer. Raises NotFinite."""


class Blend:
    """Loads and length of a prompt that is unlike those with outcomes: those of its complexity, between two knots."""

    def __init__(self, knots: list[list[float]]) -> None:
        self._pieces = [
            (now, [there - here for here, there in zip(now, then, strict=True)])
            for now, then in itertools.pairwise(knots)
        ]

    def mixed(self, own: list[float], trust: float, complexity: float) -> list[float]:
        """The network's own numbers as far as they are trusted, else those of this complexity, which is in [0, 1]."""
        along = complexity * len(self._pieces)
        at = min(int(along), len(self._pieces) - 1)
        now, steps = self._pieces[at]
        other = 1 - trust
        further = other * (along - at)
        return [trust * a + other * b + further * c for a, b, c in zip(own, now, steps, strict=True)]


def trust_in(settings: Trust, domain: float, complexity: float, *, tools: bool) -> float:
    """The probability of being in the domain, from its logit; with tools, at least what the complexity allows."""
    if tools:
        domain += settings.tools_by_complexity * complexity
    found = logistic(domain)
    if tools:
        allowed = (settings.agents_job - complexity) / (settings.agents_job - settings.one_call)
        return max(found, min(1.0, allowed))
    return found


def logistic(value: float) -> float:
    """The probability of a logit."""
    value = max(value, -_MAX_LOGIT)
    return 1 / (1 + math.exp(-value))


def place_by(said: Values, sketch: Values, manifest: Manifest, compiled: CompiledWords | None = COMPILED) -> Place:
    """The way from the row that the graph leaves in `said`, and the prompt's sketch, to where it stands: compiled where it can be. Raises
    ArtifactMalformed for a row that is shorter than the manifest describes.
    """
    if len(said) < BEFORE_LOADS + manifest.loads + 1 + len(manifest.kinds):
        raise ArtifactMalformed("the graph gives other outputs than the manifest describes")
    return _plainly(said, sketch, manifest) if compiled is None else _compiled(said, sketch, manifest, compiled)


def _plainly(said: Values, sketch: Values, manifest: Manifest) -> Place:
    blend, loads = Blend(manifest.blend), slice(BEFORE_LOADS, BEFORE_LOADS + manifest.loads + 1)
    kinds, loads_at = slice(loads.stop, loads.stop + len(manifest.kinds)), slice(0, 8 * manifest.loads)

    def place(tools: bool) -> PlacedPrompt:
        # Some dozen numbers are sooner handled as a list.
        told: list[float] = said.tolist()
        if not math.isfinite(sum(told)):
            raise NotFinite("an output of the graph")
        complexity, domain = told[:BEFORE_LOADS]
        trust = trust_in(manifest.trust, domain, complexity, tools=tools)
        *mixed, log_tokens = blend.mixed(told[loads], trust, complexity)
        scores, own = told[kinds], np.array(mixed)
        vector = np.concatenate((own.astype(np.float32), sketch)).astype("<f2").tobytes()
        kind, held = scores.index(max(scores)), own.tobytes() + vector
        return PlacedPrompt(complexity, trust, log_tokens, kind, held, loads_at)

    return place


def _compiled(said: Values, sketch: Values, manifest: Manifest, compiled: CompiledWords) -> Place:
    numbers = {"kinds": len(manifest.kinds), **msgspec.structs.asdict(manifest.trust)}
    placing = compiled.with_placing(said, sketch, np.array(manifest.blend), numbers)
    run, room, loads_at = placing.run, placing.room, placing.loads_at

    def place(tools: bool) -> PlacedPrompt:
        if run(tools):
            raise NotFinite("an output of the graph")
        held = room.raw
        complexity, trust, log_tokens, kind = PLACED.unpack_from(held)
        return PlacedPrompt(complexity, trust, log_tokens, int(kind), held, loads_at)

    return place
