"""How many different tags a team may book under: a tag is a label in the books, and labels need a bound."""

from collections import OrderedDict
from typing import Final

from proxy.errors import BadRequest

_MAX_TAGS: Final = 1_000
"""A team and process. A request id sent as a tag by mistake would otherwise make a roll-up row of its own each time."""
_MAX_TEAMS: Final = 10_000


class TagBounds:
    """Remembers which tags were seen. What is forgotten, at a restart or beyond the bound of teams, may come anew."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, set[str]] = OrderedDict()

    def admit(self, team_id: str, tag: str) -> None:
        """Raises BadRequest for one tag too many."""
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
