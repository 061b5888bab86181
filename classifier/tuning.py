"""What is learned after training: abilities of this house's targets, and groups of similar prompts of its teams.

The trained network computes a prompt's loads; a target's ability is the small row that meets them:

    logit P(adequate) = bias + weights · loads + shift of the prompt's group

so a new target needs one row, and refitting never touches the network.
"""

from typing import Final

import msgspec

SKETCH: Final = 64
"""Numbers of a sketch: signed hashed words and pairs, of length 1. Its dot product says how alike two prompts are."""


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    """One target's row. `weights` has one number a load; `verdicts` tells how many outcomes stand behind it."""

    weights: list[float]
    bias: float
    log_length: float = 0.0
    """The logarithm of its answers' length beside the usual length."""
    verdicts: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Similar prompts of one team. `shift` is what its own outcomes add to a target's logit, already shrunk."""

    group_id: str
    centre: list[float]
    """A unit vector of SKETCH numbers."""
    shift: dict[str, float]
    verdicts: int
    reach: float = 0.2
    """A prompt that is less like the centre than this does not belong to the group."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """One version of what was learned. `artifact` names the model whose loads it was fitted to."""

    version: int
    artifact: str
    abilities: dict[str, Ability] = {}
    """By target id; they stand before the ability that the target's configuration names."""
    groups: dict[str, list[Group]] = {}
    """By team id."""
