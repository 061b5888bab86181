"""A scorer: some teams' requests stay with providers in their own region, and one provider is disliked by an amount."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weighbridge.plugins import Candidate, RequestFacts, Score


@dataclass(frozen=True)
class Regions:
    """What the configuration's `settings` may say."""

    allowed: dict[str, list[str]] = field(default_factory=dict)
    """The providers that a team's requests may go to, by team; a team that is not named may use all."""
    surcharge_nanousd: dict[str, int] = field(default_factory=dict)
    """By provider: its targets are compared as if each request cost so much more."""


class Residency:
    protocol = 1
    Settings = Regions

    def __init__(self, settings: Regions) -> None:
        self._settings = settings

    def score(self, facts: RequestFacts, candidates: Sequence[Candidate]) -> Sequence[Score]:
        allowed = self._settings.allowed.get(facts.team_id)
        found = []
        for each in candidates:
            if allowed is not None and each.provider not in allowed:
                found.append(Score(target_id=each.target_id, veto="its provider is outside the team's region"))
            elif (more := self._settings.surcharge_nanousd.get(each.provider, 0)) != 0:
                found.append(Score(target_id=each.target_id, margin_nanousd=more))
        return found
