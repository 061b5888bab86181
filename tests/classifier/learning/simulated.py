"""Simulated traffic: prompts with loads and a sketch, targets with abilities, and honest verdicts."""

from collections.abc import Sequence

import msgspec
import numpy as np

from classifier.learning.labels import Floats, probability
from classifier.tuning import SKETCH, Ability

LOADS = 6


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome as the store gives it."""

    request_id: str
    target_id: str
    vector: bytes
    adequate: float
    team_id: str = "team_a"
    weight: float = 1.0
    source: str = "feedback"
    at_us: int = 0


def unit(rows: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


def vectors(loads: Floats, sketches: Floats) -> list[bytes]:
    return [row.tobytes() for row in np.c_[loads, sketches].astype("<f2")]


def sketches_of(templates: Floats, application: Sequence[int], rng: np.random.Generator, noise: float = 0.6) -> Floats:
    """Prompts cut from templates: alike within an application, hardly between two."""
    chosen = templates[np.asarray(application)]
    return unit(chosen + noise * unit(rng.normal(size=chosen.shape)))


def templates(count: int, rng: np.random.Generator) -> Floats:
    return unit(rng.normal(size=(count, SKETCH)))


def verdicts(
    abilities: dict[str, Ability],
    loads: Floats,
    sketches: Floats,
    rng: np.random.Generator,
    *,
    shift: Floats | None = None,
    team_id: str = "team_a",
    start: int = 0,
) -> list[Verdict]:
    """One verdict on each prompt, of the targets in turn, one microsecond after the other."""
    found = []
    names = list(abilities)
    for index, vector in enumerate(vectors(loads, sketches)):
        name = names[index % len(names)]
        ability = abilities[name]
        logit = ability.bias + loads[index] @ np.asarray(ability.weights) + (0 if shift is None else shift[index])
        found.append(
            Verdict(
                request_id=f"{team_id}-{start + index}",
                target_id=name,
                vector=vector,
                adequate=float(rng.random() < probability(np.array([logit]))[0]),
                team_id=team_id,
                at_us=start + index,
            )
        )
    return found


def ability(*weights: float, bias: float = 0.0, count: int = 0) -> Ability:
    return Ability(weights=[*weights, *[0.0] * (LOADS - len(weights))], bias=bias, verdicts=count)
