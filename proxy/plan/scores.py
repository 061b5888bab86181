"""What others may say of a request's targets before it is planned: a veto, or what one is to be compared as if it cost more."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec


class EligibleTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target that policy, budgets and the fleet allow for a request. Costs are nano-dollars, None without a price."""

    target_id: str
    provider: str
    own: bool
    expected_nanousd: int | None
    adequate: float | None
    max_context_tokens: int


class ScoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request and the targets that it may go to."""

    request_id: str
    organisation_id: str
    team_id: str
    key_id: str
    operation: str
    model: str
    tier: str
    stream: bool
    input_tokens: int
    tools: int
    images: int
    text: str
    """The last user message."""
    targets: tuple[EligibleTarget, ...]


class Scores(msgspec.Struct, frozen=True):
    """Vetoes with their reasons, and margins in nano-dollars, by target id. A target that a request may not go to gains nothing by one."""

    vetoes: Mapping[str, str]
    margins: Mapping[str, int]


NO_SCORES: Final = Scores({}, {})
Scoring = Callable[[ScoredRequest], Scores]
"""Says what there is to say of a request's targets. Never blocks, never raises."""
