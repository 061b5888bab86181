"""A tuning, learned after training: abilities of the operator's own targets, and groups of teams' similar prompts.

The trained network computes a prompt's loads; a target's ability is a row of weights for them:

    logit P(adequate) = bias + weights · loads + shift of the prompt's group

so a new target needs one row, and refitting never touches the network.
"""

from typing import Final, Literal

import msgspec

SKETCH: Final = 64
"""Length of a sketch: signed hashed words and pairs, normalised. A dot product of two is the prompts' similarity."""


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """One target's row. `weights` has one number for each load; `verdicts` is the number of outcomes it was fitted to."""

    weights: list[float]
    bias: float
    log_length: float = 0.0
    """Natural logarithm of the ratio of its answers' length to the usual length."""
    verdicts: int = 0
    basis: Literal["outcomes", "published"] = "outcomes"
    """What it was fitted to: outcomes of the model's own answers, or its published scores alone."""
    reach: float = 0.0
    """What is added to half of the width of P(adequate)'s 90 % interval."""
    extrapolated: bool = False
    """True of a model that is better than all whose outcomes were fitted."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Similar prompts of one team. `shift` is already shrunk towards 0."""

    group_id: str
    centre: list[float]
    """A unit vector of SKETCH numbers."""
    shift: dict[str, float]
    """Logits to add, by target id."""
    verdicts: int
    reach: float = 0.2
    """Least cosine similarity to the centre of a prompt that belongs to the group."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """One version of what was learned. `artifact` names the model whose loads it was fitted to."""

    version: int
    artifact: str
    abilities: dict[str, Ability] = {}
    """Ability by target id; it takes precedence over the one that the target's configuration names."""
    groups: dict[str, list[Group]] = {}
    """Groups by team id."""
    measured: dict[str, Ability] = {}
    """Abilities that the calibration set gave, by target id. A refit starts from them as from those that ship, so they are
    kept beside what verdicts have made of them since.
    """
