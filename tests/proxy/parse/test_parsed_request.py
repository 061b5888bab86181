"""Tags are bounded in number."""

import pytest

from proxy.errors import BadRequest
from proxy.parse.parsed_request import TagBounds


def test_a_team_has_a_thousand_tags_and_no_more() -> None:
    """One too many is refused; those in use, and other teams', go on."""
    bounds = TagBounds()
    for number in range(1_000):
        bounds.admit("team_a", f"feature-{number}")
    with pytest.raises(BadRequest, match="1000 different tags"):
        bounds.admit("team_a", "one-more")
    bounds.admit("team_a", "feature-7")
    bounds.admit("team_b", "one-more")
