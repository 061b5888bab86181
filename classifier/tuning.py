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
    """Natural logarithm of its billed answer tokens over gpt-4o's, for the same prompt in the same form."""
    verdicts: int = 0
    basis: Literal["outcomes", "published"] = "outcomes"
    """The origin of a row: fitted to outcomes, or placed by scores that others published."""
    reach: float = 0.0
    """Addition to the half-width of the 90 % interval of P(adequate), as a row placed by published scores is less sure."""
    extrapolated: bool = False
    """True where the model's published scores are above those of all models with outcomes."""


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
    lengths: dict[str, float] = {}
    """`log_length` by target id, of targets whose own answers tell it; it takes precedence over that of their row."""
