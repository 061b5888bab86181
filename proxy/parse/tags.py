"""Bounds on the number of different tags per team, as each tag makes ledger roll-up rows of its own."""

from collections import OrderedDict
from typing import Final

from proxy.errors import BadRequest

_MAX_TAGS: Final = 1_000
"""The most tags per team and process. Stops request ids that are sent as tags by mistake."""
_MAX_TEAMS: Final = 10_000


class TagBounds:
    """Remembers the tags in use. A restart, or eviction beyond the bound of teams, forgets them."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, set[str]] = OrderedDict()

    def admit(self, team_id: str, tag: str) -> None:
        """Records a tag. Raises BadRequest when the team has too many."""
        tags = self._seen.get(team_id)
        if tags is None:
            tags = self._seen[team_id] = set()
            if len(self._seen) > _MAX_TEAMS:
                self._seen.popitem(last=False)
        if tag in tags:
            return
        if len(tags) >= _MAX_TAGS:
            raise BadRequest(
                f"Your team already uses {_MAX_TAGS} different tags. A tag names a feature or a project, not a request; "
                "send one of those in use, or none.",
                param="x-weighbridge-tag",
                code="too_many_tags",
            )
        tags.add(tag)
