"""Cache marks: a provider's prompt cache is used where it pays, as writing to it costs more than usual input, and
reading less.

The benefit is measured: the share of a team's requests that continue a recent conversation.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from cost.prices import Price
from proxy.plan.routing_config import CacheMarksConfig

_ENOUGH: Final = 20
"""The number of requests from which on a team's share is believed."""
_REMEMBERED: Final = 500
"""The number of requests at which the counts are halved, so that recent ones count more."""
_MAX_TEAMS: Final = 10_000


class Reuse(msgspec.Struct, frozen=True):
    """The chance that a request's prompt is cached."""

    share: float | None
    """The share of its team's requests that continue an earlier one; None before enough were seen."""
    at: str | None
    """The target that should have the beginning of this one cached; None for none."""


class ReuseShares:
    """The shares of all teams in this process."""

    def __init__(self) -> None:
        self._teams: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def note(self, team_id: str, *, again: bool) -> None:
        """Count a request that is long enough to be cached."""
        seen, repeated = self._teams.pop(team_id, (0, 0))
        if seen >= _REMEMBERED:
            seen, repeated = seen // 2, repeated // 2
        self._teams[team_id] = (seen + 1, repeated + again)
        if len(self._teams) > _MAX_TEAMS:
            self._teams.popitem(last=False)

    def reuse(self, team_id: str, target_id: str | None, marks: CacheMarksConfig) -> Reuse | None:
        """Count a request that is long enough to be cached, whose conversation `target_id` answered last, and return what is known of
        its reuse. None for teams that want no marks.
        """
        self.note(team_id, again=target_id is not None)
        if not marks.enabled or team_id in marks.off_for_teams:
            return None
        return Reuse(self.share(team_id), target_id)

    def share(self, team_id: str) -> float | None:
        seen, repeated = self._teams.get(team_id, (0, 0))
        return repeated / seen if seen >= _ENOUGH else None


def pays(reuse: Reuse, target_id: str, price: Price | None) -> bool:
    """Return True when a request that is long enough is marked for this target: a conversation that continues there,
    as without a mark nothing is read either, or one of a team whose prompts come again often enough for the price of
    writing.
    """
    if reuse.at == target_id:
        return True
    if price is None or reuse.share is None:
        return False
    saved = price.input_nanousd - price.cached_input_nanousd
    return reuse.share * saved > price.cache_write_nanousd - price.input_nanousd
