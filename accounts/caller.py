"""Who is calling, as every later stage knows it."""

from typing import Literal

import msgspec

Learning = Literal["off", "numbers", "prompts"]
"""What a team lets us keep of its requests, to learn from: nothing, numbers that are not text, or the prompts too."""
Escalation = Literal["off", "whole", "all"]
"""Whether a weak answer is asked again of a better target: never, of whole replies, or of streams as well."""
Role = Literal["member", "finance", "admin"]
"""What a key may do beside calling models: `finance` reads all teams' figures, `admin` also sets prices and budgets."""


class TeamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a team chose. `quality_floor` is the share of the reference's quality to keep; None takes the gateway's."""

    quality_floor: float | None = None
    escalation: Escalation = "off"
    learning: Learning = "numbers"
    shadow_share: float = 0.0
    """The share of its requests, in [0, 1], that the reference target answers too, to be compared."""
    weight: float = 1.0
    """Its share of a target that is short, beside the other teams' weights."""
    spill_over: bool = True
    """Whether its requests may go to a paid target when our own would keep them waiting."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a valid key. `allowed_models` is None when the team may use every model."""

    key_id: str
    key_name: str
    team_id: str
    organisation_id: str
    allowed_models: frozenset[str] | None = None
    settings: TeamSettings = TeamSettings()
    role: Role = "member"

    @property
    def reads_only(self) -> bool:
        """A key of the finance role reads everything and changes nothing, so it also calls no model."""
        return self.role == "finance"
