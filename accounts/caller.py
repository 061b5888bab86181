"""The authenticated caller of a request, as every later stage of the proxy gets it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

Learning = Literal["off", "numbers", "prompts"]
"""Data of a team's requests that may be kept to learn from: none, numbers that are not text, or prompts as well."""
Escalation = Literal["off", "whole", "all", "agreement", "agreement-all"]
"""Repeating a weak answer at a better target: never, for whole replies, or for streams as well. With `agreement` two cheap targets are
asked as well before a dear one, where their answers can be compared: for whole replies, or for streams as well.
"""
CacheUse = Literal["default", "on", "off"]
"""Whether a team's answers are kept and given again: as the configuration says, by themselves where the temperature is 0, or never."""
Role = Literal["member", "finance", "admin"]
"""Rights of a key beside calling models: `finance` reads all teams' figures, `admin` also sets prices and budgets."""


class TeamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A team's own settings. `quality_floor` is the share of the reference's quality to keep; None takes the gateway's."""

    quality_floor: float | None = None
    escalation: Escalation = "off"
    learning: Learning = "numbers"
    shadow_share: float = 0.0
    """Share of the team's requests, in [0, 1], that the reference target answers as well, for comparison."""
    weight: float = 1.0
    """The team's weight in sharing out a target at capacity, relative to other teams' weights."""
    spill_over: bool = True
    """Allows requests to overflow to a paid target when our own engines would keep them waiting."""
    continue_streams: bool = False
    """Has another replica go on with a streamed answer whose replica died."""
    cache: CacheUse = "default"
    cache_ttl_s: int | None = None
    """Seconds for which its answers are kept, where that is less than the gateway's; None takes the gateway's."""
    cache_epoch: int = 0
    """Number of times that its answers were flushed: what was kept before has another key."""

    @property
    def learns(self) -> bool:
        """True when the team allows learning from its requests."""
        return self.learning != "off"


def narrowed(of_team: frozenset[str] | None, of_key: Iterable[str] | None) -> frozenset[str] | None:
    """Return the models that a key may use: its own, as far as its team may use them; None for all.

    A name that ends in `*` is a wildcard of the configuration, which allows all that it stands for.
    """
    if of_key is None:
        return of_team
    own = frozenset(of_key)
    if of_team is None:
        return own
    return frozenset(name for name in own if _allows(of_team, name)) | frozenset(
        name for name in of_team if _allows(own, name)
    )


def _allows(allowed: frozenset[str], name: str) -> bool:
    return name in allowed or any(each.endswith("*") and name.startswith(each[:-1]) for each in allowed)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a valid key, and the team's settings. `allowed_models` is None when every model is allowed."""

    key_id: str
    key_name: str
    team_id: str
    organisation_id: str
    allowed_models: frozenset[str] | None = None
    settings: TeamSettings = TeamSettings()
    role: Role = "member"
    guard: tuple[str, str] | None = None
    """The guard's rules of its organisation and of its team, as JSON, empty for none; None where neither has any."""

    @property
    def scope(self) -> tuple[str, str]:
        """The team and the key, as circuit breakers keep apart whose requests failed."""
        return self.team_id, self.key_id

    @property
    def reads_only(self) -> bool:
        """True for the finance role, which reads everything, changes nothing and therefore calls no model."""
        return self.role == "finance"
